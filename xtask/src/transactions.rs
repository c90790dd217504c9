//! `cargo xtask transactions`: which calls of real applications are linked to the request that caused them.
//!
//! The cases are the truth tests `tests/tests/transactions*.rs`, which `cargo xtask test` runs too, at a size that fits
//! there. Each writes what it found as lines of JSON; this makes a table of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::build_ebpf::Way;
use crate::shell::{self, Root};
use crate::tally::Tally;
use crate::{build, build_ebpf, readme, setup, test, wheels, workloads};

/// `cargo xtask transactions`.
#[derive(Args)]
pub(crate) struct Options {
    /// More requests, and 256 at once, and not what fits in CI.
    #[arg(long)]
    full: bool,
    /// What it costs applications to be followed, and not which of their calls are linked.
    #[arg(long, conflicts_with = "full")]
    costs: bool,
    /// Put the table into README.md.
    #[arg(long)]
    readme: bool,
}

/// What costs are measured of: programs of tests, the test, and the way to call that its probes are hit most by.
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
/// Head of their table.
const COSTS_HEAD: &str = "| application | how it calls | CPU a request alone, us | followed, us | more, % | probes hit a request |\n\
                          | --- | --- | ---: | ---: | ---: | ---: |\n";

/// Head of the table.
const HEAD: &str = "| application | how it calls | at once | calls | right, % | ambiguous, % | orphan, % | wrong: certain | \
                    wrong: confirmed |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
/// Most seconds all cases may take, at either size.
const SECONDS: u32 = 2400;

/// Runs the cases, prints the table, fails when a case did.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    setup::programs()?;
    wheels::install()?;
    workloads::build()?;
    build_ebpf::ready(way)?;
    let tracer = build::tracer(way, true)?;
    let root = Root::obtain("load eBPF programs")?;
    let dir = tempfile::Builder::new().prefix("tracer-transactions-").tempdir().context("cannot create a directory")?;
    let file = dir.path().join("scores");
    let mut tally = Tally::default();
    let mut cases = Vec::new();
    for program in test::programs()? {
        let name = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if options.costs {
            let of = |(of, ..): &&(&str, &str, &str)| name == *of || name.starts_with(&format!("{of}-"));
            cases.extend(COSTS.iter().filter(of).map(|case| (program.clone(), name.clone(), Some(*case))));
        } else if name.starts_with("transactions") {
            cases.push((program, name, None));
        }
    }
    for (program, name, case) in cases {
        let mut command = root.command("env");
        command.arg(format!("TRACER_BIN={}", tracer.display()));
        command.arg(format!("TRACER_TRUTH_FILE={}", file.display()));
        command.args(wheels::environment()?).arg(workloads::environment()?);
        if options.full {
            command.arg("TRACER_TRUTH=full");
        }
        if let Some((_, _, mode)) = case {
            // Of full size, because what fits in CI leaves out some.
            command.args(["TRACER_TRUTH=full", "TRACER_TRUTH_COSTS=1"]).arg(format!("TRACER_TRUTH_MODE={mode}"));
        }
        command.arg("timeout").arg("--kill-after=10").arg(SECONDS.to_string());
        command.arg(&program).args(["--test-threads=1", "--nocapture"]).current_dir(shell::root().join("tests"));
        if let Some((_, test, _)) = case {
            command.args(["--exact", test]);
        }
        tally.run(&mut command, &name)?;
    }
    let (head, row, marker): (_, fn(&Value) -> String, _) =
        if options.costs { (COSTS_HEAD, cost_row, "transaction-costs") } else { (HEAD, row, "transactions") };
    let table = table(&file, head, row)?;
    shell::print(&table);
    tally.print();
    if !tally.failed().is_empty() || !tally.skipped().is_empty() {
        bail!("cases failed or could not run: {}", [tally.failed(), tally.skipped()].concat().join(", "));
    }
    if options.readme {
        readme::put(marker, &table)?;
    }
    Ok(())
}

fn table(file: &Path, head: &str, row: fn(&Value) -> String) -> Result<String> {
    let text = fs::read_to_string(file).context("no case wrote what it found")?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut table = format!("Linux {}, {cores} cores of a virtual machine.\n\n{head}", kernel.trim());
    for line in text.lines() {
        let line = serde_json::from_str(line).with_context(|| format!("not a line of scores: {line}"))?;
        table.push_str(&row(&line));
    }
    Ok(table)
}

/// One line.
fn row(line: &Value) -> String {
    let word = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| line[key].as_u64().unwrap_or_default();
    let share = |key: &str| format!("{:.2}", 100.0 * number(key) as f64 / number("made").max(1) as f64);
    let cells = [
        word("application"),
        word("mode"),
        number("connections").to_string(),
        number("made").to_string(),
        share("right"),
        share("ambiguous"),
        share("orphan"),
        number("certain_wrong").to_string(),
        number("confirmed_wrong").to_string(),
    ];
    format!("| {} |\n", cells.join(" | "))
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
        assert_eq!(row(&line), "| Java | a pool | 8 | 400 | 99.50 | 0.25 | 0.00 | 0 | 1 |\n");
        let cost = serde_json::json!({
            "application": "Go", "mode": "naps", "without_us": 200.0, "with_us": 230.4, "hits": 3.04
        });
        assert_eq!(cost_row(&cost), "| Go | naps | 200 | 230 | +15.2 | 3.0 |\n");
        let head = HEAD.lines().next().expect("head");
        assert_eq!(head.matches('|').count(), row(&line).matches('|').count());
    }
}
