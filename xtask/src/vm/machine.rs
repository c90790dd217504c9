//! Processors a guest can have, and what differs between them.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::kernels::{extract, filter};
use crate::build_ebpf::Way;
use crate::cross::{self, Cross};
use crate::{build, shell, test};

/// A guest's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Machine {
    /// x86-64.
    #[value(name = "x86_64")]
    X86,
    /// arm64, built for on this machine.
    #[value(name = "arm64", alias = "aarch64")]
    Arm64,
}

/// What was built for it, and the programs that build more.
pub(super) struct Built {
    /// The agent.
    pub(super) tracer: PathBuf,
    /// The test programs.
    pub(super) tests: Vec<PathBuf>,
    /// Prefix of the C compiler's programs.
    pub(super) tools: &'static str,
}

impl Machine {
    /// Debian's name for it.
    pub(super) fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Arm64 => cross::DEBIAN,
        }
    }

    /// Directory of its own below the others' for a processor that is not the usual one.
    pub(super) fn dir(self) -> &'static str {
        match self {
            Self::X86 => "vm",
            Self::Arm64 => "vm-arm64",
        }
    }

    /// What a kernel of the matrix is called on it.
    pub(super) fn kernel(self, name: &str) -> String {
        match self {
            Self::X86 => name.to_owned(),
            Self::Arm64 => format!("{name}-arm64"),
        }
    }

    /// Package with its emulator.
    pub(super) fn qemu_package(self) -> &'static str {
        match self {
            Self::X86 => "qemu-system-x86",
            Self::Arm64 => "qemu-system-arm",
        }
    }

    /// Its emulator.
    pub(super) fn qemu(self) -> &'static str {
        match self {
            Self::X86 => "qemu-system-x86_64",
            Self::Arm64 => "qemu-system-aarch64",
        }
    }

    /// What the emulator is told about the machine.
    pub(super) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::X86 => &["-cpu", "max"],
            // Not `max`: pointer authentication is emulated at a cost no test needs.
            Self::Arm64 => &["-machine", "virt", "-cpu", "neoverse-n1"],
        }
    }

    /// The kernel's name of its serial line.
    pub(super) fn console(self) -> &'static str {
        match self {
            Self::X86 => "ttyS0",
            Self::Arm64 => "ttyAMA0",
        }
    }

    /// What the emulator boots, of a package's image.
    pub(super) fn bootable(self, image: Vec<u8>) -> Result<Vec<u8>> {
        match (self, image.as_slice()) {
            (Self::X86, image) => extract(image),
            // Documentation/arch/arm64/booting.rst: the magic number of an image that is not compressed.
            (Self::Arm64, plain) if plain.get(0x38..0x3c) == Some(b"ARM\x64") => Ok(image),
            (Self::Arm64, [0x1f, 0x8b, ..]) => filter("gzip", &image),
            (Self::Arm64, _) => bail!("neither an arm64 image nor a compressed one"),
        }
    }

    /// Builds the agent and its tests for it.
    pub(super) fn build(self, way: Option<Way>) -> Result<Built> {
        match self {
            Self::X86 => Ok(Built { tracer: build::tracer(way, true)?, tests: test::programs()?, tools: "" }),
            Self::Arm64 => {
                let cross = Cross::ready()?;
                let tracer = cross.tracer(way, true)?;
                let tests = test::programs_of(cross.cargo("test"))?;
                shell::progress("built for arm64");
                Ok(Built { tracer, tests, tools: cross::TOOLS })
            }
        }
    }
}
