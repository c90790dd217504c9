//! Results as tables for people: on the terminal and in docs/benchmarks.md.

use std::fmt::Write as _;

use super::results::{AGENT, Case, FLOOR, NOTHING, Results, STATISTICS_NS, Sample, without_statistics};
use super::statistics::{median, range};

/// All tables, in Markdown.
pub(super) fn all(results: &Results) -> String {
    let mut text = format!(
        "`cargo xtask bench` at {} on Linux {}, {} cores ({}), {:.0} minutes. Medians of {} pairs of runs of 1 s; in \
         brackets the least and the greatest. *Noise*: pairs without anything. *Floor*: {} empty programs on the agent's \
         hooks; in cases of TLS also on its probes in programs. `a → b`: without → with the agent. *BPF time*: of all the \
         agent's programs, less {STATISTICS_NS} ns a run for the kernel's statistics; in brackets that of the empty programs.\n\n",
        results.commit,
        results.kernel,
        results.cores,
        results.processor,
        results.seconds / 60.0,
        results.cases.iter().map(|case| case.of(AGENT).count()).max().unwrap_or_default(),
        results.floor_programs,
    );
    main(&mut text, results);
    memory(&mut text, results);
    for case in results.cases.iter().filter(|case| has_peers(case)) {
        peers(&mut text, case);
    }
    programs(&mut text, results);
    text
}

fn main(text: &mut String, results: &Results) {
    text.push_str(
        "| case | throughput with / without | noise | floor | p50, µs | p99, µs | p99.9, µs | application CPU | BPF time | \
         agent CPU | events lost |\n| --- | --- | --- | --- | --- | --- | --- | --- | ---: | --- | ---: |\n",
    );
    for case in &results.cases {
        let throughput = if case.fixed_rate { "fixed".into() } else { throughput(case, AGENT) };
        let [noise, floor] = [NOTHING, FLOOR]
            .map(|variant| if case.fixed_rate { p50_ratio(case, variant) } else { throughput_of(case, variant) });
        let latency = |of: fn(&Sample) -> f64| step(case, AGENT, of, "");
        let _ = writeln!(
            text,
            "| **{}** {} | {throughput} | {noise} | {floor} | {} | {} | {} | {} | {} | {} | {} |",
            case.name,
            case.title,
            latency(|sample| sample.p50),
            latency(|sample| sample.p99),
            latency(|sample| sample.p999),
            application_cpu(case),
            bpf(case),
            agent_cpu(case),
            lost(case),
        );
    }
    text.push_str(
        "\nNoise and floor of cases at a fixed rate are of p50. Lost: in the runs of this column's cost measurement, at \
         usual priorities; in brackets, where any, in the paired runs, in which load and server run in real time and the \
         agent gets what they leave.\n",
    );
}

fn ratios(case: &Case, variant: &str, of: fn(&Sample) -> f64) -> Vec<f64> {
    case.of(variant).map(|pair| of(&pair.with) / of(&pair.base)).filter(|ratio| ratio.is_finite()).collect()
}

fn throughput_of(case: &Case, variant: &str) -> String {
    let values = ratios(case, variant, Sample::rate);
    let (low, high) = range(&values);
    if values.is_empty() { "–".into() } else { format!("{:.3} ({low:.2}–{high:.2})", median(&values)) }
}

fn p50_ratio(case: &Case, variant: &str) -> String {
    let values = ratios(case, variant, |sample| sample.p50);
    let (low, high) = range(&values);
    if values.is_empty() { "–".into() } else { format!("{:.3} ({low:.2}–{high:.2})", median(&values)) }
}

/// The ratio, and its unit.
fn throughput(case: &Case, variant: &str) -> String {
    let base: Vec<f64> = case.of(variant).map(|pair| pair.base.rate()).collect();
    if base.is_empty() {
        return "–".into();
    }
    format!("**{}** of {}/s", throughput_of(case, variant), thousands(median(&base)))
}

/// Medians without and with the variant.
fn step(case: &Case, variant: &str, of: fn(&Sample) -> f64, unit: &str) -> String {
    let base: Vec<f64> = case.of(variant).map(|pair| of(&pair.base)).collect();
    let with: Vec<f64> = case.of(variant).map(|pair| of(&pair.with)).collect();
    if base.is_empty() {
        return "–".into();
    }
    format!("{} → {}{unit}", number(median(&base)), number(median(&with)))
}

fn application_cpu(case: &Case) -> String {
    if case.fixed_rate {
        step(case, AGENT, Sample::cpu_points, " % of a core")
    } else {
        step(case, AGENT, |sample| sample.cpu_per_operation() / 1e3, &format!(" µs a {}", case.operation))
    }
}

fn bpf(case: &Case) -> String {
    let Some(cost) = &case.cost else { return "–".into() };
    let nanos = median(&cost.bpf_per_operation());
    if case.pairs.is_empty() {
        return format!("{} µs a second ({})", number(nanos / 1e3), number(cost.floor_ns / 1e3));
    }
    format!("{} ns a {} ({})", number(nanos), case.operation, number(cost.floor_ns))
}

fn agent_cpu(case: &Case) -> String {
    let Some(cost) = &case.cost else { return "–".into() };
    let points = format!("{} % of a core", number(median(&cost.agent_points())));
    if case.pairs.is_empty() {
        return points;
    }
    format!("{} s a million, {points}", number(median(&cost.agent_per_million())))
}

fn lost(case: &Case) -> String {
    let in_pairs: f64 = case.lost_in_pairs.values().sum();
    let alone = case.cost.as_ref().map_or(0.0, super::results::Cost::all_lost);
    let named = |lost: &std::collections::BTreeMap<String, f64>| {
        let each = lost.iter().map(|(reason, count)| format!("{}: {count:.0}", reason.replace('_', " ")));
        each.collect::<Vec<_>>().join(", ")
    };
    let reasons = case.cost.as_ref().map(|cost| named(&cost.lost)).unwrap_or_default();
    let mut text = if alone > 0.0 { reasons } else { "0".into() };
    if in_pairs > 0.0 {
        let _ = write!(text, " ({})", named(&case.lost_in_pairs));
    }
    text
}

fn memory(text: &mut String, results: &Results) {
    let costs = || results.cases.iter().filter_map(|case| case.cost.as_ref());
    if costs().next().is_some() {
        let _ = writeln!(
            text,
            "\nThe agent's memory, MB: peak at start {}, when ready {}, under load {}, peak by then {} (least and \
             greatest of the cases).\n",
            spread(costs().map(|cost| cost.start_peak_mb), 1),
            spread(costs().map(|cost| cost.steady_mb), 1),
            spread(costs().map(|cost| cost.load_mb), 1),
            spread(costs().map(|cost| cost.load_peak_mb), 1),
        );
    }
}

fn has_peers(case: &Case) -> bool {
    !case.refused.is_empty() || case.variants().iter().any(|name| ![AGENT, FLOOR, NOTHING].contains(name))
}

fn peers(text: &mut String, case: &Case) {
    let _ = writeln!(text, "Beside others, in the same rounds ({}):\n", case.title);
    text.push_str("| what | throughput with / without | CPU a request, µs | p99, µs |\n| --- | --- | --- | --- |\n");
    for variant in case.variants() {
        let name = match variant {
            AGENT => "**tracer**",
            FLOOR => "floor: empty programs on tracer's hooks",
            NOTHING => "noise: nothing",
            peer => peer,
        };
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} |",
            throughput_of(case, variant),
            step(case, variant, |sample| sample.cpu_per_operation() / 1e3, ""),
            step(case, variant, |sample| sample.p99, ""),
        );
    }
    for (peer, words) in &case.refused {
        let _ = writeln!(text, "| {peer} | did not run here: {} | | |", words.replace('|', "/"));
    }
    text.push('\n');
}

fn programs(text: &mut String, results: &Results) {
    text.push_str("<details><summary>BPF programs: time a run × runs an operation</summary>\n\n");
    for case in &results.cases {
        let Some(cost) = &case.cost else { continue };
        let list: Vec<String> = cost
            .programs
            .iter()
            .filter(|program| program.runs >= 20)
            .map(|program| {
                let own = without_statistics(program.nanos, program.runs) / program.runs as f64;
                format!("{} {} ns × {}", program.name, number(own), number(program.runs as f64 / cost.operations()))
            })
            .collect();
        let events = cost.events / cost.operations();
        let _ = writeln!(text, "- **{}**: {}; {} events an operation", case.name, list.join(", "), number(events));
    }
    text.push_str("\n</details>\n");
}

/// Least and greatest, or the single value if they are equal.
fn spread(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let values: Vec<f64> = values.collect();
    let (low, high) = range(&values);
    let (low, high) = (format!("{low:.digits$}"), format!("{high:.digits$}"));
    if low == high { low } else { format!("{low}–{high}") }
}

/// Three significant digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 9999.5 => thousands(value),
        v if !(0.0005..99.95).contains(&v) => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.0995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A whole number, in groups of three digits.
pub(super) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && !text.ends_with('-') {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::{Cost, Pair, Program, Slice};
    use std::collections::BTreeMap;

    fn pair(variant: &str, rate: u64) -> Pair {
        let sample =
            |operations, p50| Sample { operations, seconds: 1.0, p50, p99: 90.0, p999: 150.0, cpu_ns: 9_000_000 };
        Pair { variant: variant.into(), base_first: true, base: sample(50_000, 20.0), with: sample(rate, 25.0) }
    }

    #[test]
    fn tables_say_what_was_measured() {
        let cost = Cost {
            slices: vec![Slice {
                operations: 1000,
                seconds: 1.0,
                agent_cpu_ns: 2_000_000,
                bpf_ns: 500_000,
                bpf_runs: 2000,
            }],
            programs: vec![Program { name: "tx".into(), runs: 2000, nanos: 500_000 }],
            floor_ns: 30.0,
            lost: BTreeMap::from([("ring_full_op".to_owned(), 3.0)]),
            events: 3000.0,
            ..Cost::default()
        };
        let pairs = ["floor", "agent", "nothing", "perf trace -s"].map(|name| pair(name, 45_000));
        let case = Case {
            name: "a16".into(),
            title: "nginx".into(),
            operation: "request".into(),
            pairs: pairs.to_vec(),
            cost: Some(cost),
            refused: BTreeMap::from([("bpftrace".to_owned(), "not here".to_owned())]),
            ..Case::default()
        };
        let text = all(&Results { commit: "abc".into(), cases: vec![case], ..Results::default() });
        for wanted in [
            "| **0.900 (0.90–0.90)** of 50 000/s |",
            "| 20.0 → 25.0 |",
            "| 420 ns a request (30.0) | 2.00 s a million, 0.20 % of a core | ring full op: 3 |",
            "| perf trace -s | 0.900",
            "| bpftrace | did not run here: not here |",
            "- **a16**: tx 210 ns × 2.00; 3.00 events an operation",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(thousands(1_234_567.0), "1 234 567");
        assert_eq!(
            [0.0, 0.01234, 1.234, 12.34, 123.4, 12345.0].map(number),
            ["0", "0.012", "1.23", "12.3", "123", "12 345"]
        );
    }
}
