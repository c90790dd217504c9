//! The contract of the verdicts, over simulated windows of two services: what is found, how soon, and what is not.

use super::detector::{Detector, Settings};
use super::finding::{Finding, FindingKind};
use super::window::{ClassWindow, STRATA, ServiceWindow, Window};

const LENGTH: f64 = 10.0;
const CORES: f64 = 4.0;
/// Requests a second, CPU seconds and blocked seconds of each class of the front service.
const CLASSES: [(&str, f64, f64, f64); 6] = [
    ("GET /", 20.0, 0.004, 0.002),
    ("GET /item", 30.0, 0.006, 0.004),
    ("GET /search", 8.0, 0.020, 0.010),
    ("POST /cart", 5.0, 0.010, 0.015),
    ("POST /order", 2.0, 0.030, 0.040),
    ("GET /rare", 0.4, 0.015, 0.005),
];

/// A generator of random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Approximately normal: mean 0, deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// What differs from an ordinary day from window 60 on.
#[derive(Clone, Copy, Default)]
struct Change {
    /// Factor of the CPU of this class of the front.
    cpu: Option<(usize, f64)>,
    blocked: Option<(usize, f64)>,
    load: Option<f64>,
    /// Requests of the second class become requests of the third.
    mix: bool,
    foreign: f64,
    steal: f64,
    /// All CPU costs more: a slower clock.
    clock: Option<f64>,
    deploy: bool,
    /// This share of a class's CPU loses its owner.
    unowned: Option<(usize, f64)>,
}

const AT: usize = 60;

fn window(t: usize, change: Change, random: &mut Random) -> Window {
    let changed = t >= AT;
    let on = |factor: Option<f64>| if changed { factor.unwrap_or(1.0) } else { 1.0 };
    let wave = 1.0 + 0.15 * (t as f64 / 40.0).sin() + 0.02 * random.normal();
    let mut services = Vec::new();
    let mut busy = 0.0;
    for (service, share) in [("front", 1.0), ("store", 0.5)] {
        let mut classes = Vec::new();
        let mut overhead = 0.05 + 0.005 * random.normal().abs();
        let noise = 1.0 + 0.01 * random.normal();
        for (i, (name, rate, cpu, blocked)) in CLASSES.iter().enumerate() {
            let mut rate = rate * share * wave * on(change.load);
            if changed && change.mix {
                rate *= [1.0, 0.3, 2.5, 1.0, 1.0, 1.0][i];
            }
            let mean = rate * LENGTH;
            let n = (mean + mean.sqrt() * random.normal()).round().max(0.0);
            let front = service == "front" && changed;
            let factor =
                |what: Option<(usize, f64)>| what.filter(|(class, _)| front && *class == i).map_or(1.0, |(_, f)| f);
            let each = cpu * factor(change.cpu) * on(change.clock) * noise * (1.0 + 0.02 * random.normal());
            // Requests' CPU has a coefficient of variation of 0.6.
            let mut used = (n * each * (1.0 + 0.6 * random.normal() / n.max(1.0).sqrt())).max(0.0);
            busy += used;
            if let Some((_, share)) = change.unowned.filter(|(class, _)| front && *class == i) {
                overhead += used * share;
                used *= 1.0 - share;
            }
            let split = [0.35, 0.55, 0.10];
            let part = |total: f64| -> [f64; STRATA] { split.map(|share| share * total) };
            let waits = n * blocked * factor(change.blocked) * (1.0 + 0.05 * random.normal());
            classes.push(ClassWindow {
                request_class: (*name).to_owned(),
                count: part(n),
                cpu_s: part(used),
                cpu_s_squared: n * each * each * 1.36,
                blocked_s: waits.max(0.0),
                queue_s: n * 0.0002 * (1.0 + 0.1 * random.normal()).max(0.0),
                calls: n,
                downstream_s: n * 0.003 * (1.0 + 0.05 * random.normal()).max(0.0),
            });
        }
        busy += overhead;
        services.push(ServiceWindow {
            service_name: service.to_owned(),
            identity: u64::from(changed && change.deploy && service == "front"),
            starts: 0,
            entry: service == "front",
            callees: if service == "front" { vec!["store".to_owned()] } else { Vec::new() },
            overhead_s: overhead,
            ambiguous: 0.01,
            classes,
        });
    }
    let all = CORES * LENGTH;
    let foreign = (0.01 + if changed { change.foreign } else { 0.0 }) * all;
    Window {
        start_ns: t as u64 * 10_000_000_000,
        length_s: LENGTH,
        cores: CORES,
        busy_s: busy + foreign,
        foreign_s: foreign * (1.0 + 0.05 * random.normal()),
        steal_s: if changed { change.steal * all } else { 0.0 },
        loss: 0.0,
        services,
    }
}

/// Findings of 180 windows.
fn findings(change: Change, seed: u64) -> Vec<Finding> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut detector = Detector::new(Settings::default());
    for t in 0..180 {
        detector.push(&window(t, change, &mut random));
    }
    detector.findings().cloned().collect()
}

const SEEDS: std::ops::Range<u64> = 1..5;

fn kinds(found: &[Finding]) -> Vec<(FindingKind, String)> {
    found.iter().map(|f| (f.kind, f.summary())).collect()
}

#[test]
fn a_class_that_costs_half_more_is_found_soon() {
    for seed in SEEDS {
        for class in [1, 2, 4] {
            let found = findings(Change { cpu: Some((class, 1.5)), ..Change::default() }, seed);
            let changes: Vec<&Finding> = found.iter().filter(|f| f.kind == FindingKind::ApplicationChange).collect();
            let [one] = changes[..] else { panic!("seed {seed}, class {class}: {:?}", kinds(&found)) };
            assert_eq!((one.resource, one.service_name.as_str()), ("cpu", "front"));
            assert_eq!(one.request_classes, [CLASSES[class].0], "seed {seed}");
            assert!(one.opened < AT + 12, "seed {seed}: found at {}", one.opened);
            assert!(one.since.abs_diff(AT) <= 3, "seed {seed}: since {}", one.since);
            assert!((one.change_ratio - 1.5).abs() < 0.15, "seed {seed}: {}", one.change_ratio);
            assert!(
                found.iter().all(|f| matches!(f.kind, FindingKind::ApplicationChange | FindingKind::WorkloadChange)),
                "{:?}",
                kinds(&found)
            );
        }
    }
}

#[test]
fn a_class_that_waits_longer_is_found_with_its_resource() {
    for seed in SEEDS {
        let found = findings(Change { blocked: Some((2, 2.5)), ..Change::default() }, seed);
        let change = found.iter().find(|f| f.kind == FindingKind::ApplicationChange);
        let Some(one) = change else { panic!("seed {seed}: {:?}", kinds(&found)) };
        assert_eq!((one.resource, one.request_classes.as_slice()), ("blocked", &[CLASSES[2].0.to_owned()][..]));
    }
}

#[test]
fn load_and_mix_change_no_application() {
    for seed in SEEDS {
        for (change, news) in [
            (Change::default(), false),
            (Change { load: Some(2.0), ..Change::default() }, true),
            (Change { mix: true, ..Change::default() }, true),
        ] {
            let found = findings(change, seed);
            let alarms = found.iter().filter(|f| f.kind != FindingKind::WorkloadChange).count();
            assert_eq!(alarms, 0, "seed {seed}: {:?}", kinds(&found));
            assert_eq!(!found.is_empty(), news, "seed {seed}: {:?}", kinds(&found));
        }
    }
}

#[test]
fn what_others_burn_is_no_application_change() {
    for seed in SEEDS {
        for change in [
            Change { foreign: 0.3, ..Change::default() },
            Change { steal: 0.1, ..Change::default() },
            Change { clock: Some(1.25), ..Change::default() },
        ] {
            let found = findings(change, seed);
            let outside = found.iter().find(|f| f.kind == FindingKind::Environment);
            let Some(outside) = outside else { panic!("seed {seed}: {:?}", kinds(&found)) };
            assert!(outside.since.abs_diff(AT) <= 1, "seed {seed}: since {}", outside.since);
            assert!(found.iter().all(|f| f.kind != FindingKind::ApplicationChange), "seed {seed}: {:?}", kinds(&found));
        }
    }
}

#[test]
fn a_deploy_is_named_and_one_that_changes_nothing_is_none() {
    for seed in SEEDS {
        let found = findings(Change { deploy: true, cpu: Some((1, 1.4)), ..Change::default() }, seed);
        let change = found.iter().find(|f| f.kind == FindingKind::ApplicationChange);
        let Some(one) = change else { panic!("seed {seed}: {:?}", kinds(&found)) };
        assert_eq!((one.since, one.cause.words()), (AT, "since a new build or configuration"), "seed {seed}");
        let quiet = findings(Change { deploy: true, ..Change::default() }, seed);
        assert!(quiet.iter().all(|f| f.kind == FindingKind::WorkloadChange), "seed {seed}: {:?}", kinds(&quiet));
    }
}

#[test]
fn cpu_that_loses_its_owner_is_no_faster_application() {
    for seed in SEEDS {
        let found = findings(Change { unowned: Some((1, 0.4)), ..Change::default() }, seed);
        assert!(found.iter().all(|f| f.kind != FindingKind::ApplicationChange), "seed {seed}: {:?}", kinds(&found));
        assert!(found.iter().any(|f| f.kind == FindingKind::Anomaly), "seed {seed}: {:?}", kinds(&found));
    }
}

#[test]
fn a_change_that_is_undone_ends_and_one_that_lasts_becomes_the_reference() {
    let change = Change { cpu: Some((1, 1.5)), ..Change::default() };
    let mut random = Random(77);
    let mut detector = Detector::new(Settings::default());
    for t in 0..110 {
        detector.push(&window(t, if t < 85 { change } else { Change::default() }, &mut random));
    }
    let ended: Vec<&Finding> = detector.findings().filter(|f| f.kind == FindingKind::ApplicationChange).collect();
    let [one] = ended[..] else { panic!("{:?}", detector.findings().collect::<Vec<_>>()) };
    assert!(one.until.is_some_and(|until| until.abs_diff(85) <= 8), "{one:?}");
    let lasting = findings(change, 3);
    let one = lasting.iter().find(|f| f.kind == FindingKind::ApplicationChange).unwrap();
    assert!(one.until.is_some(), "accepted after an hour's sixth: {one:?}");
}

#[test]
fn absurd_windows_have_no_effect_but_are_counted() {
    let mut detector = Detector::new(Settings::default());
    let services = |n: usize, classes: usize| {
        let class = |i: usize| ClassWindow {
            request_class: format!("c{i}"),
            count: [1e300, f64::MAX, 0.0],
            cpu_s: [f64::NAN, f64::INFINITY, -1.0],
            cpu_s_squared: f64::NAN,
            ..ClassWindow::default()
        };
        let one = |i: usize| ServiceWindow {
            service_name: format!("s{i}"),
            classes: (0..classes).map(class).collect(),
            overhead_s: f64::NAN,
            ..ServiceWindow::default()
        };
        (0..n).map(one).collect::<Vec<_>>()
    };
    for t in 0..40 {
        let services = services(if t == 3 { 100 } else { 3 }, 90);
        let (length_s, cores) = (f64::NAN, f64::INFINITY);
        detector.push(&Window { start_ns: u64::MAX, length_s, cores, services, ..Window::default() });
    }
    assert!(detector.refused() > 0);
    assert!(detector.findings().count() <= super::detector::FINDINGS);
}
