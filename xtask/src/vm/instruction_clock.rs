//! A guest whose clock counts instructions, for `cargo xtask bench --counted`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::kernels::{self, SOURCES};
use super::machine::Machine;
use super::{Parts, guest, image, tail};
use crate::shell;

/// Nanoseconds of the guest's time for each instruction: two to the power of QEMU's `shift`.
pub(crate) const NANOS_AN_INSTRUCTION: f64 = 2.0;
/// One CPU; time does not pass while it is idle.
const MACHINE: [&str; 4] = ["-smp", "1", "-icount", "shift=1,sleep=off"];
/// Most time for a guest.
const LIMIT: Duration = Duration::from_secs(3600);

/// Boots `kernel` with `files` (source and path in the guest), runs `command` in it, and returns the figures it printed.
///
/// # Errors
/// No such kernel, no guest, or the command failed.
pub(crate) fn run(kernel: &str, files: &[(PathBuf, String)], command: &str) -> Result<BTreeMap<String, String>> {
    let machine = Machine::X86;
    let source = SOURCES.iter().find(|source| source.name == kernel);
    let source = source.with_context(|| format!("no kernel '{kernel}' is known"))?;
    let base = shell::target_dir()?.join(machine.dir());
    let dir = base.join("files");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let qemu = image::Qemu::ready(&base, machine)?;
    let root = image::root(&base, machine)?;
    let mut stripped = Vec::new();
    for (from, to) in files {
        let name = Path::new(to).file_name().unwrap_or_default();
        let file = dir.join(name);
        shell::output(Command::new("strip").arg("-o").arg(&file).arg(from))?;
        stripped.push((file, to.clone()));
    }
    let (image, _) = kernels::image(source, machine, &base)?;
    let parts = Parts { base, qemu, root, files: stripped, append: String::new() };
    let first = format!("{command} && echo 'GUEST exit 0 counted'; echo 'GUEST end'; busybox poweroff -f");
    let init = guest::init(&[], "1", LIMIT, &first)?;
    let name = format!("{kernel}-counted");
    let disk = parts.disk(&name, &init, &[])?;
    let log = parts.base.join(format!("{name}.log"));
    shell::progress(format!("booting {kernel}; what it says goes to {} at its end", log.display()));
    let more = MACHINE.map(str::to_owned);
    let boot = guest::boot(&parts.qemu, (&image, &parts.append), &disk, &more, &log, LIMIT);
    fs::remove_file(&disk).with_context(|| format!("cannot remove {}", disk.display()))?;
    let boot = boot?;
    if boot.tests.is_empty() {
        let why = if boot.late { "its time was over" } else { "its command failed" };
        bail!("{why}; its console: {}\n{}", boot.log.display(), tail(&boot.log));
    }
    shell::progress(format!("{kernel} ran for {:.0} s", boot.took.as_secs_f64()));
    Ok(boot.figures)
}
