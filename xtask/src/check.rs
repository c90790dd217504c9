//! `cargo xtask check`: format, tidy, lints, documentation, dependencies, and that the object compiles for every
//! processor.

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, anyhow, bail};
use clap::Args;

use crate::build_ebpf::{self, Way};
use crate::{deny, setup, shell, tidy};

/// `cargo xtask check`.
#[derive(Args)]
pub(crate) struct Options {
    /// Install meanwhile what `cargo xtask setup` does; only the last two checks need it.
    #[arg(long)]
    with_setup: bool,
}

/// A check by its name.
type Check<'a> = (&'static str, Box<dyn FnOnce() -> Result<()> + Send + 'a>);

/// Runs every check, and names those that failed.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    if !options.with_setup {
        return every(way, true);
    }
    setup::components()?;
    std::thread::scope(|scope| {
        let setting_up = scope.spawn(|| setup::run(way));
        let wait = || setting_up.join().unwrap_or_else(|_| bail!("it ended without a result"));
        let last: [Check<'_>; 3] = [("set-up", Box::new(wait)), dependencies(), objects(way)];
        all(bare(), last.into())
    })
}

/// Runs every check of what is set up. Without `ebpf`, only what a stable toolchain can do.
pub(crate) fn every(way: Option<Way>, ebpf: bool) -> Result<()> {
    all(bare(), [dependencies()].into_iter().chain(ebpf.then(|| objects(way))).collect())
}

/// What needs no more than a Rust toolchain, apart from documentation.
fn bare() -> Vec<Check<'static>> {
    vec![("format", Box::new(format)), ("tidy", Box::new(tidy::run)), ("lints", Box::new(lints))]
}

fn dependencies() -> Check<'static> {
    ("dependencies", Box::new(deny::run))
}

fn objects(way: Option<Way>) -> Check<'static> {
    let compile = move || {
        build_ebpf::ready(way)?;
        // Side by side, because a link uses one core; the build of `tracer` finds this machine's.
        std::thread::scope(|scope| {
            let others = scope.spawn(|| build_ebpf::check(way, "aarch64"));
            let own = build_ebpf::compile(way, env::consts::ARCH).map(drop);
            others.join().map_err(|_| anyhow!("the check for aarch64 ended without a result"))?.and(own)
        })
    };
    ("eBPF objects", Box::new(compile))
}

/// Runs `first`, then `last` beside the documentation, which keeps one core busy for a minute.
fn all(first: Vec<Check<'_>>, last: Vec<Check<'_>>) -> Result<()> {
    let count = first.len() + last.len() + 1;
    let number = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let each = |checks: Vec<Check<'_>>| {
        for (name, check) in checks {
            let n = number.fetch_add(1, Ordering::Relaxed) + 1;
            shell::progress(format!("check {n}/{count}: {name}"));
            if let Err(error) = check() {
                eprintln!("error: {name}: {error:#}");
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(name);
            }
        }
    };
    each(first);
    std::thread::scope(|scope| {
        scope.spawn(|| each(vec![("documentation", Box::new(documentation))]));
        each(last);
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failed.is_empty() {
        bail!("checks failed: {}", failed.join(", "));
    }
    Ok(())
}

fn format() -> Result<()> {
    for manifest in ["Cargo.toml", "tracer-ebpf/Cargo.toml", "tests/workloads/tokio/Cargo.toml"] {
        let manifest = shell::root().join(manifest);
        let mut command = shell::cargo();
        command.args(["fmt", "--all", "--check", "--manifest-path"]).arg(&manifest);
        shell::run(&mut command, "run the same without --check")?;
    }
    Ok(())
}

/// Clippy for the workspace. Not for tracer-ebpf: no toolchain has both clippy and a core for BPF without `build-std`.
fn lints() -> Result<()> {
    let mut command = shell::cargo();
    command.args(["clippy", "--locked"]).args(shell::TEST_PROFILE);
    command.args(["--workspace", "--all-targets", "--", "-D", "warnings"]);
    shell::run(&mut command, "its own words are above")
}

fn documentation() -> Result<()> {
    let mut command = shell::cargo();
    command.args(["doc", "--locked"]).args(shell::TEST_PROFILE);
    // Fuzz targets need the agent's crate, which would be compiled once more for them.
    command.args(["--workspace", "--exclude", "tracer-fuzz", "--no-deps", "--document-private-items"]);
    shell::run(command.env("RUSTDOCFLAGS", "-D warnings"), "its own words are above")
}
