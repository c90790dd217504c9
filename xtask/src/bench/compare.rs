//! `bench --compare`: separates changes between two runs from noise.
//!
//! Compares ratios of pairs, not absolute figures, so the machine's own speed cancels out. A figure is better or worse
//! if a rank test gives chance less than one in a hundred, the bootstrapped interval of the change excludes "none", and
//! the change is at least one per cent. Otherwise the result is "no difference shown", which does not prove that there
//! is none.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Result, bail};

use super::results::{AGENT, Case, Results, Sample};
use super::statistics::{median, rank_test, ratio_interval};
use crate::shell;

/// Significance level of the rank test.
const CHANCE: f64 = 0.01;
/// Changes below this share are ignored.
const LEAST: f64 = 0.01;

/// A figure with its raw values.
struct Figure {
    what: &'static str,
    values: Vec<f64>,
    more_is_better: bool,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    Worse,
    NotShown,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::NotShown => "no difference shown",
        }
    }
}

/// Compares two files and prints a table.
pub(super) fn run(before: &Path, after: &Path, fail_on_worse: bool) -> Result<()> {
    let (before, after) = (Results::read(before)?, Results::read(after)?);
    let (text, worse) = compare(&before, &after);
    shell::print(text);
    if fail_on_worse && worse > 0 {
        bail!("{worse} figures are worse");
    }
    Ok(())
}

/// The table of two results, and how many figures are worse.
pub(super) fn compare(before: &Results, after: &Results) -> (String, usize) {
    let mut text = format!("before: {} · after: {}\n", described(before), described(after));
    if (&before.kernel, &before.processor, before.cores) != (&after.kernel, &after.processor, after.cores) {
        text.push_str("NOTE: not the same kernel or machine: differences need not come from the code.\n");
    }
    text.push_str("\n| case | figure | before | after | change | 95 % interval | p | |\n");
    text.push_str("| --- | --- | ---: | ---: | ---: | --- | ---: | --- |\n");
    let (mut tests, mut worse) = (0, 0);
    for old in &before.cases {
        let Some(new) = after.cases.iter().find(|case| case.name == old.name) else {
            let _ = writeln!(text, "| {} | all | | not measured | | | | |", old.name);
            continue;
        };
        for (a, b) in figures(old).iter().zip(&figures(new)) {
            if a.values.is_empty() || b.values.is_empty() {
                continue;
            }
            let (low, high) = ratio_interval(&a.values, &b.values);
            let p = rank_test(&a.values, &b.values);
            let (from, to) = (median(&a.values), median(&b.values));
            let verdict = judge(to / from, (low, high), p, a.more_is_better);
            tests += 1;
            worse += usize::from(verdict == Verdict::Worse);
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} to {} | {p:.4} | {} |",
                old.name,
                a.what,
                shown(from),
                shown(to),
                change(to / from),
                change(low),
                change(high),
                verdict.name()
            );
        }
        if let (Some(a), Some(b)) = (&old.cost, &new.cost) {
            let pairs = [(a.start_peak_mb, b.start_peak_mb), (a.steady_mb, b.steady_mb), (a.load_mb, b.load_mb)];
            for (what, (from, to)) in ["memory, peak at start", "memory, ready", "memory, under load"].iter().zip(pairs)
            {
                let shift = change(to / from);
                let _ = writeln!(
                    text,
                    "| {} | {what}, MB | {from:.1} | {to:.1} | {shift} | | | one value, not tested |",
                    old.name
                );
            }
        }
    }
    for new in after.cases.iter().filter(|new| !before.cases.iter().any(|old| old.name == new.name)) {
        let _ = writeln!(text, "| {} | all | not measured | | | | | |", new.name);
    }
    let chance = f64::from(tests) * CHANCE;
    let _ = writeln!(
        text,
        "\n{tests} figures tested, {worse} worse; chance alone would show about {chance:.1} as changed."
    );
    (text, worse)
}

fn described(results: &Results) -> String {
    format!("{} on Linux {}, {} cores of {}", results.commit, results.kernel, results.cores, results.processor)
}

fn judge(ratio: f64, (low, high): (f64, f64), p: f64, more_is_better: bool) -> Verdict {
    let changed = p < CHANCE && (low > 1.0 || high < 1.0) && (ratio - 1.0).abs() >= LEAST;
    match (changed, (ratio > 1.0) == more_is_better) {
        (false, _) => Verdict::NotShown,
        (true, true) => Verdict::Better,
        (true, false) => Verdict::Worse,
    }
}

/// Every figure of a case that has several values; the same figures in the same order for every case.
fn figures(case: &Case) -> Vec<Figure> {
    let ratio = |of: fn(&Sample) -> f64| -> Vec<f64> {
        case.of(AGENT).map(|pair| of(&pair.with) / of(&pair.base)).filter(|ratio| ratio.is_finite()).collect()
    };
    let less = |what, values| Figure { what, values, more_is_better: false };
    let cost = |of: fn(&super::results::Cost) -> Vec<f64>| case.cost.as_ref().map(of).unwrap_or_default();
    let rate = if case.fixed_rate { Vec::new() } else { ratio(Sample::rate) };
    vec![
        Figure { what: "throughput with / without", values: rate, more_is_better: true },
        less("p50 with / without", ratio(|sample| sample.p50)),
        less("p99 with / without", ratio(|sample| sample.p99)),
        less("p99.9 with / without", ratio(|sample| sample.p999)),
        less("CPU an operation with / without", ratio(Sample::cpu_per_operation)),
        less("BPF time, ns an operation", cost(super::results::Cost::bpf_per_operation)),
        less("agent CPU, s a million operations", cost(super::results::Cost::agent_per_million)),
    ]
}

fn shown(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

fn change(ratio: f64) -> String {
    if ratio.is_finite() { format!("{:+.1} %", (ratio - 1.0) * 100.0) } else { "–".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::Pair;

    fn results(ratios: &[f64]) -> Results {
        let pair = |ratio: &f64| {
            let base = Sample { operations: 1000, seconds: 1.0, p50: 10.0, p99: 20.0, p999: 30.0, cpu_ns: 5000 };
            let with = Sample { seconds: 1.0 / ratio, ..base.clone() };
            Pair { variant: AGENT.into(), base_first: true, base, with }
        };
        let case = Case { name: "a".into(), pairs: ratios.iter().map(pair).collect(), ..Case::default() };
        Results { cases: vec![case], ..Results::default() }
    }

    fn line(text: &str) -> &str {
        text.lines().find(|line| line.contains("throughput")).expect("a line")
    }

    #[test]
    fn noise_is_distinguished_from_change() {
        let good = [0.97, 0.98, 0.96, 0.99, 0.97, 0.98, 0.96];
        let bad = [0.90, 0.91, 0.89, 0.92, 0.90, 0.91, 0.89];
        let noisy = [0.99, 0.93, 0.97, 0.95, 0.96, 1.01, 0.98];
        let (text, worse) = compare(&results(&good), &results(&bad));
        assert!(line(&text).contains("| WORSE |") && worse == 1, "{text}");
        let (text, worse) = compare(&results(&bad), &results(&good));
        assert!(line(&text).contains("| better |") && worse == 0, "{text}");
        let (text, _) = compare(&results(&good), &results(&noisy));
        assert!(line(&text).contains("no difference shown"), "{text}");
        // Two pairs cannot show anything.
        let (text, _) = compare(&results(&good[..2]), &results(&bad[..2]));
        assert!(line(&text).contains("no difference shown"), "{text}");
    }

    #[test]
    fn other_cases_and_machines_are_reported() {
        let mut other = results(&[1.0]);
        other.cases[0].name = "b".into();
        other.cores = 64;
        let (text, _) = compare(&results(&[1.0]), &other);
        assert!(text.contains("NOTE") && text.contains("| a | all | | not measured"), "{text}");
        assert!(text.contains("| b | all | not measured"), "{text}");
    }

    #[test]
    fn a_change_below_one_per_cent_is_none() {
        assert_eq!(judge(0.995, (0.99, 0.999), 0.001, true), Verdict::NotShown);
        assert_eq!(judge(0.95, (0.94, 0.96), 0.02, true), Verdict::NotShown);
        assert_eq!(judge(1.05, (1.02, 1.07), 0.001, false), Verdict::Worse);
    }
}
