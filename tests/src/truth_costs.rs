//! What tracing costs an application: its CPU per request with and without an agent.
//!
//! The same load, on a freshly started application each time, in alternating order; CPU of all its processes from
//! `/proc/PID/stat` (hundredths of a second: a run must use some seconds to be meaningful).

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

use crate::agent::Agent;
use crate::load;
use crate::say;
use crate::truth::{Application, Mode, attached, begun, plans};

/// Requests of one run, and their concurrency.
const REQUESTS: u64 = 6000;
const AT_ONCE: u64 = 64;
/// Runs of each kind; an odd number has a median.
const ROUNDS: usize = 3;

/// Whether to measure costs instead of edges (`TRACER_TRUTH_COSTS`).
pub fn wanted() -> bool {
    std::env::var_os("TRACER_TRUTH_COSTS").is_some()
}

/// One run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// CPU of the application per request, microseconds.
    cpu: f64,
    /// Probe hits in it per request.
    hits: f64,
}

/// Runs `application` in each mode with and without an agent configured by `file`, and prints the cost per request.
pub fn judge(upstream: SocketAddr, dir: &Path, application: &Application, modes: &[Mode], file: &Path) {
    for mode in modes {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for round in 0..2 * ROUNDS {
            // Without, with, with, without: a drift affects both alike.
            if matches!(round % 4, 0 | 3) {
                without.push(run(None, upstream, dir, application, *mode));
            } else {
                let agent = Agent::start(dir, &["--nice=-10", "--config", &file.to_string_lossy()]);
                with.push(run(Some(&agent), upstream, dir, application, *mode));
                agent.stop();
            }
        }
        line(application, *mode, middle(&mut without), middle(&mut with));
    }
}

fn middle(runs: &mut [Run]) -> Run {
    runs.sort_by(|one, other| one.cpu.total_cmp(&other.cpu));
    runs[runs.len() / 2]
}

fn run(agent: Option<&Agent>, upstream: SocketAddr, dir: &Path, application: &Application, mode: Mode) -> Run {
    let hits = || agent.map_or(0.0, |agent| agent.metrics().sum("tracer_uprobe_hits_total", &[]));
    let looks = agent.map_or(0.0, |agent| agent.metrics().sum("tracer_runtime_detections_total", &[]));
    let server = begun(application, upstream, dir);
    let ask = |prefix: &str, connections, requests| {
        let loaded = load::run(server.address, plans(mode.name, prefix, connections, requests));
        assert!(loaded.broken().is_empty(), "{}: {:?}", mode.name, loaded.broken().first());
        loaded.answers.len()
    };
    ask("early-", 8, 40);
    if let Some(agent) = agent {
        attached(agent, looks);
    }
    ask("warm-", AT_ONCE, 1000);
    let (cpu, before) = (cpu_of(server.process.pid()), hits());
    let answers = ask("measured-", AT_ONCE, REQUESTS) as f64;
    let cpu = cpu_of(server.process.pid()) - cpu;
    // The agent counts hits once a second.
    if agent.is_some() {
        std::thread::sleep(std::time::Duration::from_millis(1500));
    }
    Run { cpu: cpu * 1e6 / answers, hits: (hits() - before) / answers }
}

/// CPU of a process and its descendants so far, seconds.
fn cpu_of(root: u32) -> f64 {
    // SAFETY: takes a constant.
    let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // After the name, which may contain anything: state, parent, … (proc_pid_stat(5): user and system time are 14
        // and 15).
        let Some((_, rest)) = text.rsplit_once(") ") else { continue };
        let words: Vec<&str> = rest.split(' ').collect();
        let number = |at: usize| words.get(at - 3).and_then(|word| word.parse::<f64>().ok()).unwrap_or_default();
        all.push((pid, number(4) as u32, (number(14) + number(15)) / hertz));
    }
    let mut family = vec![root];
    while let Some((pid, ..)) = all.iter().find(|(pid, parent, _)| family.contains(parent) && !family.contains(pid)) {
        family.push(*pid);
    }
    all.iter().filter(|(pid, ..)| family.contains(pid)).map(|(_, _, cpu)| cpu).sum()
}

fn line(application: &Application, mode: Mode, without: Run, with: Run) {
    let share = 100.0 * (with.cpu / without.cpu.max(1e-9) - 1.0);
    say(&format!(
        "COST {}, {}: {:.0} us a request, with the agent {:.0} ({share:+.1} %), {:.1} hits",
        application.title, mode.title, without.cpu, with.cpu, with.hits
    ));
    let Some(path) = std::env::var_os("TRACER_TRUTH_FILE") else { return };
    let line = serde_json::json!({
        "application": application.title, "mode": mode.title, "without_us": without.cpu, "with_us": with.cpu,
        "hits": with.hits,
    });
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    let done = file.and_then(|mut file| writeln!(file, "{line}"));
    done.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
