//! `tracer doctor` on this kernel: its report, and that the report changes correctly when something is missing.

use std::process::Command;

use serde_json::Value;
use tracer_tests::agent::{self, Outcome};
use tracer_tests::{begin, say, scratch};

/// The verifier refuses at a million instructions; half of that leaves no room for the next kernel's verifier.
const MOST: u64 = 500_000;

fn report() -> Value {
    let outcome = agent::command(&["doctor", "--json"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    serde_json::from_str(&outcome.out).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

fn list(report: &Value, of: &str) -> Vec<Value> {
    report[of].as_array().unwrap_or_else(|| panic!("no {of}: {report}")).clone()
}

#[test]
fn text_and_json_reports_agree() {
    let Some(_turn) = begin("doctor", &[]) else { return };
    let report = report();
    let text = agent::command(&["doctor"]).out;
    let word = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no word in {report}")).to_owned();
    let features = list(&report, "features");
    for name in [
        "socket hooks",
        "TCP sockets",
        "UNIX sockets",
        "arrival times",
        "io_uring",
        "CPU accounting",
        "stacks",
        "overhead budget",
        "probes in programs",
    ] {
        assert!(features.iter().any(|feature| feature["name"] == name), "{name}: {report}");
    }
    for feature in &features {
        let (name, state) = (word(&feature["name"]), word(&feature["state"]));
        let line = text.lines().find(|line| line.starts_with(&format!("{state:<9} {name:<20} ")));
        let line = line.unwrap_or_else(|| panic!("{state} {name} is not in:\n{text}"));
        let consequence = word(&feature["consequence"]);
        assert_eq!(state == "full", consequence.is_empty(), "{feature}");
        assert!(line.contains(&consequence) && line.contains(&word(&feature["remedy"])), "{line}");
    }
    for program in list(&report, "programs") {
        let attached = program["attached"] == true;
        // What several programs tail-call can run twice on a CPU, as probes can, which are refused for that.
        assert!(program["private_stack"] != true || (attached && program["when"] != "called"), "{program}");
        if !attached {
            // An optional program: the feature must explain why it is not full.
            let why = word(&program["missing"]);
            let matches = |feature: &Value| feature["state"] != "full" && feature["detail"].as_str() == Some(&why);
            assert!(features.iter().any(matches) && text.contains(&why), "{program} in {report}");
            continue;
        }
        let is_shown = !program["private_stack"].is_null();
        assert!(is_shown || cfg!(not(target_arch = "x86_64")), "no machine code: {program}");
        let verified = program["verified_instructions"].as_u64();
        let verified = verified.unwrap_or_else(|| panic!("not verified: {program}"));
        assert!(verified > 0 && verified < MOST, "{program}");
        assert!(program["jited_bytes"].as_u64() > Some(0) && program["load_ms"].as_f64() > Some(0.0), "{program}");
        let name = word(&program["program"]);
        let matches = |line: &str| line.starts_with(&format!("{name:<14} ")) && line.contains(&format!(" {verified} "));
        assert!(text.lines().any(matches), "{name} with {verified} is not in:\n{text}");
        say(&format!("  {name}: {verified} instructions verified"));
    }
}

/// Runs `tracer doctor` with the given contents for `files`; the machine's own stay unchanged.
fn with(files: &[(&str, &str)]) -> Outcome {
    let dir = scratch();
    let mut script = String::new();
    for (at, (path, text)) in files.iter().enumerate() {
        let file = dir.path().join(at.to_string());
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        script.push_str(&format!("mount --bind {} {path} && ", file.display()));
    }
    script.push_str(&format!("exec {} doctor", agent::binary().display()));
    agent::outcome(Command::new("unshare").args(["-m", "sh", "-c", &script]), "doctor")
}

#[test]
fn a_missing_privilege_is_reported_with_consequence_and_remedy() {
    let Some(_turn) = begin("doctor_degraded", &["unshare", "mount"]) else { return };
    for (file, text, feature, remedy) in [
        ("/proc/kallsyms", "0000000000000000 T _text\n", "stacks", "kernel.kptr_restrict"),
        ("/proc/sys/net/core/bpf_jit_enable", "0\n", "compiled programs", "net.core.bpf_jit_enable=1"),
        ("/proc/sys/kernel/bpf_stats_enabled", "1\n", "statistics", "kernel.bpf_stats_enabled=0"),
    ] {
        let outcome = with(&[(file, text)]);
        // A degraded feature does not make doctor refuse.
        assert_eq!(outcome.code, Some(0), "{file}: {outcome:?}");
        let start = format!("degraded  {feature:<20} ");
        let line = outcome.out.lines().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("{file}: no '{start}' in {outcome:?}"));
        assert!(line.contains("; so ") && line.contains(remedy), "{line}");
    }
}
