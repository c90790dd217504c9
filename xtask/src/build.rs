//! `cargo xtask build`: the object, then `tracer` with the object inside.

use std::env;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::build_ebpf::{self, Way};
use crate::cross::{self, Cross};
use crate::shell;

/// `cargo xtask build`.
#[derive(Args)]
pub(crate) struct Options {
    /// Build with optimisations, into target/release.
    #[arg(long)]
    release: bool,
    /// Processor of the machine to be traced; this machine's if omitted.
    #[arg(long, value_parser = ["x86_64", "aarch64"])]
    arch: Option<String>,
    /// With `--arch`: build the object and check that the rest compiles, but make no binary.
    #[arg(long, requires = "arch", conflicts_with = "release")]
    check: bool,
}

/// Builds and prints the binary's path.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    build_ebpf::ready(way)?;
    let binary = match options.arch.as_deref() {
        Some(arch) if arch != env::consts::ARCH => {
            if arch != cross::RUST {
                bail!("building for {arch} on {} is not supported; build there", env::consts::ARCH);
            }
            let cross = Cross::ready()?;
            if options.check {
                return cross.check(way);
            }
            cross.tracer(way, options.release)?
        }
        _ if options.check => {
            bail!("--check is for another machine's processor; `cargo xtask check` is for this one's")
        }
        _ => tracer(way, options.release)?,
    };
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
