//! `cargo xtask test`: the README's test command. Everything a fresh machine needs, then every test there is.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build_ebpf::Way;
use crate::shell::{self, Root};
use crate::tally::Tally;
use crate::{build, fuzz, programs, setup, wheels, workloads};

/// Seconds each fuzz target gets.
const FUZZ_SECONDS: u32 = 3;
/// Most seconds one program of kernel tests may take: a hang must not take CI's hour.
const KERNEL_SECONDS: u32 = 1200;

/// `cargo xtask test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Accept that tests which need root, the eBPF toolchain or a kernel feature do not run; install nothing.
    #[arg(long)]
    pub(crate) without_kernel: bool,
}

/// Runs everything; the last line says how many passed, failed and were skipped.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    let start = Instant::now();
    let step = |n: u8, what: &str| shell::progress(format!("[{:4} s] {n}/5 {what}", start.elapsed().as_secs()));
    let mut tally = Tally::default();
    if options.without_kernel {
        step(1, "set-up: left out (--without-kernel)");
        step(2, "release build with the eBPF object: left out (--without-kernel)");
    } else {
        step(1, "set-up");
        setup::run(way)?;
        step(2, "release build");
        build::tracer(way, true)?;
    }
    step(3, "unit and property tests");
    let mut command = shell::cargo();
    command.args(["test", "--locked", "--workspace", "--exclude", "tracer-tests", "--no-fail-fast"]);
    fuzz::same_inputs(&mut command);
    tally.run(&mut command, "unit and property tests")?;
    step(4, &format!("fuzz targets, {FUZZ_SECONDS} s each"));
    fuzz::all(FUZZ_SECONDS, &mut tally)?;
    step(5, "kernel tests");
    kernel(options, &mut tally)?;
    shell::progress(format!("[{:4} s] done", start.elapsed().as_secs()));
    tally.print();
    if !tally.failed().is_empty() {
        bail!("tests failed: {}", tally.failed().join(", "));
    }
    if !tally.skipped().is_empty() && !options.without_kernel {
        bail!(
            "{} tests could not run here (named above with the reason); `--without-kernel` accepts that",
            tally.skipped().len()
        );
    }
    Ok(())
}

/// Package `tracer-tests`: as root, one test at a time, because they look at the whole machine.
fn kernel(options: &Options, tally: &mut Tally) -> Result<()> {
    let programs = programs()?;
    let root =
        if options.without_kernel { None } else { Some(Root::obtain("load eBPF programs for the kernel tests")) };
    let root = match root {
        Some(Ok(root)) => root,
        refused => {
            let reason = match refused {
                Some(Err(error)) => format!("{error:#}"),
                _ => "--without-kernel".into(),
            };
            for program in &programs {
                for name in names(program)? {
                    tally.skip(&name, &reason);
                }
            }
            return Ok(());
        }
    };
    let target = shell::target_dir()?;
    for (at, program) in programs.iter().enumerate() {
        let name = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        shell::progress(format!("kernel tests {} of {}: {name}", at + 1, programs.len()));
        let wheels = wheels::environment()?;
        let built = workloads::environment()?;
        let command = |only: &[&str]| {
            let mut command = root.command("env");
            // sudo starts with an environment of its own.
            command.arg(format!("TRACER_BIN={}", target.join("release/tracer").display()));
            command.arg("RUST_BACKTRACE=1").args(&wheels).arg(&built);
            command.arg("timeout").arg("--kill-after=10").arg(KERNEL_SECONDS.to_string());
            command.arg(program).args(["--test-threads=1", "--nocapture"]).args(only);
            command.current_dir(shell::root().join("tests"));
            command
        };
        tally.run_twice(command, &name)?;
    }
    tally.add("programs: instructions verified here, against xtask/programs.toml", programs::here(root));
    Ok(())
}

/// Builds the kernel tests and returns the programs.
pub(crate) fn programs() -> Result<Vec<PathBuf>> {
    let mut command = shell::cargo();
    command.args(["test", "--locked"]);
    programs_of(command)
}

/// The same by another `cargo test`.
pub(crate) fn programs_of(mut command: Command) -> Result<Vec<PathBuf>> {
    command.args(["--package", "tracer-tests", "--no-run"]);
    command.args(["--message-format", "json-render-diagnostics"]).stderr(std::process::Stdio::inherit());
    let text = shell::output(&mut command)?;
    let mut programs = Vec::new();
    for line in text.lines() {
        let message: serde_json::Value =
            serde_json::from_str(line).context("cargo printed something that is not JSON")?;
        if message["profile"]["test"].as_bool() == Some(true)
            && let Some(path) = message["executable"].as_str()
        {
            programs.push(PathBuf::from(path));
        }
    }
    programs.sort();
    Ok(programs)
}

fn names(program: &PathBuf) -> Result<Vec<String>> {
    let list = shell::output(Command::new(program).args(["--list", "--format", "terse"]))?;
    Ok(list.lines().filter_map(|line| line.strip_suffix(": test")).map(String::from).collect())
}
