//! Words that several layers share. Plain data: no behaviour beyond naming and formatting.

use std::fmt;
use std::sync::Arc;

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of every kernel record.
pub type Nanos = u64;

/// Which way bytes moved, seen from the process that owns the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received.
    Rx,
    /// Sent.
    Tx,
}

impl Direction {
    /// The other way.
    #[must_use]
    pub fn flip(self) -> Self {
        match self {
            Self::Rx => Self::Tx,
            Self::Tx => Self::Rx,
        }
    }
}

/// Which side of a request a unit of work is: the service that answers, or the call as its caller saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Entry port: requests come in.
    Server,
    /// Exit port: requests go out.
    Client,
}

impl Side {
    /// `server` or `client`, as OpenTelemetry spells span kinds.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// When the connection of a request was accepted, beside the arrival of the request's first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accepted {
    /// Before that byte arrived, or the request did not come in by a connection that was accepted.
    #[default]
    Before,
    /// After it, at this time.
    At(Nanos),
    /// After it; this kernel does not show when.
    Unseen,
}

/// Where a request waited before it was read. Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// From the arrival of its first byte until its connection was accepted.
    pub accept: u64,
    /// From then on in the socket, until the first byte was read.
    pub socket: u64,
}

impl Queues {
    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.accept += other.accept;
        self.socket += other.socket;
    }
}

/// How sure an attribution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grade {
    /// The entity read the request itself and runs one at a time.
    Certain,
    /// Later evidence from the other side agreed.
    Confirmed,
    /// Two different requests fit, or the evidence is one-sided.
    Ambiguous,
    /// No request fits.
    Orphan,
}

impl Grade {
    /// Every grade, best first.
    pub const ALL: [Self; 4] = [Self::Certain, Self::Confirmed, Self::Ambiguous, Self::Orphan];

    /// Label value of `tracer_attribution_total{grade}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Certain => "certain",
            Self::Confirmed => "confirmed",
            Self::Ambiguous => "ambiguous",
            Self::Orphan => "orphan",
        }
    }
}

/// A service: the processes that answer as one tier. Index into [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u32);

/// A request class of one service, protocol and side. Index into [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub u32);

/// W3C trace id. Displays as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// W3C parent (span) id: names a unit of work. Displays as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnitId(pub u64);

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a class is, for whoever shows it.
#[derive(Clone, Debug)]
pub struct ClassInfo {
    /// Owning service.
    pub service: ServiceId,
    /// Its name.
    pub service_name: Arc<str>,
    /// Protocol name, lower case.
    pub protocol: &'static str,
    /// Entry or exit port.
    pub side: Side,
    /// The request class: `GET /users/{id}`.
    pub name: Arc<str>,
    /// Path template without the method, for `http.route`; empty where the protocol has none.
    pub route: Arc<str>,
}

/// Names behind the ids. Append-only; owned by the pipeline, lent to sinks.
#[derive(Debug, Default)]
pub struct Names {
    /// By [`ServiceId`].
    pub services: Vec<Arc<str>>,
    /// By [`ClassId`].
    pub classes: Vec<ClassInfo>,
}

impl Names {
    /// The service's name; `"unknown"` for an id that was never given out.
    pub fn service(&self, id: ServiceId) -> Arc<str> {
        self.services.get(id.0 as usize).cloned().unwrap_or_else(|| Arc::from("unknown"))
    }

    /// What is known of a class.
    pub fn class(&self, id: ClassId) -> Option<&ClassInfo> {
        self.classes.get(id.0 as usize)
    }
}

/// CPU and waiting charged to something, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// On CPU.
    pub cpu: u64,
    /// Runnable, waiting for a CPU.
    pub runq: u64,
    /// Blocked while holding the request.
    pub blocked: u64,
    /// Context switches.
    pub switches: u64,
}

impl Cost {
    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.cpu += other.cpu;
        self.runq += other.runq;
        self.blocked += other.blocked;
        self.switches += other.switches;
    }
}

/// How a unit of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The whole reply was sent.
    Complete,
    /// The connection ended before the reply did.
    Aborted,
    /// The connection changed protocol (101, CONNECT): reported, then left alone.
    Upgraded,
    /// The end could not be seen (bytes lost, idle too long, tracing stopped): times are up to the last byte seen.
    Unfinished,
}

impl Outcome {
    /// Lower-case word, used in attributes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Aborted => "aborted",
            Self::Upgraded => "upgraded",
            Self::Unfinished => "unfinished",
        }
    }
}

/// What a unit has of the transaction it belongs to, beside its parent's name: from its own headers, or from its parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// W3C `tracestate`, as it was; empty when there was none, or it was too long.
    pub state: Box<str>,
    /// Members of W3C `baggage` that the configuration asks for: their names, and their values as they were
    /// (percent-encoded), bounded.
    pub baggage: Vec<(Arc<str>, Box<str>)>,
    /// The service class that a rule gave it or a request above it; empty where none did.
    pub service_class: Arc<str>,
}

/// The other end of a unit on another host, as that host's agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Far {
    /// The host, as it calls itself.
    pub host: Arc<str>,
    /// Server side: the caller's service and the class of its call; empty where they were not told.
    pub service: Arc<str>,
    /// See `service`.
    pub class: Arc<str>,
    /// Client side: how it went there.
    pub end: Option<FarEnd>,
}

/// How a request went on the host that served it. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarEnd {
    /// The unit there.
    pub unit: UnitId,
    /// First byte read to last byte written.
    pub duration: u64,
    /// Before that, in the socket.
    pub queue: u64,
    /// CPU charged to it.
    pub cpu: u64,
    /// What is left of the call: on the way there and back.
    pub network: u64,
    /// Whether it failed.
    pub error: bool,
}

/// Most links of one unit.
pub const LINKS: usize = 32;

/// What the messages carry that one request or reply brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Linked {
    /// Their producers, as they call themselves, each once: at most [`LINKS`].
    pub to: Vec<(TraceId, UnitId)>,
    /// More of them, as often as they were seen.
    pub dropped: u32,
    /// Messages that are known of and were not looked into: compressed, or not captured.
    pub unread: u32,
}

impl Linked {
    /// Takes what one message carries.
    pub fn add(&mut self, producer: (TraceId, UnitId)) {
        if self.to.contains(&producer) {
            return;
        }
        if self.to.len() < LINKS {
            self.to.push(producer);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A finished unit of work: what one request caused on one service. All times are [`Nanos`], 0 = not seen.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Its id (W3C parent id).
    pub id: UnitId,
    /// The transaction it belongs to.
    pub trace: TraceId,
    /// The unit that caused it, when known.
    pub parent: Option<UnitId>,
    /// Whoever produced the messages that are consumed or moved here, where they say so.
    pub linked: Option<Box<Linked>>,
    /// What named `parent`: a header (`traceparent`, `b3`), `connection`: the call at its other
    /// end, or `relay`: the same as another host's agent says. Empty where its grade
    /// and evidence say it.
    pub carrier: &'static str,
    /// Whether whoever sent it samples the transaction, where it says so.
    pub sampled: Option<bool>,
    /// What else it carried.
    pub carried: Option<Arc<Carried>>,
    /// Entry or exit port.
    pub side: Side,
    /// Protocol name.
    pub protocol: &'static str,
    /// The service.
    pub service: ServiceId,
    /// Its request class.
    pub class: ClassId,
    /// Process and thread that read (server) or sent (client) the request.
    pub pid: u32,
    /// Thread of `pid`.
    pub tid: u32,
    /// Socket it went over.
    pub cookie: u64,
    /// Method, command or verb.
    pub method: Arc<str>,
    /// Path without the query string; literals stay out of labels. Of a database's query its summary.
    pub path: Arc<str>,
    /// Protocol version as written, e.g. `1.1`.
    pub version: &'static str,
    /// Local port of the socket (0 for UNIX).
    pub local_port: u16,
    /// Remote address as text (empty for UNIX) and port.
    pub peer: Arc<str>,
    /// Remote port.
    pub peer_port: u16,
    /// First byte arrived in the socket (server side; 0 when not known).
    pub arrived: Nanos,
    /// Whether its connection was accepted by then.
    pub accepted: Accepted,
    /// Time its jobs waited for threads of pools while its own thread slept; `None` without such jobs, and where it is not
    /// certain. Nanoseconds.
    pub pool_queue: Option<u64>,
    /// First byte read (server) or sent (client).
    pub start: Nanos,
    /// First byte of the reply sent (server) or read (client); 0 when there was none.
    pub first_reply: Nanos,
    /// Last byte of the reply, or what ended the unit.
    pub end: Nanos,
    /// Bytes of the request, head and body.
    pub request_bytes: u64,
    /// Bytes of the reply, head and body.
    pub reply_bytes: u64,
    /// Bytes of the reply after its head, as carried on the connection (chunk framing included); `None` when
    /// the head was longer than what was captured.
    pub reply_body_bytes: Option<u64>,
    /// Status code, when a reply was seen and the protocol has such codes.
    pub status: Option<u16>,
    /// Kind of failure where the reply says it by a word: `WRONGTYPE`.
    pub failure: Option<&'static str>,
    /// Whether it counts as failed (5xx on a server, 4xx and 5xx on a client, a failure by a word, aborted).
    pub error: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// CPU and waiting charged to it.
    pub cost: Cost,
    /// Time in which at least one downstream call of it was open, nanoseconds.
    pub downstream: u64,
    /// How sure `parent` is (client side) or that its thread was its own (server side).
    pub grade: Grade,
    /// The evidence for `grade`, in one word or two.
    pub evidence: &'static str,
    /// Its other end, where that is on another host with an agent.
    pub far: Option<Box<Far>>,
    /// `X-Request-ID`, bounded, where the configuration asks for it.
    pub request_id: Option<Arc<str>>,
}

impl Unit {
    /// First byte read to last byte of the reply, nanoseconds.
    pub fn duration(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Time from the arrival of the first byte until it was read, nanoseconds; 0 when not known.
    pub fn queue(&self) -> u64 {
        if self.arrived == 0 { 0 } else { self.start.saturating_sub(self.arrived) }
    }

    /// [`Unit::queue`] by where it was spent; `None` when that is not known.
    pub fn queues(&self) -> Option<Queues> {
        let accept = match self.accepted {
            _ if self.arrived == 0 => return None,
            Accepted::Before => 0,
            Accepted::At(at) => at.saturating_sub(self.arrived).min(self.queue()),
            Accepted::Unseen => return None,
        };
        Some(Queues { accept, socket: self.queue() - accept })
    }

    /// The one table a database's query is about, where it is one (`db.collection.name`): what its summary, the path,
    /// has after the operation.
    pub fn collection(&self) -> Option<&str> {
        let rest = self.path.strip_prefix(&*self.method)?.strip_prefix(' ')?;
        (!rest.is_empty() && !rest.contains(' ')).then_some(rest)
    }
}

/// Whom CPU (or a sample) was charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A request class.
    Class(ClassId),
    /// A service, for no request: its named overhead.
    Overhead(ServiceId),
    /// Kernel threads.
    Kernel,
}

/// A stack as the kernel gave it, with whom it was charged to.
#[derive(Clone, Debug)]
pub struct StackSample {
    /// When.
    pub nanos: Nanos,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// What it stands for: the sampling period in force, nanoseconds.
    pub weight: u64,
    /// User-space return addresses, innermost first.
    pub user: Vec<u64>,
    /// Kernel return addresses, innermost first.
    pub kernel: Vec<u64>,
    /// Whom the sample belongs to.
    pub owner: Owner,
    /// The unit of work it was taken in, when it was one.
    pub unit: Option<UnitId>,
}

/// Seconds of CPU on this host by kind, since tracing began; what [`capture ratio`](HostBooks::capture_ratio) is of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostBooks {
    /// Charged to request classes.
    pub requests: f64,
    /// Charged to services (and other processes) but to no request.
    pub overhead: f64,
    /// Kernel threads.
    pub kernel: f64,
    /// Counted by the scheduler hook but not yet reported per thread.
    pub unreported: f64,
    /// Idle, by the scheduler hook.
    pub idle: f64,
    /// Busy, by the system (`/proc/stat`: user, nice, system, irq, softirq, steal), over the same time.
    pub system_busy: f64,
}

impl HostBooks {
    /// CPU attributed (classes, named overhead, kernel) ÷ CPU the system says was used; `None` before any was used.
    pub fn capture_ratio(&self) -> Option<f64> {
        let attributed = self.requests + self.overhead + self.kernel + self.unreported;
        (self.system_busy > 0.0).then(|| attributed / self.system_busy)
    }
}

/// Takes what has been classed. Sinks never see each other and send nothing back.
pub trait Sink {
    /// A unit of work is finished.
    fn unit(&mut self, names: &Names, unit: &Unit) {
        let _ = (names, unit);
    }
    /// CPU or waiting was charged. Called also for work after a unit was reported, so sums of this are exact while a
    /// unit's own `cost` is what was known when it was reported.
    fn cost(&mut self, names: &Names, owner: Owner, cost: Cost) {
        let _ = (names, owner, cost);
    }
    /// A stack was sampled.
    fn sample(&mut self, names: &Names, sample: &StackSample) {
        let _ = (names, sample);
    }
    /// About once a second.
    fn tick(&mut self, now: Nanos) {
        let _ = now;
    }
}
