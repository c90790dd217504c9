//! The configuration is read again while the agent runs: probes of removed declarations leave, those of new ones come, and
//! those that stay lose no call; a file with a mistake changes nothing and says where the mistake is.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::process::Process;
use tracer_tests::workload::compile;
use tracer_tests::{begin, scratch, wait};

const LIMIT: Duration = Duration::from_secs(20);

/// Declares these functions, with `lines` empty lines before them.
fn declare(file: &Path, program: &Path, lines: usize, functions: &[&str]) {
    let one = |function: &&str| {
        format!(
            "[[transaction]]\nname = \"{function}\"\nprogram = \"{}\"\nfunction = \"{function}\"\n",
            program.display()
        )
    };
    let text: String = functions.iter().map(one).collect();
    std::fs::write(file, "\n".repeat(lines) + &text).expect("a file");
}

fn count(agent: &Agent, function: &str) -> u64 {
    let sum = agent.metrics().sum("tracer_requests_total", &[("request_class", function), ("protocol", "declared")]);
    sum as u64
}

fn reloads(agent: &Agent, outcome: &str) -> u64 {
    agent.metrics().sum("tracer_config_reloads_total", &[("outcome", outcome)]) as u64
}

/// Whether the file was taken up when it was last read.
fn is_taken_up(agent: &Agent) -> bool {
    agent.metrics().sum("tracer_config_last_reload_successful", &[]) > 0.5
}

/// Has the file read again and waits for the outcome.
fn reload(agent: &mut Agent, outcome: &str) {
    let before = reloads(agent, outcome);
    agent.process().signal(libc::SIGHUP);
    wait("the reload", LIMIT, || (reloads(agent, outcome) > before).then_some(()));
}

/// Waits until a function was counted `more` times from now on.
fn more(agent: &Agent, function: &str, more: u64) {
    let before = count(agent, function);
    wait(function, LIMIT, || (count(agent, function) >= before + more).then_some(()));
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Whether the kernel has put a probe where each function begins, by the memory of the process.
fn probed(process: &Process, at: &[u64]) -> Vec<bool> {
    let memory = File::open(format!("/proc/{}/mem", process.pid())).expect("its memory");
    let is_probed = |address: &u64| {
        let mut bytes = [0; 4];
        memory.read_exact_at(&mut bytes, *address).expect("code");
        // A breakpoint: `int3`, or `brk #5`.
        if cfg!(target_arch = "x86_64") { bytes[0] == 0xcc } else { u32::from_le_bytes(bytes) == 0xd420_00a0 }
    };
    at.iter().map(is_probed).collect()
}

#[test]
fn what_stays_loses_no_call_and_what_is_wrong_changes_nothing() {
    let Some(_turn) = begin("reload", &["cc"]) else { return };
    let dir = scratch();
    let program = compile(dir.path(), "reloaded");
    let file = dir.path().join("tracer.toml");
    declare(&file, &program, 0, &["first", "second"]);
    let mut agent = Agent::start(dir.path(), &["--config", &file.display().to_string()]);
    let mut process = Process::start("reloaded", &mut Command::new(&program), &dir.path().join("reloaded.log"));
    more(&agent, "first", 50);
    let at = numbers(&process.line("AT ", LIMIT));
    assert_eq!(probed(&process, &at), [true, true, false]);

    // `second` stays, at another line.
    declare(&file, &program, 3, &["second", "third"]);
    reload(&mut agent, "applied");
    more(&agent, "third", 50);
    let first = count(&agent, "first");
    more(&agent, "second", 50);
    assert_eq!(count(&agent, "first"), first, "it is not declared any more");
    wait("the probe of `first` to be gone", LIMIT, || (probed(&process, &at) == [false, true, true]).then_some(()));

    // A mistake in the second declaration: nothing of the file is taken up.
    declare(&file, &program, 0, &["first", ""]);
    reload(&mut agent, "refused");
    let health = agent.json("/api/v1/health");
    let place = format!("{}:6:8: ", file.display());
    assert!(health["configuration"]["mistake"].as_str().is_some_and(|why| why.starts_with(&place)), "{health}");
    let degraded = health["degraded"].as_array().expect("notes").iter().filter_map(|note| note.as_str());
    assert!(degraded.into_iter().any(|note| note.contains(&place)), "{health}");
    assert!(!is_taken_up(&agent));
    assert!(agent.output().contains(&place), "the log says it, too");
    let third = count(&agent, "third");
    more(&agent, "second", 50);
    assert!(count(&agent, "third") > third && count(&agent, "first") == first);

    // In order again.
    declare(&file, &program, 0, &["second", "third"]);
    reload(&mut agent, "applied");
    assert!(agent.json("/api/v1/health")["configuration"]["mistake"].is_null());
    assert!(is_taken_up(&agent));

    process.signal(libc::SIGTERM);
    let truth = numbers(&process.line("TRUTH ", LIMIT));
    let second = truth[1];
    wait("every call of `second`", LIMIT, || (count(&agent, "second") >= second).then_some(()));
    assert_eq!(count(&agent, "second"), second, "{truth:?}");
    assert!(count(&agent, "first") < truth[0] && count(&agent, "third") < truth[2], "{truth:?}");
}

#[test]
fn a_changed_file_is_read_by_itself() {
    let Some(_turn) = begin("reload_on_change", &[]) else { return };
    let dir = scratch();
    let file = dir.path().join("tracer.toml");
    let agent_section = "[agent]\nreload_on_change = true\n";
    std::fs::write(&file, agent_section).expect("a file");
    let agent = Agent::start(dir.path(), &["--config", &file.display().to_string()]);
    let classes = || agent.json("/api/v1/service-classes")["service_classes"].as_array().map_or(0, Vec::len);
    let class = |name: &str| format!("[[service_class]]\nname = \"{name}\"\nimportance = 1\n");
    // Written in place.
    std::fs::write(&file, format!("{agent_section}{}", class("gold"))).expect("a file");
    wait("the new file", LIMIT, || (reloads(&agent, "applied") > 0).then_some(()));
    assert_eq!(classes(), 1);
    // Replaced by a file with a mistake, then by one without, and with another setting that needs a restart.
    let replace = |text: String| {
        let other = dir.path().join("other.toml");
        std::fs::write(&other, text).expect("a file");
        std::fs::rename(&other, &file).expect("another name");
    };
    replace(format!("{agent_section}{}{}", class("gold"), class("gold")));
    wait("the refusal", LIMIT, || (reloads(&agent, "refused") > 0).then_some(()));
    assert_eq!(classes(), 1);
    replace(format!("{agent_section}{}{}[limits]\nmax_cpu = \"50%\"\n", class("gold"), class("bronze")));
    wait("the next file", LIMIT, || (reloads(&agent, "applied") > 1).then_some(()));
    assert_eq!(classes(), 2);
    let health = agent.json("/api/v1/health");
    let last = health["configuration"]["last"].as_str().unwrap_or_default();
    assert!(last.contains("after a restart only: [limits]"), "{health}");
    assert_eq!((reloads(&agent, "applied"), reloads(&agent, "refused")), (2, 1), "each once");
}
