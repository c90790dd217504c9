//! Guests whose kernel preempts programs, under load of probes of every kind for minutes: runs the test `preempted` in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::guest::{self, Boot};
use super::kernels::{self, Source};
use super::machine::Machine;
use super::{Parts, SCALE, tail};
use crate::{shell, wheels, workloads};

/// The file of tests.
pub(super) const FILE: &str = "preempted";
/// The test, `file:filter`.
const TEST: &str = "preempted:";
/// Booted when none is named: the first of the matrix that has private stacks for programs.
pub(super) const KERNEL: &str = "6.18";
/// Time beside the load: an emulated agent and its programs take minutes to start.
const AROUND: Duration = Duration::from_secs(1500);
/// Programs by Go, built here.
const BY_GO: [&str; 2] = ["tree.go", "tls_serve.go"];
/// Sources of interpreted programs.
const SCRIPTS: [&str; 3] = ["tls_asyncio.py", "tree_asyncio.py", "tree.js"];
/// Programs by Rust.
const BY_RUST: [&str; 2] = ["tree-tokio", "tls-pair"];

/// A kind of preemption, as the kernel's command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// At once, wherever the kernel allows it.
    Full,
    /// At the next tick.
    Lazy,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Lazy => "lazy",
        }
    }
}

/// What the test needs beside the agent and itself.
pub(super) fn files(base: &Path) -> Result<Vec<(PathBuf, String)>> {
    let dir = base.join("files");
    let source = |name: &str| shell::root().join("tests/workloads").join(name);
    let mut files = Vec::new();
    for name in BY_GO {
        let program = wheels::built_by_go(&source(name), &dir)?;
        files.push((program, format!("/guest/{}", Path::new(name).with_extension("bin").display())));
    }
    for name in SCRIPTS {
        files.push((source(name), format!("/guest/{name}")));
    }
    for name in BY_RUST {
        files.push((workloads::built(name)?, format!("/guest/{name}")));
    }
    files.push((wheels::node_js()?, "/guest/node".into()));
    let [key, certificate] = ["key.pem", "cert.pem"].map(|name| dir.join(name));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "9"]);
    command.args(["-subj", "/CN=localhost", "-keyout"]).arg(&key).arg("-out").arg(&certificate);
    shell::output(&mut command)?;
    files.extend([(key, "/guest/key.pem".into()), (certificate, "/guest/cert.pem".into())]);
    Ok(files)
}

/// Boots each kernel with `kind` and loads it for `minutes`.
pub(super) fn run(parts: &Parts, chosen: &[&Source], kind: Kind, minutes: u64) -> Result<()> {
    let mut failed = Vec::new();
    for source in chosen {
        let boot = boot(parts, source, kind, minutes)?;
        let name = format!("{} ({}) with preempt={}", source.name, boot.version, kind.name());
        shell::print(format!("{name}: {:.0} minutes", boot.took.as_secs_f64() / 60.0));
        for (figure, value) in &boot.figures {
            shell::print(format!("  {figure}: {value}"));
        }
        if let Err(why) = verdict(&boot) {
            eprintln!("error: {name}: {why:#}; its console: {}\n{}", boot.log.display(), tail(&boot.log));
            failed.push(name);
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("fell short: {}", failed.join(", ")) }
}

fn verdict(boot: &Boot) -> Result<()> {
    if boot.panicked {
        bail!("its kernel panicked");
    }
    if let Some(first) = boot.faults.first() {
        bail!("its kernel reported {} faults, first: {first}", boot.faults.len());
    }
    if !boot.complete {
        bail!("{}", if boot.late { "its time was over" } else { "it did not reach its end" });
    }
    if !boot.tests.iter().any(|(_, passed)| *passed) {
        bail!("its test failed");
    }
    Ok(())
}

fn boot(parts: &Parts, source: &Source, kind: Kind, minutes: u64) -> Result<Boot> {
    let (kernel, _) = kernels::image(source, Machine::X86, &parts.base)?;
    let name = format!("{}-preempt-{}", source.name, kind.name());
    shell::progress(format!("booting {name}: loads for {minutes} minutes"));
    let limit = AROUND + Duration::from_secs(60 * minutes);
    let first = format!(
        "busybox mount -t debugfs debug /sys/kernel/debug
export PATH=$PATH:/guest TRACER_BUILT=/guest TRACER_TEST_MINUTES={minutes} TRACER_TEST_PREEMPT={}",
        kind.name()
    );
    let init = guest::init(&[TEST.to_owned()], SCALE, limit, &first)?;
    let disk = parts.disk(&name, &init, &[])?;
    let log = parts.base.join(format!("{name}.log"));
    // Warnings are printed. A busy machine can keep an emulated processor waiting for seconds, which is no lock-up.
    let words = format!(
        "preempt={} loglevel=5 watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=120 {}",
        kind.name(),
        parts.append
    );
    let boot = guest::boot(&parts.qemu, (&kernel, &words), &disk, &[], &log, limit);
    fs::remove_file(&disk).with_context(|| format!("cannot remove {}", disk.display()))?;
    boot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_the_kernel_survives_fails_the_run() {
        let good = || Boot { complete: true, tests: vec![("preempted:".into(), true)], ..Boot::default() };
        let judged = |boot: Boot| verdict(&boot).map_or_else(|why| why.to_string(), |()| "good".into());
        assert_eq!(judged(good()), "good");
        let faults = vec!["[ 1.0] BUG: stack guard page was hit".into()];
        assert!(judged(Boot { faults, ..good() }).starts_with("its kernel reported 1 faults"));
        assert_eq!(judged(Boot { tests: Vec::new(), ..good() }), "its test failed");
    }
}
