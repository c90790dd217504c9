//! Decisions on simulated hosts: a clock, functions that are called so often and take so long.

use super::*;

const SECOND_NANOS: Nanos = 1_000_000_000;

/// A function of a simulated host.
struct Simulated {
    name: &'static str,
    cpu: f64,
    /// Calls a second.
    rate: f64,
    /// Response time of a call that begins at this second.
    time: fn(u64) -> Nanos,
    /// What the probes of a call cost; 0: it cannot be traced.
    cost: Nanos,
    reading: CallCounts,
}

fn function(name: &'static str, cpu: f64, rate: f64) -> Simulated {
    Simulated { name, cpu, rate, time: |_| 1_000_000, cost: 10_000, reading: CallCounts::default() }
}

struct Host {
    decided: Instrumentation,
    functions: Vec<Simulated>,
    second: u64,
    shed: bool,
    dearest: f64,
}

fn id(name: &str) -> FunctionId {
    FunctionId { program: "/opt/shop".into(), function: name.into() }
}

impl Host {
    /// Two CPUs and a budget of 1 %: 2000 calls a second of functions whose probes cost 10 µs.
    fn new(functions: Vec<Simulated>) -> Self {
        let settings = Settings { auto: true, budget: 0.01, ..Settings::default() };
        Self { decided: Instrumentation::new(settings, 2), functions, second: 0, shed: false, dearest: 0.0 }
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.second += 1;
            let now = self.second * SECOND_NANOS;
            let traced: BTreeMap<FunctionId, u32> = self.decided.traced().map(|one| (one.id, one.max_rate)).collect();
            let mut readings = BTreeMap::new();
            let mut spent = 0.0;
            for one in &mut self.functions {
                let Some(max_rate) = traced.get(&id(one.name)) else {
                    one.reading = CallCounts::default();
                    continue;
                };
                if one.rate > f64::from(*max_rate) {
                    // Its probes are gone within a part of a second.
                    self.decided.withdrawn(now, &id(one.name), one.rate);
                    continue;
                }
                spent += one.rate * one.cost as f64 / SECOND / 2.0;
                let calls = (one.rate * self.second as f64) as u64 - (one.rate * (self.second - 1) as f64) as u64;
                one.reading.calls += calls;
                one.reading.finished += calls;
                one.reading.time += calls * (one.time)(self.second);
                readings.insert(id(one.name), one.reading);
            }
            self.dearest = self.dearest.max(spent);
            if self.second.is_multiple_of(10) {
                let hotspot = |one: &Simulated| Hotspot {
                    id: id(one.name),
                    cpu: one.cpu,
                    call_cost: if one.cost == 0 { Err("inlined away".into()) } else { Ok(one.cost) },
                };
                let hot = self.functions.iter().filter(|one| one.cpu > 0.0).map(hotspot);
                self.decided.look(now, hot.collect());
            }
            self.decided.tick(now, &readings, self.shed);
        }
    }

    /// Decisions in order: function, action, reason.
    fn decisions(&self) -> Vec<(String, &'static str, &'static str)> {
        let of = |one: &Decision| (one.id.function.to_string(), one.action.name(), one.reason.name());
        self.decided.decisions.iter().map(of).collect()
    }
}

fn texts<'a>(all: &'a [(String, &'static str, &'static str)]) -> Vec<(&'a str, &'static str, &'static str)> {
    all.iter().map(|(function, action, reason)| (&**function, *action, *reason)).collect()
}

#[test]
fn the_hottest_comes_first_and_goes_when_it_is_learnt() {
    let mut host =
        Host::new(vec![function("sort", 0.2, 100.0), function("hash", 0.3, 100.0), function("cold", 0.005, 1.0)]);
    host.run(29);
    assert_eq!(texts(&host.decisions()), [("hash", "added", "hot"), ("sort", "added", "hot")]);
    host.run(90);
    assert_eq!(texts(&host.decisions()[2..]), [("hash", "removed", "learnt"), ("sort", "removed", "learnt")]);
    // It rests for five minutes the first time, then for ten.
    host.run(600);
    let added: Vec<Nanos> = host
        .decided
        .decisions
        .iter()
        .filter(|one| one.action == Action::Added && one.id == id("hash"))
        .map(|one| one.at / SECOND_NANOS)
        .collect();
    assert_eq!(added.len(), 2, "{added:?}");
    assert!(added[1] - added[0] >= 390, "{added:?}");
    assert_eq!(host.decided.counts(), [4, 4, 0]);
    let view = host.decided.view();
    let hash = view.functions.iter().find(|one| one.id == id("hash")).unwrap();
    assert_eq!((hash.state, hash.rate, hash.reason.as_ref()), ("resting", Some(100.0), Some(&Reason::Learnt)));
    assert!(hash.reading.unwrap().finished >= 9000);
}

#[test]
fn what_is_called_too_often_goes_at_once_and_is_remembered() {
    let mut host = Host::new(vec![function("leaf", 0.5, 100_000.0), function("sort", 0.1, 100.0)]);
    host.run(40);
    assert_eq!(
        texts(&host.decisions()),
        [("leaf", "added", "hot"), ("leaf", "removed", "too_many_calls"), ("sort", "added", "hot")]
    );
    // Known to cost half of a CPU, it is not tried again while that is what was measured.
    host.run(2000);
    let leaf = host.decisions().iter().filter(|(name, ..)| name == "leaf").count();
    assert_eq!(leaf, 2);
    assert!(host.dearest <= 0.01, "{}", host.dearest);
}

#[test]
fn all_together_stay_within_the_budget() {
    // Each fits alone, and three of them do not.
    let names = ["a", "b", "c", "d", "e"];
    let mut host = Host::new(names.into_iter().map(|name| function(name, 0.1, 800.0)).collect());
    for one in &mut host.functions {
        // Nothing is ever learnt of them.
        one.time = |second| 1_000_000 << (second / 30 % 4);
    }
    host.run(100);
    assert_eq!(host.decided.traced().count(), 2);
    assert!(host.dearest <= 0.01, "{}", host.dearest);
    // The one with more room is called more often than before, within what it may alone: it now has least CPU for its cost,
    // and goes.
    let busy = host.decided.traced().max_by_key(|one| one.max_rate).unwrap();
    assert!(busy.max_rate > 1300, "{busy:?}");
    let busy = host.functions.iter_mut().find(|one| id(one.name) == busy.id).unwrap();
    busy.rate = 1300.0;
    host.run(20);
    let over: Vec<_> = host.decisions().into_iter().filter(|(.., reason)| *reason == "over_budget").collect();
    assert_eq!(over.len(), 1, "{:?}", host.decisions());
    let cost = host.decided.view().cost;
    assert!(cost <= 0.01, "{cost}");
}

#[test]
fn what_is_not_called_cold_or_cannot_be_traced_goes() {
    let mut host = Host::new(vec![
        function("main", 0.4, 0.0),
        Simulated { cost: 0, ..function("folded", 0.5, 0.0) },
        Simulated { time: |second| 1_000_000 << (second / 30 % 4), ..function("once", 0.1, 100.0) },
    ]);
    host.run(60);
    host.functions[2].cpu = 0.0;
    host.run(120);
    let all = host.decisions();
    assert_eq!(
        texts(&all),
        [
            ("folded", "refused", "refused"),
            ("main", "added", "hot"),
            ("once", "added", "hot"),
            ("main", "removed", "no_calls"),
            ("once", "removed", "cold")
        ]
    );
    let folded = host.decided.view().functions.into_iter().find(|one| one.id == id("folded")).unwrap();
    assert_eq!((folded.state, folded.reason), ("refused", Some(Reason::Refused("inlined away".into()))));
}

#[test]
fn load_shedding_removes_everything() {
    let mut host = Host::new(vec![function("sort", 0.2, 100.0)]);
    host.run(15);
    host.shed = true;
    host.run(30);
    assert_eq!(texts(&host.decisions()), [("sort", "added", "hot"), ("sort", "removed", "load_shedding")]);
    assert_eq!(host.decided.traced().count(), 0);
}

#[test]
fn a_trace_that_never_settles_ends() {
    let mut host = Host::new(vec![function("varies", 0.2, 100.0)]);
    host.functions[0].time = |second| 1_000_000 << (second / 30 % 4);
    host.run(620);
    assert_eq!(texts(&host.decisions()), [("varies", "added", "hot"), ("varies", "removed", "long_enough")]);
}

#[test]
fn tables_are_bounded() {
    let mut decided = Instrumentation::new(Settings { auto: true, ..Settings::default() }, 1);
    for round in 0..3u64 {
        let hotspot = |n: u64| Hotspot { id: id(&format!("{round}-{n}")), cpu: 0.001, call_cost: Err("no".into()) };
        decided.look(round * SECOND_NANOS, (0..500).map(hotspot).collect());
    }
    assert_eq!((decided.known.len(), decided.decisions.len()), (KNOWN, DECISIONS));
    assert_eq!(decided.unknown, 1500 - KNOWN as u64);
    // Those that are hot no more make room.
    decided.look(100 * SECOND_NANOS, Vec::new());
    assert_eq!(decided.known.len(), 0);
}
