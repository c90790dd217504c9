//! Traced test programs that are built as their authors build them: in release mode, by this toolchain, once.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// A server of tokio and hyper, and a server and clients by rustls.
const WORKLOADS: [&str; 2] = ["tree-tokio", "tls-pair"];

/// Builds missing workloads, each with and without its symbol names.
pub(crate) fn build() -> Result<()> {
    let target = all()?;
    let mut command = shell::cargo();
    command.args(["build", "--locked", "--release", "--quiet", "--manifest-path"]);
    command.arg(shell::root().join("tests/workloads/tokio/Cargo.toml")).arg("--target-dir").arg(&target);
    let remedy = "cargo's own words are above; tests that need it say that they were skipped";
    // The first build fetches dependencies: retry once after a network failure.
    shell::run(&mut command, remedy).or_else(|error| {
        shell::progress(format!("{error:#}; once more"));
        shell::run(&mut command, remedy)
    })?;
    for name in WORKLOADS {
        let built = target.join("release").join(name);
        let mut command = Command::new("strip");
        command.arg("-o").arg(target.join(format!("{name}-stripped"))).arg(&built);
        shell::run(&mut command, "install binutils")?;
        // Where tests look for both.
        std::fs::copy(&built, target.join(name)).with_context(|| format!("cannot copy {}", built.display()))?;
    }
    Ok(())
}

/// What is set for tests that use them, as an argument of `env`.
pub(crate) fn environment() -> Result<OsString> {
    let mut set = OsString::from("TRACER_BUILT=");
    set.push(all()?);
    Ok(set)
}

/// The path of one of them, all of which are built if it is missing.
pub(crate) fn built(name: &str) -> Result<PathBuf> {
    let file = all()?.join(name);
    if !file.is_file() {
        build()?;
    }
    Ok(file)
}

fn all() -> Result<PathBuf> {
    Ok(shell::target_dir()?.join("workloads"))
}
