//! `cargo xtask check`: format, tidy, lints, documentation, dependencies, and that the object compiles for every
//! processor.

use std::env;

use anyhow::{Result, anyhow, bail};

use crate::build_ebpf::{self, Way};
use crate::{deny, shell, tidy};

/// Runs every check, then says which failed. Without `ebpf`, only what a stable toolchain can do.
pub(crate) fn run(way: Option<Way>, ebpf: bool) -> Result<()> {
    let objects = || {
        build_ebpf::ready(way)?;
        // Side by side, because a link uses one core; the build of `tracer` finds this machine's.
        std::thread::scope(|scope| {
            let others = scope.spawn(|| build_ebpf::compile(way, "aarch64"));
            let own = build_ebpf::compile(way, env::consts::ARCH);
            others.join().map_err(|_| anyhow!("the build for aarch64 ended without a result"))?.and(own).map(drop)
        })
    };
    let mut checks: Vec<(&str, &dyn Fn() -> Result<()>)> = vec![
        ("format", &format),
        ("tidy", &tidy::run),
        ("lints", &lints),
        ("documentation", &documentation),
        ("dependencies", &deny::run),
    ];
    if ebpf {
        checks.push(("eBPF objects", &objects));
    }
    let mut failed = Vec::new();
    for (n, (name, check)) in checks.iter().enumerate() {
        shell::progress(format!("check {}/{}: {name}", n + 1, checks.len()));
        if let Err(error) = check() {
            eprintln!("error: {name}: {error:#}");
            failed.push(*name);
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
    command.args(["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    shell::run(&mut command, "its own words are above")
}

fn documentation() -> Result<()> {
    let mut command = shell::cargo();
    command.args(["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"]);
    shell::run(command.env("RUSTDOCFLAGS", "-D warnings"), "its own words are above")
}
