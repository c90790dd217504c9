//! Builds for arm64 on another machine: the compiler, a standard library for it, a C compiler and linker.
//!
//! The standard library is rustup's if this cargo has it; else Debian's own for arm64, unpacked beside the build (its
//! package belongs to another processor: installing it would change this machine's apt configuration).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build_ebpf::{self, Way};
use crate::packages::{self, Need};
use crate::shell;
use crate::vm::archive::Archive;

/// The processor, as Rust, Debian and GNU call it.
pub(crate) const RUST: &str = "aarch64";
pub(crate) const DEBIAN: &str = "arm64";
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Prefix of the C compiler's programs.
pub(crate) const TOOLS: &str = "aarch64-linux-gnu-";

/// Debian's compiler and its library, whose versions must match.
const RUSTC: &str = "/usr/bin/rustc";
const CARGO: &str = "/usr/bin/cargo";
const COMPILER: &str = "rustc-web";
const LIBRARY: &str = "libstd-rust-web-dev";

/// A toolchain that can build for arm64.
pub(crate) struct Cross {
    /// The compiler's sysroot, if not its own.
    sysroot: Option<PathBuf>,
    target: PathBuf,
}

impl Cross {
    /// Makes sure there is a toolchain; installs the C compiler and unpacks the library.
    pub(crate) fn ready() -> Result<Self> {
        packages::install(&[Need::Arm64])?;
        let target = shell::target_dir()?.join("arm64");
        if own_library() {
            shell::progress(format!("arm64: this toolchain has a standard library for {TARGET}"));
            return Ok(Self { sysroot: None, target });
        }
        let installed = shell::ask("dpkg-query", &["-W", "-f", "${Version}", COMPILER]).unwrap_or_default();
        if installed.is_empty() {
            bail!(
                "no standard library for {TARGET}: run `rustup target add {TARGET}`, or on Debian `cargo xtask setup`, \
                 which installs {COMPILER}"
            );
        }
        let dir = target.join("sysroot");
        let stamp = dir.join("version");
        if !fs::read_to_string(&stamp).is_ok_and(|version| version == installed) {
            shell::progress(format!("arm64: unpacking {LIBRARY} {installed}"));
            let _ = fs::remove_dir_all(&dir);
            let archive = Archive::open(&target, "rust", DEBIAN, &["bookworm"], &["bookworm-security"])?;
            archive.unpack(&[format!("{LIBRARY}={installed}")], &dir.join("package"))?;
            let libraries = dir.join("lib/rustlib");
            fs::create_dir_all(&libraries).with_context(|| format!("cannot create {}", libraries.display()))?;
            symlink(dir.join("package/usr/lib/rustlib").join(TARGET), libraries.join(TARGET))
                .context("cannot name the unpacked library")?;
            fs::write(&stamp, &installed).with_context(|| format!("cannot write {}", stamp.display()))?;
        }
        shell::progress(format!("arm64: Debian's compiler and {LIBRARY} {installed}, unpacked beside the build"));
        Ok(Self { sysroot: Some(dir), target })
    }

    /// Cargo with `subcommand`, for arm64.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut command = match &self.sysroot {
            None => shell::cargo(),
            Some(sysroot) => {
                let mut command = Command::new(CARGO);
                command.current_dir(shell::root()).env("RUSTC", RUSTC);
                for name in ["CARGO", "RUSTUP_TOOLCHAIN", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTC_WRAPPER"] {
                    command.env_remove(name);
                }
                shell::forget_package(&mut command);
                let flags = format!("--sysroot={}", sysroot.display());
                command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", flags);
                command
            }
        };
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", format!("{TOOLS}gcc"));
        command.args([subcommand, "--locked", "--target", TARGET, "--target-dir"]).arg(&self.target);
        command
    }

    /// Builds the eBPF object for arm64 and checks that the agent compiles.
    pub(crate) fn check(&self, way: Option<Way>) -> Result<()> {
        let object = build_ebpf::compile(way, RUST)?;
        shell::progress("checking tracer for arm64");
        let mut command = self.cargo("check");
        command.args(["--package", "tracer-user", "--bin", "tracer"]).env("TRACER_EBPF_OBJECT", object);
        shell::run(&mut command, "the compiler's own words are above")
    }

    /// Builds the agent with the eBPF object for arm64 inside; returns its path.
    pub(crate) fn tracer(&self, way: Option<Way>, release: bool) -> Result<PathBuf> {
        let object = build_ebpf::compile(way, RUST)?;
        shell::progress("building tracer for arm64");
        let mut command = self.cargo("build");
        command.args(["--package", "tracer-user", "--bin", "tracer"]).env("TRACER_EBPF_OBJECT", object);
        if release {
            command.arg("--release");
        }
        shell::run(&mut command, "the compiler's own words are above")?;
        Ok(self.target.join(TARGET).join(if release { "release" } else { "debug" }).join("tracer"))
    }
}

/// Whether the compiler this cargo uses has a standard library for arm64.
fn own_library() -> bool {
    let dir = shell::ask("rustc", &["--print", "target-libdir", "--target", TARGET]).unwrap_or_default();
    let dir = Path::new(dir.trim());
    dir.is_absolute()
        && fs::read_dir(dir)
            .is_ok_and(|files| files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libstd-")))
}
