//! What the container image holds: the binary, the configuration, and the few files of the distribution it needs to run.
//!
//! The binary is linked to glibc, so its loader and libraries come from the system that builds it: the versions the binary
//! was linked to, with their copyright files. There is no shell and no package manager in the image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::layout;
use crate::shell;

/// A file that comes from the distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Distributed {
    /// In the image.
    pub(super) path: String,
    /// Its package, such as `libc6`.
    pub(super) package: String,
    /// The package's version.
    pub(super) version: String,
    /// The distribution's name, such as `debian`.
    pub(super) distribution: String,
    /// The package's licence, in SPDX's terms.
    pub(super) licence: &'static str,
}

/// Licences of the packages that may be in the image; packages do not name theirs in a form that programs read.
const LICENCES: [(&str, &str); 3] = [
    ("libc6", "LGPL-2.1-or-later"),
    ("libgcc-s1", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ("ca-certificates", "MPL-2.0"),
];

/// Certificates of authorities: for collectors and stores that are reached over TLS.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Users the image names: the agent is started as root without most of root's capabilities.
const PASSWD: &[u8] = b"root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n";
const GROUP: &[u8] = b"root:x:0:\nnogroup:x:65534:\n";

/// Directories a runtime mounts something at, or the agent writes to.
const DIRECTORIES: [&str; 6] = ["dev", "proc", "run", "sys", "tmp", "var/lib/tracer"];

/// Lays the image's files out below `root`; returns those that the distribution made.
pub(super) fn files(binary: &Path, root: &Path) -> Result<Vec<Distributed>> {
    layout::install(&layout::read(binary)?, &root.join("usr/bin/tracer"), 0o755)?;
    let defaults = layout::read(&shell::root().join("config/tracer.toml"))?;
    let config = layout::settings(&String::from_utf8_lossy(&defaults))?;
    layout::install(config.as_bytes(), &root.join("etc/tracer/tracer.toml"), 0o644)?;
    layout::install(PASSWD, &root.join("etc/passwd"), 0o644)?;
    layout::install(GROUP, &root.join("etc/group"), 0o644)?;
    layout::install(b"hosts: files dns\n", &root.join("etc/nsswitch.conf"), 0o644)?;
    let copyright = layout::copyright()?;
    layout::install(copyright.as_bytes(), &root.join("usr/share/doc/tracer/copyright"), 0o644)?;
    for directory in DIRECTORIES {
        layout::directory(&root.join(directory))?;
    }
    let mut distributed = Vec::new();
    for file in libraries(binary)? {
        let path = file.to_str().context("a library's path")?;
        let library = layout::read(&file)?;
        layout::install(&library, &root.join(path.trim_start_matches('/')), 0o755)?;
        distributed.push(owner(path)?);
    }
    // The package's own script makes this file, so no package owns it.
    if let Ok(certificates) = fs::read(Path::new("/").join(CERTIFICATES)) {
        layout::install(&certificates, &root.join(CERTIFICATES), 0o644)?;
        distributed.push(of_package(&format!("/{CERTIFICATES}"), "ca-certificates")?);
    } else {
        shell::progress(format!("no /{CERTIFICATES} here: the image trusts no authority; mount one to use TLS"));
    }
    for file in &distributed {
        let from = format!("usr/share/doc/{}/copyright", file.package);
        layout::install(&layout::read(&Path::new("/").join(&from))?, &root.join(&from), 0o644)?;
    }
    Ok(distributed)
}

/// The loader and the libraries the binary needs, by the paths the loader knows them by.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let text = shell::output(Command::new("ldd").arg(binary))?;
    let found = parsed(&text)?;
    ensure!(!found.is_empty(), "ldd names no libraries: {text}");
    Ok(found)
}

/// Paths in what `ldd` says: `name => path (address)`, or `path (address)` for the loader.
fn parsed(ldd: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in ldd.lines().map(str::trim) {
        let path = line.split_once("=> ").map_or(line, |(_, path)| path);
        let path = path.split_once(" (").map_or(path, |(path, _)| path);
        if path == "not found" {
            bail!("the binary needs a library this system does not have: {line}");
        }
        // Others are the kernel's own (vDSO).
        if path.starts_with('/') {
            found.push(PathBuf::from(path));
        }
    }
    found.sort();
    Ok(found)
}

/// Which package a file belongs to. The database knows files by the paths of before /lib and /usr/lib were one.
fn owner(path: &str) -> Result<Distributed> {
    let other = path.strip_prefix("/usr").map_or_else(|| format!("/usr{path}"), str::to_owned);
    let answer = [path, &*other].iter().find_map(|path| shell::ask("dpkg-query", &["--search", path]));
    let answer = answer.with_context(|| format!("no package of this system has {path}"))?;
    let package = answer.split(':').next().context("dpkg-query's answer has no package")?;
    of_package(path, package)
}

fn of_package(path: &str, package: &str) -> Result<Distributed> {
    let licence = LICENCES.iter().find(|(name, _)| *name == package).map(|(_, licence)| *licence);
    let licence =
        licence.with_context(|| format!("{path} is in the package {package}, whose licence is not listed"))?;
    let version = shell::output(Command::new("dpkg-query").args(["--show", "--showformat=${Version}\n", package]))?;
    let version = version.lines().next().context("dpkg-query names no version")?.trim().to_owned();
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let distribution = release.lines().find_map(|line| line.strip_prefix("ID=")).unwrap_or("debian");
    Ok(Distributed {
        path: path.to_owned(),
        package: package.to_owned(),
        version,
        distribution: distribution.trim_matches('"').to_owned(),
        licence,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ldd_says() {
        let text = "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let paths = parsed(text).expect("paths");
        assert_eq!(paths, ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from));
        assert!(parsed("\tlibnew.so => not found\n").is_err());
        assert_eq!(parsed("\tstatically linked\n").expect("none"), Vec::<PathBuf>::new());
    }
}
