//! How good the verdicts are: a shop of three tiers, simulated event by event, in which something changes; run by
//! `cargo xtask verdicts`. Prints tables in Markdown; the detector is the agent's own.
//!
//! Arguments: seeds per scenario, then names of scenarios (all without). With names, also prints every wrong run. `tuning`
//! among them: with the seeds that settings may be chosen on.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program whose output is its tables")]

mod random;
mod scenarios;
mod scoring;
mod shop;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub(crate) use tracer_results::analysis::detector::{Detector, Settings};
pub(crate) use tracer_results::analysis::finding::{Finding, FindingKind};
pub(crate) use tracer_results::analysis::window::{ClassWindow, STRATA, ServiceWindow, Window};

use scenarios::{SCENARIOS, Scenario};
use scoring::ScoredRun;

/// The seeds of the published tables begin here. No setting was ever chosen on them: whoever looks at their runs one by one,
/// or compares settings by them, takes others from then on.
const PUBLISHED: u64 = 20_000;
/// Those that settings are chosen on begin here.
const TUNING: u64 = 50_000;

fn main() {
    if cfg!(debug_assertions) {
        eprintln!("warning: not optimised, and slow for that: run `cargo xtask verdicts`");
    }
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let seeds = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(20);
    let mut names = arguments.get(1..).unwrap_or_default().to_vec();
    let first = if names.iter().any(|name| name == "tuning") { TUNING } else { PUBLISHED };
    names.retain(|name| name != "tuning");
    let wanted: Vec<&Scenario> = SCENARIOS
        .iter()
        .filter(|scenario| names.is_empty() || names.iter().any(|name| name == scenario.name))
        .collect();
    let jobs: Vec<(&Scenario, u64)> =
        wanted.iter().flat_map(|scenario| (0..seeds).map(move |seed| (*scenario, first + seed))).collect();
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((scenario, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = run(scenario, *seed);
                    rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(row);
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    rows.sort_by_key(|row| (SCENARIOS.iter().position(|scenario| scenario.name == row.scenario), row.seed));
    if !names.is_empty() {
        for row in rows.iter().filter(|row| row.right != row.found || row.alarms > 0) {
            eprintln!(
                "{} seed {}: {:?} instead of {:?}: {:?}",
                row.scenario, row.seed, row.found, row.right, row.words
            );
        }
    }
    println!("{}", scoring::tables(&rows, seeds as usize));
}

/// One scenario with one seed: an agent on each host.
fn run(scenario: &'static Scenario, seed: u64) -> ScoredRun {
    let (world, at, truth) = scenarios::prepare(scenario, seed);
    let windows = world.windows;
    let mut detectors = [0, 1].map(|_| Detector::new(Settings::default()));
    for hosts in world.run() {
        for (detector, window) in detectors.iter_mut().zip(hosts) {
            detector.push(&window);
        }
    }
    let found: Vec<Finding> = detectors.iter().flat_map(|detector| detector.findings().cloned()).collect();
    scoring::score(scenario.name, seed, windows, at, &truth, &found)
}
