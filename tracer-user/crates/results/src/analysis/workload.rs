//! Changes of the workload: other requests, or another number of them, at the service by which they enter the host. News, no
//! alarm.

use super::detector::{Detector, Opening};
use super::finding::{Cause, Finding, FindingKind};
use super::series::{Series, Stat};

impl Detector {
    /// Other requests, or another number of them, at the service they enter the host by.
    pub(super) fn workload_test(&mut self, s: &Series, t: usize) {
        let floor = s.classes.iter().map(|class| class.floor).min().unwrap_or(t).max(s.base);
        if !s.entry || t < floor + 12 {
            return;
        }
        let lo = floor.max(t.saturating_sub(72));
        let total = |from: usize, to: usize| {
            let (sums, n) = s.expected(from, to);
            (sums.iter().sum::<f64>() / n.max(1.0), n)
        };
        let (mut cause, mut ratio, mut classes) = (None, 1.0, Vec::new());
        let (before, n) = total(lo.max(t.saturating_sub(36)), t - 5);
        if n >= 6.0 && before > 0.0 {
            let r = total(t - 5, t + 1).0 / before;
            if r > 0.0 && r.ln().abs() > 1.4f64.ln() {
                (cause, ratio) = (Some(Cause::Load), r);
            }
        }
        let (after, before) = (s.expected(t - 11, t + 1).0, s.expected(lo, t - 11).0);
        let (sum_after, sum_before) = (after.iter().sum::<f64>(), before.iter().sum::<f64>());
        if t - 11 >= lo + 24 && sum_after > 0.0 && sum_before > 0.0 {
            let moved: f64 =
                after.iter().zip(&before).map(|(a, b)| (a / sum_after - b / sum_before).abs()).sum::<f64>() / 2.0;
            let spread: f64 =
                (0..s.classes.len()).map(|i| (s.sums(Stat::Cpu, t - 11, t + 1, |j| i == j)[2] + 1e-12).sqrt()).sum();
            if moved > f64::max(0.10, spread / sum_after) {
                cause = cause.or(Some(Cause::Mix));
            }
            let (n1, n0) = (s.requests(t - 11, t + 1), s.requests(lo, t - 11));
            for i in
                (0..s.classes.len()).filter(|i| n1[*i] > 60.0 && n0[*i] > 60.0 && after[*i] > 0.0 && before[*i] > 0.0)
            {
                let r = (after[i] / n1[i]) / (before[i] / n0[i]);
                if r.ln().abs() > f64::max(0.15, 5.0 * 0.6 * (1.0 / n1[i] + 1.0 / n0[i]).sqrt()) {
                    classes.push(s.classes[i].name.clone());
                }
            }
            if !classes.is_empty() {
                cause = cause.or(Some(Cause::Payload));
            }
        }
        let (cpu, n1, n0) = (s.observed_cpu(t - 11, t + 1), s.requests(t - 11, t + 1), s.requests(s.base, s.hi));
        let least = 0.01 * cpu.iter().sum::<f64>();
        let new = (0..s.classes.len()).filter(|i| n1[*i] >= 20.0 && n0[*i] == 0.0 && cpu[*i] > least);
        let new: Vec<String> = new.map(|i| s.classes[i].name.clone()).collect();
        if !new.is_empty() {
            (cause, classes) = (Some(Cause::NewClass), new);
        }
        let recent = |f: &Finding| f.kind == FindingKind::WorkloadChange && f.opened + 60 > t;
        if let Some(cause) = cause.filter(|_| !self.findings().any(recent)) {
            let since = workload_since(s, lo, t, cause, &classes);
            let (kind, service, resource) = (FindingKind::WorkloadChange, s.service.as_str(), "load");
            self.open(t, Opening { kind, service, classes, resource, since, cause, ratio, confidence: 0.9 });
        }
    }
}

/// When the load began to differ: the step in what `cause` names.
fn workload_since(s: &Series, lo: usize, t: usize, cause: Cause, classes: &[String]) -> usize {
    let lo = lo.max(t.saturating_sub(48));
    let windows: Vec<(Vec<f64>, Vec<f64>)> =
        (lo..=t).map(|at| (s.expected(at, at + 1).0, s.requests(at, at + 1))).collect();
    let total = |cost: &[f64]| cost.iter().sum::<f64>().max(1e-12);
    let class = classes.first().and_then(|name| s.classes.iter().position(|class| class.name == *name));
    let values: Vec<f64> = match (cause, class) {
        (Cause::NewClass, Some(i)) => {
            let first = windows.iter().position(|(_, n)| n[i] > 0.0).unwrap_or(windows.len() - 1);
            return lo + first;
        }
        (Cause::Payload, Some(i)) => windows.iter().map(|(cost, n)| cost[i] / n[i].max(1.0)).collect(),
        (Cause::Mix, _) => {
            // The class whose share moved most.
            let share = |i: usize| windows.iter().map(|(cost, _)| cost[i] / total(cost)).collect::<Vec<f64>>();
            let moved = |values: &[f64]| {
                let (before, after) = values.split_at(values.len().saturating_sub(6));
                (mean(after) - mean(before)).abs()
            };
            let most = (0..s.classes.len()).max_by(|a, b| moved(&share(*a)).total_cmp(&moved(&share(*b))));
            most.map(share).unwrap_or_default()
        }
        _ => windows.iter().map(|(cost, _)| total(cost)).collect(),
    };
    lo + step_at(&values)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / (values.len() as f64).max(1.0)
}

/// The index from which on values are at another level, most likely.
fn step_at(values: &[f64]) -> usize {
    let likelihood = |at: usize| {
        let (before, after) = values.split_at(at);
        let (n, m) = (before.len() as f64, after.len() as f64);
        (mean(after) - mean(before)).powi(2) * n * m / (n + m)
    };
    (1..values.len()).max_by(|a, b| likelihood(*a).total_cmp(&likelihood(*b))).unwrap_or(0)
}
