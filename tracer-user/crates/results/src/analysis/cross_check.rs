//! Regression beside measurement: where a service's CPU outside any request grows with the requests of a class, work of these
//! requests is unattributed. What is measured is subtracted first: its noise would hide everything.

use super::detector::{Detector, Opening};
use super::finding::{Cause, FindingKind};
use super::regression::{self, COLUMNS, Sample};
use super::series::{Series, Stat};

/// Windows between two checks, and the fewest and most looked at.
const EVERY: usize = 60;
const LEAST: usize = 120;
const MOST: usize = 360;
/// A class with less of the CPU that requests use is not judged.
const SHARE: f64 = 0.05;
/// How much it must be: as a share of the measured demand, and in standard errors.
const APART: f64 = 0.25;
const ERRORS: f64 = 5.0;

impl Detector {
    /// Compares every [`EVERY`] windows; takes a tenth of a millisecond per service.
    pub(super) fn cross_check(&mut self, s: &Series, t: usize) {
        if !t.is_multiple_of(EVERY) {
            return;
        }
        let floor = s.classes.iter().map(|class| class.floor).max().unwrap_or(t).max(s.base);
        let changed = s.classes.iter().any(|class| class.held.is_some());
        let from = floor.max((t + 1).saturating_sub(MOST));
        let mine = |f: &&super::finding::Finding| {
            f.service_name == s.service && f.cause == Cause::Regression && f.until.is_none()
        };
        let open = self.findings().find(mine).map(|f| f.id);
        // One model for all of the windows: they must hold no change.
        if changed || t + 1 - from < LEAST {
            return;
        }
        let (n, cpu) = (s.requests(from, t + 1), s.observed_cpu(from, t + 1));
        let total: f64 = cpu.iter().sum();
        let mut core: Vec<usize> = (0..s.classes.len()).filter(|i| cpu[*i] > 0.02 * total).collect();
        core.sort_by(|a, b| cpu[*b].total_cmp(&cpu[*a]));
        core.truncate(COLUMNS - 3);
        let samples: Vec<Sample> = (from..=t)
            .map(|window| {
                let all: Vec<f64> = s.cells(window).iter().map(|cell| cell.of(Stat::Cpu).0).collect();
                let of = |i: &usize| all.get(*i).copied().unwrap_or(0.0);
                let own: Vec<f64> = core.iter().map(of).collect();
                let rest = all.iter().sum::<f64>() - own.iter().sum::<f64>();
                Sample { requests: own.into_iter().chain([rest]).collect(), cpu_s: s.overhead(window) }
            })
            .collect();
        let Some(model) = regression::fit_all(&samples, core.len() + 1) else { return };
        let apart = |at: usize, i: usize| {
            let (extra, error) = (model.demand_s[at]?, model.error_s[at]?);
            let measured = cpu[i] / n[i].max(1.0);
            let far = cpu[i] > SHARE * total && extra > APART * measured && extra > ERRORS * error;
            far.then_some((i, 1.0 + extra / measured))
        };
        let far: Vec<(usize, f64)> = core.iter().enumerate().filter_map(|(at, i)| apart(at, *i)).collect();
        let most = far.iter().max_by(|a, b| a.1.ln().abs().total_cmp(&b.1.ln().abs()));
        match (most, open) {
            (Some((_, ratio)), None) => {
                let opening = Opening {
                    kind: FindingKind::Anomaly,
                    service: &s.service,
                    classes: far.iter().map(|(i, _)| s.classes[*i].name.clone()).collect(),
                    resource: "attribution",
                    since: from,
                    cause: Cause::Regression,
                    ratio: *ratio,
                    confidence: 0.7,
                };
                self.open(t, opening);
            }
            (None, Some(id)) => self.close(id, t + 1),
            _ => {}
        }
    }
}
