//! Reports what the running kernel supports: each feature is full, degraded or missing, with the consequence for the
//! results and the remedy.
//!
//! Judged from evidence only (attached programs, the self-test, a few files), never from a version number.

use std::fs;

use tracer_common::runtime::UserProbe;

use super::btf::Btf;
use super::loader::Attached;
use super::probes::{SAMPLER, preempts_programs};
use super::selftest::Finding;
use super::{header, inband, selftest, send_priority};

/// How much of a feature works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FeatureState {
    /// All of it works.
    Full,
    /// Part of it works; the feature says what is lost.
    Degraded,
    /// It does not work.
    Missing,
}

impl FeatureState {
    /// Its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }
}

/// A feature as this kernel supports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name, the same on every kernel.
    pub name: &'static str,
    /// How much of it works.
    pub state: FeatureState,
    /// How it works here, or what prevents it.
    pub detail: String,
    /// The consequence for the results; empty if it is full.
    pub consequence: String,
    /// The remedy; empty if there is none or none is needed.
    pub remedy: String,
}

impl Feature {
    /// A feature that works in full.
    pub fn full(name: &'static str, detail: impl Into<String>) -> Self {
        let (consequence, remedy) = (String::new(), String::new());
        Self { name, state: FeatureState::Full, detail: detail.into(), consequence, remedy }
    }

    /// A degraded or missing feature, with its consequence and remedy.
    pub fn less(
        name: &'static str,
        state: FeatureState,
        detail: impl Into<String>,
        follows: &str,
        remedy: &str,
    ) -> Self {
        Self { name, state, detail: detail.into(), consequence: follows.into(), remedy: remedy.into() }
    }

    /// The feature in one line, for people.
    pub fn line(&self) -> String {
        let mut line = format!("{:<9} {:<20} {}", self.state.name(), self.name, self.detail);
        if !self.consequence.is_empty() {
            line.push_str(&format!("; so {}", self.consequence));
        }
        if !self.remedy.is_empty() {
            line.push_str(&format!(". Remedy: {}", self.remedy));
        }
        line
    }
}

/// The system settings that features depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `/proc/sys/net/core/bpf_jit_enable` is 0.
    pub interpreted: bool,
    /// `/proc/sys/kernel/bpf_stats_enabled` is 1.
    pub statistics: bool,
    /// Mode of the lockdown module, if it exists.
    pub lockdown: Option<String>,
    /// `/proc/kallsyms` shows addresses.
    pub kernel_symbols: bool,
    /// The system's CPU time is a sum of run times, not counted by ticks.
    pub exact_cpu: bool,
    /// The kernel counts the runs of a program that it skipped.
    pub counts_skips: bool,
    /// The kernel counts how long each thread waited for a CPU.
    pub counts_run_delay: bool,
    /// The kernel can preempt tracepoint programs.
    pub preempts_programs: bool,
    /// Whether the kernel counts the bytes of MPTCP connections; `None`: it has no MPTCP.
    pub counts_mptcp: Option<bool>,
    /// Sockets that move bytes by shared memory (SMC) now.
    pub smc_sockets: u64,
    /// Why nothing can be attached to the cgroup root, if it cannot.
    pub no_groups: Option<String>,
    /// Kinds of sockets whose requests get no headers on this kernel, and why.
    pub header_limits: Vec<String>,
    /// Why stacks are not walked by unwind tables, if they are not.
    pub no_unwind: Option<String>,
    /// Why the sampling rate cannot be changed while sampling, if it cannot.
    pub fixed_rate: Option<String>,
}

impl Settings {
    /// Reads the settings from files and merges `of_types` ([`Settings::of_types`]).
    pub fn read(of_types: &Self, exact_cpu: bool) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").ok();
        Self {
            interpreted: text("/proc/sys/net/core/bpf_jit_enable").trim() == "0",
            statistics: text("/proc/sys/kernel/bpf_stats_enabled").trim() == "1",
            lockdown: lockdown.and_then(|modes| Some(modes.split(['[', ']']).nth(1)?.to_owned())),
            kernel_symbols: shows_addresses(),
            exact_cpu,
            smc_sockets: sockets_of("SMC", &text("/proc/net/protocols")),
            no_groups: inband::root().err(),
            ..of_types.clone()
        }
    }

    /// The settings that the kernel's types show.
    pub fn of_types(btf: &Btf) -> Self {
        Self {
            counts_skips: btf.offset("bpf_prog_info", "recursion_misses").is_some(),
            counts_run_delay: btf.offset("task_struct", "sched_info.run_delay").is_some(),
            preempts_programs: preempts_programs(btf),
            counts_mptcp: btf.offset("mptcp_sock", "local_key").map(|_| {
                ["bytes_sent", "bytes_consumed"].iter().all(|member| btf.offset("mptcp_sock", member).is_some())
            }),
            ..Self::default()
        }
    }
}

/// Sockets of a protocol, of which `/proc/net/protocols` may have several lines: name, size, sockets.
fn sockets_of(protocol: &str, protocols: &str) -> u64 {
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let is_it = words.next().is_some_and(|name| name.trim_end_matches('6') == protocol);
        is_it.then(|| words.nth(1)?.parse::<u64>().ok()).flatten()
    };
    protocols.lines().filter_map(of_line).sum()
}

/// Whether `/proc/kallsyms` shows more than zeros. Reads only its first lines: the file has megabytes.
fn shows_addresses() -> bool {
    use std::io::{BufRead, BufReader};
    let Ok(file) = fs::File::open("/proc/kallsyms") else { return false };
    let lines = BufReader::new(file).lines().take(64).map_while(Result::ok);
    lines.into_iter().any(|line| line.split(' ').next().is_some_and(|at| at.chars().any(|c| c != '0')))
}

/// Judges every feature, in order of importance: visibility, then times, CPU and stacks, then cost.
pub fn judge(attached: &[Attached], findings: &[Finding], settings: &Settings) -> Vec<Feature> {
    let on = |program: &str| attached.iter().find(|a| a.program == program && a.missing.is_none()).map(|a| a.hook);
    let why = |programs: &[&str]| {
        let missing = attached.iter().find(|a| programs.contains(&a.program) && a.missing.is_some());
        missing.and_then(|a| a.missing.clone()).unwrap_or_else(|| "this kernel has no hook for it".into())
    };
    let mut features = vec![hooks(&on)];
    features.extend(findings.iter().map(sockets));
    features.push(match (on("tx"), on("inet6_sendmsg"), on("inet6_recvmsg")) {
        (Some(_), ..) | (None, Some(_), Some(_)) => Feature::full("IPv6", "by the same hooks as IPv4"),
        _ => Feature::less(
            "IPv6",
            FeatureState::Missing,
            why(&["inet6_sendmsg", "inet6_recvmsg"]),
            "requests over IPv6 are not seen",
            "a kernel with IPv6 built in, or nothing to do where IPv6 is not used",
        ),
    });
    features.extend(connections_beside_tcp(settings));
    features.push(match on("submit") {
        Some(hook) => Feature::full(
            "io_uring",
            format!(
                "buffers by {hook}; not those of registered files and provided buffers, which are seen without bytes"
            ),
        ),
        None => Feature::less(
            "io_uring",
            FeatureState::Degraded,
            why(&["submit"]),
            "what is sent and received by io_uring is seen as bytes moved, without method, path or status",
            "servers can be configured to use epoll",
        ),
    });
    features.push(match on("consumed") {
        Some(hook) => Feature::full("TCP splice", format!("splice(2) out of a TCP socket by {hook}")),
        None => Feature::less(
            "TCP splice",
            FeatureState::Degraded,
            why(&["consumed"]),
            "bodies received by splice(2) are noticed only with the next operation on their connection",
            "",
        ),
    });
    features.push(Feature::less(
        "UNIX splice",
        FeatureState::Degraded,
        "no hook reports splice(2) out of a UNIX socket",
        "replies taken whole that way are not seen at the end that takes them",
        "",
    ));
    features.push(match on("arrived").or_else(|| on("arrived_entry")) {
        Some(hook) => Feature::full("arrival times", format!("by {hook}")),
        None => Feature::less(
            "arrival times",
            FeatureState::Degraded,
            why(&["arrived", "arrived_entry"]),
            "durations begin when the server reads: the time a request waits in its socket's queue is not in them",
            "",
        ),
    });
    features.push(match (on("accepted"), on("accepted_unix")) {
        (Some(tcp), Some(unix)) => Feature::full("accept queue", format!("by the ends of {tcp} and {unix}")),
        _ => Feature::less(
            "accept queue",
            FeatureState::Degraded,
            why(&["accepted", "accepted_unix"]),
            "of a request that arrived before its connection was accepted the time until it was read is one (queue), not \
             that in the accept queue and that in the socket's; of all others it is the socket's",
            "a kernel that lets BPF hang on function exits",
        ),
    });
    features.extend(super::log_lines::feature(attached));
    features.push(match on("waking") {
        Some(hook) => {
            Feature::full("pools of threads", format!("who waits for whose result, by {hook}, when it is needed"))
        }
        None => Feature::less(
            "pools of threads",
            FeatureState::Missing,
            why(&["waking"]),
            "calls that a pool's thread makes for a request are orphans",
            "",
        ),
    });
    features.push(match on("switch") {
        Some(_) if settings.counts_run_delay => {
            Feature::full("waiting times", "on CPU, run queue and blocked, by the scheduler")
        }
        Some(_) => Feature::less(
            "waiting times",
            FeatureState::Degraded,
            "this kernel does not count how long a thread waits for a CPU",
            "the time a request waits for a CPU is shown as blocked",
            "a kernel with CONFIG_SCHED_INFO",
        ),
        None => Feature::less(
            "waiting times",
            FeatureState::Missing,
            why(&["switch"]),
            "a request's time is not split into running and waiting, and CPU is unattributed",
            "",
        ),
    });
    features.push(if settings.exact_cpu {
        Feature::full("CPU accounting", "compared with the scheduler's own sum of run times")
    } else {
        Feature::less(
            "CPU accounting",
            FeatureState::Degraded,
            "neither a cpuacct hierarchy nor /proc/schedstat tells the host's run time",
            "the capture ratio compares with /proc/stat, which counts by ticks and can be off by some percent; CPU per class is exact all the same",
            "mount -t cgroup -o cpuacct, or a kernel with CONFIG_SCHEDSTATS",
        )
    });
    features.push(stacks(on(SAMPLER), settings, &why(&[SAMPLER])));
    if on(SAMPLER).is_some() {
        features.push(overhead_budget(settings.fixed_rate.as_deref()));
    }
    features.push(if settings.counts_skips {
        Feature::full(
            "skip counters",
            "runs the kernel skipped are counted; TCP's sequence numbers show what was missed",
        )
    } else {
        Feature::less(
            "skip counters",
            FeatureState::Degraded,
            "this kernel does not count the runs of programs that it skips",
            "only what moved TCP's sequence numbers unseen is counted as skipped",
            "",
        )
    });
    features.push(if settings.preempts_programs {
        Feature::less(
            "no skipped runs",
            FeatureState::Degraded,
            "this kernel can preempt a program, and skips it until it ends for other threads on that CPU",
            "a second program on the same hook takes over from the first skip on; an operation now and then is not seen \
             when it happens: TCP's sequence numbers show it, and hook_skipped counts it",
            "",
        )
    } else {
        Feature::full("no skipped runs", "programs run to their end before anything else runs on their CPU")
    });
    features.push(probes_in_programs(attached));
    features.push(tcp_option(on(inband::PROGRAM), settings, &why(&inband::PROGRAMS)));
    let headers = on(header::SOCKETS).and(on(header::PROGRAM));
    features.push(traceparent(headers, settings, &why(&[header::SOCKETS, header::PROGRAM])));
    features.push(network_priority(on(send_priority::PROGRAM), settings, &why(&[send_priority::PROGRAM])));
    let not_compiled = attached.iter().any(|a| a.missing.is_none() && a.built.jited.is_none());
    features.push(if settings.interpreted || not_compiled {
        Feature::less(
            "compiled programs",
            FeatureState::Degraded,
            "the kernel interprets BPF programs",
            "each event costs several times what it could, and function exits cannot be hooked",
            "sysctl net.core.bpf_jit_enable=1",
        )
    } else {
        Feature::full("compiled programs", "every program runs as machine code")
    });
    features.extend(hindrances(settings));
    features
}

fn hooks(on: &impl Fn(&str) -> Option<&'static str>) -> Feature {
    match (on("tx"), on("rx"), on("inet_sendmsg"), on("inet_recvmsg")) {
        (Some(tx), Some(rx), ..) => Feature::full("socket hooks", format!("tracepoints {tx} and {rx}")),
        (tx, rx, sends, receives) if (tx.or(sends)).is_some() && (rx.or(receives)).is_some() => Feature::less(
            "socket hooks",
            FeatureState::Degraded,
            "this kernel has no sock_send_length and sock_recv_length: function exits stand in",
            "a read that began before the agent is not seen, and an operation costs more; everything else is the same",
            "a kernel with these tracepoints (6.3 or later)",
        ),
        _ => Feature::less(
            "socket hooks",
            FeatureState::Missing,
            "neither tracepoints nor function exits",
            "no request is seen",
            "a kernel with these tracepoints (6.3 or later), or one that lets BPF hang on function exits",
        ),
    }
}

/// The self-test's result for one kind of socket.
fn sockets(finding: &Finding) -> Feature {
    let name = match finding.family {
        "tcp" => "TCP sockets",
        "unix" => "UNIX sockets",
        _ => "UDP sockets",
    };
    match &finding.fault {
        None => Feature::full(name, "self-test: every operation seen exactly once, with its bytes"),
        Some(fault) if finding.family == selftest::UDP => Feature::less(
            name,
            FeatureState::Missing,
            format!("self-test: {fault}"),
            "DNS questions over UDP would be lost or wrong, and the agent is not ready",
            "report this line; where `dns_ports` is [] (docs/configuration.md) nothing over UDP is read, and the agent is \
             ready",
        ),
        Some(fault) => Feature::less(
            name,
            FeatureState::Missing,
            format!("self-test: {fault}"),
            "requests over such sockets would be lost or wrong, and the agent is not ready",
            "report this line: the kernel moves bytes in a way the hooks do not show",
        ),
    }
}

fn stacks(sampler: Option<&'static str>, settings: &Settings, why: &str) -> Feature {
    match sampler {
        None => Feature::less("stacks", FeatureState::Missing, why, "there are no flame graphs", ""),
        Some(_) if !settings.kernel_symbols => Feature::less(
            "stacks",
            FeatureState::Degraded,
            "/proc/kallsyms hides addresses",
            "frames of the kernel have no names in flame graphs",
            "sysctl kernel.kptr_restrict=1",
        ),
        Some(hook) => match &settings.no_unwind {
            None => Feature::full("stacks", format!("sampled by {hook}, walked by unwind tables and frame pointers")),
            Some(why) => Feature::less(
                "stacks",
                FeatureState::Degraded,
                format!("sampled by {hook}; no unwind tables: {why}"),
                "stacks of code without frame pointers have one or two frames",
                "",
            ),
        },
    }
}

/// Streams of other protocols than TCP, where this host can have them.
fn connections_beside_tcp(settings: &Settings) -> Vec<Feature> {
    let mut found = Vec::new();
    match settings.counts_mptcp {
        Some(true) => {
            found.push(Feature::full("MPTCP", "read as TCP; the ends are joined by the keys of the connection"));
        }
        Some(false) => found.push(Feature::less(
            "MPTCP",
            FeatureState::Degraded,
            "this kernel does not count the bytes of such a connection",
            "requests over MPTCP are seen, but not joined with the call that made them",
            "a kernel that does",
        )),
        None => {}
    }
    if settings.smc_sockets > 0 {
        found.push(Feature::less(
            "SMC",
            FeatureState::Degraded,
            format!("{} sockets move bytes by shared memory", settings.smc_sockets),
            "their requests are not seen; the gap smc counts their operations",
            "SMC can be switched off for a program (without smc_run)",
        ));
    }
    found
}

/// Whether the programs of probes in user programs are there, each on the stack of the thread that runs it.
fn probes_in_programs(attached: &[Attached]) -> Feature {
    let name = "probes in programs";
    let of_probes = |a: &&Attached| UserProbe::ALL.iter().any(|probe| probe.name() == a.program);
    // Where the machine code cannot be read, the place of the stack is only as the kernel's rules say.
    let unseen = attached.iter().filter(of_probes).any(|a| a.missing.is_none() && a.built.private_stack.is_none());
    let refused = attached.iter().filter(of_probes).find_map(|a| Some((a.program, a.missing.as_deref()?)));
    match refused {
        None if unseen => Feature::full(
            name,
            "each is built so that it runs on the stack of its thread, where a kernel that preempts it can do no harm; that it \
             does was not seen, because its machine code was not read (only on x86-64)",
        ),
        None => {
            Feature::full(name, "each runs on the stack of its thread, so a kernel that preempts it can do no harm")
        }
        Some((program, why)) => Feature::less(
            name,
            FeatureState::Degraded,
            why,
            &format!("{program} is not attached; the list of programs says what is lost"),
            "report this line",
        ),
    }
}

/// Whether the sampling rate can follow what samples cost.
fn overhead_budget(fixed_rate: Option<&str>) -> Feature {
    let name = "overhead budget";
    match fixed_rate {
        None => Feature::full(name, "the sampling rate follows what samples cost (--overhead-budget)"),
        Some(why) => Feature::less(
            name,
            FeatureState::Degraded,
            why,
            "the sampling rate stays as it is set, whatever samples cost",
            "a lower --hertz",
        ),
    }
}

/// Contexts in a TCP option, which are off by default.
fn tcp_option(loads: Option<&'static str>, settings: &Settings, why: &str) -> Feature {
    let follows = "--inband-tcp-option does nothing: only the relay and headers name parents on other hosts";
    match (loads, &settings.no_groups) {
        (Some(hook), None) => Feature::full("TCP option", format!("by {hook}, where --inband-tcp-option asks for it")),
        (Some(_), Some(why)) => Feature::less("TCP option", FeatureState::Degraded, why, follows, "mount them"),
        (None, _) => Feature::less("TCP option", FeatureState::Degraded, why, follows, ""),
    }
}

/// Contexts in a `traceparent` header, which are off by default.
fn traceparent(loads: Option<&'static str>, settings: &Settings, why: &str) -> Feature {
    let follows = "--inband-header does nothing: callees without an agent do not learn their caller";
    let name = "traceparent header";
    match (loads, &settings.no_groups) {
        (None, _) => Feature::less(name, FeatureState::Degraded, why, follows, ""),
        (Some(_), Some(why)) => Feature::less(name, FeatureState::Degraded, why, follows, "mount them"),
        (Some(hook), None) if settings.header_limits.is_empty() => {
            Feature::full(name, format!("by {hook}, where --inband-header asks for it; self-test: nothing is broken"))
        }
        (Some(hook), None) => Feature::less(
            name,
            FeatureState::Degraded,
            format!("by {hook}; self-test: {}", settings.header_limits.join("; ")),
            "what that would disturb is left alone, where it says nothing else: see tracer_inband_header_left_alone_total",
            "",
        ),
    }
}

/// Network priorities of service classes, which are off by default.
fn network_priority(loads: Option<&'static str>, settings: &Settings, why: &str) -> Feature {
    let follows = "--enforce on is refused where a service class has a network priority";
    let name = "network priority";
    match (loads, &settings.no_groups) {
        (Some(hook), None) => Feature::full(name, format!("by {hook}, where a service class asks for it")),
        (Some(_), Some(why)) => Feature::less(name, FeatureState::Degraded, why, follows, "mount them"),
        (None, _) => Feature::less(name, FeatureState::Degraded, why, follows, ""),
    }
}

/// Settings that prevent features.
fn hindrances(settings: &Settings) -> Vec<Feature> {
    let mut found = Vec::new();
    if settings.lockdown.as_deref() == Some("confidentiality") {
        found.push(Feature::less(
            "lockdown",
            FeatureState::Degraded,
            "the kernel is locked down for confidentiality",
            "BPF programs may not read memory of the kernel: what needs it is refused above",
            "boot with lockdown=integrity",
        ));
    }
    if settings.statistics {
        found.push(Feature::less(
            "statistics",
            FeatureState::Degraded,
            "kernel.bpf_stats_enabled is 1",
            "every program run costs about 40 ns more",
            "sysctl kernel.bpf_stats_enabled=0, except for measuring",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::loader::{Built, When};
    use super::super::private_stack;
    use super::super::probes::PROBES;
    use super::*;

    /// All programs, attached with the hooks that `has` accepts.
    fn attached(has: impl Fn(&str) -> bool) -> Vec<Attached> {
        let built = Built { jited: Some(1), ..Built::default() };
        let probes = PROBES.iter().map(|p| (p.program, p.hooks.first().map_or("", |hook| hook.name()), p.without));
        probes
            .chain([(SAMPLER, "perf_event cpu-clock", "no stacks"), (inband::PROGRAM, "cgroup sock_ops", "")])
            .chain([(header::SOCKETS, "cgroup sock_ops", ""), (header::PROGRAM, "sk_msg", "")])
            .chain([(send_priority::PROGRAM, "cgroup skb egress", "")])
            .filter(|(program, ..)| has(program))
            .map(|(program, hook, without)| Attached {
                program,
                hook,
                when: When::Start,
                built,
                missing: None,
                without,
            })
            .collect()
    }

    fn findings() -> Vec<Finding> {
        ["tcp", "unix", "udp"].map(|family| Finding { family, fault: None }).to_vec()
    }

    fn settings() -> Settings {
        Settings {
            kernel_symbols: true,
            exact_cpu: true,
            counts_skips: true,
            counts_run_delay: true,
            ..Settings::default()
        }
    }

    fn state(features: &[Feature], name: &str) -> FeatureState {
        features.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("no {name} in {features:?}")).state
    }

    #[test]
    fn a_probe_that_would_run_on_a_shared_stack_is_reported() {
        let mut all = attached(|_| true);
        let probe = UserProbe::NodeTimers;
        all.push(Attached {
            program: probe.name(),
            hook: probe.place(),
            when: When::Needed,
            built: Built { private_stack: Some(true), ..Built::default() },
            missing: Some(private_stack::REFUSED.into()),
            without: probe.without(),
        });
        let line = probes_in_programs(&all).line();
        assert!(
            line.starts_with("degraded")
                && line.contains("the kernel gave it a stack")
                && line.contains("so node_timers is"),
            "{line}"
        );
        all.pop();
        assert_eq!(probes_in_programs(&all).state, FeatureState::Full);
        // The agent claims no more than it has seen.
        for (private_stack, seen) in [(Some(false), true), (None, false)] {
            let built = Built { private_stack, ..Built::default() };
            let (program, hook) = (probe.name(), probe.place());
            all.push(Attached { program, hook, when: When::Needed, built, missing: None, without: probe.without() });
            let line = probes_in_programs(&all).line();
            assert_eq!(line.contains("each runs on the stack of its thread"), seen, "{line}");
            all.pop();
        }
    }

    #[test]
    fn streams_beside_tcp_are_reported_where_there_can_be_any() {
        let names = |settings: &Settings| {
            let found = connections_beside_tcp(settings);
            found.iter().map(|feature| (feature.name, feature.state)).collect::<Vec<_>>()
        };
        assert_eq!(names(&settings()), []);
        let all = Settings { counts_mptcp: Some(true), smc_sockets: 2, ..settings() };
        assert_eq!(names(&all), [("MPTCP", FeatureState::Full), ("SMC", FeatureState::Degraded)]);
        let old = Settings { counts_mptcp: Some(false), ..settings() };
        assert_eq!(names(&old), [("MPTCP", FeatureState::Degraded)]);
        // Linux 6.18.
        let protocols = "protocol  size sockets  memory press maxhdr\nSMC6       1000      2      -1   NI       0   no\n\
                         SMC        1000      3      -1   NI       0   no\nTCP        2560      5       1   no     256   yes\n";
        assert_eq!((sockets_of("SMC", protocols), sockets_of("DCCP", protocols)), (5, 0));
    }

    const EXITS: [&str; 2] = ["inet", "unix"];

    #[test]
    fn a_new_kernel_lacks_only_what_every_kernel_lacks() {
        let features = judge(&attached(|p| !EXITS.iter().any(|e| p.starts_with(e))), &findings(), &settings());
        let less: Vec<&str> = features.iter().filter(|f| f.state != FeatureState::Full).map(|f| f.name).collect();
        assert_eq!(less, ["UNIX splice"]);
    }

    #[test]
    fn function_exits_are_reported_with_their_consequence() {
        let features = judge(&attached(|p| p != "tx" && p != "rx"), &findings(), &settings());
        let hooks = &features[0];
        assert_eq!((hooks.name, hooks.state), ("socket hooks", FeatureState::Degraded));
        let line = hooks.line();
        assert!(line.contains("began before the agent") && line.contains("Remedy:") && !line.contains('\n'), "{line}");
        assert_eq!(state(&features, "IPv6"), FeatureState::Full);
    }

    #[test]
    fn every_limited_state_is_reported_with_its_consequence() {
        let broken = ["tcp", "unix", "udp"].map(|family| Finding { family, fault: Some("seen 2 times".into()) });
        let settings = Settings {
            preempts_programs: true,
            interpreted: true,
            statistics: true,
            lockdown: Some("confidentiality".into()),
            ..Settings::default()
        };
        let features = judge(&[], &broken, &settings);
        for feature in features.iter().filter(|f| f.state != FeatureState::Full) {
            assert!(!feature.consequence.is_empty() && !feature.detail.is_empty(), "{feature:?}");
        }
        for (name, expected) in [
            ("socket hooks", FeatureState::Missing),
            ("TCP sockets", FeatureState::Missing),
            ("UDP sockets", FeatureState::Missing),
            ("io_uring", FeatureState::Degraded),
            ("arrival times", FeatureState::Degraded),
            ("accept queue", FeatureState::Degraded),
            ("pools of threads", FeatureState::Missing),
            ("waiting times", FeatureState::Missing),
            ("CPU accounting", FeatureState::Degraded),
            ("stacks", FeatureState::Missing),
            ("skip counters", FeatureState::Degraded),
            ("no skipped runs", FeatureState::Degraded),
            ("compiled programs", FeatureState::Degraded),
            ("lockdown", FeatureState::Degraded),
            ("statistics", FeatureState::Degraded),
        ] {
            assert_eq!(state(&features, name), expected, "{name}");
        }
    }

    #[test]
    fn the_reason_of_a_refused_program_is_passed_on() {
        let mut all = attached(|p| !EXITS.iter().any(|e| p.starts_with(e)));
        let submit = all.iter_mut().find(|a| a.program == "submit").expect("submit");
        submit.missing = Some("permission denied".into());
        let features = judge(&all, &findings(), &settings());
        let fixed = Settings { fixed_rate: Some("no period".into()), ..settings() };
        assert_eq!(state(&judge(&all, &findings(), &fixed), "overhead budget"), FeatureState::Degraded);
        let line = features.iter().find(|f| f.name == "io_uring").expect("io_uring").line();
        assert!(line.starts_with("degraded") && line.contains("permission denied; so"), "{line}");
    }
}
