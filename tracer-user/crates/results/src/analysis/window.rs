//! What the detector learns from: one window of a host, by service and request class.

/// Groups of requests of a class by payload size.
pub const STRATA: usize = 3;

/// One window of one host. CPU in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// Its start, nanoseconds since the epoch.
    pub start_ns: u64,
    /// Its length, seconds.
    pub length_s: f64,
    /// CPUs of the host.
    pub cores: f64,
    /// CPU used by everything.
    pub busy_s: f64,
    /// CPU of processes that serve no traced requests.
    pub foreign_s: f64,
    /// CPU that the hypervisor took.
    pub steal_s: f64,
    /// Share of events that were lost, 0 to 1.
    pub loss: f64,
    /// Its services.
    pub services: Vec<ServiceWindow>,
}

/// One service in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceWindow {
    /// Its name.
    pub service_name: String,
    /// Changes with its program, its command line or its main script.
    pub identity: u64,
    /// Starts of its program in this window.
    pub starts: u32,
    /// Whether requests enter the host here. Only there is a change of load news; inside it follows from the callers.
    pub entry: bool,
    /// Services of this host that it calls, as far as known.
    pub callees: Vec<String>,
    /// CPU outside any request, seconds.
    pub overhead_s: f64,
    /// Share of its requests whose CPU may be another's, 0 to 1.
    pub ambiguous: f64,
    /// Its request classes.
    pub classes: Vec<ClassWindow>,
}

impl ClassWindow {
    /// Adds the sums of `other`.
    pub fn add(&mut self, other: &Self) {
        for k in 0..STRATA {
            self.count[k] += other.count[k];
            self.cpu_s[k] += other.cpu_s[k];
        }
        self.cpu_s_squared += other.cpu_s_squared;
        self.blocked_s += other.blocked_s;
        self.queue_s += other.queue_s;
        self.calls += other.calls;
        self.downstream_s += other.downstream_s;
    }
}

/// One request class in a window: sums over the requests that finished, seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassWindow {
    /// Its name.
    pub request_class: String,
    /// Requests, by payload size.
    pub count: [f64; STRATA],
    /// Their CPU.
    pub cpu_s: [f64; STRATA],
    /// Sum of the squares of their CPU.
    pub cpu_s_squared: f64,
    /// Time blocked other than for calls.
    pub blocked_s: f64,
    /// Time in the socket's queue and in the run queue.
    pub queue_s: f64,
    /// Calls made.
    pub calls: f64,
    /// Time spent waiting for them.
    pub downstream_s: f64,
}
