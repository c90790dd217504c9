//! Java: libraries of the distribution, and newer virtual machines.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Directory of the archives.
pub const DIRECTORY: &str = "/usr/share/java";

/// Prefixes of the archives that workloads use: gRPC and its dependencies.
const USED: [&str; 6] = ["failureaccess", "grpc", "guava", "netty", "opencensus", "perfmark"];

/// A class path of `dir`, which has a compiled workload, and of the archives.
pub fn class_path(dir: &Path) -> OsString {
    let names = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten().map(|entry| entry.path());
    let used = |path: &Path| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        // Each also exists under a name with its version.
        let versioned =
            name.rsplit('-').next().is_some_and(|last| last.starts_with(|first: char| first.is_ascii_digit()));
        path.extension().is_some_and(|kind| kind == "jar")
            && !versioned
            && USED.iter().any(|used| name.starts_with(used))
    };
    let mut path = dir.as_os_str().to_owned();
    for archive in names.filter(|path| used(path)) {
        path.push(":");
        path.push(archive);
    }
    path
}

/// The virtual machines of Debian's unstable release, which only the full tier installs: paths (`…/java-21`) and versions.
pub fn newest() -> Vec<(&'static str, u32)> {
    let paths = std::env::var_os("TRACER_NEWEST_JAVAS").unwrap_or_default();
    let paths: Vec<PathBuf> = std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect();
    let of = |path: &PathBuf| {
        let version = path.file_name()?.to_str()?.strip_prefix("java-")?.parse().ok()?;
        // Names of programs are static everywhere else; a test leaks only a few.
        Some((&*Box::leak(path.to_str()?.to_owned().into_boxed_str()), version))
    };
    paths.iter().map(|path| of(path).unwrap_or_else(|| panic!("{} has no version", path.display()))).collect()
}
