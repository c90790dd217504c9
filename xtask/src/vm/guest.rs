//! One guest: boots a kernel under emulation, runs the tests in it, and reads their output from its console.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::image::Qemu;
use crate::{kernel_tests, shell};

/// The guest's first process. Prints `GUEST …` lines between the tests' output.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t cgroup2 cgroup2 /sys/fs/cgroup
busybox mount -t devtmpfs dev /dev 2>/dev/null
busybox mkdir -p /dev/shm /dev/pts
busybox mount -t tmpfs tmp /tmp && busybox chmod 1777 /tmp
busybox mount -t tmpfs run /run
busybox ip link set lo up
busybox ip addr add ::1/128 dev lo 2>/dev/null
@first@
echo "GUEST kernel $(busybox uname -r) $(busybox nproc) CPUs"
export TRACER_BIN=/guest/tracer TRACER_WORKLOADS=/guest TRACER_TEST_SCALE=@scale@ RUST_BACKTRACE=0
cd /tmp
/guest/tracer doctor --json 2>&1 | busybox sed 's/^/DOCTOR /'
for test in @tests@; do
    subject=${test%%/*}
    test=${test#*/}
    echo "GUEST test $test"
    busybox timeout @limit@ /guest/$subject --test-threads=1 --nocapture "${test%%:*}::${test#*:}" 2>&1
    echo "GUEST exit $? $test"
done
echo "GUEST end"
busybox sync
busybox poweroff -f
"#;

/// The result of one boot.
#[derive(Debug, Default)]
pub(super) struct Boot {
    /// The kernel's own version.
    pub(super) version: String,
    /// The output of `tracer doctor --json`; null if there was none.
    pub(super) doctor: Value,
    /// Figures the tests measured, by name.
    pub(super) figures: BTreeMap<String, String>,
    /// Tests in order, and whether each passed.
    pub(super) tests: Vec<(String, bool)>,
    /// The guest reached its end.
    pub(super) complete: bool,
    /// The guest's kernel died.
    pub(super) panicked: bool,
    /// What it said of its own faults, if the command line lets it speak (`loglevel`).
    pub(super) faults: Vec<String>,
    /// It was stopped because its time was over.
    pub(super) late: bool,
    /// How long everything took.
    pub(super) took: Duration,
    /// Everything the guest printed.
    pub(super) log: PathBuf,
}

/// What a kernel prints when something in it is wrong and it goes on.
const FAULTS: &[&str] = &[
    "BUG:",
    "WARNING:",
    "Oops",
    "general protection fault",
    "double fault",
    "stack guard page",
    "private stack",
    "scheduling while atomic",
    "lockup",
    "rcu: INFO:",
    "blocked for more than",
];

/// Connects a guest to the wire: its address, and its half of the test.
const WIRE: &str = r"busybox insmod /guest/wire.ko
busybox ip addr add @own@/24 dev eth0
busybox ip link set eth0 up
export TRACER_PAIR='@role@ @own@ @other@'";

/// A guest's end of a wire to another guest.
pub(super) struct Wire {
    /// The half of the test that runs in it.
    pub(super) role: &'static str,
    /// Its address, and the other's.
    pub(super) own: &'static str,
    pub(super) other: &'static str,
    /// QEMU arguments for its network card.
    pub(super) arguments: Vec<String>,
}

impl Wire {
    /// Commands that connect the guest.
    pub(super) fn commands(&self) -> String {
        WIRE.replace("@role@", self.role).replace("@own@", self.own).replace("@other@", self.other)
    }
}

/// The first process for these tests (`file:filter`), each limited to `limit`; runs the commands `first` before them.
pub(super) fn init(tests: &[String], scale: &str, limit: Duration, first: &str) -> Result<String> {
    let limit = limit.as_secs().to_string();
    let mut of_subjects = Vec::new();
    for test in tests {
        let file = test.split(':').next().unwrap_or(test);
        of_subjects.push(format!("{}/{test}", kernel_tests::subject(&shell::root(), file)?));
    }
    let text = INIT.replace("@tests@", &of_subjects.join(" ")).replace("@scale@", scale);
    Ok(text.replace("@first@", first).replace("@limit@", &limit))
}

/// Boots `kernel` with `disk` and `more` arguments for QEMU; ends by itself, by the guest's panic, or after `limit`.
pub(super) fn boot(
    qemu: &Qemu,
    (kernel, append): (&Path, &str),
    disk: &Path,
    more: &[String],
    log: &Path,
    limit: Duration,
) -> Result<Boot> {
    let mut command = qemu.command();
    // One thread for both CPUs: quicker on a busy machine, and patched code never runs concurrently.
    command.args(["-accel", "tcg,thread=single", "-m", "1G", "-smp", "2"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]);
    command.arg("-kernel").arg(kernel);
    let words = "panic=-1 quiet loglevel=1 root=/dev/nvme0n1 rw init=/guest/init";
    command.arg("-append").arg(format!("console={} {words} {append}", qemu.console()));
    command.arg("-drive").arg(format!("file={},if=none,id=d,format=raw", disk.display()));
    command.args(["-device", "nvme,drive=d,serial=root"]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let begin = Instant::now();
    let mut child = command.spawn().context("cannot start QEMU")?;
    let output = child.stdout.take().context("QEMU has no output")?;
    let id = child.id();
    // Reading ends with QEMU; QEMU ends with the guest or at the time limit.
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let late = ended.recv_timeout(limit).is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Timeout);
        if late {
            // SAFETY: a plain system call; the child is ours and not yet waited for.
            unsafe { libc::kill(id as i32, libc::SIGKILL) };
        }
        late
    });
    let mut boot = Boot { log: log.to_path_buf(), ..Boot::default() };
    let mut text = String::new();
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        read(&mut boot, &line);
        text.push_str(&format!("{:7.2} {line}\n", begin.elapsed().as_secs_f64()));
    }
    child.wait().context("cannot wait for QEMU")?;
    let _ = done.send(());
    boot.late = watch.join().unwrap_or(false);
    boot.took = begin.elapsed();
    fs::write(log, text).with_context(|| format!("cannot write {}", log.display()))?;
    Ok(boot)
}

fn read(boot: &mut Boot, line: &str) {
    if let Some(version) = line.strip_prefix("GUEST kernel ") {
        version.split(' ').next().unwrap_or_default().clone_into(&mut boot.version);
    } else if let Some(line) = line.strip_prefix("DOCTOR ") {
        // Standard error may carry the reason for a failure beside the report.
        if let Ok(report) = serde_json::from_str(line) {
            boot.doctor = report;
        }
    } else if let Some((_, figure)) = line.split_once("FIGURE ") {
        if let Some((name, value)) = figure.split_once(": ") {
            boot.figures.insert(name.to_owned(), value.to_owned());
        }
    } else if let Some(rest) = line.strip_prefix("GUEST exit ") {
        if let Some((code, test)) = rest.split_once(' ') {
            boot.tests.push((test.to_owned(), code == "0"));
        }
    } else if line.contains("Kernel panic") {
        boot.panicked = true;
    } else if FAULTS.iter().any(|fault| line.contains(fault)) {
        boot.faults.push(line.to_owned());
    } else if line.starts_with("GUEST end") {
        boot.complete = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_is_understood() {
        let mut boot = Boot::default();
        for line in [
            "GUEST kernel 6.1.0-1 2 CPUs",
            "DOCTOR {\"kernel\":\"6.1\"}",
            "DOCTOR tracer: this host cannot be traced",
            "test a ... FIGURE ends tcp4: 0 of 9",
            "GUEST exit 0 a:b",
            "GUEST exit 101 c:",
        ] {
            read(&mut boot, line);
        }
        assert_eq!((boot.version.as_str(), boot.complete, boot.panicked), ("6.1.0-1", false, false));
        assert_eq!(boot.doctor["kernel"], "6.1");
        assert_eq!(boot.figures, [("ends tcp4".to_owned(), "0 of 9".to_owned())].into());
        assert_eq!(boot.tests, [("a:b".to_owned(), true), ("c:".to_owned(), false)]);
        read(&mut boot, "[    9.1] Kernel panic - not syncing: Fatal exception in interrupt");
        assert!(boot.panicked && boot.faults.is_empty());
        read(&mut boot, "[   12.5] BUG: scheduling while atomic: nginx/101/0x00000002");
        assert_eq!(boot.faults.len(), 1);
    }
}
