//! `cargo xtask fuzz`: builds the targets of `fuzz/` on stable Rust and runs each for a bounded time. Without new inputs,
//! on their seeds and corpora, they run among the unit tests.
//!
//! cargo-fuzz would add only the compiler's coverage pass and libFuzzer, and it needs a nightly; the flags are below. A
//! target's finding stays in `fuzz/artifacts/`, its corpus in `fuzz/corpus/`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::packages::{self, Need};
use crate::shell;
use crate::tally::Tally;

const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     --cfg fuzzing";

/// Inputs each target tries where every run must try the same.
const SAME_RUNS: u32 = 10_000;

/// `cargo xtask fuzz`.
#[derive(Args)]
pub(crate) struct Options {
    /// Targets; all if none is given.
    target: Vec<String>,
    /// Seconds each target runs.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Minutes each target runs, instead.
    #[arg(long, conflicts_with = "seconds")]
    minutes: Option<u32>,
    /// Run the property tests instead, each with this many new inputs (1000 take some seconds, 100 000 minutes).
    #[arg(long, value_name = "INPUTS", conflicts_with_all = ["target", "seconds", "minutes"])]
    properties: Option<u32>,
}

/// Runs every target; fails if one finds something.
pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(inputs) = options.properties {
        return properties(inputs);
    }
    packages::install(&[Need::Fuzz])?;
    let mut tally = Tally::default();
    let seconds = options.minutes.map_or(options.seconds, |minutes| minutes * 60);
    some(&options.target, Time { seconds, same: false }, &mut tally)?;
    tally.print();
    if !tally.failed().is_empty() {
        bail!("fuzz targets failed: {}", tally.failed().join(", "));
    }
    Ok(())
}

/// Property tests are among the unit tests: runs all of them, optimised.
fn properties(inputs: u32) -> Result<()> {
    let mut command = shell::cargo();
    command.args([
        "test",
        "--release",
        "--locked",
        "--workspace",
        "--exclude",
        "tracer-tests",
        "--lib",
        "--no-fail-fast",
    ]);
    command.env("PROPTEST_CASES", inputs.to_string()).env_remove(SEED);
    shell::run(
        &mut command,
        "what a test found stands above, and as a seed below `proptest-regressions`; each run tries others",
    )
}

/// The seed of property tests' inputs.
const SEED: &str = "PROPTEST_RNG_SEED";

/// Fixes the inputs of this command's property tests, as for fuzz targets, so that a failure is a change's fault and
/// not bad luck; `cargo xtask fuzz --properties` tries new inputs.
pub(crate) fn same_inputs(command: &mut Command) {
    if std::env::var_os(SEED).is_none() {
        command.env(SEED, "1");
    }
}

/// How long a target runs.
#[derive(Clone, Copy)]
struct Time {
    seconds: u32,
    /// Whether every run tries the same inputs, [`SAME_RUNS`] of them or fewer, so that a finding is a change's fault
    /// and not luck.
    same: bool,
}

/// Builds and runs every target of `fuzz/src/targets/`, each counted as a test. Every run starts alike: `cargo xtask
/// fuzz` tries new inputs.
pub(crate) fn all(seconds: u32, tally: &mut Tally) -> Result<()> {
    some(&[], Time { seconds, same: true }, tally)
}

/// The same with only these targets, if any are given.
fn some(wanted: &[String], time: Time, tally: &mut Tally) -> Result<()> {
    let dir = shell::root().join("fuzz");
    let mut targets = targets(&dir.join("src/targets"))?;
    if let Some(unknown) = wanted.iter().find(|name| !targets.contains(name)) {
        bail!("no fuzz target {unknown}; there are {}", targets.join(", "));
    }
    targets.retain(|name| wanted.is_empty() || wanted.contains(name));
    if !packages::missing(&[Need::Fuzz]).is_empty() && shell::find("c++").is_none() {
        for target in &targets {
            tally.skip(&format!("fuzz target {target}"), "no C++ compiler for libFuzzer");
        }
        return Ok(());
    }
    let host = host()?;
    let built = shell::target_dir()?.join("fuzz");
    let mut command = shell::cargo();
    command.args(["build", "--locked", "--package", "tracer-fuzz", "--features", "libfuzzer", "--profile", "fuzz"]);
    // `--target`, so that build scripts and macros stay uninstrumented.
    command.args(["--target", &host, "--target-dir"]).arg(&built);
    command.env("RUSTFLAGS", COVERAGE).env_remove("CARGO_ENCODED_RUSTFLAGS");
    shell::run(&mut command, "the compiler's own words are above")?;
    // A target keeps one core busy.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for together in targets.chunks(cores) {
        let run = |target: &str| {
            shell::progress(format!("fuzz target {target}, {} s", time.seconds));
            one(&dir, target, &built.join(&host).join("fuzz/tracer-fuzz"), time)
        };
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> = together.iter().map(|target| scope.spawn(move || run(target))).collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        for (target, result) in together.iter().zip(results) {
            tally.add(&format!("fuzz target {target}"), result);
        }
    }
    Ok(())
}

fn one(dir: &Path, target: &str, program: &Path, time: Time) -> Result<()> {
    let (corpus, artifacts) = (dir.join("corpus").join(target), dir.join("artifacts").join(target));
    for made in [&corpus, &artifacts] {
        fs::create_dir_all(made).with_context(|| format!("cannot create {}", made.display()))?;
    }
    let log = artifacts.join("log");
    let file = fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut command = Command::new(program);
    command.env("TRACER_FUZZ_TARGET", target).arg(format!("-max_total_time={}", time.seconds));
    if time.same {
        // A fixed number, because a faster machine would try other inputs in the same time.
        command.args(["-seed=1", &format!("-runs={SAME_RUNS}")]);
    }
    // An input that takes more than 10 s or 2 GB is a finding too.
    command.args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]);
    command.arg(format!("-artifact_prefix={}/", artifacts.display())).arg(&corpus);
    let seeds = dir.join("seeds").join(target);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    let dictionary = dir.join("dictionaries").join(format!("{target}.dict"));
    if dictionary.is_file() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    let output = file.try_clone().context("cannot open the log twice")?;
    let status = command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(file)
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let text = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    if !status.success() {
        let tail: Vec<&str> = text.lines().rev().take(40).collect();
        tail.iter().rev().for_each(|line| eprintln!("{line}"));
        bail!(
            "found something ({status}): the input is in {}, the whole log in {}",
            artifacts.display(),
            log.display()
        );
    }
    let runs = text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    // A target that runs nothing tests nothing.
    let runs = runs.and_then(|n| n.trim().parse::<u64>().ok()).filter(|n| *n > 0);
    let runs = runs.with_context(|| format!("ran no input; see {}", log.display()))?;
    shell::progress(format!("fuzz target {target}: {runs} inputs, nothing found"));
    Ok(())
}

/// The names of all targets, sorted: each is a file of `dir`.
fn targets(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {}", dir.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.retain(|name| name != "mod");
    if names.is_empty() {
        bail!("{} has no targets", dir.display());
    }
    names.sort();
    Ok(names)
}

/// The triple of this machine, as the compiler in use calls it.
fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let text = shell::output(Command::new(rustc).arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}
