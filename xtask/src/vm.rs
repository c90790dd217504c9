//! `cargo xtask vm`: the agent on other kernels, in guests: Debian's kernels, this build's binary and truth tests.
//!
//! Everything is unpacked below the build directory; this machine's package configuration is not touched. Guests are
//! emulated: what they measure of time means nothing, what they see is the kernel's own.

mod archive;
mod guest;
mod image;
mod kernels;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build_ebpf::Way;
use crate::packages::{self, Need};
use crate::{build, build_ebpf, readme, shell, test};
use guest::Boot;
use kernels::{SOURCES, Source};

/// `cargo xtask vm`.
#[derive(Args)]
pub(crate) struct Options {
    /// Kernels to boot, by name: 5.10, 6.1, 6.12, 6.18, stable, candidate. All when not given.
    #[arg(long, value_delimiter = ',')]
    kernel: Vec<String>,
    /// Only the quick tests.
    #[arg(long)]
    smoke: bool,
    /// Put the table into README.md.
    #[arg(long)]
    readme: bool,
}

/// Head of the table.
const HEAD: &str =
    "| kernel | version | programs | self-test | tests passed | seconds |\n| --- | --- | --- | --- | --- | ---: |\n";
/// Kernels on which tracing is refused; there the refusal is what is tested.
const REFUSED: &[&str] = &["5.10"];
/// Most time for one guest.
const LIMIT: Duration = Duration::from_secs(600);
/// Tests of a quick run, `binary:filter`.
const SMOKE: &[&str] = &["access_log:every_logged", "edges:every_way", "matrix:tcp_over_ipv4"];
/// Tests of a full run, besides those.
const FULL: &[&str] = &["matrix:", "cpu:", "flame:", "links:nginx", "lifecycle:signals"];
/// Programs in C the tests want, compiled here.
const WORKLOADS: &[&str] = &["burn", "matrix", "origin", "storm"];

/// Boots every kernel asked for, prints the table, fails when one fell short.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    packages::install(&[Need::Guests])?;
    build_ebpf::ready(way)?;
    build::tracer(way, true)?;
    let chosen: Vec<&Source> =
        SOURCES.iter().filter(|s| options.kernel.is_empty() || options.kernel.iter().any(|k| k == s.name)).collect();
    if let Some(unknown) = options.kernel.iter().find(|k| !SOURCES.iter().any(|s| s.name == **k)) {
        let names: Vec<&str> = SOURCES.iter().map(|s| s.name).collect();
        bail!("no kernel '{unknown}' is known; expected some of {}", names.join(", "));
    }
    let base = shell::target_dir()?.join("vm");
    fs::create_dir_all(&base).with_context(|| format!("cannot create {}", base.display()))?;
    let qemu = image::Qemu::ready(&base)?;
    let root = image::root(&base)?;
    let mut tests: Vec<String> = SMOKE.iter().map(|t| (*t).to_owned()).collect();
    if !options.smoke {
        tests.retain(|t| !t.starts_with("matrix"));
        tests.extend(FULL.iter().map(|t| (*t).to_owned()));
    }
    let files = files(&base)?;
    let mut failed = Vec::new();
    let mut rows = Vec::new();
    for source in chosen {
        let (kernel, package) = kernels::image(source, &base)?;
        let wanted: &[String] = if REFUSED.contains(&source.name) { &[] } else { &tests };
        let mut boot = one(&base, &qemu, &root, &kernel, source, &files, wanted)?;
        // Emulated on a busy machine, a guest can panic or a wait in it run out; said, and tried once more.
        if let Err(why) = verdict(source, &boot, wanted) {
            shell::progress(format!("{}: {why:#}; once more", source.name));
            boot = one(&base, &qemu, &root, &kernel, source, &files, wanted)?;
        }
        let verdict = verdict(source, &boot, wanted);
        if let Err(why) = &verdict {
            eprintln!("error: kernel {}: {why:#}; its console: {}", source.name, boot.log.display());
            failed.push(source.name);
        }
        rows.push(row(source, &package, &boot, verdict.is_ok()));
    }
    let table = format!("{HEAD}{}", rows.join("\n"));
    shell::print(&table);
    if options.readme {
        readme::put("vm", &table)?;
    }
    if !failed.is_empty() {
        bail!("kernels that fell short: {}", failed.join(", "));
    }
    Ok(())
}

fn one(
    base: &Path,
    qemu: &image::Qemu,
    root: &Path,
    kernel: &Path,
    source: &Source,
    files: &[(PathBuf, String)],
    tests: &[String],
) -> Result<Boot> {
    shell::progress(format!("booting {}", source.name));
    let init = base.join("init");
    fs::write(&init, guest::init(tests, "0.05")).with_context(|| format!("cannot write {}", init.display()))?;
    let mut files = files.to_vec();
    files.push((init, "/guest/init".into()));
    let disk = base.join(format!("disk-{}.img", source.name));
    image::with_files(root, &disk, &files)?;
    let boot = guest::boot(qemu, kernel, &disk, &base.join(format!("{}.log", source.name)), LIMIT);
    let _ = fs::remove_file(&disk);
    let boot = boot?;
    shell::progress(format!("{} ran for {:.0} s", source.name, boot.took.as_secs_f64()));
    Ok(boot)
}

/// The agent, the test programs without their debug information, and the workloads: where from, where to.
fn files(base: &Path) -> Result<Vec<(PathBuf, String)>> {
    let dir = base.join("files");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut files = Vec::new();
    let mut strip = |from: &Path, name: &str| -> Result<()> {
        let to = dir.join(name);
        shell::output(Command::new("strip").arg("-o").arg(&to).arg(from))?;
        files.push((to, format!("/guest/{name}")));
        Ok(())
    };
    strip(&shell::target_dir()?.join("release/tracer"), "tracer")?;
    for program in test::programs()? {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some((name, _)) = name.rsplit_once('-') {
            strip(&program, name)?;
        }
    }
    for name in WORKLOADS {
        let to = dir.join(name);
        let source = shell::root().join("tests/workloads").join(format!("{name}.c"));
        let mut command = Command::new("cc");
        command.args(["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread", "-o"]);
        shell::output(command.arg(&to).arg(source))?;
        files.push((to, format!("/guest/{name}.bin")));
    }
    for script in ["edge.py", "calls.py"] {
        files.push((shell::root().join("tests/workloads").join(script), format!("/guest/{script}")));
    }
    Ok(files)
}

fn verdict(source: &Source, boot: &Boot, tests: &[String]) -> Result<()> {
    if !boot.complete {
        bail!("the guest did not reach its end{}", if boot.panicked { ": its kernel panicked" } else { "" });
    }
    if REFUSED.contains(&source.name) {
        if !boot.doctor.iter().any(|line| line.starts_with("missing")) {
            bail!("tracing was expected to be refused, and the refusal named");
        }
        return Ok(());
    }
    if let Some(line) = boot.doctor.iter().find(|line| line.starts_with("missing")) {
        bail!("doctor: {line}");
    }
    let failed: Vec<&str> = boot.tests.iter().filter(|(_, ok)| !ok).map(|(name, _)| name.as_str()).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    if boot.tests.len() != tests.len() {
        bail!("{} of {} tests ran", boot.tests.len(), tests.len());
    }
    Ok(())
}

fn row(source: &Source, package: &str, boot: &Boot, good: bool) -> String {
    let count = |state: &str, what: &str| {
        boot.doctor.iter().filter(|line| line.starts_with(state) && line.contains(what)).count()
    };
    let passed = boot.tests.iter().filter(|(_, ok)| *ok).count();
    let programs = format!("{} ok, {} degraded", count("ok", " program "), count("degraded", " program "));
    let checked = format!("{} ok", count("ok", "self-test"));
    let tests = if REFUSED.contains(&source.name) {
        if good { "refused, as it should be".to_owned() } else { "not refused".to_owned() }
    } else {
        format!("{passed} of {}", boot.tests.len())
    };
    let version = if boot.version.is_empty() { package } else { &boot.version };
    format!("| {} | {version} | {programs} | {checked} | {tests} | {:.0} |", source.name, boot.took.as_secs_f64())
}
