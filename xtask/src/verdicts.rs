//! `cargo xtask verdicts`: how good the agent's findings are, by a simulation with known truth
//! (`tracer-user/benches/verdicts`); `--docs` writes the tables into `docs/verdicts.md`.

use std::process::Stdio;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{doc_tables, shell};

/// `cargo xtask verdicts`.
#[derive(Args)]
pub(crate) struct Options {
    /// Runs of every scenario.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Only these scenarios, such as S3 or S6b; also explains every wrong run.
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// With the seeds that settings may be chosen on, which are not those of the published tables.
    #[arg(long)]
    tuning: bool,
    /// Write the tables into docs/verdicts.md.
    #[arg(long, conflicts_with_all = ["scenarios", "tuning"])]
    docs: bool,
}

/// Simulates and prints the tables.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut command = shell::cargo();
    command.args(["bench", "--locked", "--profile", "release"]);
    command.args(["--package", "tracer-user", "--bench", "verdicts", "--"]);
    command.arg(options.seeds.to_string()).args(&options.scenarios);
    if options.tuning {
        command.arg("tuning");
    }
    shell::progress("simulating (with 20 seeds some minutes after the build)");
    let done = command.stderr(Stdio::inherit()).output().context("cannot run cargo bench")?;
    if !done.status.success() {
        bail!("cargo bench failed ({}); its own words are above", done.status);
    }
    let tables = String::from_utf8(done.stdout).context("the tables are no text")?;
    shell::print(&tables);
    if options.docs { doc_tables::put("verdicts", &tables) } else { Ok(()) }
}
