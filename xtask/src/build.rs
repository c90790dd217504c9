//! `cargo xtask build`: the object, then `tracer` with the object inside.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::build_ebpf::{self, Way};
use crate::shell;

/// `cargo xtask build`.
#[derive(Args)]
pub(crate) struct Options {
    /// Build with optimisations, into target/release.
    #[arg(long)]
    release: bool,
}

/// Builds and says where the binary is.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    build_ebpf::ready(way)?;
    let binary = tracer(way, options.release)?;
    shell::print(binary.display());
    Ok(())
}

/// Builds `tracer`; the eBPF toolchain must be ready. Returns the binary's path.
pub(crate) fn tracer(way: Option<Way>, release: bool) -> Result<PathBuf> {
    build_ebpf::install(way)?;
    shell::progress("building tracer");
    let mut command = shell::cargo();
    command.args(["build", "--locked", "--package", "tracer-user", "--bin", "tracer"]);
    if release {
        command.arg("--release");
    }
    shell::run(&mut command, "the compiler's own words are above")?;
    Ok(shell::target_dir()?.join(if release { "release" } else { "debug" }).join("tracer"))
}
