//! `cargo xtask check`: format, tidy, lints, documentation, dependencies, and that the object compiles for every
//! processor.

use std::env;

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
type Check<'a> = (&'static str, Box<dyn FnOnce() -> Result<()> + 'a>);

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
        all(bare().into_iter().chain(last).collect())
    })
}

/// Runs every check of what is set up. Without `ebpf`, only what a stable toolchain can do.
pub(crate) fn every(way: Option<Way>, ebpf: bool) -> Result<()> {
    all(bare().into_iter().chain([dependencies()]).chain(ebpf.then(|| objects(way))).collect())
}

/// What needs no more than a Rust toolchain.
fn bare() -> [Check<'static>; 4] {
    [
        ("format", Box::new(format)),
        ("tidy", Box::new(tidy::run)),
        ("lints", Box::new(lints)),
        ("documentation", Box::new(documentation)),
    ]
}

fn dependencies() -> Check<'static> {
    ("dependencies", Box::new(deny::run))
}

fn objects(way: Option<Way>) -> Check<'static> {
    let compile = move || {
        build_ebpf::ready(way)?;
        // Side by side, because a link uses one core; the build of `tracer` finds this machine's.
        std::thread::scope(|scope| {
            let others = scope.spawn(|| build_ebpf::compile(way, "aarch64"));
            let own = build_ebpf::compile(way, env::consts::ARCH);
            others.join().map_err(|_| anyhow!("the build for aarch64 ended without a result"))?.and(own).map(drop)
        })
    };
    ("eBPF objects", Box::new(compile))
}

fn all(checks: Vec<Check<'_>>) -> Result<()> {
    let mut failed = Vec::new();
    let count = checks.len();
    for (n, (name, check)) in checks.into_iter().enumerate() {
        shell::progress(format!("check {}/{count}: {name}", n + 1));
        if let Err(error) = check() {
            eprintln!("error: {name}: {error:#}");
            failed.push(name);
        }
    }
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
    command.args(["--workspace", "--no-deps", "--document-private-items"]);
    shell::run(command.env("RUSTDOCFLAGS", "-D warnings"), "its own words are above")
}
