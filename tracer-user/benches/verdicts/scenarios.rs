//! What may change while a service is watched, and the right answer.

use super::FindingKind;
use super::random::Random;
use super::shop::{CLASSES, MIXES, World};

/// The right answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    /// `None`: nothing changed.
    pub(crate) kind: Option<FindingKind>,
    /// Also right.
    pub(crate) also: &'static [Option<FindingKind>],
    pub(crate) classes: Vec<usize>,
    pub(crate) resource: Option<&'static str>,
    pub(crate) ratio: Option<f64>,
    /// No window is the first changed one.
    pub(crate) gradual: bool,
}

/// A scenario: its name, what it is, and how it changes the world from window `t` on.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) words: &'static str,
    pub(crate) change: fn(&mut World, usize) -> Truth,
}

const APPLICATION: Option<FindingKind> = Some(FindingKind::ApplicationChange);
const WORKLOAD: Option<FindingKind> = Some(FindingKind::WorkloadChange);
const ENVIRONMENT: Option<FindingKind> = Some(FindingKind::Environment);
const ANOMALY: Option<FindingKind> = Some(FindingKind::Anomaly);

fn answer(kind: Option<FindingKind>) -> Truth {
    Truth { kind, ..Truth::default() }
}

fn changed(class: usize, resource: &'static str, ratio: Option<f64>) -> Truth {
    Truth { classes: vec![class], resource: Some(resource), ratio, ..answer(APPLICATION) }
}

fn dearer(w: &mut World, t: usize, ratio: f64) -> Truth {
    let class = w.frequent_class();
    w.app_cpu[t..].iter_mut().for_each(|factors| factors[class] *= ratio);
    changed(class, "cpu", Some(ratio))
}

fn other_mix(w: &mut World, t: usize) -> Truth {
    let far = |mix: &[f64; 14]| mix.iter().zip(w.mix[0]).map(|(a, b)| (a / 100.0 - b).abs()).sum::<f64>();
    let now = (0..3).min_by(|a, b| far(&MIXES[*a]).total_cmp(&far(&MIXES[*b]))).unwrap_or(0);
    let mix = MIXES[(now + 1 + w.random.below(2)) % 3].map(|per_cent| per_cent / 100.0);
    w.mix[t..].fill(mix);
    answer(WORKLOAD)
}

fn scale(values: &mut [f64], factor: f64) {
    for value in values {
        *value *= factor;
    }
}

/// Windows since `t`.
fn ages(w: &World, t: usize) -> impl Iterator<Item = (usize, f64)> + use<> {
    (t..w.windows).map(move |at| (at, (at - t) as f64))
}

fn cold_cache(w: &mut World, t: usize, slowest: f64) {
    let decay = w.random.between(8.0, slowest);
    for (at, age) in ages(w, t) {
        w.miss[at] = (w.miss[at] + 0.7 * (-age / decay).exp()).clamp(0.0, 0.95);
    }
}

/// All of them; the numbers are those of the research this follows.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "S0", words: "nothing, one hour", change: |_, _| answer(None) },
    Scenario {
        name: "S1",
        words: "twice the load",
        change: |w, t| {
            scale(&mut w.rate[t..], 2.0);
            answer(WORKLOAD)
        },
    },
    Scenario { name: "S2", words: "another mix of classes", change: other_mix },
    Scenario { name: "S3", words: "CPU of one class × 1.5", change: |w, t| dearer(w, t, 1.5) },
    Scenario { name: "S3-20", words: "CPU of one class × 1.2", change: |w, t| dearer(w, t, 1.2) },
    Scenario { name: "S3-10", words: "CPU of one class × 1.1", change: |w, t| dearer(w, t, 1.1) },
    Scenario {
        name: "S4",
        words: "locks or disk: one class blocked for 20 to 100 ms more",
        change: |w, t| {
            let (class, more) = (w.frequent_class(), w.random.between(0.02, 0.1));
            w.app_block_more[t..].iter_mut().for_each(|blocked| blocked[class] += more);
            changed(class, "blocked", None)
        },
    },
    Scenario {
        name: "S5",
        words: "a slower database, traced in half of the runs",
        change: |w, t| {
            let factor = w.random.between(2.5, 5.0);
            scale(&mut w.db_block[t..], factor);
            w.db_seen = w.random.uniform() < 0.5;
            Truth { also: &[ANOMALY], resource: Some("downstream"), ..answer(ENVIRONMENT) }
        },
    },
    Scenario {
        name: "S5b",
        words: "one class makes 2 to 4 times as many calls",
        change: |w, t| {
            let (class, factor) = (w.frequent_class(), w.random.between(2.0, 4.0));
            w.app_calls[t..].iter_mut().for_each(|calls| calls[class] *= factor);
            changed(class, "downstream", None)
        },
    },
    Scenario {
        name: "S6",
        words: "a foreign process burns CPU for 10 minutes",
        change: |w, t| {
            let (end, cores) = (t + 60, w.random.between(0.15, 0.5) * w.cores[0]);
            let slower = w.random.between(1.0, 1.06);
            w.foreign[0][t..end].iter_mut().for_each(|foreign| *foreign += cores);
            scale(&mut w.host_factor[0][t..end], slower);
            Truth { also: &[ANOMALY], ..answer(ENVIRONMENT) }
        },
    },
    Scenario {
        name: "S6b",
        words: "the hypervisor takes CPU for 10 minutes",
        change: |w, t| {
            let (end, factor) = (t + 60, w.random.between(1.12, 1.5));
            let taken = (factor - 1.0) * 0.3 * w.cores[0];
            w.steal[0][t..end].iter_mut().for_each(|steal| *steal += taken);
            scale(&mut w.host_factor[0][t..end], factor);
            answer(ENVIRONMENT)
        },
    },
    Scenario {
        name: "S6c",
        words: "a slower clock, which no counter shows",
        change: |w, t| {
            let factor = w.random.between(1.12, 1.4);
            scale(&mut w.host_factor[0][t..], factor);
            answer(ENVIRONMENT)
        },
    },
    Scenario {
        name: "S7",
        words: "all classes get dearer by 0.18 % a window",
        change: |w, t| {
            for (at, age) in ages(w, t) {
                w.app_cpu[at].iter_mut().for_each(|factor| *factor *= 1.0 + 0.0018 * age);
                w.app_overhead[at] *= 1.0 + 0.012 * age;
            }
            Truth { gradual: true, ..answer(ANOMALY) }
        },
    },
    Scenario {
        name: "S8",
        words: "a deploy that changes no cost",
        change: |w, t| {
            w.restart(t, true);
            answer(None)
        },
    },
    Scenario {
        name: "S9",
        words: "a deploy: one class × 0.75 to 2",
        change: |w, t| {
            w.restart(t, true);
            let ratio = [0.75, 1.2, 1.3, 1.5, 2.0][w.random.below(5)];
            dearer(w, t, ratio)
        },
    },
    Scenario {
        name: "S10",
        words: "a restart, with a cold cache",
        change: |w, t| {
            w.restart(t, false);
            cold_cache(w, t, 20.0);
            Truth { also: &[ANOMALY, WORKLOAD], gradual: true, ..answer(None) }
        },
    },
    Scenario {
        name: "S10b",
        words: "the cache is flushed",
        change: |w, t| {
            cold_cache(w, t, 25.0);
            Truth { also: &[None, WORKLOAD], gradual: true, ..answer(ANOMALY) }
        },
    },
    Scenario {
        name: "S11",
        words: "larger payloads in one class",
        change: |w, t| {
            let class = w.frequent_class();
            w.size[t..].iter_mut().for_each(|sizes| sizes[class] = [0.15, 0.35, 0.5]);
            Truth { classes: vec![class], ..answer(WORKLOAD) }
        },
    },
    Scenario {
        name: "S12",
        words: "2 to 8 % of the records lost in a third of the windows",
        change: |w, t| {
            for at in 0..w.windows {
                let (dice, lost) = (w.random.uniform(), w.random.between(0.02, 0.08));
                w.loss[at] = if (t..t + 30).contains(&at) {
                    0.05
                } else if dice < 0.25 {
                    lost
                } else {
                    0.0
                };
            }
            answer(None)
        },
    },
    Scenario {
        name: "S13",
        words: "a class that was not there before",
        change: |w, t| {
            w.new_class = t;
            w.mix.iter_mut().for_each(|mix| mix[13] = 0.03);
            Truth { classes: vec![13], ..answer(WORKLOAD) }
        },
    },
    Scenario {
        name: "S14",
        words: "CPU × 2 in a class of 1 to 5 requests a window",
        change: |w, t| {
            let class = 10 + w.random.below(4);
            let mean = w.rate.iter().sum::<f64>() / w.windows as f64 * super::shop::LENGTH;
            let share = w.random.between(1.0, 5.0) / mean;
            w.mix.iter_mut().for_each(|mix| mix[class] = share);
            w.app_cpu[t..].iter_mut().for_each(|factors| factors[class] *= 2.0);
            changed(class, "cpu", Some(2.0))
        },
    },
    Scenario {
        name: "S15",
        words: "another mix, load × 1.5 and one class × 1.5",
        change: |w, t| {
            other_mix(w, t);
            scale(&mut w.rate[t..], 1.5);
            dearer(w, t, 1.5)
        },
    },
    Scenario {
        name: "S16",
        words: "35 % of the CPU of a class loses its owner",
        change: |w, t| {
            let class = w.frequent_class();
            w.unowned[t..].iter_mut().for_each(|share| share[class] = 0.35);
            Truth { resource: Some("attribution"), ..answer(ANOMALY) }
        },
    },
    Scenario {
        name: "S17",
        words: "the service computes beside its requests",
        change: |w, t| {
            let more = w.random.between(0.25, 0.5);
            w.app_overhead[t..].iter_mut().for_each(|share| *share += more);
            Truth { resource: Some("cpu"), ..answer(ANOMALY) }
        },
    },
];

/// A world in which the scenario happens, the window it happens in, and the right answer.
pub(crate) fn prepare(scenario: &Scenario, seed: u64) -> (World, usize, Truth) {
    let nth = SCENARIOS.iter().position(|other| other.name == scenario.name).unwrap_or(0);
    let random = Random::new(seed.wrapping_mul(1009).wrapping_add(nth as u64));
    let windows = if scenario.name == "S0" { 60 + 360 } else { 300 };
    let mut world = World::new(random, windows);
    let t = 110 + world.random.below(40);
    let truth = (scenario.change)(&mut world, t);
    (world, t, truth)
}

/// Names of the classes that the scenario changes.
pub(crate) fn names(truth: &Truth) -> Vec<String> {
    truth.classes.iter().map(|class| CLASSES[*class].to_owned()).collect()
}
