//! One run's verdict against the right answer, and tables of many.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::scenarios::{SCENARIOS, Truth, names};
use super::shop::LENGTH;
use super::{Finding, FindingKind};

/// Kinds in tables; `None`: nothing changed.
const KINDS: [(Option<FindingKind>, &str); 5] = [
    (None, "none"),
    (Some(FindingKind::WorkloadChange), "workload"),
    (Some(FindingKind::ApplicationChange), "application"),
    (Some(FindingKind::Environment), "environment"),
    (Some(FindingKind::Anomaly), "anomaly"),
];

/// What came of one run.
#[derive(Clone, Debug)]
pub(crate) struct ScoredRun {
    pub(crate) scenario: &'static str,
    pub(crate) seed: u64,
    pub(crate) right: Option<FindingKind>,
    pub(crate) found: Option<FindingKind>,
    /// Alarms before the change, and the hours without one.
    pub(crate) alarms: usize,
    pub(crate) hours: f64,
    /// Windows from the first changed one to the one in which the finding came; the change point's error.
    pub(crate) delay: Option<f64>,
    pub(crate) change_point: Option<f64>,
    pub(crate) class_right: Option<bool>,
    pub(crate) resource_right: Option<bool>,
    pub(crate) ratio_error: Option<f64>,
    /// Everything that was found, for whoever asks why.
    pub(crate) words: Vec<String>,
}

/// Judges findings by the gravest after the change; those before it are false alarms.
pub(crate) fn score(
    scenario: &'static str,
    seed: u64,
    windows: usize,
    at: usize,
    truth: &Truth,
    found: &[Finding],
) -> ScoredRun {
    let number = |ns: u64| (ns as f64 / 1e9 / LENGTH).round();
    let quiet = matches!(scenario, "S0" | "S12");
    let at = if quiet { 0.0 } else { at as f64 };
    let opened = |f: &Finding| number(f.opened_ns) - 1.0;
    let after: Vec<&Finding> = found.iter().filter(|f| opened(f) >= at).collect();
    let gravest =
        [FindingKind::ApplicationChange, FindingKind::Environment, FindingKind::Anomaly, FindingKind::WorkloadChange];
    let mut kind = gravest.into_iter().find(|kind| after.iter().any(|f| f.kind == *kind));
    // Load follows the time of day, too: news where nothing else is.
    if truth.also.contains(&kind) {
        kind = truth.kind;
    }
    let alarm = |f: &&Finding| f.kind != FindingKind::WorkloadChange && (quiet || opened(f) < at);
    let accepted = |f: &Finding| Some(f.kind) == truth.kind || truth.also.contains(&Some(f.kind));
    let mine: Vec<&Finding> = after.into_iter().filter(|f| accepted(f)).collect();
    let classes = names(truth);
    let first = mine
        .iter()
        .find(|f| f.request_classes.iter().any(|class| classes.contains(class)))
        .or(mine.first())
        .filter(|_| truth.kind.is_some());
    let named = || {
        let mut all: Vec<&String> = mine.iter().flat_map(|f| &f.request_classes).collect();
        all.sort();
        all.dedup();
        all.into_iter().eq(classes.iter())
    };
    ScoredRun {
        scenario,
        seed,
        right: truth.kind,
        found: kind,
        alarms: found.iter().filter(alarm).count(),
        hours: (if quiet { windows as f64 } else { at } - 24.0) * LENGTH / 3600.0,
        delay: first.map(|f| opened(f) - at),
        change_point: first.filter(|_| !truth.gradual).map(|f| number(f.since_ns) - at),
        class_right: first.filter(|_| !classes.is_empty()).map(|_| named()),
        resource_right: first.and_then(|f| truth.resource.map(|resource| resource == f.resource)),
        ratio_error: first.and_then(|f| truth.ratio.map(|ratio| (f.change_ratio / ratio - 1.0).abs())),
        words: found
            .iter()
            .map(|f| format!("{} at {}, since {}: {}", f.kind.name(), opened(f), number(f.since_ns), f.summary()))
            .collect(),
    }
}

/// Figures over all runs that a test can judge.
pub(crate) struct Summary {
    pub(crate) runs: usize,
    pub(crate) right: usize,
    pub(crate) false_alarms_an_hour: f64,
    /// F1 of application changes, and without the two scenarios whose change is near what can be seen at all.
    pub(crate) application: f64,
    pub(crate) application_without_small: f64,
    pub(crate) macro_f1: f64,
}

fn f1(rows: &[&ScoredRun], kind: Option<FindingKind>) -> f64 {
    let hit = rows.iter().filter(|row| row.right == kind && row.found == kind).count() as f64;
    let either =
        rows.iter().filter(|row| row.right == kind).count() + rows.iter().filter(|row| row.found == kind).count();
    if either == 0 { 1.0 } else { 2.0 * hit / either as f64 }
}

/// Adds everything up.
pub(crate) fn summary(rows: &[ScoredRun]) -> Summary {
    let all: Vec<&ScoredRun> = rows.iter().collect();
    let without: Vec<&ScoredRun> = rows.iter().filter(|row| !matches!(row.scenario, "S3-10" | "S14")).collect();
    let application = Some(FindingKind::ApplicationChange);
    let alarms: usize = rows.iter().map(|row| row.alarms).sum();
    let hours: f64 = rows.iter().map(|row| row.hours).sum();
    Summary {
        runs: rows.len(),
        right: rows.iter().filter(|row| row.right == row.found).count(),
        false_alarms_an_hour: alarms as f64 / hours.max(1e-9),
        application: f1(&all, application),
        application_without_small: f1(&without, application),
        macro_f1: KINDS.iter().map(|(kind, _)| f1(&all, *kind)).sum::<f64>() / KINDS.len() as f64,
    }
}

/// The value below which this share of `values` is.
fn quantile(mut values: Vec<f64>, share: f64) -> String {
    values.sort_by(f64::total_cmp);
    let at = ((values.len().saturating_sub(1)) as f64 * share).round() as usize;
    values.get(at).map_or("–".to_owned(), |value| format!("{value:.0}"))
}

fn share(values: &[bool]) -> String {
    if values.is_empty() {
        return "–".to_owned();
    }
    format!("{:.0}", 100.0 * values.iter().filter(|value| **value).count() as f64 / values.len() as f64)
}

/// The tables of `docs/verdicts.md`.
pub(crate) fn tables(rows: &[ScoredRun], seeds: usize) -> String {
    let mut out = String::new();
    let s = summary(rows);
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{} runs ({seeds} seeds a scenario): the right kind in {:.1} %. F1 of application changes {:.3} (without S3-10 and \
         S14: {:.3}), mean over the kinds {:.3}. False alarms an hour: {:.3}.\n",
        s.runs,
        100.0 * s.right as f64 / s.runs.max(1) as f64,
        s.application,
        s.application_without_small,
        s.macro_f1,
        s.false_alarms_an_hour
    );
    out.push_str("| true \\ found |");
    for (_, name) in KINDS {
        let _ = write!(out, " {name} |");
    }
    let _ = writeln!(out, " F1 |\n| --- |{} ---: |", " ---: |".repeat(KINDS.len()));
    let all: Vec<&ScoredRun> = rows.iter().collect();
    for (right, name) in KINDS {
        let _ = write!(out, "| {name} |");
        for (found, _) in KINDS {
            let _ = write!(out, " {} |", rows.iter().filter(|row| row.right == right && row.found == found).count());
        }
        let _ = writeln!(out, " {:.3} |", f1(&all, right));
    }
    out.push_str(
        "\n| scenario | what happens | right answer | right, % | windows until found: median / 95 % | change point ± 1, % | \
         classes right, % | resource right, % | error of the ratio, median, % |\n\
         | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let mut by: BTreeMap<usize, Vec<&ScoredRun>> = BTreeMap::new();
    for row in rows {
        let nth = SCENARIOS.iter().position(|scenario| scenario.name == row.scenario).unwrap_or(0);
        by.entry(nth).or_default().push(row);
    }
    for (nth, rows) in by {
        let of = |value: fn(&ScoredRun) -> Option<f64>| rows.iter().filter_map(|row| value(row)).collect::<Vec<f64>>();
        let yes =
            |value: fn(&ScoredRun) -> Option<bool>| rows.iter().filter_map(|row| value(row)).collect::<Vec<bool>>();
        let name = KINDS.iter().find(|(kind, _)| *kind == rows[0].right).map_or("", |(_, name)| name);
        let near: Vec<bool> = of(|row| row.change_point).into_iter().map(|error| error.abs() <= 1.0).collect();
        let delays = of(|row| row.delay);
        let delay = if delays.is_empty() {
            "–".to_owned()
        } else {
            format!("{} / {}", quantile(delays.clone(), 0.5), quantile(delays, 0.95))
        };
        let _ = writeln!(
            out,
            "| {} | {} | {name} | {} | {delay} | {} | {} | {} | {} |",
            SCENARIOS[nth].name,
            SCENARIOS[nth].words,
            share(&rows.iter().map(|row| row.right == row.found).collect::<Vec<_>>()),
            share(&near),
            share(&yes(|row| row.class_right)),
            share(&yes(|row| row.resource_right)),
            quantile(of(|row| row.ratio_error.map(|error| 100.0 * error)), 0.5),
        );
    }
    out
}
