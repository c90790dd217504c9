//! `cargo xtask transactions`: which calls of real applications are linked to the request that caused them.
//!
//! The cases are the truth tests `tests/tests/transactions*.rs`, which `cargo xtask test` runs too, at a size that fits
//! there. Each writes its results as lines of JSON; this makes a table of them, and a CSV file of all rows.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::attribution::{self, AttributionRow};
use crate::build_ebpf::Way;
use crate::kernel_tests::{self, KernelTestFile, Selection};
use crate::shell;
use crate::tally::Tally;
use crate::test;
use crate::{doc_tables, newer_runtimes, wheels, workloads};

/// `cargo xtask transactions`.
#[derive(Args)]
pub(crate) struct Options {
    /// More requests, and 256 at once, instead of CI's size.
    #[arg(long)]
    full: bool,
    /// Measure what tracing costs applications, instead of which calls are linked.
    #[arg(long, conflicts_with = "full")]
    costs: bool,
    /// Write docs/attribution-results.csv and the summary beside it; with --costs the table in docs/benchmarks.md.
    #[arg(long)]
    docs: bool,
    /// Run only these tests (names as `FILE::TEST`); may be repeated.
    #[arg(long, value_name = "FILE::TEST", conflicts_with = "costs")]
    only: Vec<String>,
    /// Add what cases find to this file and keep it: a long measurement can be made in parts, and the table is of all of them.
    #[arg(long, value_name = "FILE", conflicts_with = "costs")]
    scores: Option<PathBuf>,
}

/// Cost measurements: programs of tests, the test, and the call mode that hits its probes most.
const COSTS: [(&str, &str, &str); 11] = [
    ("transactions", "python_threads_and_pools", "pool"),
    ("transactions", "java_pools", "pool"),
    ("transactions", "python_asyncio", "nested"),
    ("transactions", "python_uvicorn", "gather"),
    ("transactions", "python_gevent", "two"),
    ("transactions", "node", "row"),
    ("transactions_compiled", "go", "children"),
    ("transactions_compiled", "go_ready", "worker"),
    ("transactions_compiled", "tokio", "children"),
    ("transactions_compiled", "tokio_wakers", "children"),
    ("transactions_compiled", "tokio_wakers", "fetch-children"),
];
/// Head of the costs table.
const COSTS_HEAD: &str = "| application | how it calls | CPU a request alone, us | followed, us | more, % | probes hit a request |\n\
                          | --- | --- | ---: | ---: | ---: | ---: |\n";

/// Head of the table.
const HEAD: &str = "| application | how it calls | at once | calls | right, % | ambiguous, % | orphan, % | wrong: certain | \
                    wrong: confirmed |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
/// Most seconds for all cases, at either size.
const SECONDS: u32 = 2400;

/// Runs the cases, prints the table, fails if a case failed.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    let (tracer, root) = test::ready(way)?;
    let dir = tempfile::Builder::new().prefix("tracer-transactions-").tempdir().context("cannot create a directory")?;
    let file = match &options.scores {
        // Cases run in another directory.
        Some(file) => std::path::absolute(file).with_context(|| format!("not a path: {}", file.display()))?,
        None => dir.path().join("scores"),
    };
    let mut tally = Tally::default();
    let mut cases = Vec::new();
    for tests in kernel_tests::build(&Selection::All)? {
        if options.costs {
            let of = |(of, ..): &&(&str, &str, &str)| tests.name == *of;
            cases.extend(COSTS.iter().filter(of).map(|case| (tests.clone(), Some(*case))));
        } else if tests.name.starts_with("transactions") {
            cases.push((tests, None));
        }
    }
    for name in &options.only {
        let known =
            |(tests, _): &(KernelTestFile, _)| name.split_once("::").is_some_and(|(file, _)| file == tests.name);
        ensure!(cases.iter().any(known), "no test of transactions: {name}; names are like transactions::java_pools");
    }
    for (tests, case) in cases {
        let named = options.only.iter().filter_map(|name| name.split_once("::"));
        let only: Vec<&str> = named.filter(|(file, _)| *file == tests.name).map(|(_, test)| test).collect();
        if only.is_empty() && !options.only.is_empty() {
            continue;
        }
        let mut command = root.command("env");
        command.arg(format!("TRACER_BIN={}", tracer.display()));
        command.arg(format!("TRACER_TRUTH_FILE={}", file.display()));
        command.args(wheels::environment()?).arg(workloads::environment()?);
        command.args(newer_runtimes::environment()?);
        if options.full {
            command.arg("TRACER_TRUTH=full");
        }
        let only = case.map_or(only, |(_, test, _)| vec![test]);
        if let Some((_, _, mode)) = case {
            // Of full size, because what fits in CI leaves out some.
            command.args(["TRACER_TRUTH=full", "TRACER_TRUTH_COSTS=1"]).arg(format!("TRACER_TRUTH_MODE={mode}"));
        }
        command.arg("timeout").arg("--kill-after=10").arg(SECONDS.to_string());
        command.arg(&tests.program).args(["--test-threads=1", "--nocapture"]).args(tests.arguments(&only));
        tally.run(command.current_dir(shell::root().join("tests")), &tests.name)?;
    }
    let lines = lines(&file)?;
    let rows = if options.costs { Vec::new() } else { lines.iter().map(score).collect() };
    let table =
        if options.costs { table(COSTS_HEAD, lines.iter().map(cost_row)) } else { table(HEAD, rows.iter().map(row)) };
    shell::print(&table);
    tally.print();
    if !tally.failed().is_empty() || !tally.skipped().is_empty() {
        bail!("cases failed or could not run: {}", [tally.failed(), tally.skipped()].concat().join(", "));
    }
    match (options.docs, options.costs) {
        (true, true) => doc_tables::put("transaction-costs", &table),
        (true, false) => {
            let size = if options.full { "full size" } else { "the size of `cargo xtask test`" };
            attribution::write(&format!("{} {size}.", machine()), &rows)
        }
        (false, _) => Ok(()),
    }
}

/// The lines the cases wrote.
fn lines(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file).context("no case wrote what it found")?;
    let line = |line: &str| serde_json::from_str(line).with_context(|| format!("not a line of scores: {line}"));
    text.lines().map(line).collect()
}

fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("Linux {}, {cores} cores of a virtual machine.", kernel.trim())
}

fn table(head: &str, rows: impl Iterator<Item = String>) -> String {
    format!("{}\n\n{head}{}", machine(), rows.collect::<String>())
}

/// One line of scores.
fn score(line: &Value) -> AttributionRow {
    let word = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| line[key].as_u64().unwrap_or_default();
    AttributionRow {
        application: word("application"),
        mode: word("mode"),
        concurrency: number("connections"),
        calls: number("made"),
        shares: ["right", "ambiguous", "orphan"].map(|key| 100.0 * number(key) as f64 / number("made").max(1) as f64),
        certain_wrong: number("certain_wrong"),
        confirmed_wrong: number("confirmed_wrong"),
    }
}

/// One line of the table.
fn row(row: &AttributionRow) -> String {
    let [right, ambiguous, orphan] = row.shares;
    format!(
        "| {} | {} | {} | {} | {right:.2} | {ambiguous:.2} | {orphan:.2} | {} | {} |\n",
        row.application, row.mode, row.concurrency, row.calls, row.certain_wrong, row.confirmed_wrong
    )
}

/// One line of costs.
fn cost_row(line: &Value) -> String {
    let word = |key: &str| line[key].as_str().unwrap_or_default();
    let number = |key: &str| line[key].as_f64().unwrap_or_default();
    let (without, with) = (number("without_us"), number("with_us"));
    let more = 100.0 * (with / without.max(1e-9) - 1.0);
    let hits = number("hits");
    let (application, mode) = (word("application"), word("mode"));
    format!("| {application} | {mode} | {without:.0} | {with:.0} | {more:+.1} | {hits:.1} |\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_scores_becomes_a_row() {
        let line = serde_json::json!({
            "application": "Java", "mode": "a pool", "connections": 8, "made": 400, "right": 398, "ambiguous": 1,
            "orphan": 0, "certain_wrong": 0, "confirmed_wrong": 1
        });
        let row = row(&score(&line));
        assert_eq!(row, "| Java | a pool | 8 | 400 | 99.50 | 0.25 | 0.00 | 0 | 1 |\n");
        let cost = serde_json::json!({
            "application": "Go", "mode": "naps", "without_us": 200.0, "with_us": 230.4, "hits": 3.04
        });
        assert_eq!(cost_row(&cost), "| Go | naps | 200 | 230 | +15.2 | 3.0 |\n");
        let head = HEAD.lines().next().expect("head");
        assert_eq!(head.matches('|').count(), row.matches('|').count());
    }
}
