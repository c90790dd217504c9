//! The programs of the object, what each hangs on and what follows when it cannot.

/// One BTF tracepoint program.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Function in the object.
    pub program: &'static str,
    /// Tracepoint.
    pub tracepoint: &'static str,
    /// Whether tracing is refused without it.
    pub mandatory: bool,
    /// What is lost without it.
    pub without: &'static str,
}

/// Every tracepoint program, in the order they are attached: time keeping first, so that the first socket operation
/// already has books.
pub const PROBES: &[Probe] = &[
    Probe { program: "switch", tracepoint: "sched_switch", mandatory: true, without: "no CPU or waiting times" },
    Probe { program: "waking", tracepoint: "sched_waking", mandatory: true, without: "no run-queue times" },
    Probe { program: "fork", tracepoint: "sched_process_fork", mandatory: true, without: "new processes unnamed" },
    Probe { program: "exec", tracepoint: "sched_process_exec", mandatory: true, without: "new programs unnamed" },
    Probe { program: "state", tracepoint: "inet_sock_set_state", mandatory: true, without: "connections have no end" },
    Probe { program: "arrived", tracepoint: "sk_data_ready", mandatory: false, without: "no socket queue times" },
    Probe {
        program: "consumed",
        tracepoint: "tcp_rcv_space_adjust",
        mandatory: false,
        without: "bodies received by splice are noticed late",
    },
    Probe {
        program: "submit",
        tracepoint: "io_uring_submit_req",
        mandatory: false,
        without: "io_uring requests are seen without their bytes",
    },
    Probe { program: "tx", tracepoint: "sock_send_length", mandatory: true, without: "nothing sent is seen" },
    Probe { program: "rx", tracepoint: "sock_recv_length", mandatory: true, without: "nothing received is seen" },
];

/// The perf-event program.
pub const SAMPLER: &str = "sample";
