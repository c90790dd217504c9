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
    /// Put the table into README.md.
    #[arg(long)]
    readme: bool,
}

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
    for program in test::programs()? {
        let name = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with("transactions") {
            continue;
        }
        let mut command = root.command("env");
        command.arg(format!("TRACER_BIN={}", tracer.display()));
        command.arg(format!("TRACER_TRUTH_FILE={}", file.display()));
        command.args(wheels::environment()?).arg(workloads::environment()?);
        if options.full {
            command.arg("TRACER_TRUTH=full");
        }
        command.arg("timeout").arg("--kill-after=10").arg(SECONDS.to_string());
        command.arg(&program).args(["--test-threads=1", "--nocapture"]).current_dir(shell::root().join("tests"));
        tally.run(&mut command, &name)?;
    }
    let table = table(&file)?;
    shell::print(&table);
    tally.print();
    if !tally.failed().is_empty() || !tally.skipped().is_empty() {
        bail!("cases failed or could not run: {}", [tally.failed(), tally.skipped()].concat().join(", "));
    }
    if options.readme {
        readme::put("transactions", &table)?;
    }
    Ok(())
}

fn table(file: &Path) -> Result<String> {
    let text = fs::read_to_string(file).context("no case wrote what it found")?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut table = format!("Linux {}, {cores} cores of a virtual machine.\n\n{HEAD}", kernel.trim());
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
        let head = HEAD.lines().next().expect("head");
        assert_eq!(head.matches('|').count(), row(&line).matches('|').count());
    }
}
