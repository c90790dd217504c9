//! `cargo xtask bench --declared`: what calls of a declared transaction cost, by calls a second.
//!
//! A program calls a function that does nothing, at a fixed rate, and measures its own CPU: without an agent, with an agent
//! that has the function declared, and, for what the agent uses anyway, with that agent and no calls at the same pace.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::agent::Agent;
use super::results::Results;
use super::statistics::{median, range};
use super::table::{number, thousands};
use super::{Options, commit, measure};
use crate::build_ebpf::Way;
use crate::shell::{self, Root};
use crate::{build, build_ebpf, doc_tables};

/// Ticks a second, and calls a tick.
const RATES: [(u32, u32); 3] = [(100, 1), (1000, 1), (1000, 10)];
/// Length of a run.
const SECONDS: u32 = 4;
/// Rounds of all rates.
const ROUNDS: u32 = 3;

/// One run of a rate, CPU in nanoseconds a call.
#[derive(Clone, Copy, Debug)]
struct Cost {
    without: f64,
    with: f64,
    agent: f64,
    /// Calls that the agent counted, as a share of those made.
    counted: f64,
}

impl Cost {
    fn more(self) -> f64 {
        self.with - self.without + self.agent
    }
}

fn calls((ticks, many): (u32, u32)) -> u32 {
    ticks * many
}

pub(super) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    build_ebpf::ready(way)?;
    let tracer = build::tracer(way, true)?;
    if Root::obtain("load eBPF programs and probe a program")? != Root::Already {
        bail!("run this as root: it loads eBPF programs and probes a program");
    }
    measure::statistics_off()?;
    let dir = tempfile::Builder::new().prefix("tracer-bench-").tempdir().context("cannot create a directory")?;
    let program = compile(dir.path())?;
    let config = dir.path().join("tracer.toml");
    let text =
        format!("[[transaction]]\nname = \"nothing\"\nprogram = \"{}\"\nfunction = \"nothing\"\n", program.display());
    fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
    let arguments = ["--config".to_owned(), config.display().to_string()];
    let mut all: Vec<Vec<Cost>> = vec![Vec::new(); RATES.len()];
    // Once as warm-up.
    let _ = once(&program, RATES[0], RATES[0].1)?;
    for round in 0..if options.quick { 1 } else { ROUNDS } {
        for (rate, costs) in RATES.into_iter().zip(&mut all) {
            let each = f64::from(calls(rate) * SECONDS);
            let without = once(&program, rate, rate.1)?;
            let agent = Agent::start_with(&tracer, dir.path(), &[], &arguments)?;
            let idle = spent(&agent, || once(&program, rate, 0))?.1;
            let counted = |agent: &Agent| -> Result<f64> {
                Ok(agent.metrics()?.labelled("tracer_requests_total", "request_class=\"nothing\""))
            };
            let (with, busy) = spent(&agent, || once(&program, rate, rate.1))?;
            let counted = counted(&agent)? / each;
            agent.end()?;
            let own = busy.saturating_sub(idle) as f64 / each;
            let cost = Cost { without: without as f64 / each, with: with as f64 / each, agent: own, counted };
            shell::progress(format!("round {}: {} calls a second: {cost:?}", round + 1, calls(rate)));
            costs.push(cost);
        }
    }
    let here = Results::here(commit());
    let origin = format!("{} on Linux {}, {} cores ({})", here.commit, here.kernel, here.cores, here.processor);
    let table = table(&origin, &all);
    shell::print(&table);
    if options.docs {
        doc_tables::put("declared", &table)?;
    }
    Ok(())
}

fn compile(dir: &Path) -> Result<PathBuf> {
    let program = dir.join("declared_rate");
    let source = shell::root().join("tests/workloads/declared_rate.c");
    let mut command = Command::new("cc");
    command.args(["-O2", "-g", "-o"]).arg(&program).arg(source);
    shell::run(&mut command, "install a C compiler")?;
    Ok(program)
}

/// CPU of one run, nanoseconds.
fn once(program: &Path, (ticks, _): (u32, u32), many: u32) -> Result<u64> {
    let arguments = [ticks, many, SECONDS].map(|number| number.to_string());
    let out = Command::new(program).args(arguments).output().with_context(|| format!("{}", program.display()))?;
    String::from_utf8_lossy(&out.stdout).trim().parse().with_context(|| format!("{}: no figure", program.display()))
}

/// What `act` gives, and the agent's CPU meanwhile, until it is calm.
fn spent(agent: &Agent, act: impl FnOnce() -> Result<u64>) -> Result<(u64, u64)> {
    let before = agent.cpu()?;
    let done = act()?;
    agent.calm()?;
    Ok((done, agent.cpu()?.saturating_sub(before)))
}

fn table(origin: &str, all: &[Vec<Cost>]) -> String {
    let rounds = all.first().map_or(0, Vec::len);
    let mut text = format!(
        "`cargo xtask bench --declared` at {origin}: calls of a C function that does nothing; CPU, medians of {rounds} rounds, in \
         brackets the least and the greatest share.\n\n| calls a second | program, µs a call without | with | agent, µs a call | \
         both, share of one CPU | counted |\n| ---: | ---: | ---: | ---: | --- | ---: |\n"
    );
    for (rate, costs) in RATES.into_iter().zip(all) {
        let of = |what: fn(&Cost) -> f64| costs.iter().map(what).collect::<Vec<f64>>();
        let micros = |what: fn(&Cost) -> f64| number(median(&of(what)) / 1000.0);
        let calls = f64::from(calls(rate));
        let shares: Vec<f64> = costs.iter().map(|cost| cost.more() * calls / 1e7).collect();
        let (low, high) = range(&shares);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.2} % ({low:.2}–{high:.2}) | {:.1} % |",
            thousands(calls),
            micros(|cost| cost.without),
            micros(|cost| cost.with),
            micros(|cost| cost.agent),
            median(&shares),
            100.0 * median(&of(|cost| cost.counted)),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_one_cpu() {
        let cost = Cost { without: 1000.0, with: 11_000.0, agent: 5000.0, counted: 1.0 };
        let text = table("abc", &[vec![cost], vec![cost], vec![cost]]);
        // 15 µs more a call.
        for wanted in
            ["| 100 |", "| 0.15 % (0.15–0.15) | 100.0 % |", "| 1 000 |", "| 1.50 % ", "| 10 000 |", "| 15.00 % "]
        {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
    }
}
