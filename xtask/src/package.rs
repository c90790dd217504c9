//! `cargo xtask package`: Debian package, archive, container image, Helm chart, bill of materials and their checksums, into
//! `target/package/`.
//!
//! The files are laid out here and packed by `dpkg-deb` and `tar` with the commit's time: the same inputs give the same bytes,
//! and every run packs twice to prove it.

mod check;
mod image;
mod layout;
mod rootfs;
mod sbom;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build_ebpf::{self, Way};
use crate::{build, shell};

/// `cargo xtask package`.
#[derive(Args)]
pub(crate) struct Options {
    /// Pack the build without optimisations: quick, for trying the packaging itself.
    #[arg(long)]
    dev: bool,
    /// Then install, upgrade, remove and purge the package in a copy-on-write view of this system, and run the image (root,
    /// Debian).
    #[arg(long)]
    check: bool,
}

/// The most that `systemd-analyze security` may say of the unit: 0 is closed, 10 is open.
const EXPOSURE_MAX: f64 = 4.0;

/// Builds everything and prints the paths.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    for (program, package) in [("dpkg-deb", "dpkg"), ("tar", "tar"), ("sha256sum", "coreutils")] {
        if shell::find(program).is_none() {
            bail!("{program} is needed to make packages: install the package {package}");
        }
    }
    unit()?;
    build_ebpf::ready(way)?;
    let binary = build::tracer(way, !options.dev)?;
    let out = shell::target_dir()?.join("package");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let version = env!("CARGO_PKG_VERSION");
    shell::progress("packing");
    // xz takes a minute for a binary without optimisations.
    let level = if options.dev { 1 } else { 9 };
    let packed = pack(&binary, &out, version, level)?;
    let again = tempfile::tempdir()?;
    for (one, other) in packed.iter().zip(pack(&binary, again.path(), version, level)?) {
        if fs::read(one)? != fs::read(&other)? {
            bail!("{} has other bytes when it is packed again", one.display());
        }
    }
    shell::progress("packed twice, the same bytes");
    let mut sums = Command::new("sha256sum");
    sums.current_dir(&out).args(packed.iter().filter_map(|path| path.file_name()));
    fs::write(out.join("SHA256SUMS"), shell::output(&mut sums)?)?;
    for path in packed.iter().chain([&out.join("SHA256SUMS")]) {
        shell::print(format!("{} ({} bytes)", path.display(), fs::metadata(path)?.len()));
    }
    if options.check {
        let newer = tempfile::tempdir()?;
        let upgrade = deb(&binary, newer.path(), &format!("{version}+check"), 1)?;
        check::run(&packed[0], &upgrade)?;
        check::image(&packed[2])?;
    }
    Ok(())
}

/// Makes the package, the archive, the image, the Helm chart and the bill of materials in `out`, in this order.
fn pack(binary: &Path, out: &Path, version: &str, level: u8) -> Result<Vec<PathBuf>> {
    let epoch = epoch();
    let (image, distributed) = image::Recipe { binary, out, version, level, epoch: &epoch }.make()?;
    let bill = sbom::write(binary, &distributed, out, version, &image::rfc3339(&epoch)?)?;
    let chart = chart(out, version, level)?;
    Ok(vec![deb(binary, out, version, level)?, archive(binary, out, version, level)?, image, chart, bill])
}

/// The Helm chart, as `helm package` makes it.
fn chart(out: &Path, version: &str, level: u8) -> Result<PathBuf> {
    let stage = tempfile::tempdir()?;
    layout::tree(&shell::root().join("packaging/kubernetes/chart"), &stage.path().join("tracer"))?;
    let file = out.join(format!("tracer-chart-{version}.tgz"));
    let mut command = tar(&epoch());
    command.arg(format!("--use-compress-program=gzip -n{level}")).arg("-cf").arg(&file);
    shell::output(command.arg("-C").arg(stage.path()).arg("tracer"))?;
    Ok(file)
}

/// An archive of what is below `from`, with the same bytes every time.
fn reproducible_tar(file: &Path, epoch: &str, from: &Path, what: &[&str]) -> Result<()> {
    let mut command = tar(epoch);
    shell::output(command.arg("-cf").arg(file).arg("-C").arg(from).args(what)).map(|_| ())
}

/// `tar` without what differs between machines: the order of files, their owners and their times.
fn tar(epoch: &str) -> Command {
    let mut command = Command::new("tar");
    command.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    command.arg(format!("--mtime=@{epoch}"));
    command
}

/// The commit's time, which stands in everything packed; seconds since the epoch.
fn epoch() -> String {
    if let Ok(set) = env::var("SOURCE_DATE_EPOCH") {
        return set;
    }
    let root = shell::root();
    let root = root.to_string_lossy();
    let time = shell::ask("git", &["-C", &*root, "log", "-1", "--format=%ct"]);
    // 2026-01-01, for sources without their history.
    time.map(|time| time.trim().to_owned()).filter(|time| !time.is_empty()).unwrap_or_else(|| "1767225600".into())
}

fn deb(binary: &Path, out: &Path, version: &str, level: u8) -> Result<PathBuf> {
    let stage = tempfile::tempdir()?;
    layout::files(binary, stage.path(), &epoch())?;
    layout::control(binary, stage.path(), version)?;
    let file = out.join(format!("tracer_{version}_{}.deb", layout::debian_architecture()?));
    let mut command = Command::new("dpkg-deb");
    // One thread: with several, xz cuts the data by their number.
    command
        .args(["--root-owner-group", "-Zxz", &format!("-z{level}"), "--threads-max=1", "--build"])
        .arg(stage.path())
        .arg(&file);
    command.env("SOURCE_DATE_EPOCH", epoch());
    shell::output(&mut command)?;
    Ok(file)
}

/// The same files for other distributions, to unpack at `/`.
fn archive(binary: &Path, out: &Path, version: &str, level: u8) -> Result<PathBuf> {
    let stage = tempfile::tempdir()?;
    layout::files(binary, stage.path(), &epoch())?;
    let file = out.join(format!("tracer-{version}-linux-{}.tar.gz", env::consts::ARCH));
    let mut command = tar(&epoch());
    command.arg(format!("--use-compress-program=gzip -n{level}"));
    command.arg("-cf").arg(&file);
    shell::output(command.arg("-C").arg(stage.path()).args(["etc", "usr"]))?;
    Ok(file)
}

/// Checks the unit's hardening, where systemd's tools are.
fn unit() -> Result<()> {
    if shell::find("systemd-analyze").is_none() {
        shell::progress("systemd-analyze is missing: the unit's hardening is not checked here");
        return Ok(());
    }
    let unit = shell::root().join("packaging/tracer.service");
    let text =
        shell::output(Command::new("systemd-analyze").args(["security", "--offline=yes", "--no-pager"]).arg(unit))?;
    let line =
        text.lines().find(|line| line.contains("Overall exposure level")).context("systemd-analyze names no level")?;
    let level = exposure(line).with_context(|| format!("no number in: {line}"))?;
    shell::progress(format!("systemd-analyze security: exposure {level} of 10, at most {EXPOSURE_MAX} allowed"));
    if level > EXPOSURE_MAX {
        bail!("packaging/tracer.service is too open: {level}");
    }
    Ok(())
}

/// The number in `→ Overall exposure level for tracer.service: 3.2 OK`.
fn exposure(line: &str) -> Option<f64> {
    line.rsplit_once(": ")?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_is_read() {
        assert_eq!(exposure("→ Overall exposure level for tracer.service: 3.2 OK"), Some(3.2));
        assert_eq!(exposure("nothing"), None);
    }
}
