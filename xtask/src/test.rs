//! `cargo xtask test`: what every change must pass; `--full`: every test. First installs what a fresh machine lacks.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;

use crate::build_ebpf::Way;
use crate::kernel_tests::{self, KernelTestFile, Selection};
use crate::shell::{self, Root};
use crate::tally::Tally;
use crate::times::Times;
use crate::{build, build_ebpf, fuzz, newer_runtimes, programs, setup, tiers, vm, wheels, workloads};

/// Seconds per fuzz target with `--full`; their seeds and corpora are among the unit tests.
const FUZZ_SECONDS: u32 = 3;
/// Most seconds for one file of kernel tests: a hang must not take CI's hour.
const KERNEL_SECONDS: u32 = 1200;

/// `cargo xtask test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Accept that tests needing root, the eBPF toolchain or a kernel feature do not run; install nothing.
    #[arg(long)]
    pub(crate) without_kernel: bool,
    /// Every test, instead of what takes at most a quarter of an hour.
    #[arg(long)]
    pub(crate) full: bool,
    /// Also boot these kernels, emulated, with the tests of `cargo xtask vm --smoke`, while unit tests are built and run.
    #[arg(long, value_delimiter = ',', value_name = "KERNEL", conflicts_with_all = ["without_kernel", "file"])]
    pub(crate) guests: Vec<String>,
    /// Print which kernel tests either tier runs, and do nothing else.
    #[arg(long)]
    pub(crate) list: bool,
    /// An earlier step and its seconds, for the table of times: `check=120`.
    #[arg(long, hide = true, value_name = "STEP=SECONDS", value_parser = step_before)]
    pub(crate) before: Vec<(String, u64)>,
    /// Run only these files of kernel tests (`tests/tests/*/FILE.rs`), whole, whichever tier they are in; nothing else.
    #[arg(conflicts_with = "full")]
    pub(crate) file: Vec<String>,
}

fn step_before(text: &str) -> Result<(String, u64), String> {
    let (step, seconds) = text.rsplit_once('=').ok_or("STEP=SECONDS is expected")?;
    let seconds = seconds.parse().map_err(|error| format!("'{seconds}' is no number of seconds: {error}"))?;
    Ok((step.to_owned(), seconds))
}

/// Runs the chosen tier; the last line counts passed, failed and skipped tests.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    if options.list {
        shell::print(tiers::list(&shell::root())?);
        return Ok(());
    }
    let start = Instant::now();
    let step = |n: u8, what: &str| shell::progress(format!("[{:4} s] {n}/5 {what}", start.elapsed().as_secs()));
    let mut times = Times::default();
    for (step, seconds) in &options.before {
        times.add(step, Duration::from_secs(*seconds));
    }
    let mut tally = Tally::default();
    if options.without_kernel {
        step(1, "set-up: left out (--without-kernel)");
        step(2, "release build with the eBPF object: left out (--without-kernel)");
    } else {
        step(1, "set-up");
        times.of("set-up", || setup::run(way))?;
        step(2, "release build");
        times.of("release build", || build::tracer(way, true))?;
    }
    // Everything is built for them first. An emulated guest keeps one core busy, and builds have the other; tests of the whole
    // machine come once they have ended.
    let guests = if options.guests.is_empty() {
        None
    } else {
        times.of("build of all tests", build_all)?;
        let wanted = vm::Options::smoke_of(options.guests.clone());
        let ready = times.of("guests: their build and files", || vm::Guests::prepare(way, wanted))?;
        Some(thread::spawn(move || {
            let begin = Instant::now();
            (ready.run(), begin.elapsed())
        }))
    };
    let tested = if options.file.is_empty() { machine_less(options, &step, &mut times, &mut tally) } else { Ok(()) };
    if let Some(guests) = guests {
        let (outcome, took) = guests.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        times.add("guests, beside unit and property tests", took);
        tally.add(&format!("guests: {}", options.guests.join(", ")), outcome);
    }
    tested?;
    if !options.without_kernel {
        let runs = |file: &str| options.full || options.file.iter().any(|named| named == file);
        for installed in [wheels::install_large(runs), newer_runtimes::install(runs)] {
            if let Err(error) = installed {
                shell::progress(format!("{error:#}"));
            }
        }
    }
    step(5, if options.full { "kernel tests, all" } else { "kernel tests, quick tier" });
    kernel(options, &mut times, &mut tally)?;
    shell::progress(format!("[{:4} s] done", start.elapsed().as_secs()));
    times.add("reruns of tests that failed", tally.rerun_time());
    shell::print(times.table());
    tally.print();
    if !tally.failed().is_empty() {
        bail!("tests failed: {}", tally.failed().join(", "));
    }
    tally.steady()?;
    if !tally.skipped().is_empty() && !options.without_kernel {
        bail!(
            "{} tests could not run here (named above with the reason); `--without-kernel` accepts that",
            tally.skipped().len()
        );
    }
    Ok(())
}

/// Builds every test at once: the agent's crate and its unit tests are compiled side by side, each of which keeps one core
/// busy for a minute.
fn build_all() -> Result<()> {
    let mut command = shell::cargo();
    command.args(["test", "--locked"]).args(shell::TEST_PROFILE);
    command.args(["--workspace", "--no-run", "--lib", "--bins", "--tests"]);
    shell::run(&mut command, "the compiler's own words are above")
}

/// Tests that need neither root nor a kernel feature.
fn machine_less(options: &Options, step: &impl Fn(u8, &str), times: &mut Times, tally: &mut Tally) -> Result<()> {
    step(3, "unit and property tests");
    let mut command = shell::cargo();
    command.args(["test", "--locked"]).args(shell::TEST_PROFILE);
    command.args(["--workspace", "--exclude", "tracer-tests", "--no-fail-fast"]);
    fuzz::same_inputs(&mut command);
    times.of("unit and property tests", || tally.run(&mut command, "unit and property tests"))?;
    if options.full {
        step(4, &format!("fuzz targets, {FUZZ_SECONDS} s each"));
        times.of("fuzz targets", || fuzz::all(FUZZ_SECONDS, tally))
    } else {
        step(4, "fuzz targets with new inputs: left out (--full)");
        Ok(())
    }
}

/// Package `tracer-tests`: as root, one test at a time, because they look at the whole machine.
fn kernel(options: &Options, times: &mut Times, tally: &mut Tally) -> Result<()> {
    let choice = match (options.file.as_slice(), options.full) {
        ([], true) => Selection::Files { names: tiers::all_files(), and_library: true },
        ([], false) => Selection::Files { names: tiers::quick_files(), and_library: true },
        (named, _) => Selection::Files { names: named.to_vec(), and_library: false },
    };
    let all = times.of("build of kernel tests", || kernel_tests::build(&choice))?;
    let whole = options.full || !options.file.is_empty();
    let mut chosen = Vec::new();
    for tests in all {
        let only = if whole { Some(Vec::new()) } else { tiers::tests(&tests.name) };
        if let Some(only) = only {
            chosen.push((tests.arguments(&only), tests));
        }
    }
    let root =
        if options.without_kernel { None } else { Some(Root::obtain("load eBPF programs for the kernel tests")) };
    let root = match root {
        Some(Ok(root)) => root,
        refused => {
            let reason = match refused {
                Some(Err(error)) => format!("{error:#}"),
                _ => "--without-kernel".into(),
            };
            for (arguments, tests) in &chosen {
                for name in names(tests, arguments)? {
                    tally.skip(&name, &reason);
                }
            }
            return Ok(());
        }
    };
    let target = shell::target_dir()?;
    for (at, (tier, KernelTestFile { name, program, .. })) in chosen.iter().enumerate() {
        shell::progress(format!("kernel tests {} of {}: {name}", at + 1, chosen.len()));
        let wheels = wheels::environment()?;
        let (built, newer) = (workloads::environment()?, newer_runtimes::environment()?);
        let command = |only: &[&str]| {
            let mut command = root.command("env");
            // sudo resets the environment.
            command.arg(format!("TRACER_BIN={}", target.join("release/tracer").display()));
            command.arg("RUST_BACKTRACE=1").args(&wheels).arg(&built).args(&newer);
            command.arg("timeout").arg("--kill-after=10").arg(KERNEL_SECONDS.to_string());
            command.arg(program).args(["--test-threads=1", "--nocapture"]);
            match only {
                [] => command.args(tier),
                only => command.args(only),
            };
            command.current_dir(shell::root().join("tests"));
            command
        };
        times.of(&format!("kernel tests: {name}"), || tally.run_twice(command, name))?;
    }
    tally.add("programs: instructions verified here, against xtask/programs.toml", programs::here(root));
    Ok(())
}

/// Builds and installs what truth tests need; the agent's binary, and the way to run them as root.
pub(crate) fn ready(way: Option<Way>) -> Result<(PathBuf, Root)> {
    setup::programs()?;
    wheels::install()?;
    newer_runtimes::install(|_| true)?;
    workloads::build()?;
    build_ebpf::ready(way)?;
    let tracer = build::tracer(way, true)?;
    Ok((tracer, Root::obtain("load eBPF programs")?))
}

fn names(tests: &KernelTestFile, arguments: &[String]) -> Result<Vec<String>> {
    let list = shell::output(Command::new(&tests.program).args(["--list", "--format", "terse"]).args(arguments))?;
    Ok(list.lines().filter_map(|line| line.strip_suffix(": test")).map(String::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_before_have_a_name_and_seconds() {
        assert_eq!(step_before("release build, guests=61"), Ok(("release build, guests".to_owned(), 61)));
        assert!(step_before("check").is_err() && step_before("check=x").is_err());
    }
}
