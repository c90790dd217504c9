//! `cargo xtask bench`: what tracing costs, measured on this machine in one run.
//!
//! Noise decides the method. Runs are short (a second) and come in pairs, without and with the agent, in alternating
//! order; load and server are pinned and run in real time; the result is the median of the pairs' ratios. Pairs of two
//! runs without anything (the control) show how much of a ratio is noise, and pairs with empty programs on the agent's
//! hooks (the floor) show the least any tracer on these hooks can cost. Kernel statistics (`bpf_stats_enabled`) cost
//! some 40 ns per program run: they are on only while BPF time is read, and their own cost is measured and subtracted.

mod agent;
mod bpf;
mod btf;
mod carriers;
mod cases;
mod compare;
mod declared;
mod floor;
mod generator;
mod guest_instructions;
mod instructions;
mod measure;
mod parsers;
mod peers;
mod results;
mod sched;
mod soak;
mod statistics;
mod table;
mod two_builds;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build_ebpf::Way;
use crate::packages::{self, Need};
use crate::shell::{self, Root};
use crate::{build, build_ebpf, doc_tables};
use cases::Case;
use floor::Hooks;
use measure::Bench;
use results::Results;

pub(crate) use cases::sleeper;
pub(crate) use guest_instructions::in_guest;

/// `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// Cases to measure, by name or first letter (a: nginx, b: Redis, c: sleeping server, d: PostgreSQL, e: idle,
    /// f: system calls, g: context switches, h: Redis by one client, i: turns, j: other datagrams, k: nginx over TLS); all when not given.
    #[arg(long, value_delimiter = ',', value_name = "CASE")]
    case: Vec<String>,
    /// Pairs of runs with and without the agent, per case.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=99))]
    pairs: u32,
    /// Two pairs per case and no peers: a rough check that everything works.
    #[arg(long)]
    quick: bool,
    /// Leave the peers (bpftrace, perf) out.
    #[arg(long)]
    no_peers: bool,
    /// Where results are written; target/bench.json when not given.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the tables into docs/benchmarks.md.
    #[arg(long)]
    docs: bool,
    /// Measure nothing; make the tables (and with --docs those of docs/benchmarks.md) from results of earlier runs;
    /// cases of the same commit are merged. With --output, write them as one.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["case", "compare"])]
    from: Vec<PathBuf>,
    /// Measure nothing; report what changed between the results of two runs: better, worse, no difference shown.
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"])]
    compare: Option<Vec<PathBuf>>,
    /// With --compare: fail when anything is worse.
    #[arg(long, requires = "compare")]
    fail_on_worse: bool,
    /// Measure nothing; load everything for this long (90s, 60m, 2h) and check that nothing grows or goes missing.
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "60m", value_parser = soak::duration)]
    soak: Option<std::time::Duration>,
    /// Trace nothing; replay captured connections of every protocol to the parsers: time and allocations per message,
    /// bytes per idle connection. Results in target/parsers.json when no --output is given.
    #[arg(long, conflicts_with_all = ["case", "from", "compare", "soak", "quick"])]
    parsers: bool,
    /// Measure only what in-band contexts cost, by TCP option and by header, between two network namespaces: with and
    /// without them in `--pairs` rounds. Results in target/carriers.json when no --output is given.
    #[arg(long, conflicts_with_all = ["case", "from", "compare", "soak", "parsers"])]
    carriers: bool,
    /// Measure only what calls of a declared transaction cost, by calls a second. With --docs the table goes into
    /// docs/declared-transactions.md.
    #[arg(long, conflicts_with_all = ["case", "from", "compare", "soak", "parsers", "carriers"])]
    declared: bool,
    /// Count instructions in an emulated guest of one CPU instead of measuring time: nginx and Redis (or the named cases),
    /// without and with the agent. The same within a per cent on any machine, however busy; knows nothing of caches.
    #[arg(long, conflicts_with_all = ["from", "compare", "soak", "quick", "parsers", "carriers", "declared", "docs"])]
    counted: bool,
    /// Also measure this build, in turns, and say what changed: a commit, or a `tracer` that is built.
    #[arg(long, value_name = "COMMIT|FILE", conflicts_with_all = ["from", "compare", "soak", "parsers", "carriers", "declared"])]
    against: Option<String>,
    /// With --counted: the guest's kernel.
    #[arg(long, default_value = "6.12", requires = "counted")]
    kernel: String,
    /// Trace nothing and time nothing; count the instructions that the agent at commit BASE and as it stands here spend on
    /// recordings, by phase. The same within a fraction of a per cent on any machine, however busy. Needs Valgrind.
    #[arg(long, value_name = "BASE", conflicts_with_all = ["case", "from", "compare", "soak", "quick", "parsers", "carriers", "declared"])]
    instructions: Option<String>,
    /// With --instructions: directory of recordings (`*.tracer`, `*.tracer.gz`), such as `tracer record` makes.
    #[arg(long, value_name = "DIR", default_value = "tests/recordings", requires = "instructions")]
    recordings: PathBuf,
}

/// Slices of load for the agent's own cost; as many as a rank test needs to show a difference.
const SLICES: u32 = 5;

/// Measures, or compares earlier measurements.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    if let Some([before, after]) = options.compare.as_deref() {
        return compare::run(before, after, options.fail_on_worse);
    }
    if let Some(base) = &options.instructions {
        return instructions::run(base, &options.recordings);
    }
    if cfg!(debug_assertions) && options.from.is_empty() {
        return optimised();
    }
    if options.counted {
        return guest_instructions::run(way, options.against.as_deref(), &options.case, &options.kernel);
    }
    if let Some(time) = options.soak {
        return soak::run(way, time);
    }
    if options.parsers {
        return parsers::run(options.output.as_deref(), options.docs);
    }
    if options.carriers {
        return carriers::run(way, options);
    }
    if options.declared {
        return declared::run(way, options);
    }
    let results = match options.from.as_slice() {
        [] => measure(way, options)?,
        [first, more @ ..] => {
            let mut results = Results::read(first)?;
            for file in more {
                let other = Results::read(file)?;
                results.join(other, &Case::names()).with_context(|| format!("{}", file.display()))?;
            }
            if let Some(output) = &options.output {
                results.write(output)?;
            }
            results
        }
    };
    let tables = table::all(&results);
    shell::print(&tables);
    if options.docs {
        doc_tables::put("bench", &tables)?;
    }
    Ok(())
}

/// Runs this command again, optimised: the load it generates must cost little beside what is measured.
fn optimised() -> Result<()> {
    let mut command = shell::cargo();
    command
        .args(["run", "--quiet", "--locked", "--release", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1));
    shell::run(&mut command, "")
}

fn measure(way: Option<Way>, options: &Options) -> Result<Results> {
    let cases = Case::selected(&options.case)?;
    let began = Instant::now();
    packages::install(&[Need::Programs, Need::Bench])?;
    build_ebpf::ready(way)?;
    let tracer = build::tracer(way, true)?;
    let other = options.against.as_deref().map(two_builds::build).transpose()?;
    if Root::obtain("load eBPF programs and set priorities")? != Root::Already {
        bail!("run this as root: it sets priorities and reads kernel statistics of its own");
    }
    measure::statistics_off()?;
    let dir = tempfile::Builder::new().prefix("tracer-bench-").tempdir().context("cannot create a directory")?;
    let hooks = Hooks::of(&tracer)?;
    let (pairs, slices) = if options.quick { (2, 2) } else { (options.pairs, SLICES) };
    let bench = Bench {
        tracer: &tracer,
        dir: dir.path(),
        hooks: &hooks,
        pairs,
        slices,
        peers: !options.quick && !options.no_peers,
        began,
    };
    let mut results = Results::here(commit());
    results.floor_programs = hooks.count();
    let output = match &options.output {
        Some(file) => file.clone(),
        None => shell::target_dir()?.join("bench.json"),
    };
    if let (Some(against), Some(other)) = (&options.against, &other) {
        return two_builds::run(&bench, other, against, &cases, &output);
    }
    for case in cases {
        results.cases.push(bench.case(case).with_context(|| format!("case {}", case.name))?);
        results.seconds = began.elapsed().as_secs_f64();
        // After every case: a later failure must not lose earlier results.
        results.write(&output)?;
    }
    bench.say(format!("machine-readable: {}", output.display()));
    Ok(results)
}

/// The measured commit with its date, with a plus if files differ from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(shell::root()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "unknown".into() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|list| !list.is_empty());
    let date =
        git(&["show", "--no-patch", "--format=%cs", "HEAD"]).map_or_else(String::new, |date| format!(" ({date})"));
    let plus = if changed { "+" } else { "" };
    format!("{commit}{plus}{date}")
}
