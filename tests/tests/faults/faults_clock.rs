//! Fault: the wall clock is set.
//!
//! The machine's clock stays untouched: only the agent sees another one, by a preloaded library (`workloads/clock.c`).
//! The kernel side knows no wall clock at all.

use std::path::Path;
use std::time::{Duration, SystemTime};

use tracer_tests::agent::{self, Agent};
use tracer_tests::faults::{self, Figures};
use tracer_tests::load;
use tracer_tests::spans::{self, Span};
use tracer_tests::vitals::Vitals;
use tracer_tests::workload::{Server, library};
use tracer_tests::{begin, bpf, say, scratch, wait};

/// Seconds since the epoch, by the machine's clock.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

fn of<'a>(spans: &'a [Span], name: &'a str) -> impl Iterator<Item = &'a Span> {
    let prefix = format!("/{name}/");
    spans.iter().filter(move |span| span.path.starts_with(&prefix))
}

#[test]
fn times_follow_the_wall_clock_and_durations_do_not() {
    let Some(_turn) = begin("faults_clock", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let port = server.address.port().to_string();
    let shim = library(dir.path(), "clock");
    let ahead = dir.path().join("ahead");
    let recording = dir.path().join("recording");
    let path = recording.to_str().expect("a path").to_owned();
    std::fs::write(&ahead, "0").expect("a file");
    let mut agent =
        Agent::launch_with("agent", dir.path(), &["--hertz", "0", "--port", &port, "--record", &path], |command| {
            command.env("LD_PRELOAD", &shim).env("TRACER_TEST_CLOCK", &ahead);
        })
        .ready();
    let held = bpf::held(agent.process().pid());
    let before = Vitals::of(agent.process().pid());

    let mut figures = Figures::of("wall clock stepped", "agent's clock +1 h, −1 h, −1 day");
    let steps = [("still", 0i64), ("forward", 3600), ("back", -3600), ("yesterday", -86400)];
    let mut sent = Vec::new();
    let mut times = Vec::new();
    for (name, step) in steps {
        // Replaced atomically, so that no partial number is read.
        let fresh = dir.path().join("fresh");
        std::fs::write(&fresh, step.to_string()).expect("a file");
        std::fs::rename(&fresh, &ahead).expect("a file");
        wait("the agent to notice", Duration::from_secs(10), || {
            (agent.output().matches("the wall clock was set").count() == sent.len()).then_some(())
        });
        let begin = now();
        let plans = faults::plans(name, 4, 100);
        figures.loaded(&load::run(server.address, plans.clone()));
        times.push((name, step as f64, begin, now()));
        faults::reported(&agent, &plans);
        sent.push(plans);
    }
    let lost = faults::operations_lost(&agent.metrics());
    let after = Vitals::of(agent.process().pid());
    let file = agent.transactions.clone();
    let ended = agent.stop();

    let spans = spans::read(&file);
    let plans: Vec<_> = sent.into_iter().flatten().collect();
    let judged = faults::judge(&plans, &spans);
    judged.covered(lost);
    for (name, step, begin, end) in times {
        for span in of(&spans, name) {
            let start = span.start_ns as f64 / 1e9 - step;
            assert!(start > begin - 0.01 && start < end + 0.01, "{name}: {start} in {begin}..{end}: {span:?}");
            assert!((0.0..5.0).contains(&span.duration_s), "{span:?}");
        }
    }
    assert_eq!(ended.output.matches("the wall clock was set").count(), 3, "{}", ended.output);
    same_by_replay(dir.path(), &path, &file);
    say(&format!("clock: {} ends right, {lost} operations lost", judged.right()));
    figures.judged(&judged, lost).growth(before, after).attached(bpf::left(&held)).finish();
}

/// A recording contains the clock steps: its replay gives the same file.
fn same_by_replay(dir: &Path, recording: &str, live: &Path) {
    let again = dir.join("again.ndjson");
    let outcome = agent::command(&["replay", recording, "--transactions", again.to_str().expect("a path")]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let read = |path: &Path| std::fs::read_to_string(path).expect("spans");
    assert!(read(&again) == read(live), "the replay differs");
}
