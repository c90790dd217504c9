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

/// How `tracer` is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Debug,
    /// For tests: its own code as in a release, without the optimisation across crates that takes minutes.
    Quick,
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Debug => "dev",
            Self::Quick => "quick",
            Self::Release => "release",
        }
    }

    /// Where cargo leaves the binary, below the target directory.
    pub(crate) fn binary(self) -> &'static str {
        match self {
            Self::Debug => "debug/tracer",
            Self::Quick => "quick/tracer",
            Self::Release => "release/tracer",
        }
    }
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
        _ => tracer(way, if options.release { Profile::Release } else { Profile::Debug })?,
    };
    shell::print(binary.display());
    Ok(())
}

/// Builds `tracer`; the eBPF toolchain must be ready. Returns the binary's path.
pub(crate) fn tracer(way: Option<Way>, profile: Profile) -> Result<PathBuf> {
    build_ebpf::install(way)?;
    shell::progress("building tracer");
    let mut command = shell::cargo();
    command.args(["build", "--locked", "--package", "tracer-user", "--bin", "tracer", "--profile", profile.name()]);
    shell::run(&mut command, "the compiler's own words are above")?;
    Ok(shell::target_dir()?.join(profile.binary()))
}
