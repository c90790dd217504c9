//! The detector: takes windows, keeps findings. Tests of the host, of overhead and of the workload are here; what a
//! deviation of classes means is decided in `diagnosis.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use super::evidence::{HostPoint, stat_of};
use super::finding::{Cause, Finding, FindingKind};
use super::series::{Series, Stat};
use super::window::Window;

/// Services that are judged; further ones are counted and passed over.
pub const SERVICES: usize = 32;
/// Classes of one service, and of all.
pub const CLASSES_PER_SERVICE: usize = 64;
/// See [`CLASSES_PER_SERVICE`].
pub const CLASSES: usize = 200;
/// Findings that are remembered; beyond it the oldest closed one is forgotten.
pub const FINDINGS: usize = 256;

/// Settings. Durations are in windows, costs as shares.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Before the first verdict.
    pub warmup: usize,
    /// Most windows in a reference.
    pub reference: usize,
    /// Newest windows kept out of it.
    pub reference_lag: usize,
    /// The square of the deviation, in standard deviations, that is a hit; and soon after a new identity.
    pub threshold: f64,
    /// See `threshold`.
    pub threshold_deployed: f64,
    /// The share of `threshold` from which the reference waits for what becomes of a deviation; and for how long at most.
    pub suspicion: f64,
    /// See `suspicion`.
    pub patience: usize,
    /// Smallest change of CPU, of calls per request, and of waits as a share of a class's own time.
    pub least_cpu: f64,
    /// See `least_cpu`.
    pub least_calls: f64,
    /// See `least_cpu`.
    pub least_wait: f64,
    /// CPU per request may grow by this share of a change of utilisation.
    pub inflation: f64,
    /// How long a change must last: of one class, and of several without a new identity.
    pub settle: usize,
    /// See `settle`.
    pub settle_shared: usize,
    /// After a start nothing is judged for so long; and at most so long while demand still falls.
    pub hold_off: usize,
    /// See `hold_off`.
    pub hold_off_most: usize,
    /// How long an identity counts as new.
    pub deployed: usize,
    /// After so many windows an application change is the new reference; others after three times as many.
    pub accept: usize,
    /// A window counts at most so many standard deviations.
    pub clip: f64,
    /// Requests after the change, and in the reference, for a verdict on CPU.
    pub least_requests: f64,
    /// See `least_requests`.
    pub least_reference: f64,
    /// CPU of others and stolen CPU that is a finding, as shares of all CPUs; overhead as a share of request CPU.
    pub foreign: f64,
    /// See `foreign`.
    pub steal: f64,
    /// See `foreign`.
    pub overhead: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            warmup: 24,
            reference: 360,
            reference_lag: 24,
            threshold: 25.0,
            threshold_deployed: 21.0,
            suspicion: 0.5,
            patience: 144,
            least_cpu: 0.07,
            least_calls: 0.25,
            least_wait: 0.25,
            inflation: 0.15,
            settle: 8,
            settle_shared: 24,
            hold_off: 6,
            hold_off_most: 30,
            deployed: 60,
            accept: 60,
            clip: 3.5,
            least_requests: 20.0,
            least_reference: 50.0,
            foreign: 0.05,
            steal: 0.03,
            overhead: 0.10,
        }
    }
}

impl Settings {
    /// Code is cold and caches are empty for seconds, not for windows: with windows shorter than ten seconds, starts count
    /// for as many more.
    pub fn scale_to(&mut self, window: Duration) {
        let windows = |seconds: f64| (seconds / window.as_secs_f64().max(1.0)).ceil() as usize;
        self.hold_off = self.hold_off.max(windows(60.0));
        self.hold_off_most = self.hold_off_most.max(windows(300.0));
        self.deployed = self.deployed.max(windows(600.0));
    }

    /// Windows kept: a reference, and the longest time after it.
    pub(super) fn kept(&self) -> usize {
        2 * self.reference + self.reference_lag
    }

    pub(super) fn least(&self, stat: Stat) -> f64 {
        match stat {
            Stat::Cpu => self.least_cpu,
            Stat::Calls => self.least_calls,
            _ => self.least_wait,
        }
    }
}

/// CPU of others on the host, by window.
#[derive(Debug, Default)]
struct Outside {
    /// Of the warm-up: the reference.
    reference: Vec<f64>,
    /// Whether the last three windows were above the limit.
    over: [bool; 3],
}

impl Outside {
    /// Takes the next window; returns whether two of three are over the limit, and whether none is.
    fn push(&mut self, seconds: f64, least: f64, warmup: usize) -> (bool, bool) {
        if self.reference.len() < warmup {
            self.reference.push(seconds);
            return (false, false);
        }
        let n = self.reference.len() as f64;
        let mean = self.reference.iter().sum::<f64>() / n;
        let sd = (self.reference.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
        self.over.rotate_left(1);
        self.over[2] = seconds > mean + least.max(4.0 * sd);
        let over = self.over.iter().filter(|over| **over).count();
        (over >= 2, over == 0)
    }
}

/// Windows in, findings out.
#[derive(Debug)]
pub struct Detector {
    pub(super) settings: Settings,
    pub(super) series: Vec<Series>,
    findings: VecDeque<Finding>,
    /// Of earlier runs of the agent: shown, and no part of what is judged.
    past: VecDeque<Finding>,
    /// Each window kept, and the number of the first.
    hosts: VecDeque<HostPoint>,
    first: usize,
    t: usize,
    next_id: u64,
    foreign: Outside,
    steal: Outside,
    /// Services and classes, per window, that found no room.
    refused: u64,
    /// Findings opened, by kind.
    opened: [u64; 4],
}

/// A finding to open.
pub(super) struct Opening<'a> {
    pub(super) kind: FindingKind,
    pub(super) service: &'a str,
    pub(super) classes: Vec<String>,
    pub(super) resource: &'static str,
    pub(super) since: usize,
    pub(super) cause: Cause,
    pub(super) ratio: f64,
    pub(super) confidence: f64,
}

impl Detector {
    /// One that has seen nothing.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            series: Vec::new(),
            findings: VecDeque::new(),
            past: VecDeque::new(),
            hosts: VecDeque::new(),
            first: 0,
            t: 0,
            next_id: 1,
            foreign: Outside::default(),
            steal: Outside::default(),
            refused: 0,
            opened: [0; 4],
        }
    }

    /// Numbers its findings from here on: one that follows another goes on counting.
    #[must_use]
    pub fn numbered_from(mut self, id: u64) -> Self {
        self.next_id = id.max(1);
        self
    }

    /// The number of the next finding.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// All findings, oldest first.
    pub fn findings(&self) -> impl DoubleEndedIterator<Item = &Finding> {
        self.past.iter().chain(&self.findings)
    }

    /// Those of this run, oldest first.
    pub fn own_findings(&self) -> impl DoubleEndedIterator<Item = &Finding> {
        self.findings.iter()
    }

    /// Shows findings of earlier runs beside its own, which are numbered after them: so only before the first of its own.
    /// Returns whether that was so.
    pub fn remember(&mut self, past: VecDeque<Finding>) -> bool {
        if self.next_id != 1 || !self.past.is_empty() {
            return false;
        }
        self.next_id = past.iter().map(|finding| finding.id + 1).max().unwrap_or(1);
        self.past = past;
        let more = self.past.len().saturating_sub(FINDINGS);
        self.past.drain(..more);
        true
    }

    /// Findings opened so far, in the order of [`FindingKind::ALL`].
    pub fn opened(&self) -> [u64; 4] {
        self.opened
    }

    /// Services and classes that found no room, once per window.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// What is left of it when the agent's run ends: findings that last are over for it, because they are no longer watched.
    pub fn into_findings(mut self) -> VecDeque<Finding> {
        let end = self.hosts.back().map_or(0, |host| host.end_ns);
        for finding in self.findings.iter_mut().filter(|finding| finding.until_ns.is_none()) {
            finding.until_ns = Some(end);
        }
        self.findings
    }

    /// Takes the next window.
    pub fn push(&mut self, window: &Window) {
        let t = self.t;
        self.t += 1;
        let length = (window.length_s.max(0.0) * 1e9) as u64;
        let share = |seconds: f64| {
            let share = seconds / window.length_s / window.cores;
            if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
        };
        self.hosts.push_back(HostPoint {
            start_ns: window.start_ns,
            end_ns: window.start_ns.saturating_add(length),
            utilisation: share(window.busy_s),
            foreign: share(window.foreign_s),
            steal: share(window.steal_s),
        });
        while self.hosts.len() > self.settings.kept() {
            self.hosts.pop_front();
            self.first += 1;
        }
        self.add(window, t);
        self.host_tests(window, t);
        let mut series = std::mem::take(&mut self.series);
        for at in 0..series.len() {
            // Each is judged beside the others of the host.
            let mut one = series.swap_remove(at);
            std::mem::swap(&mut self.series, &mut series);
            self.step(&mut one, t);
            std::mem::swap(&mut self.series, &mut series);
            series.push(one);
            let last = series.len() - 1;
            series.swap(at, last);
        }
        self.series = series;
    }

    fn add(&mut self, window: &Window, t: usize) {
        for service in &window.services {
            if self.series.iter().any(|known| known.service == service.service_name) {
                continue;
            }
            if self.series.len() < SERVICES {
                self.series.push(Series::new(service, t));
            } else {
                self.refused += 1;
            }
        }
        let mut room = CLASSES.saturating_sub(self.series.iter().map(|series| series.classes.len()).sum());
        for series in &mut self.series {
            let service = window.services.iter().find(|service| service.service_name == series.service);
            let had = series.classes.len();
            self.refused += series.push(window, service, room, &self.settings);
            room = room.saturating_sub(series.classes.len() - had);
        }
        // A service that did nothing for as long as windows are kept is forgotten.
        self.series.retain(|series| {
            series.end() - series.base < self.settings.kept()
                || series.requests(series.base, series.end()).iter().any(|n| *n > 0.0)
        });
    }

    fn step(&mut self, s: &mut Series, t: usize) {
        let c = self.settings.clone();
        let seen = t + 1 - s.base;
        if s.hi == s.base && seen >= c.warmup {
            s.learn(t + 1, &c);
            return;
        }
        if seen <= c.warmup {
            return;
        }
        let age = t - s.started;
        if s.started > s.base || age > c.hold_off_most {
            if age < c.hold_off {
                return;
            }
            if age == c.hold_off || (age > c.hold_off && age <= c.hold_off_most && falling(s, t)) {
                s.classes.iter_mut().for_each(|class| class.floor = t + 1);
                s.skip(t);
                return;
            }
        }
        self.release(s, t);
        self.class_tests(s, t);
        self.overhead_test(s, t);
        self.workload_test(s, t);
        self.cross_check(s, t);
        let late = t.saturating_sub(c.reference_lag);
        if t.is_multiple_of(12) && late > s.hi && !self.forming(s, t) {
            let lo = late.saturating_sub(c.reference);
            s.classes.iter_mut().for_each(|class| class.lo = class.lo.max(lo));
            s.learn(late, &c);
        }
    }

    fn forming(&self, s: &Series, t: usize) -> bool {
        let open =
            |f: &Finding| f.service_name == s.service && f.until.is_none() && f.kind != FindingKind::WorkloadChange;
        let suspected = s.suspected_at.is_some_and(|at| at + 12 > t) && t - s.hi < self.settings.patience;
        self.findings.iter().any(open) || s.alarm_at.is_some_and(|at| at + 12 > t) || suspected
    }

    /// Closes findings whose classes came back, and takes lasting ones as the new reference.
    fn release(&mut self, s: &mut Series, t: usize) {
        let mut ids: Vec<u64> = s.classes.iter().filter_map(|class| class.held).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            let Some(f) = self.findings.iter().find(|f| f.id == id && f.until.is_none()).cloned() else {
                s.classes.iter_mut().filter(|class| class.held == Some(id)).for_each(|class| class.held = None);
                continue;
            };
            let stat = stat_of(&f);
            let which: Vec<bool> = s.classes.iter().map(|class| class.held == Some(id)).collect();
            let change = (f.change_ratio - 1.0).abs();
            for k in [8, 16, 32, 64] {
                if t - f.opened < k {
                    break;
                }
                let from = t + 1 - k;
                let [_, x, v, raw] = s.sums(stat, from, t + 1, |i| which[i] && s.classes[i].known);
                let x = x.max(1e-12);
                if v.sqrt() / x < change / 6.0 {
                    if (raw / x).abs() < f64::min(change / 3.0, f64::max(0.05, change / 5.0)) {
                        self.close(id, from);
                        for class in s.classes.iter_mut().filter(|class| class.held == Some(id)) {
                            (class.held, class.floor) = (None, from);
                        }
                    }
                    break;
                }
            }
            let open = self.findings.iter().any(|f| f.id == id && f.until.is_none());
            let lasted = t - f.since;
            let accepted = f.kind == FindingKind::ApplicationChange && lasted >= self.settings.accept;
            if open && (accepted || lasted >= 3 * self.settings.accept) {
                for class in s.classes.iter_mut().filter(|class| class.held == Some(id)) {
                    (class.held, class.lo, class.floor) = (None, f.since, t);
                }
                s.learn(s.hi.max(t + 1), &self.settings.clone());
                self.close(id, t + 1);
            }
        }
    }

    pub(super) fn close(&mut self, id: u64, until: usize) {
        let end = self.end_of(until.saturating_sub(1));
        if let Some(f) = self.findings.iter_mut().find(|f| f.id == id) {
            (f.until, f.until_ns) = (Some(until), Some(end));
        }
    }

    fn start_of(&self, window: usize) -> u64 {
        let at = window.saturating_sub(self.first);
        self.hosts.get(at).or(self.hosts.back()).map_or(0, |host| host.start_ns)
    }

    fn end_of(&self, window: usize) -> u64 {
        let at = window.saturating_sub(self.first);
        self.hosts.get(at).or(self.hosts.back()).map_or(0, |host| host.end_ns)
    }

    /// Numbers of the windows that are kept: the first, and the one after the last.
    pub(super) fn kept_windows(&self) -> (usize, usize) {
        (self.first, self.first + self.hosts.len())
    }

    pub(super) fn host_point(&self, window: usize) -> Option<HostPoint> {
        self.hosts.get(window.checked_sub(self.first)?).copied()
    }

    /// Opens a finding, or adds to one that says the same; returns its id.
    pub(super) fn open(&mut self, t: usize, opening: Opening<'_>) -> u64 {
        let Opening { kind, service, classes, resource, since, cause, ratio, confidence } = opening;
        // A fading anomaly is one incident, whatever else of it shows.
        let incident = |f: &Finding| {
            f.kind == FindingKind::Anomaly
                && f.service_name == service
                && cause != Cause::NewBuild
                && matches!(kind, FindingKind::Anomaly | FindingKind::ApplicationChange)
                && f.resource != "attribution"
                && (since.abs_diff(f.since) <= 12 || (f.since <= since && since <= f.until.unwrap_or(t) + 24))
                && (f.request_classes.is_empty()
                    || classes.iter().any(|class| f.request_classes.contains(class))
                    || resource == "downstream"
                    || f.resource == "downstream")
        };
        if let Some(f) = self.findings.iter_mut().find(|f| incident(f)) {
            (f.until, f.until_ns) = (None, None);
            if !f.request_classes.is_empty() {
                merge(&mut f.request_classes, classes);
            }
            return f.id;
        }
        let same = |f: &Finding| {
            let near = since.abs_diff(f.since) <= 6 || (f.until.is_none() && f.kind != FindingKind::ApplicationChange);
            f.service_name == service && f.kind == kind && f.resource == resource && near
        };
        if let Some(f) = self.findings.iter_mut().find(|f| same(f)) {
            merge(&mut f.request_classes, classes);
            return f.id;
        }
        if self.findings.len() >= FINDINGS {
            let oldest = self.findings.iter().position(|f| f.until.is_some()).unwrap_or(0);
            self.findings.remove(oldest);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.opened[kind as usize] += 1;
        let mut request_classes = classes;
        request_classes.sort();
        let news = kind == FindingKind::WorkloadChange;
        self.findings.push_back(Finding {
            id,
            kind,
            service_name: service.to_owned(),
            request_classes,
            resource,
            cause,
            since_ns: self.start_of(since),
            until_ns: news.then(|| self.end_of(t)),
            opened_ns: self.end_of(t),
            change_ratio: ratio,
            confidence,
            since,
            opened: t,
            until: news.then_some(t + 1),
        });
        id
    }

    /// Whether a finding about the whole host covers windows near `since`.
    pub(super) fn environment_at(&self, since: usize, t: usize) -> bool {
        self.findings.iter().any(|f| {
            f.kind == FindingKind::Environment
                && f.service_name.is_empty()
                && f.since <= t
                && f.until.is_none_or(|until| until + 3 >= since)
                && f.since + 3 * self.settings.accept >= since
        })
    }

    fn host_tests(&mut self, window: &Window, t: usize) {
        let (c, cpu) = (&self.settings, window.cores.max(1.0) * window.length_s.max(0.0));
        let results = [
            (Cause::ForeignProcess, self.foreign.push(window.foreign_s, c.foreign * cpu, c.warmup)),
            (Cause::Steal, self.steal.push(window.steal_s, c.steal * cpu, c.warmup)),
        ];
        for (cause, (over, under)) in results {
            let mine = self.findings.iter().find(|f| f.cause == cause && f.until.is_none()).map(|f| f.id);
            match mine {
                None if over => {
                    let first = if cause == Cause::Steal { &self.steal } else { &self.foreign };
                    let since = t.saturating_sub(2) + first.over.iter().position(|over| *over).unwrap_or(0);
                    self.open(
                        t,
                        Opening {
                            kind: FindingKind::Environment,
                            service: "",
                            classes: Vec::new(),
                            resource: "environment",
                            since,
                            cause,
                            ratio: 1.0,
                            confidence: 0.98,
                        },
                    );
                }
                Some(id) if under => self.close(id, t.saturating_sub(2)),
                _ => {}
            }
        }
    }

    /// CPU of the service that belongs to no request, against what its request CPU lets expect.
    fn overhead_test(&mut self, s: &Series, t: usize) {
        const K: usize = 8;
        let floor = s.classes.iter().map(|class| class.floor).min().unwrap_or(t);
        if t < floor + K {
            return;
        }
        let reference = s.totals(s.base, s.hi, true);
        let (slope, level, sd) = line(&reference);
        let recent = s.totals(t + 1 - K, t + 1, false);
        let mean = |k: usize| recent.iter().map(|row| row[k]).sum::<f64>() / K as f64;
        let (overhead, expected, bias) = (mean(0), mean(1), mean(3));
        let excess_of = |overhead, expected| overhead - level - (slope + bias) * expected;
        let excess = excess_of(overhead, expected);
        let limit = (self.settings.overhead * expected).max(s.one_percent()).max(6.0 * sd / (K as f64).sqrt());
        let mine = |f: &&Finding| f.service_name == s.service && f.cause == Cause::Overhead && f.until.is_none();
        let mine = self.findings.iter().find(mine).map(|f| f.id);
        match mine {
            None if excess > limit && !self.environment_at(t - K, t) => {
                let ratio = overhead / (level + slope * expected).max(1e-9);
                self.open(
                    t,
                    Opening {
                        kind: FindingKind::Anomaly,
                        service: &s.service,
                        classes: Vec::new(),
                        resource: "cpu",
                        since: t + 1 - K + step(recent.iter().map(|row| excess_of(row[0], row[1]))),
                        cause: Cause::Overhead,
                        ratio: ratio.min(1000.0),
                        confidence: 0.9,
                    },
                );
            }
            Some(id) if excess < limit / 2.0 => self.close(id, t - K),
            _ => {}
        }
    }
}

/// Whether the service's demand still decays: the last three windows against the three before.
fn falling(s: &Series, t: usize) -> bool {
    let ratio = |from: usize, to: usize| {
        let rows = s.totals(from, to, false);
        rows.iter().map(|row| row[2]).sum::<f64>() / rows.iter().map(|row| row[1]).sum::<f64>().max(1e-12)
    };
    let (now, before) = (ratio(t - 2, t + 1), ratio(t - 5, t - 2));
    now > 1.05 && now < before * 0.98
}

/// The line of overhead over expected CPU: slope (not negative, at most proportional), level, standard deviation.
fn line(rows: &[[f64; 4]]) -> (f64, f64, f64) {
    let n = (rows.len() as f64).max(1.0);
    let mean = |k: usize| rows.iter().map(|row| row[k]).sum::<f64>() / n;
    let (overhead, expected) = (mean(0), mean(1));
    let covariance: f64 = rows.iter().map(|row| (row[0] - overhead) * (row[1] - expected)).sum();
    let variance: f64 = rows.iter().map(|row| (row[1] - expected).powi(2)).sum();
    let most = if expected > 0.0 { overhead / expected } else { 0.0 };
    let slope = if variance > 1e-18 { (covariance / variance).clamp(0.0, most.max(0.0)) } else { 0.0 };
    let level = overhead - slope * expected;
    let sd = (rows.iter().map(|row| (row[0] - level - slope * row[1]).powi(2)).sum::<f64>() / n).sqrt();
    (slope, level, sd)
}

/// Where values that end above zero most likely stepped up to there: the number of the first.
fn step(values: impl DoubleEndedIterator<Item = f64> + ExactSizeIterator) -> usize {
    let last = values.len().saturating_sub(1);
    let (mut sum, mut best) = (0.0, (f64::MIN, last));
    for (n, value) in values.rev().enumerate() {
        sum += value;
        let likelihood = sum * sum.abs() / (n + 1) as f64;
        if likelihood > best.0 {
            best = (likelihood, last - n);
        }
    }
    best.1
}

fn merge(into: &mut Vec<String>, more: Vec<String>) {
    into.extend(more);
    into.sort();
    into.dedup();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_begins_at_its_first_window() {
        for (values, at) in
            [(&[0.1, -0.1, 0.0, 1.0, 1.2, 0.9][..], 3), (&[1.0, 1.0], 0), (&[-1.0, -2.0, 0.5], 2), (&[], 0)]
        {
            assert_eq!(step(values.iter().copied()), at, "{values:?}");
        }
    }
}
