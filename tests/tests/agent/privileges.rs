//! The agent as a non-root user, with exactly the capabilities that the README names.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tracer_tests::agent::{self, Agent};
use tracer_tests::nginx::Nginx;
use tracer_tests::tls::certificate;
use tracer_tests::workload::Server;
use tracer_tests::{begin, free_port, load, say, scratch, spans, wait};

/// Without these, tracing is impossible.
const LEAST: &[&str] = &["bpf", "perfmon"];
/// With these, everything works as for root: service names from environments, and names of code.
const FULL: &[&str] = &["bpf", "perfmon", "sys_ptrace", "checkpoint_restore", "dac_read_search", "syslog"];
/// Their numbers (`include/uapi/linux/capability.h`).
const NUMBERS: [(&str, u32); 7] = [
    ("bpf", 39),
    ("perfmon", 38),
    ("sys_ptrace", 19),
    ("checkpoint_restore", 40),
    ("dac_read_search", 2),
    ("syslog", 34),
    ("sys_admin", 21),
];
/// Requests over TLS.
const REQUESTS: usize = 20;
/// The user nobody.
const USER: u32 = 65534;

/// `program` as user nobody with only these capabilities.
fn with(capabilities: &[&str], program: &Path) -> Command {
    let list = capabilities.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().join(",");
    let list = if list.is_empty() { "-all".to_owned() } else { format!("-all,{list}") };
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups"]);
    command.arg(format!("--inh-caps={list}")).arg(format!("--ambient-caps={list}"));
    command.arg(format!("--bounding-set={list}")).arg("--no-new-privs").arg(program);
    command
}

/// A directory that user nobody can reach but not write to, with a copy of the agent.
fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = scratch();
    let copy = dir.path().join("tracer");
    std::fs::copy(agent::binary(), &copy).expect("a copy");
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("permissions");
    std::os::unix::fs::chown(dir.path(), Some(USER), Some(USER)).expect("an owner");
    (dir, copy)
}

fn status(agent: &mut Agent, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/status", agent.process().pid())).expect("status");
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_else(|| panic!("no {field}"));
    line.split_whitespace().next().unwrap_or_default().to_owned()
}

/// As in `/proc/PID/status`.
fn mask(capabilities: &[&str]) -> u64 {
    let numbers = capabilities.iter().filter_map(|name| NUMBERS.iter().find(|(known, _)| known == name));
    numbers.fold(0, |mask, (_, number)| mask | 1 << number)
}

/// Runs the agent with `capabilities` beside root's server and returns the folded stacks it saw.
fn traces(capabilities: &[&str], named: bool) {
    let ((own, copy), dir) = (home(), scratch());
    // Root's, in a directory and with an environment that only root can read.
    let server = Server::c("burn", dir.path());
    let mut agent = {
        let file = own.path().join("agent.ndjson");
        Agent::launch_by(with(capabilities, &copy), "agent", own.path(), &file, &[]).ready()
    };
    assert_eq!(status(&mut agent, "CapEff:"), format!("{:016x}", mask(capabilities)));
    assert_eq!(status(&mut agent, "Uid:"), USER.to_string());
    let (good, bad) = load::until(server.address, 2, &["/alpha"], Instant::now() + Duration::from_secs(4));
    assert!(good > 0 && bad == 0, "{good} good, {bad} bad");
    let mut tail = spans::Tail::new(&agent.transactions);
    let seen = tail.until(good as usize, Duration::from_secs(10), |span| span.server && span.path == "/alpha");
    assert_eq!(seen, good as usize, "requests");
    if named {
        wait("names of the service and its functions", Duration::from_secs(20), || {
            let services = agent.text("/api/v1/services");
            let folded = agent.text("/profile.folded");
            let kernel = folded.lines().any(|line| line.contains("_[k]") && !line.contains("[unknown]_[k]"));
            (services.contains("\"burn\"") && folded.contains("burn_alpha") && kernel).then_some(())
        });
    }
    say(&format!("privileges {}: {seen} of {good} requests, names: {named}", capabilities.join(",")));
    agent.stop();
}

#[test]
fn two_capabilities_trace_every_request() {
    let Some(_turn) = begin("privileges_least", &["cc", "setpriv"]) else { return };
    traces(LEAST, false);
    let (_own, copy) = home();
    for left_out in LEAST {
        let rest: Vec<&str> = LEAST.iter().copied().filter(|name| name != left_out).collect();
        let outcome = agent::outcome(with(&rest, &copy).arg("doctor"), "doctor");
        assert_eq!(outcome.code, Some(77), "without {left_out}: {outcome:?}");
        assert!(outcome.out.contains("CAP_BPF") && outcome.out.contains("CAP_PERFMON"), "{outcome:?}");
    }
}

/// Probes in programs need no capability beyond those: the kernel gives the descriptor of a loaded program to those with
/// `CAP_SYS_ADMIN` only, so the agent has to keep the one it has.
#[test]
fn six_capabilities_read_inside_tls() {
    let Some(_turn) = begin("privileges_tls", &["nginx", "curl", "openssl", "setpriv"]) else { return };
    let ((own, copy), dir) = (home(), scratch());
    let port = free_port();
    let (certificate, key) = certificate(dir.path());
    let server = format!(
        "listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};
         location / {{ return 200 \"ok\\n\"; }}"
    );
    let _nginx = Nginx::start(dir.path(), "", &server);
    let agent = {
        let file = own.path().join("agent.ndjson");
        Agent::launch_by(with(FULL, &copy), "agent", own.path(), &file, &[]).ready()
    };
    wait("probes in OpenSSL", Duration::from_secs(20), || {
        let attached = agent.metrics().sum("tracer_uprobe_attachments_total", &[("outcome", "attached")]);
        (attached > 0.0).then_some(())
    });
    let url = format!("https://127.0.0.1:{port}/inside/[1-{REQUESTS}]");
    let code = Command::new("curl").args(["-sk", "--fail", "-o", "/dev/null", &url]).status().expect("curl");
    assert!(code.success(), "curl: {code}");
    let mut tail = spans::Tail::new(&agent.transactions);
    let inside = |span: &spans::Span| span.server && span.port == port && span.path.starts_with("/inside/");
    assert_eq!(tail.until(REQUESTS, Duration::from_secs(10), inside), REQUESTS, "requests over TLS");
    agent.stop();
}

#[test]
fn six_capabilities_name_everything_too() {
    let Some(_turn) = begin("privileges_full", &["cc", "setpriv"]) else { return };
    traces(FULL, true);
}

/// What the kernel asks for: perf events at levels that only Debian's and Ubuntu's kernels have, and probes by perf events where
/// it has no links of many probes that close at once.
fn kernel_asks_for_admin() -> bool {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").expect("a level");
    let symbols = std::fs::read_to_string("/proc/kallsyms").expect("symbols");
    let multi = symbols.lines().any(|line| line.split_whitespace().nth(2) == Some("uprobe_unregister_nosync"));
    level.trim().parse::<i32>().expect("a number") > 2 || !multi
}

#[test]
fn the_seventh_is_given_up_unless_the_kernel_asks_for_it() {
    let Some(_turn) = begin("privileges_admin", &["setpriv"]) else { return };
    let (own, copy) = home();
    let service = [FULL, &["sys_admin"]].concat();
    let file = own.path().join("agent.ndjson");
    let mut agent = Agent::launch_by(with(&service, &copy), "agent", own.path(), &file, &["--log", "info"]).ready();
    let kept = kernel_asks_for_admin();
    let expected = mask(if kept { &service } else { FULL });
    let pid = agent.process().pid();
    let tasks: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten().collect();
    assert!(tasks.len() > 3, "{tasks:?}");
    for task in tasks {
        let text = std::fs::read_to_string(task.path().join("status")).expect("status");
        for field in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("capabilities");
            assert_eq!(line.trim(), format!("{expected:016x}"), "{field} of {task:?}");
        }
    }
    let named = agent.output().contains(if kept { "CAP_SYS_ADMIN is kept" } else { "CAP_SYS_ADMIN is given up" });
    assert!(named, "{}", agent.output());
    agent.stop();
}
