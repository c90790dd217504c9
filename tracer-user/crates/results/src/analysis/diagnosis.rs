//! What a deviation means: one class's code, all classes of a service, the host, or nothing that lasts.

use super::detector::{Detector, Opening, Settings};
use super::finding::{Cause, FindingKind};
use super::series::{Series, Stat, median};

/// Lengths over which a deviation is tested, windows.
const LENGTHS: [usize; 14] = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 360];

/// The strongest hit of the test.
struct Hit {
    stat: Stat,
    class: usize,
    length: usize,
    z: f64,
}

/// What is known about the moment of a diagnosis.
struct Moment {
    since: usize,
    t: usize,
    /// Windows from `since` to `t`.
    lasted: usize,
    deployed: bool,
    restarted: bool,
    loaded: bool,
    environment: bool,
    fading: bool,
    /// It may be growing; and something of it was there before it began.
    rising: bool,
    /// See `rising`.
    drifting: bool,
    /// Of the test: `z²` and its threshold.
    z2: f64,
    h: f64,
}

impl Moment {
    /// Confidence, given how much the kind of evidence is worth.
    fn confidence(&self, worth: f64) -> f64 {
        (worth / (1.0 + (-(self.z2 - self.h) / 6.0 - 2.0).exp())).clamp(0.0, 0.99)
    }
}

impl Detector {
    pub(super) fn class_tests(&mut self, s: &mut Series, t: usize) {
        let c = &self.settings;
        let floor = s.classes.iter().map(|class| class.floor).min().unwrap_or(t + 1).max(s.base);
        let deployed = s.started > s.base && t - s.started <= c.deployed && s.identity != s.before;
        let series = (5.0 * s.classes.len() as f64 / 70.0).max(1.0);
        let h = if deployed { c.threshold_deployed } else { c.threshold } + 2.0 * series.ln();
        let mut lead: Option<Hit> = None;
        for stat in Stat::ALL {
            for (i, class) in s.classes.iter().enumerate() {
                let known = if stat == Stat::Cpu { class.known } else { class.known_time };
                if !known || class.held.is_some() {
                    continue;
                }
                for (length, d) in s.suffixes(stat, i, (floor.max(class.floor), t), &LENGTHS) {
                    if length >= 16 && d.z * d.z > c.suspicion * h && d.effect.abs() > c.least(stat) {
                        s.suspected_at = Some(t);
                    }
                    let hit = d.z * d.z > h && d.effect.abs() > c.least(stat) && d.count >= c.least_requests;
                    // CPU before waits, then the strongest.
                    let cpu = |stat: Stat| stat == Stat::Cpu;
                    let better = lead.as_ref().is_none_or(|best| {
                        (cpu(stat) && !cpu(best.stat)) || (cpu(stat) == cpu(best.stat) && d.z.abs() > best.z.abs())
                    });
                    if hit && better {
                        lead = Some(Hit { stat, class: i, length, z: d.z });
                    }
                }
            }
        }
        let Some(hit) = lead else { return };
        s.alarm_at = Some(t);
        let since = s.change_point(hit.stat, hit.class, &[hit.class], t, hit.length);
        self.diagnose(s, t, &hit, since, deployed, h);
    }

    fn diagnose(&mut self, s: &mut Series, t: usize, hit: &Hit, since: usize, deployed: bool, h: f64) {
        let c = self.settings.clone();
        let (stat, cpu) = (hit.stat, hit.stat == Stat::Cpu);
        let lasted = t + 1 - since;
        let m = s.classes.len();
        let deviations: Vec<_> = (0..m).map(|i| s.deviation(stat, i, since, t)).collect();
        let z = |i: usize| deviations[i].z;
        let r = |i: usize| deviations[i].effect;
        let se: Vec<f64> =
            (0..m).map(|i| if z(i).abs() < 1e-6 { 0.05 } else { r(i).abs() / z(i).abs().max(1e-9) }).collect();
        let ok: Vec<usize> = (0..m)
            .filter(|i| if cpu { s.classes[*i].known } else { s.classes[*i].known_time })
            .filter(|i| deviations[*i].count >= c.least_requests)
            .collect();
        let least = c.least(stat);
        let (environment, loaded) = (self.environment_at(since, t), load_moved(s, since, t));
        // What all classes share.
        let usual = median(ok.iter().map(|i| se[*i].powi(2)).collect()).unwrap_or(1.0);
        let g = weighted_median(ok.iter().map(|i| (r(*i), 1.0 / se[*i].powi(2).max(usual).max(1e-12))).collect());
        let big = median(ok.iter().filter(|i| z(**i).powi(2) > 0.7 * h).map(|i| r(*i).abs()).collect());
        let fine: Vec<usize> =
            ok.iter().copied().filter(|i| se[*i] < f64::max(least / 2.0, big.unwrap_or(0.0) / 3.0)).collect();
        let with = fine.iter().filter(|i| r(**i).signum() == g.signum() && r(**i).abs() > 1.5 * se[**i]).count();
        let g = if fine.len() >= 4 && with as f64 >= 0.6 * fine.len() as f64 { g } else { 0.0 };
        let moved = (s.utilisation(since, t + 1) - s.utilisation(s.base, s.hi)).abs();
        let grown = if cpu { c.inflation * moved } else { 0.0 };
        let doubled = environment || (!cpu && loaded);
        let wide = if g == 0.0 { grown } else { 0.0 }
            + least * if doubled { 2.0 } else { 1.0 }
            + if matches!(stat, Stat::Cpu | Stat::Calls) { 0.0 } else { 2.0 * g.abs() };
        let mut specific: Vec<usize> = ok
            .iter()
            .copied()
            .filter(|i| s.classes[*i].held.is_none())
            // What moved with the host, only less, is no change of its own.
            .filter(|i| !(environment && g != 0.0 && (0.0..1.0).contains(&(r(*i) / g))))
            .filter(|i| (r(*i) - g).abs() > f64::max(wide, (0.7 * h).sqrt() * se[*i]) && z(*i).powi(2) > 0.5 * h)
            .collect();
        let (mut common, mut shared) = (g.abs() > least + grown, g);
        let part = if specific.is_empty() { ok.clone() } else { specific.clone() };
        let sums = |from: usize, to: usize| s.sums(stat, from, to, |i| part.contains(&i));
        let before = s.level_before(stat, since, &part);
        let level = |[_, x, _, raw]: [f64; 4]| raw / x.max(1e-12) - before;
        let middle = since + lasted / 2;
        let (early, late, all) = (level(sums(since, middle)), level(sums(middle, t + 1)), sums(since, t + 1));
        // Three standard deviations of the difference between two halves. The variance is that of what was expected: where
        // requests cost more, their noise has grown with them.
        let grown_noise = if matches!(stat, Stat::Cpu | Stat::Calls) { 1.0 + level(all).max(0.0) } else { 1.0 };
        let noise = 6.0 * grown_noise * all[2].sqrt() / all[1].max(1e-12);
        let fading = early.abs() - late.abs() > f64::max(0.15 * early.abs(), noise);
        // A step begins where it was found: before it there is nothing of it, and it does not grow.
        let prior = sums(since.saturating_sub(lasted), since);
        let (earlier, error) = (level(prior), prior[2].sqrt() / prior[1].max(1e-12));
        let begun = |errors: f64| earlier * late > 0.0 && earlier.abs() > f64::max(0.3 * late.abs(), errors * error);
        let grown_late = f64::max(0.3 * late.abs(), noise);
        let (rising, drifting) = (late.abs() - early.abs() > grown_late || begun(1.5), begun(2.5));
        let restarted = s.started > s.base && s.started + c.hold_off_most >= since;
        let z2 = hit.z * hit.z;
        let moment =
            Moment { since, t, lasted, deployed, restarted, loaded, environment, fading, rising, drifting, z2, h };
        if cpu && specific.len() > 1 && !deployed {
            let middle = median(specific.iter().map(|i| r(*i)).collect()).unwrap_or(0.0);
            if self.host_moved(since, t, middle) {
                common = true;
                shared = median(ok.iter().map(|i| r(*i)).collect()).unwrap_or(0.0);
                specific.clear();
            }
        }
        if specific.is_empty() {
            if common {
                // All of them say when it began.
                let began = s.change_point(stat, hit.class, &fine, t, hit.length);
                self.common_shift(s, stat, shared, &moment, began);
            }
            return;
        }
        self.specific_change(s, stat, &moment, &specific, &ok, (early, late), &|i| (z(i), r(i)));
    }

    /// Some classes moved by themselves.
    #[expect(clippy::too_many_arguments, reason = "all of it was found together, and is used once")]
    fn specific_change(
        &mut self,
        s: &mut Series,
        stat: Stat,
        m: &Moment,
        specific: &[usize],
        ok: &[usize],
        (early, late): (f64, f64),
        zr: &dyn Fn(usize) -> (f64, f64),
    ) {
        let c = self.settings.clone();
        let Moment { since, t, lasted, deployed, restarted, fading, .. } = *m;
        let cpu = stat == Stat::Cpu;
        let names: Vec<String> = specific.iter().map(|i| s.classes[*i].name.clone()).collect();
        // Misses of a cache: more calls, too.
        let missed = |i: &usize| {
            let calls = s.deviation(Stat::Calls, *i, since, t);
            calls.effect > c.least_calls && calls.z > 3.0
        };
        let cache = cpu && ok.iter().any(missed);
        let several = specific.len() > 1;
        let alone = !several && !fading && !m.rising && !cache;
        let quick = (deployed || !restarted) && (alone || (deployed && !fading));
        let need = if quick { c.settle } else { c.settle_shared };
        // Too short, or a burst that is over.
        if lasted < need || (alone && late.abs() < 0.5 * early.abs()) {
            return;
        }
        let lost: f64 = specific.iter().map(|i| zr(*i).1).sum();
        let (gained, certain) = if cpu && lost < 0.0 { gained_overhead(s, m, specific) } else { (false, true) };
        // Noise hides whether its CPU went elsewhere: without a deploy a class seldom becomes cheaper.
        if !certain && !deployed && lasted < c.settle_shared {
            return;
        }
        if gained && (certain || !deployed) {
            let lowest = specific.iter().map(|i| zr(*i).1).fold(0.0, f64::min);
            let opening = Opening {
                kind: FindingKind::Anomaly,
                service: &s.service.clone(),
                classes: names,
                resource: "attribution",
                since,
                cause: Cause::Unattributed,
                ratio: 1.0 + lowest,
                confidence: m.confidence(0.9),
            };
            let id = self.open(t, opening);
            return hold(s, specific, id, since, &c);
        }
        let strongest = specific.iter().copied().max_by(|a, b| zr(*a).0.abs().total_cmp(&zr(*b).0.abs()));
        let ratio = 1.0 + strongest.map_or(0.0, |i| zr(i).1);
        let service = s.service.clone();
        if stat == Stat::Downstream && self.callee_moved(s, specific, m) {
            return;
        }
        if stat == Stat::Downstream && !deployed {
            let small = |i: &usize| zr(*i).1.abs() < c.least_wait + load_effect(s, since, t);
            if m.loaded && specific.iter().all(small) {
                return;
            }
            let opening = Opening {
                kind: FindingKind::Environment,
                service: &service,
                classes: names,
                resource: "downstream",
                since,
                cause: Cause::None,
                ratio,
                confidence: m.confidence(0.7),
            };
            let id = self.open(t, opening);
            return hold(s, specific, id, since, &c);
        }
        let consequence = stat == Stat::Blocked && (m.loaded || m.environment) && specific.len() > 2;
        if stat == Stat::Queue || consequence {
            return;
        }
        let cold = fading || m.drifting || (restarted && several) || (cache && several && lasted < 2 * c.settle_shared);
        let kind = if !deployed && cold { FindingKind::Anomaly } else { FindingKind::ApplicationChange };
        let worth = match () {
            () if deployed => 0.98,
            () if restarted => 0.7,
            () if !several => 0.95,
            () => 0.8,
        };
        let cause = match stat {
            Stat::Calls => Cause::Calls,
            _ if deployed => Cause::NewBuild,
            _ => Cause::None,
        };
        let since = if deployed { s.started } else { since };
        let (resource, confidence) = (stat.resource(), m.confidence(worth));
        let opening = Opening { kind, service: &service, classes: names, resource, since, cause, ratio, confidence };
        let id = self.open(t, opening);
        hold(s, specific, id, since, &c);
    }

    /// One factor for all classes, since window `began`: not one class's code.
    fn common_shift(&mut self, s: &mut Series, stat: Stat, g: f64, m: &Moment, began: usize) {
        let Moment { since, t, lasted, deployed, restarted, .. } = *m;
        let c = self.settings.clone();
        let unsettled = restarted && !deployed && lasted < c.settle_shared;
        if lasted < c.settle || m.environment || unsettled {
            return;
        }
        let service = s.service.clone();
        let all = || s.classes.iter().map(|class| class.name.clone()).collect::<Vec<_>>();
        let kind = if deployed { FindingKind::ApplicationChange } else { FindingKind::Anomaly };
        let build = if deployed { Cause::NewBuild } else { Cause::AllClasses };
        let explained = stat == Stat::Queue || g.abs() < c.least(stat) + load_effect(s, since, t);
        let (kind, name, classes, resource, cause, worth) = match stat {
            Stat::Cpu if self.host_moved(since, t, g) => {
                (FindingKind::Environment, "", Vec::new(), "environment", Cause::WholeHost, 0.95)
            }
            Stat::Cpu if deployed => (kind, service.as_str(), all(), "cpu", build, 0.95),
            Stat::Cpu if m.fading && lasted < c.settle_shared => return,
            Stat::Cpu => (kind, service.as_str(), Vec::new(), "cpu", build, 0.8),
            _ if m.loaded && explained => return,
            Stat::Downstream if self.callee_moved(s, &(0..s.classes.len()).collect::<Vec<_>>(), m) => return,
            Stat::Downstream => {
                (FindingKind::Environment, service.as_str(), Vec::new(), "downstream", Cause::None, 0.9)
            }
            Stat::Calls => (kind, service.as_str(), Vec::new(), "downstream", Cause::Calls, 0.8),
            Stat::Blocked | Stat::Queue => (kind, service.as_str(), Vec::new(), stat.resource(), build, 0.7),
        };
        let (ratio, confidence) = (1.0 + g, m.confidence(worth));
        let opening = Opening { kind, service: name, classes, resource, since: began, cause, ratio, confidence };
        let id = self.open(t, opening);
        let everything: Vec<usize> = (0..s.classes.len()).collect();
        hold(s, &everything, id, began, &c);
    }

    /// Whether a service of this host that `s` calls explains the time that calls of `which` take: its requests got
    /// slower, or faster, by about as many seconds. The finding is that service's.
    fn callee_moved(&self, s: &Series, which: &[usize], m: &Moment) -> bool {
        let extra = s.sums(Stat::Downstream, m.since, m.t + 1, |i| which.contains(&i))[3];
        let callees = self.series.iter().filter(|other| s.callees.contains(&other.service));
        callees.map(|callee| callee.slower(m.since, m.t, extra.signum())).sum::<f64>() > 0.4 * extra.abs()
    }

    /// Whether another service of the host moved by a like factor at the same time.
    fn host_moved(&self, since: usize, t: usize, g: f64) -> bool {
        self.series.iter().any(|other| {
            let known = (0..other.classes.len()).filter(|i| other.classes[*i].known && other.base <= since);
            let also = median(known.map(|i| other.deviation(Stat::Cpu, i, since, t).effect).collect());
            also.is_some_and(|also| also.signum() == g.signum() && also.abs() > f64::max(0.04, g.abs() / 3.0))
        })
    }
}

/// A class with an open finding is not judged again until it came back or the change is accepted.
fn hold(s: &mut Series, which: &[usize], id: u64, since: usize, c: &Settings) {
    for i in which {
        let class = &mut s.classes[*i];
        class.held = class.held.or(Some(id));
    }
    // What was found late is in the reference, which is of before.
    if since < s.hi && which.iter().all(|i| since >= s.classes[*i].lo.max(s.base) + c.warmup) {
        s.learn(since, c);
    }
}

/// Whether what the classes lost, the service's overhead gained; and whether noise leaves no doubt of it.
fn gained_overhead(s: &Series, m: &Moment, specific: &[usize]) -> (bool, bool) {
    let lost = -s.sums(Stat::Cpu, m.since, m.t + 1, |i| specific.contains(&i))[3] / m.lasted as f64;
    let reference = s.totals(s.base, s.hi, false);
    let expected: f64 = reference.iter().map(|row| row[1]).sum();
    let per = if expected > 0.0 { reference.iter().map(|row| row[0]).sum::<f64>() / expected } else { 0.0 };
    let excess = |from: usize, to: usize| {
        let rows = s.totals(from, to, false);
        rows.iter().map(|row| row[0] - per * row[1]).sum::<f64>() / (rows.len() as f64).max(1.0)
    };
    let gain = excess(m.since, m.t + 1) - excess(m.since.saturating_sub(60), m.since);
    let n = (reference.len() as f64).max(1.0);
    let mean = reference.iter().map(|row| row[0] - per * row[1]).sum::<f64>() / n;
    let sd = (reference.iter().map(|row| (row[0] - per * row[1] - mean).powi(2)).sum::<f64>() / n).sqrt();
    let error = 2.5 * sd / (m.lasted as f64).sqrt();
    let gained = gain > 0.5 * lost;
    (gained, if gained { gain > error } else { gain + error < 0.5 * lost })
}

/// Whether expected demand or its mix moved near `since`: waits that rise with it are its consequence.
fn load_moved(s: &Series, since: usize, t: usize) -> bool {
    let mean = |from: usize, to: usize| {
        let (sums, n) = s.expected(from, to);
        sums.into_iter().map(|sum| sum / n.max(1.0)).collect::<Vec<_>>()
    };
    let now = mean(since, t + 1);
    let total: f64 = now.iter().sum();
    [mean(since.saturating_sub(36), since.saturating_sub(2).max(1)), mean(s.base, s.hi)].iter().any(|then| {
        let before: f64 = then.iter().sum();
        if total <= 0.0 || before <= 0.0 {
            return false;
        }
        let shifted: f64 = now.iter().zip(then).map(|(a, b)| (a / total - b / before).abs()).sum();
        (total / before).ln().abs() > 1.25f64.ln() || shifted / 2.0 > 0.10
    })
}

/// How much waits may grow with the load where what is waited for is not observed: taken as 40 % busy.
fn load_effect(s: &Series, since: usize, t: usize) -> f64 {
    let mean = |from: usize, to: usize| {
        let (sums, n) = s.expected(from, to);
        sums.iter().sum::<f64>() / n.max(1.0)
    };
    let ratio = mean(since, t + 1) / mean(s.base, s.hi).max(1e-12);
    if ratio < 2.0 { (0.6 / (1.0 - 0.4 * ratio) - 1.0).abs() } else { f64::INFINITY }
}

/// The value at half the weight; 0 of nothing.
fn weighted_median(mut values: Vec<(f64, f64)>) -> f64 {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = values.iter().map(|(_, w)| w).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    for (value, weight) in values {
        sum += weight;
        if sum >= half {
            return value;
        }
    }
    0.0
}
