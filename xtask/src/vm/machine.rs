//! Processors of guests, and the differences between them.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::kernels::{extract, filter};
use crate::build_ebpf::Way;
use crate::cross::{self, Cross};
use crate::kernel_tests::{self, KernelTestFile, Selection};
use crate::{build, shell};

/// A guest's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Machine {
    /// x86-64.
    #[value(name = "x86_64")]
    X86,
    /// arm64, cross-compiled on this machine.
    #[value(name = "arm64", alias = "aarch64")]
    Arm64,
}

/// The build for a processor, and the tools to compile more.
pub(super) struct Built {
    /// The agent.
    pub(super) tracer: PathBuf,
    /// The test programs.
    pub(super) tests: Vec<KernelTestFile>,
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

    /// Its subdirectory, for a processor other than the default.
    pub(super) fn dir(self) -> &'static str {
        match self {
            Self::X86 => "vm",
            Self::Arm64 => "vm-arm64",
        }
    }

    /// The name of a matrix kernel on it.
    pub(super) fn kernel(self, name: &str) -> String {
        match self {
            Self::X86 => name.to_owned(),
            Self::Arm64 => format!("{name}-arm64"),
        }
    }

    /// The package of its emulator.
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

    /// QEMU arguments for the machine.
    pub(super) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::X86 => &["-cpu", "max"],
            // Not `max`: emulating pointer authentication is expensive, and no test needs it.
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

    /// The part of a package's image that the emulator boots.
    pub(super) fn bootable(self, image: Vec<u8>) -> Result<Vec<u8>> {
        match (self, image.as_slice()) {
            (Self::X86, image) => extract(image),
            // Documentation/arch/arm64/booting.rst: the magic number of an uncompressed image.
            (Self::Arm64, plain) if plain.get(0x38..0x3c) == Some(b"ARM\x64") => Ok(image),
            (Self::Arm64, [0x1f, 0x8b, ..]) => filter("gzip", &image),
            (Self::Arm64, _) => bail!("neither an arm64 image nor a compressed one"),
        }
    }

    /// Builds the agent and these programs of tests for it.
    pub(super) fn build(self, way: Option<Way>, wanted: &Selection) -> Result<Built> {
        match self {
            Self::X86 => {
                Ok(Built { tracer: build::tracer(way, true)?, tests: kernel_tests::build(wanted)?, tools: "" })
            }
            Self::Arm64 => {
                let cross = Cross::ready()?;
                let tracer = cross.tracer(way, true)?;
                let tests = kernel_tests::build_by(cross.cargo("test"), wanted)?;
                shell::progress("built for arm64");
                Ok(Built { tracer, tests, tools: cross::TOOLS })
            }
        }
    }
}
