//! What a finding rests on: the windows around it, copied out so that plots are computed elsewhere.

use super::detector::Detector;
use super::finding::{Cause, Finding};
use super::regression::{COLUMNS, Sample};
use super::series::{Series, Stat};
use super::signature::Mean;

/// One window of the host, as charts show it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostPoint {
    /// Its start and end, nanoseconds since the epoch.
    pub start_ns: u64,
    /// See `start_ns`.
    pub end_ns: u64,
    /// CPU used by everything, by processes that serve no traced requests, and taken by the hypervisor, as shares of all
    /// CPUs.
    pub utilisation: f64,
    /// See `utilisation`.
    pub foreign: f64,
    /// See `utilisation`.
    pub steal: f64,
}

/// What is shown of one window beside the host's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostPoint {
    /// Requests of the classes that changed.
    pub requests: f64,
    /// What they cost in the finding's resource, and what the reference lets expect; calls, else seconds.
    pub cost: f64,
    /// See `cost`.
    pub expected: f64,
}

/// A request class in the model of the service's CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name; the last may stand for all other classes.
    pub request_class: String,
    /// CPU per request before and after the change, as measured, seconds.
    pub before_s: f64,
    /// See `before_s`.
    pub after_s: f64,
}

/// The windows around a finding. All lists have an entry per window.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// The finding.
    pub finding: Finding,
    /// Index of the first changed window.
    pub since: usize,
    /// The host.
    pub host: Vec<HostPoint>,
    /// The classes that changed; empty when the finding is about the whole host.
    pub cost: Vec<CostPoint>,
    /// The service's CPU with what it is regressed on.
    pub samples: Vec<Sample>,
    /// Columns of `samples`.
    pub columns: Vec<Column>,
    /// For signatures.
    pub means: Vec<Mean>,
}

impl Detector {
    /// What the finding `id` rests on; `None`: there is no such finding.
    pub fn evidence(&self, id: u64) -> Option<Evidence> {
        let finding = self.own_findings().find(|finding| finding.id == id)?.clone();
        let series = self.series.iter().find(|series| series.service == finding.service_name);
        let (first, end) = self.kept_windows();
        // No more than a reference before the change.
        let from = first.max(finding.since.saturating_sub(self.settings.reference));
        let from = series.map_or(from, |series| from.max(series.base)).min(end);
        let since = finding.since.clamp(from, end) - from;
        let host = (from..end).filter_map(|window| self.host_point(window)).collect();
        let mut evidence = Evidence {
            since,
            host,
            cost: Vec::new(),
            samples: Vec::new(),
            columns: Vec::new(),
            means: Vec::new(),
            finding,
        };
        if let Some(series) = series {
            evidence.add(series, from, end);
        }
        Some(evidence)
    }
}

impl Evidence {
    fn add(&mut self, series: &Series, from: usize, end: usize) {
        let stat = stat_of(&self.finding);
        let all = self.finding.request_classes.is_empty();
        let mine: Vec<bool> =
            series.classes.iter().map(|class| all || self.finding.request_classes.contains(&class.name)).collect();
        let costs: Vec<f64> = series.observed_cpu(from, end);
        let mut order: Vec<usize> = (0..series.classes.len()).collect();
        // What changed first, then what costs most; the rest is one column.
        let changed = |i: usize| mine[i] && !all;
        order.sort_by(|a, b| changed(*b).cmp(&changed(*a)).then(costs[*b].total_cmp(&costs[*a])));
        let shown = order.len().min(COLUMNS - 3);
        let (own, rest) = order.split_at(shown);
        for window in from..end {
            let cells = series.cells(window);
            let cell = |i: &usize| cells.get(*i).copied().unwrap_or_default();
            let mut point = CostPoint::default();
            let mut mean = Mean { utilisation: series.utilisation(window, window + 1), ..Mean::default() };
            for i in order.iter().filter(|i| mine[**i]) {
                let (requests, observed, expected) = cell(i).of(stat);
                point.requests += requests;
                point.cost += observed;
                point.expected += expected;
                mean.requests += requests;
                mean.cpu_s += cell(i).of(Stat::Cpu).1;
                mean.blocked_s += cell(i).of(Stat::Blocked).1;
            }
            self.cost.push(point);
            self.means.push(mean);
            let mut requests: Vec<f64> = own.iter().map(|i| cell(i).of(Stat::Cpu).0).collect();
            if !rest.is_empty() {
                requests.push(rest.iter().map(|i| cell(i).of(Stat::Cpu).0).sum());
            }
            self.samples.push(Sample { requests, cpu_s: series.cpu(window) });
        }
        // The reference may be that of after the change by now: what is expected is what came before.
        let before = &self.cost[..self.since.min(self.cost.len())];
        let (cost, expected) = before.iter().fold((0.0, 0.0), |sum, at| (sum.0 + at.cost, sum.1 + at.expected));
        if cost > 0.0 && expected > 0.0 {
            self.cost.iter_mut().for_each(|point| point.expected *= cost / expected);
        }
        let middle = from + self.since;
        let (n, cpu) = (series.requests(from, middle), series.observed_cpu(from, middle));
        let (m, now) = (series.requests(middle, end), series.observed_cpu(middle, end));
        let per = |which: &[usize], cpu: &[f64], n: &[f64]| {
            let (cpu, n) = which.iter().fold((0.0, 0.0), |(a, b), i| (a + cpu[*i], b + n[*i]));
            if n > 0.0 { cpu / n } else { 0.0 }
        };
        let column = |request_class: String, which: &[usize]| Column {
            request_class,
            before_s: per(which, &cpu, &n),
            after_s: per(which, &now, &m),
        };
        self.columns = own.iter().map(|i| column(series.classes[*i].name.clone(), &[*i])).collect();
        if !rest.is_empty() {
            self.columns.push(column("(other classes)".to_owned(), rest));
        }
    }
}

/// The cost that a finding is about.
pub(super) fn stat_of(finding: &Finding) -> Stat {
    match finding.resource {
        "downstream" if finding.cause == Cause::Calls => Stat::Calls,
        "downstream" => Stat::Downstream,
        "blocked" => Stat::Blocked,
        "queue" => Stat::Queue,
        _ => Stat::Cpu,
    }
}
