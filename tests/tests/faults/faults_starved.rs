//! Faults: the agent does not run: it is stopped, or higher-priority work keeps every core busy. Operations are lost
//! then, and counted; requests are conserved, none is reported wrongly, and afterwards everything works as before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::faults::{self, Figures, Judged};
use tracer_tests::load::{self, Loaded, Request};
use tracer_tests::vitals::Vitals;
use tracer_tests::workload::Server;
use tracer_tests::{begin, bpf, metrics, say, scale, scratch, spans};

/// Connections of the load.
const CONNECTIONS: u64 = 16;
/// Ends of connections: each end reports the other's end of stream once.
const ENDS: usize = 2 * CONNECTIONS as usize;

/// Results of a case.
struct Found {
    loaded: Loaded,
    judged: Judged,
    lost: f64,
    vitals: (Vitals, Vitals),
    left: usize,
}

/// Loads a traced server while `fault` happens to the agent, then once more without it. The first load continues for as
/// long as the fault does.
fn under(name: &str, fault: impl FnOnce(&mut Agent)) -> Found {
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let port = server.address.port().to_string();
    let mut agent = Agent::start(dir.path(), &["--hertz", "0", "--port", &port]);
    let held = bpf::held(agent.process().pid());
    assert!(held.len() > 20, "{held:?}");
    let warm = faults::plans("warm", CONNECTIONS, 300);
    assert!(load::run(server.address, warm.clone()).broken().is_empty());
    faults::reported(&agent, &warm);
    let before = Vitals::of(agent.process().pid());

    let over = Arc::new(AtomicBool::new(false));
    let load = {
        let (over, address, name) = (Arc::clone(&over), server.address, name.to_owned());
        std::thread::spawn(move || {
            let (mut plans, mut all): (Vec<Vec<Request>>, Loaded) = (Vec::new(), Loaded::default());
            for round in 0.. {
                let part = faults::plans(&format!("{name}{round}"), CONNECTIONS, 500);
                plans.extend(part.clone());
                all.answers.extend(load::run(address, part).answers);
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
            (plans, all)
        })
    };
    fault(&mut agent);
    over.store(true, Ordering::Relaxed);
    let (plans, loaded) = load.join().expect("load");
    assert!(loaded.broken().is_empty(), "traced programs noticed: {:?}", loaded.broken().first());

    faults::caught_up(&agent);
    let after = faults::plans("after", 4, (200.0 * scale()).ceil() as u64);
    assert!(load::run(server.address, after.clone()).broken().is_empty());
    faults::reported(&agent, &after);
    let metrics = agent.metrics();
    let vitals = (before, Vitals::of(agent.process().pid()));
    let file = agent.transactions.clone();
    agent.stop();
    let spans = spans::read(&file);
    faults::judge(&after, &spans).whole();
    // Every round uses new connections.
    let ends = ENDS * plans.len() / CONNECTIONS as usize;
    let (judged, lost) = (faults::judge(&plans, &spans), faults::operations_lost(&metrics));
    say(&format!(
        "{name}: {} requests, {} ends right, {} unfinished, {} missing, {lost} operations counted as lost; all {:?}",
        judged.sent,
        judged.right(),
        judged.unfinished(),
        judged.missing(),
        metrics.lost()
    ));
    skipped_or_exact(&judged, lost, ends, &metrics);
    Found { loaded, judged, lost, vitals, left: bpf::left(&held) }
}

/// Kernels that preempt BPF programs skip some, and do not report which; elsewhere both bounds hold.
fn skipped_or_exact(judged: &Judged, lost: f64, ends: usize, metrics: &metrics::Metrics) {
    if metrics.sum("tracer_events_lost_total", &[("reason", "hook_skipped")]) > 0.0 {
        judged.covered(lost);
    } else {
        judged.conserved(lost, ends);
    }
}

fn finish(mut figures: Figures, found: &Found) {
    let (before, after) = found.vitals;
    assert!(after.rss - before.rss < 64e6 && after.fds <= before.fds + 4, "{before:?} {after:?}");
    figures.loaded(&found.loaded).judged(&found.judged, found.lost).growth(before, after).attached(found.left).finish();
}

#[test]
fn an_agent_that_stands_still_loses_events_and_says_so() {
    let Some(_turn) = begin("faults_stopped", &["cc"]) else { return };
    // The ring holds a second or so of this load.
    let seconds = faults::size(4, 60);
    let figures = Figures::of("agent stopped (SIGSTOP)", format!("{seconds} s"));
    let found = under("stopped", |agent| {
        agent.process().signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_secs(seconds));
        agent.process().signal(libc::SIGCONT);
    });
    assert!(found.lost > 0.0, "the ring was never full: nothing was tested");
    finish(figures, &found);
}

/// Gives every thread of a process the idle scheduling policy.
fn make_last(pid: u32) {
    let parameter = libc::sched_param { sched_priority: 0 };
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten() {
        let tid: i32 = task.file_name().to_string_lossy().parse().expect("a thread");
        // SAFETY: a plain system call that reads the structure.
        let done = unsafe { libc::sched_setscheduler(tid, libc::SCHED_IDLE, &raw const parameter) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Threads that never sleep, three per core, until `over`.
fn hogs(over: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<u64>> {
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    (0..3 * cores)
        .map(|_| {
            let over = Arc::clone(over);
            std::thread::spawn(move || {
                // Before the agent, after the load.
                // SAFETY: a plain system call; 0 is this thread.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
                let mut rounds = 0u64;
                while !over.load(Ordering::Relaxed) {
                    rounds = std::hint::black_box(rounds.wrapping_add(1));
                }
                rounds
            })
        })
        .collect()
}

#[test]
fn a_busy_host_starves_the_agent_and_not_the_truth() {
    let Some(_turn) = begin("faults_saturated", &["cc"]) else { return };
    let seconds = faults::size(8, 60);
    let figures = Figures::of("every core busy, agent goes last", format!("{seconds} s"));
    let found = under("busy", |agent| {
        make_last(agent.process().pid());
        let over = Arc::new(AtomicBool::new(false));
        let hogs = hogs(&over);
        std::thread::sleep(Duration::from_secs(seconds));
        over.store(true, Ordering::Relaxed);
        for hog in hogs {
            assert!(hog.join().expect("a hog") > 0);
        }
    });
    finish(figures, &found);
}
