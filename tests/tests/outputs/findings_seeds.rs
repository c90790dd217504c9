//! Findings about real processes, three seeds a scenario: other rates, another class, another moment each time.
//! `docs/verdicts.md` has the figures.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::findings::{
    self, Load, WARM, check_contract, findings, now_ns, wait_for_more_windows, wait_for_windows,
};
use tracer_tests::process::Process;
use tracer_tests::workload::Server;
use tracer_tests::{Numbers, begin, figure, http, say, scratch, wait};

const SEEDS: [u64; 3] = [1, 2, 3];
/// Targets of the server, what a request costs, microseconds, and requests a second: at least, at most.
const CLASSES: [(&str, u64, u64, u64); 5] = [
    ("/light", 1000, 12, 30),
    ("/medium", 5000, 7, 14),
    ("/heavy", 20_000, 3, 5),
    ("/alpha", 7000, 5, 10),
    ("/beta", 3000, 8, 20),
];
/// A change is found within so many windows of a second.
const WITHIN_S: f64 = 12.0;

/// A server under load, and an agent that has learnt what its requests cost.
struct Scene {
    server: Server,
    load: Load,
    agent: Agent,
    numbers: Numbers,
}

impl Scene {
    fn start(dir: &Path, seed: u64) -> Self {
        let mut numbers = Numbers::new(seed);
        let server = Server::c("burn", dir);
        let rates = CLASSES.map(|(target, _, least, most)| (target, (least + numbers.below(most - least + 1)) as f64));
        let load = Load::start(&server, &rates, seed);
        let agent = findings::agent(dir, "", &[]);
        let warm = WARM + numbers.below(15) as usize;
        say(&format!("seed {seed}: requests a second {rates:?}, {warm} windows before the change"));
        wait_for_windows(&agent, "GET /medium", warm);
        Self { server, load, agent, numbers }
    }

    /// Waits for a finding of one of these kinds.
    fn find(&self, kinds: &[&str]) -> Value {
        wait(&format!("a finding of {kinds:?}"), Duration::from_secs(40), || {
            findings(&self.agent).into_iter().find(|one| kinds.iter().any(|kind| one["kind"] == *kind))
        })
    }

    /// Ends; returns everything that was found.
    fn end(self) -> Vec<Value> {
        let all = findings(&self.agent);
        check_contract(&all);
        self.load.end();
        self.agent.stop();
        all
    }
}

/// What was found about the server.
fn own(all: &[Value]) -> Vec<&Value> {
    all.iter().filter(|one| one["service_name"] == "burn").collect()
}

#[test]
fn a_class_that_costs_half_more_is_named_within_twelve_windows() {
    let Some(_turn) = begin("findings of seeds", &["cc"]) else { return };
    for seed in SEEDS {
        let dir = scratch();
        let mut scene = Scene::start(dir.path(), seed);
        let early = findings(&scene.agent);
        assert!(early.iter().all(|one| one["kind"] != "application_change"), "seed {seed}: {early:?}");
        // The cheapest class is left alone: half a millisecond is not much more than what a request costs besides.
        let (target, micros, ..) = CLASSES[1 + scene.numbers.below(CLASSES.len() as u64 - 1) as usize];
        let changed = now_ns();
        let set = format!("/set{target}/{}", micros + micros / 2);
        assert_eq!(http::get(scene.server.address, &set).expect("a reply").status, 200);
        let one = scene.find(&["application_change"]);
        let seconds = |name: &str| (one[name].as_f64().expect("an instant") - changed) / 1e9;
        let ratio = one["change_ratio"].as_f64().expect("a ratio");
        figure(
            &format!("findings of seed {seed}: class, seconds until found, ratio of 1.5"),
            &format!("{target} {:.1} {ratio:.3}", seconds("found_ns")),
        );
        assert_eq!(one["request_classes"], serde_json::json!([format!("GET {target}")]), "seed {seed}: {one}");
        assert_eq!((&one["service_name"], &one["resource"]), (&"burn".into(), &"cpu".into()), "seed {seed}: {one}");
        // It is published at the end of a window, and the change falls into one.
        assert!(seconds("found_ns") <= WITHIN_S + 2.0, "seed {seed}: after {:.1} s: {one}", seconds("found_ns"));
        assert!(seconds("since_ns").abs() <= 3.0, "seed {seed}: since {:.1} s: {one}", seconds("since_ns"));
        assert!((1.35..1.65).contains(&ratio), "seed {seed}: {one}");
        scene.end();
    }
}

#[test]
fn a_load_that_doubles_is_at_most_a_workload_change() {
    let Some(_turn) = begin("findings of seeds", &["cc"]) else { return };
    for seed in SEEDS {
        let dir = scratch();
        let scene = Scene::start(dir.path(), seed);
        scene.load.times(|_| 2.0);
        let news = scene.find(&["workload_change"]);
        assert_eq!(news["service_name"], "burn", "seed {seed}");
        wait_for_more_windows(&scene.agent, "GET /medium", 20);
        let all = scene.end();
        assert!(own(&all).iter().all(|one| one["kind"] == "workload_change"), "seed {seed}: {all:?}");
        figure(&format!("findings of seed {seed}: ratio of a load × 2"), &news["change_ratio"].to_string());
    }
}

#[test]
fn a_mix_that_shifts_is_at_most_a_workload_change() {
    let Some(_turn) = begin("findings of seeds", &["cc"]) else { return };
    for seed in SEEDS {
        let dir = scratch();
        let mut scene = Scene::start(dir.path(), seed);
        // One half of the classes gets rarer, the other more frequent.
        let first = scene.numbers.below(2);
        let factors: Vec<f64> = (0..CLASSES.len() as u64).map(|nth| if nth % 2 == first { 0.4 } else { 2.2 }).collect();
        scene.load.times(|nth| factors[nth]);
        wait_for_more_windows(&scene.agent, "GET /medium", 40);
        let all = scene.end();
        assert!(own(&all).iter().all(|one| one["kind"] == "workload_change"), "seed {seed}: {all:?}");
        figure(&format!("findings of seed {seed}: findings of a shifted mix"), &own(&all).len().to_string());
    }
}

#[test]
fn a_process_that_burns_cpu_is_the_environment() {
    let Some(_turn) = begin("findings of seeds", &["cc"]) else { return };
    if let Some(reason) = findings::busy_host() {
        say(&format!("SKIPPED findings of seeds: {reason}"));
        return;
    }
    for seed in SEEDS {
        let dir = scratch();
        let scene = Scene::start(dir.path(), seed);
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do :; done"]);
        let burner = Process::start("burner", &mut shell, &dir.path().join("burner.log"));
        let began = now_ns();
        let found = scene.find(&["environment", "anomaly"]);
        let after = (found["found_ns"].as_f64().expect("an instant") - began) / 1e9;
        assert_eq!(found["service_name"], "", "seed {seed}: {found}");
        wait_for_more_windows(&scene.agent, "GET /medium", 20);
        drop(burner);
        let all = scene.end();
        assert!(all.iter().all(|one| one["kind"] != "application_change"), "seed {seed}: {all:?}");
        figure(&format!("findings of seed {seed}: seconds until a burner is found"), &format!("{after:.1}"));
    }
}
