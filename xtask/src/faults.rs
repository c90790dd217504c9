//! `cargo xtask faults`: what happens to requests, traced programs and the agent when things go wrong.
//!
//! The cases are the truth tests `tests/tests/faults_*.rs`, which `cargo xtask test` runs too, at a size that fits
//! there. Each writes its measured figures as a line of JSON; this makes a table of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::build_ebpf::Way;
use crate::kernel_tests::{self, Selection};
use crate::shell::{self, Root};
use crate::tally::Tally;
use crate::{build, build_ebpf, doc_tables, setup};

/// `cargo xtask faults`.
#[derive(Args)]
pub(crate) struct Options {
    /// The full size of every case (100 000 connections, 100 restarts, a minute stopped …) instead of CI's.
    #[arg(long)]
    full: bool,
    /// Write the table into docs/faults.md.
    #[arg(long)]
    docs: bool,
}

/// Head of the table.
const HEAD: &str = "| case | size | requests sent | ends reported whole | without reply | missing | operations counted as \
                    lost | wrong | traced programs' failures | left attached | agent's memory, descriptors |\n\
                    | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n";
/// Most seconds one program of cases may take, at either size.
const SECONDS: u32 = 1200;

/// Runs the cases, prints the table, fails if a case failed.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    setup::programs()?;
    build_ebpf::ready(way)?;
    let tracer = build::tracer(way, true)?;
    let root = Root::obtain("load eBPF programs for the fault cases")?;
    let dir = tempfile::Builder::new().prefix("tracer-faults-").tempdir().context("cannot create a directory")?;
    let file = dir.path().join("figures");
    let mut tally = Tally::default();
    for tests in kernel_tests::build(&Selection::All)? {
        if !tests.name.starts_with("faults_") {
            continue;
        }
        shell::progress(format!("faults: {}", tests.name));
        let mut command = root.command("env");
        command.arg(format!("TRACER_BIN={}", tracer.display()));
        command.arg(format!("TRACER_FAULTS_FILE={}", file.display()));
        if options.full {
            command.arg("TRACER_FAULTS=full");
        }
        command.arg("timeout").arg("--kill-after=10").arg(SECONDS.to_string());
        command.arg(&tests.program).args(["--test-threads=1", "--nocapture"]).args(tests.arguments(&[]));
        tally.run(command.current_dir(shell::root().join("tests")), &tests.name)?;
    }
    let table = table(&lines(&file)?);
    shell::print(&table);
    tally.print();
    if !tally.failed().is_empty() || !tally.skipped().is_empty() {
        bail!("cases failed or could not run: {}", [tally.failed(), tally.skipped()].concat().join(", "));
    }
    if options.docs {
        doc_tables::put("faults", &table)?;
    }
    Ok(())
}

fn lines(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file).context("no case wrote its figures")?;
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("not a line of figures: {line}")))
        .collect()
}

fn table(lines: &[Value]) -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut text = format!("Linux {}, {cores} cores of a virtual machine.\n\n{HEAD}", kernel.trim());
    for line in lines {
        text.push_str(&row(line));
    }
    text
}

/// One line; a dash marks figures the case does not measure.
fn row(line: &Value) -> String {
    let word = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| line[key].as_f64().map_or_else(|| "–".to_owned(), |n| format!("{n:.0}"));
    let whole = match (line["right"].as_u64(), line["ends"].as_u64()) {
        (Some(right), Some(ends)) => format!("{right} of {ends}"),
        _ => "–".to_owned(),
    };
    let growth = match (line["rss_growth"].as_f64(), line["fd_growth"].as_i64()) {
        (Some(rss), Some(fds)) => format!("{:+.1} MB, {fds:+}", rss / 1e6),
        _ => "–".to_owned(),
    };
    let size = match word("note") {
        note if note.is_empty() => word("size"),
        note => format!("{} ({note})", word("size")),
    };
    let cells = [
        word("case"),
        size,
        number("sent"),
        whole,
        number("unfinished"),
        number("missing"),
        number("counted"),
        number("wrong"),
        number("failed"),
        number("attached"),
        growth,
    ];
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_figures_becomes_a_row() {
        let line = serde_json::json!({
            "case": "agent stopped", "size": "4 s", "sent": 100, "failed": 0, "ends": 200, "right": 150,
            "unfinished": 10, "missing": 40, "wrong": 0, "counted": 85.0, "attached": 0, "rss_growth": -1.5e6,
            "fd_growth": 2, "note": ""
        });
        assert_eq!(row(&line), "| agent stopped | 4 s | 100 | 150 of 200 | 10 | 40 | 85 | 0 | 0 | 0 | -1.5 MB, +2 |\n");
        let short =
            serde_json::json!({"case": "killed", "size": "25", "sent": 7, "failed": 0, "attached": 0, "note": "n"});
        assert_eq!(row(&short), "| killed | 25 (n) | 7 | – | – | – | – | – | 0 | 0 | – |\n");
        let head = HEAD.lines().next().expect("head");
        assert_eq!(head.matches('|').count(), row(&line).matches('|').count());
    }
}
