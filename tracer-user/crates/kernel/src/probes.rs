//! The object's programs, their hooks, and the consequence if a program cannot be attached.
//!
//! Availability comes from the kernel's BTF, never from its version number.

use super::btf::Btf;

/// A hook for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A BTF tracepoint.
    Tracepoint(&'static str),
    /// A tracepoint with this many arguments, which differ between kernels.
    TracepointOf(&'static str, u32),
    /// A tracepoint whose programs this kernel can preempt.
    Preemptible(&'static str),
    /// Entry of a kernel function.
    Entry(&'static str),
    /// Exit of a kernel function.
    Exit(&'static str),
}

impl Hook {
    /// Name of the tracepoint or function.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tracepoint(name)
            | Self::TracepointOf(name, _)
            | Self::Preemptible(name)
            | Self::Entry(name)
            | Self::Exit(name) => name,
        }
    }

    /// Whether the kernel has the hook.
    pub fn exists(self, btf: &Btf) -> bool {
        match self {
            Self::Tracepoint(name) => btf.has_tracepoint(name),
            Self::Preemptible(name) => btf.has_tracepoint(name) && preempts_programs(btf),
            Self::TracepointOf(name, arguments) => btf.tracepoint_arguments(name) == Some(arguments),
            Self::Entry(name) | Self::Exit(name) => btf.has_function(name),
        }
    }
}

/// Whether the kernel can preempt tracepoint programs. Until a preempted program ends, the kernel skips it for other
/// threads on that CPU.
pub fn preempts_programs(btf: &Btf) -> bool {
    // This type came with the SRCU guard that tracepoints use since they no longer disable preemption.
    btf.has_typedef("class_srcu_fast_notrace_t")
}

/// The event that makes a deferred program necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Bytes left a socket without a reported operation: they were spliced.
    Spliced,
    /// The kernel skipped a program.
    Skipped,
    /// Who wakes which thread is wanted: a process that serves requests makes its calls from threads that hold no request, or time
    /// off the CPU is reported.
    WakeUps,
    /// Never by itself: another program tail-calls it.
    Called,
}

/// A program and its hooks.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Its function in the object.
    pub program: &'static str,
    /// Possible hooks; the first that the kernel has is used.
    pub hooks: &'static [Hook],
    /// The program whose work it does in part if the kernel has no hook for that one.
    pub instead_of: Option<&'static str>,
    /// Whether tracing is refused without it; if it is tail-called, where its hook exists.
    pub mandatory: bool,
    /// Attached once this event shows that it is needed, and free before; `None` attaches at start.
    pub until: Option<Until>,
    /// What is lost without it.
    pub without: &'static str,
}

const fn at(program: &'static str, hooks: &'static [Hook], mandatory: bool, without: &'static str) -> Probe {
    Probe { program, hooks, instead_of: None, mandatory, until: None, without }
}

const fn instead(
    of: &'static str,
    program: &'static str,
    hooks: &'static [Hook],
    mandatory: bool,
    without: &'static str,
) -> Probe {
    Probe { program, hooks, instead_of: Some(of), mandatory, until: None, without }
}

const fn second(program: &'static str, hooks: &'static [Hook]) -> Probe {
    let without = "operations for which the kernel skips the first program are not seen";
    Probe { until: Some(Until::Skipped), ..at(program, hooks, false, without) }
}

const ACCEPT: &str = "time in the accept queue is not distinguished from time in the socket queue";

const RUSTLS: &str = "what programs send by rustls shows round trips only";

const CALLS: &str = "which lines make calls is not seen";

const COUNTING: &str = "where user space cannot keep up, requests are lost instead of only counted";

const fn called(program: &'static str, hooks: &'static [Hook]) -> Probe {
    let without = "of several long bodies at once on one HTTP/2 connection the ends are not seen";
    Probe { until: Some(Until::Called), ..at(program, hooks, false, without) }
}

const fn called_instead(of: &'static str, program: &'static str, hooks: &'static [Hook]) -> Probe {
    Probe { instead_of: Some(of), ..called(program, hooks) }
}

/// Every program except the sampler, in the order of attaching: time keeping first, so that the first socket operation
/// already has counters.
pub const PROBES: &[Probe] = &[
    at("switch", &[Hook::Tracepoint("sched_switch")], true, "no CPU or waiting times"),
    at("fork", &[Hook::Tracepoint("sched_process_fork")], true, "new processes unnamed"),
    at("exec", &[Hook::Tracepoint("sched_process_exec")], true, "new programs unnamed"),
    at("state", &[Hook::Tracepoint("inet_sock_set_state")], true, "connections have no end"),
    at("arrived", &[Hook::Tracepoint("sk_data_ready")], false, "no socket queue times"),
    instead("arrived", "arrived_entry", &[Hook::Entry("sock_def_readable")], false, "no socket queue times"),
    // No tracepoint reports accepted connections.
    at("accepted", &[Hook::Exit("inet_accept")], false, ACCEPT),
    at("accepted_unix", &[Hook::Exit("unix_accept")], false, ACCEPT),
    // Runs for every receive on every TCP socket but only reports splices, so it is attached at the first of them.
    Probe {
        until: Some(Until::Spliced),
        ..at(
            "consumed",
            &[Hook::Tracepoint("tcp_rcv_space_adjust")],
            false,
            "bodies received by splice are noticed late",
        )
    },
    at(
        "submit",
        &[Hook::Tracepoint("io_uring_submit_req"), Hook::TracepointOf("io_uring_submit_sqe", 2)],
        false,
        "io_uring requests are seen without their bytes",
    ),
    at("tx", &[Hook::Tracepoint("sock_send_length")], true, "nothing sent is seen"),
    instead("tx", "inet_sendmsg", &[Hook::Exit("inet_sendmsg")], true, "nothing sent by IPv4 is seen"),
    instead("tx", "inet6_sendmsg", &[Hook::Exit("inet6_sendmsg")], false, "nothing sent by IPv6 is seen"),
    instead("tx", "unix_sendmsg", &[Hook::Exit("unix_stream_sendmsg")], true, "nothing sent by UNIX sockets is seen"),
    instead("tx", "inet_sendpage", &[Hook::Exit("inet_sendpage")], false, "none: sendfile is seen as sendmsg"),
    instead("tx", "unix_sendpage", &[Hook::Exit("unix_stream_sendpage")], false, "none: sendfile is seen as sendmsg"),
    at("rx", &[Hook::Tracepoint("sock_recv_length")], true, "nothing received is seen"),
    instead("rx", "inet_recvmsg", &[Hook::Exit("inet_recvmsg")], true, "nothing received by IPv4 is seen"),
    instead("rx", "inet6_recvmsg", &[Hook::Exit("inet6_recvmsg")], false, "nothing received by IPv6 is seen"),
    instead(
        "rx",
        "unix_recvmsg",
        &[Hook::Exit("unix_stream_recvmsg")],
        true,
        "nothing received by UNIX sockets is seen",
    ),
    Probe {
        until: Some(Until::WakeUps),
        ..at(
            "waking",
            &[Hook::Tracepoint("sched_waking")],
            false,
            "calls that a pool's thread makes for a request are orphans, and waits include the run queue",
        )
    },
    Probe { without: "no stacks of threads off the CPU", ..called("off_cpu", &[Hook::Tracepoint("sched_switch")]) },
    Probe { without: "who ended a wait is not seen", ..called("off_cpu_waking", &[Hook::Tracepoint("sched_waking")]) },
    // After the programs they back up, whose state they check.
    second("tx_again", &[Hook::Preemptible("sock_send_length")]),
    second("rx_again", &[Hook::Preemptible("sock_recv_length")]),
    called("frames_tx", &[Hook::Tracepoint("sock_send_length")]),
    called_instead("frames_tx", "frames_sent", &[Hook::Exit("inet_sendmsg")]),
    called_instead("frames_tx", "frames_unix_sent", &[Hook::Exit("unix_stream_sendmsg")]),
    called("frames_rx", &[Hook::Tracepoint("sock_recv_length")]),
    called_instead("frames_rx", "frames_received", &[Hook::Exit("inet_recvmsg")]),
    called_instead("frames_rx", "frames_unix_received", &[Hook::Exit("unix_stream_recvmsg")]),
    Probe { without: RUSTLS, ..called("text_sent", &[Hook::Tracepoint("sock_send_length")]) },
    Probe { without: RUSTLS, ..called_instead("text_sent", "text_sent_exit", &[Hook::Exit("inet_sendmsg")]) },
    Probe { mandatory: true, without: COUNTING, ..called("report_tx", &[Hook::Tracepoint("sock_send_length")]) },
    Probe { mandatory: true, without: COUNTING, ..called("report_rx", &[Hook::Tracepoint("sock_recv_length")]) },
    Probe { without: CALLS, ..called("call_stack", &[Hook::Tracepoint("sock_send_length")]) },
    Probe { without: CALLS, ..called_instead("call_stack", "call_stack_sent", &[Hook::Exit("inet_sendmsg")]) },
    Probe {
        without: CALLS,
        ..called_instead("call_stack", "call_stack_unix_sent", &[Hook::Exit("unix_stream_sendmsg")])
    },
];

/// Tail-called programs and their program arrays.
pub const CALLED: [(&str, &str); 20] = [
    (FRAMES_TEXT, "FRAMES_TEXT"),
    (EXCEPTION_STACK, "EXCEPTION_STACK"),
    (PYTHON_TRACEBACK, "PYTHON_TRACEBACK"),
    ("frames_tx", "FRAMES_TX"),
    ("frames_sent", "FRAMES_TX"),
    ("frames_rx", "FRAMES_RX"),
    ("frames_received", "FRAMES_RX"),
    ("frames_unix_sent", "FRAMES_TX_UNIX"),
    ("frames_unix_received", "FRAMES_RX_UNIX"),
    ("text_sent", "TEXT_SENT"),
    ("text_sent_exit", "TEXT_SENT"),
    ("call_stack", "CALL_STACK"),
    ("call_stack_sent", "CALL_STACK"),
    ("call_stack_unix_sent", "CALL_STACK_UNIX"),
    ("off_cpu", "OFF_CPU"),
    ("off_cpu_waking", "OFF_CPU_WAKING"),
    ("report_tx", "REPORT_TX"),
    ("report_rx", "REPORT_RX"),
    // Attached, and tail-called besides.
    ("tx", "COUNT_TX"),
    ("rx", "COUNT_RX"),
];

/// The program that user-space probes tail-call; not in [`PROBES`], because it has no hook.
pub const FRAMES_TEXT: &str = "frames_text";
/// Likewise, of functions that throw exceptions.
pub const EXCEPTION_STACK: &str = "exception_stack";
/// Likewise, of Python.
pub const PYTHON_TRACEBACK: &str = "python_traceback";

/// The perf-event program.
pub const SAMPLER: &str = "sample";

/// A probe as planned for this kernel.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The probe.
    pub probe: &'static Probe,
    /// Its hook, if there is one.
    pub hook: Option<Hook>,
}

impl Plan {
    /// Whether nothing can be traced for want of its hook. What is only called stands behind programs with the same one.
    pub fn lacks_hook(&self) -> bool {
        self.hook.is_none() && self.probe.mandatory && self.probe.until != Some(Until::Called)
    }
}

/// The probes to attach on this kernel: alternatives only if the first choice is missing. Omits a missing probe if
/// others do its work.
pub fn plan(btf: &Btf) -> Vec<Plan> {
    let hook = |probe: &Probe| probe.hooks.iter().copied().find(|hook| hook.exists(btf));
    let first = |program: &str| PROBES.iter().find(|p| p.program == program).is_some_and(|p| hook(p).is_some());
    let replaced = |program: &str| {
        let all = || PROBES.iter().filter(|p| p.instead_of == Some(program));
        all().any(|p| hook(p).is_some()) && all().all(|p| !p.mandatory || hook(p).is_some())
    };
    let wanted = |probe: &&Probe| match probe.instead_of {
        Some(of) => !first(of) && replaced(of),
        None => hook(probe).is_some() || (!replaced(probe.program) && probe.until != Some(Until::Skipped)),
    };
    PROBES.iter().filter(wanted).map(|probe| Plan { probe, hook: hook(probe) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_is_covered_one_way() {
        let Ok(btf) = Btf::of_kernel() else {
            println!("SKIPPED kernel::probes: this kernel offers no BTF");
            return;
        };
        let plan = plan(&btf);
        let has = |program: &str| plan.iter().any(|p| p.probe.program == program && p.hook.is_some());
        assert!(has("tx") != has("inet_sendmsg"), "each operation is seen once: {plan:?}");
        assert!(has("rx") != has("inet_recvmsg"), "{plan:?}");
    }

    #[test]
    fn alternatives_name_a_program() {
        for probe in PROBES {
            assert!(!probe.hooks.is_empty());
            assert!(probe.instead_of.is_none_or(|of| PROBES.iter().any(|p| p.program == of)), "{}", probe.program);
        }
    }
}
