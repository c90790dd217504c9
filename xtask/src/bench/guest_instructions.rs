//! `cargo xtask bench --counted`: what tracing costs where nothing else runs and time is counted in instructions.
//!
//! A guest with one emulated CPU whose clock advances with its instructions (QEMU's `-icount`), and jumps over idle time. A busy
//! machine makes a run longer and changes no figure. Caches are not emulated, so a cold line costs what a warm one does: what
//! this shows is how much is computed, not how long it takes on a real CPU. Builds are measured in one boot, in turns.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::agent::Agent;
use super::bpf;
use super::cases::{Case, Workload};
use super::sched::Urgency;
use super::two_builds;
use crate::build_ebpf::{self, Way};
use crate::packages::{self, Need};
use crate::vm::{self, NANOS_AN_INSTRUCTION};
use crate::{build, shell};

/// Cases of a run where none is named: load and server share the guest's CPU.
const USUAL: [&str; 2] = ["a16s", "bmax"];
/// Length of a run, in the guest's time.
const RUN: Duration = Duration::from_secs(1);
/// How often each build is started anew.
const ROUNDS: u32 = 2;
/// Most runs until two in a row agree.
const STEADY: u32 = 20;
/// This work tree's build, seeing every request whole.
const WHOLE: &str = "own-whole";
/// The options that make it so.
const DETAIL: [&str; 2] = ["--detail", "100%"];
/// Where the guest has the builds.
const PLACE: &str = "/guest";

/// What a figure is of: its case, its build and its name.
type Key = (String, String, String);

/// What is counted of each build, by the name of its figure and the head of its column.
const COLUMNS: [(&str, &str); 5] = [
    ("throughput", "throughput with / without"),
    ("agent", "agent, instructions an operation"),
    ("bpf", "BPF, instructions an operation"),
    ("ready", "memory ready, MB"),
    ("loaded", "under load, MB"),
];

/// Boots a guest with this work tree's build and that of `against` (a commit, or a binary that is built), and prints the table.
pub(super) fn run(way: Option<Way>, against: Option<&str>, cases: &[String], kernel: &str) -> Result<()> {
    let named = if cases.is_empty() { USUAL.map(str::to_owned).to_vec() } else { cases.to_vec() };
    let cases: Vec<&str> = Case::selected(&named)?.iter().map(|case| case.name).collect();
    packages::install(&[Need::Guests])?;
    build_ebpf::ready(way)?;
    let mut builds = vec![("own", build::tracer(way, true)?)];
    if let Some(against) = against {
        builds.insert(0, ("base", two_builds::build(against)?));
    }
    let own = std::env::current_exe().context("this program has no path")?;
    let mut files = vec![(own, format!("{PLACE}/xtask"))];
    files.extend(builds.iter().map(|(name, path)| (path.clone(), format!("{PLACE}/tracer-{name}"))));
    let names: Vec<&str> = builds.iter().map(|(name, _)| *name).chain([WHOLE]).collect();
    let command = format!("{PLACE}/xtask bench-in-guest {} --case {}", names.join(" "), cases.join(","));
    let figures = vm::figures_by_instructions(kernel, &files, &command)?;
    shell::print(table(&parse(&figures)));
    Ok(())
}

/// In the guest: runs the cases without and with each build, and prints a line for each figure.
pub(crate) fn in_guest(builds: &[String], cases: &[String]) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("tracer-bench-").tempdir().context("cannot create a directory")?;
    for case in Case::selected(cases)? {
        let mut workload = case.start(dir.path())?;
        let without = steady(workload.as_mut())?;
        shell::print(format!("{}: {without:.0} a second without an agent", case.name));
        for round in 0..ROUNDS {
            for build in builds {
                let (name, more) = if build == WHOLE { ("own", &DETAIL[..]) } else { (build.as_str(), &[][..]) };
                let more: Vec<String> = more.iter().map(|word: &&str| (*word).to_owned()).collect();
                let tracer = PathBuf::from(format!("{PLACE}/tracer-{name}"));
                let agent = Agent::start_with(&tracer, dir.path(), case.services, &more)?;
                for (figure, value) in with(&agent, workload.as_mut(), without)? {
                    shell::print(format!("FIGURE {} {build} {figure} {round}: {value}", case.name));
                }
                agent.end()?;
            }
        }
    }
    Ok(())
}

/// Operations a second without an agent, once they have stopped to rise: a guest has work of its own after its boot.
fn steady(workload: &mut dyn Workload) -> Result<f64> {
    let mut last = workload.run(RUN, Urgency::Usual)?.rate();
    for _ in 0..STEADY {
        let now = workload.run(RUN, Urgency::Usual)?.rate();
        if (now / last - 1.0).abs() < 0.005 {
            return Ok(now);
        }
        last = now;
    }
    bail!("{STEADY} runs without an agent each differ by more than half a per cent from the one before")
}

/// The figures of a running agent.
fn with(agent: &Agent, workload: &mut dyn Workload, without: f64) -> Result<Vec<(String, f64)>> {
    let instructions = |nanos: u64, operations: u64| nanos as f64 / NANOS_AN_INSTRUCTION / operations.max(1) as f64;
    let mut figures = vec![("ready".to_owned(), agent.memory("VmRSS")?)];
    // Connections and classes are known after this.
    workload.run(RUN, Urgency::Usual)?;
    agent.calm()?;
    let cpu = agent.cpu()?;
    let sample = workload.run(RUN, Urgency::Usual)?;
    agent.calm()?;
    figures.push(("throughput".into(), sample.rate() / without));
    figures.push(("agent".into(), instructions(agent.cpu()? - cpu, sample.operations)));
    figures.push(("loaded".into(), agent.memory("VmRSS")?));
    let _statistics = bpf::statistics()?;
    let before = bpf::held_by(agent.pid())?;
    let sample = workload.run(RUN, Urgency::Usual)?;
    let mut all = 0;
    for after in bpf::held_by(agent.pid())? {
        let was = before.iter().find(|usage| usage.id == after.id).map_or(0, |usage| usage.nanos);
        let nanos = after.nanos.saturating_sub(was);
        all += nanos;
        figures.push((format!("bpf_{}", after.name), instructions(nanos, sample.operations)));
    }
    figures.push(("bpf".into(), instructions(all, sample.operations)));
    let lost = agent.metrics()?.lost();
    figures.extend(lost.into_iter().map(|(reason, count)| (format!("lost_{}", reason.replace(' ', "_")), count)));
    Ok(figures)
}

/// The rounds of each figure, from `CASE BUILD FIGURE ROUND` and the value's text.
fn parse(figures: &BTreeMap<String, String>) -> BTreeMap<Key, Vec<f64>> {
    let mut rounds: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
    for (name, value) in figures {
        let words: Vec<&str> = name.split(' ').collect();
        let ([case, build, figure, _], Ok(value)) = (words.as_slice(), value.parse()) else { continue };
        rounds.entry(((*case).into(), (*build).into(), (*figure).into())).or_default().push(value);
    }
    rounds
}

fn table(rounds: &BTreeMap<Key, Vec<f64>>) -> String {
    let mut text = String::from("| case | build |");
    for (_, head) in COLUMNS {
        text += &format!(" {head} |");
    }
    text += &format!("\n| --- | --- |{}\n", " ---: |".repeat(COLUMNS.len()));
    let of = |case: &str, build: &str, figure: &str| rounds.get(&(case.into(), build.into(), figure.into()));
    let mut rows: Vec<(&str, &str)> = rounds.keys().map(|(case, build, _)| (case.as_str(), build.as_str())).collect();
    rows.dedup();
    for (case, build) in rows {
        text += &format!("| {case} | {build} |");
        for (figure, _) in COLUMNS {
            let value = of(case, build, figure).map_or_else(|| "–".into(), |all| shown(all));
            let ratio = match (build, of(case, "base", figure), of(case, build, figure)) {
                ("own" | WHOLE, Some(base), Some(own)) => format!(" ({:.3} ×)", mean(own) / mean(base)),
                _ => String::new(),
            };
            text += &format!(" {value}{ratio} |");
        }
        text.push('\n');
    }
    for ((case, build, figure), all) in rounds {
        if let Some(program) = figure.strip_prefix("bpf_")
            && mean(all) >= 1.0
        {
            text += &format!("\n{case} {build} {program}: {}", shown(all));
        } else if figure.starts_with("lost_") {
            text += &format!("\n{case} {build} {figure}: {}", shown(all));
        }
    }
    text
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// A figure's rounds as people read them.
fn shown(all: &[f64]) -> String {
    let text = |value: &f64| if *value < 10.0 { format!("{value:.3}") } else { format!("{value:.0}") };
    all.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_the_own_build_has_its_ratio_to_the_base() {
        let figures = [
            ("a16s base throughput 0", "0.70"),
            ("a16s base throughput 1", "0.72"),
            ("a16s own throughput 0", "0.781"),
            ("a16s own bpf_tx 0", "640.4"),
            ("no figure of ours", "1"),
        ];
        let text = table(&parse(&figures.into_iter().map(|(name, value)| (name.into(), value.into())).collect()));
        assert!(text.contains("| a16s | base | 0.700, 0.720 | – |"), "{text}");
        assert!(text.contains("| a16s | own | 0.781 (1.100 ×) | – |"), "{text}");
        assert!(text.ends_with("\na16s own tx: 640"), "{text}");
    }
}
