//! Peers: other tools doing the least comparable work, on the same server in the same rounds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;

/// A tool and what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// bpftrace: a histogram of the time from one request read to its reply sent.
    Histogram,
    /// `perf trace -s`: a summary of system calls.
    Trace,
    /// `perf record`: 99 stacks a second and CPU.
    Record,
}

/// All of them.
pub(super) const PEERS: [Peer; 3] = [Peer::Histogram, Peer::Trace, Peer::Record];

const SCRIPT: &str = r#"
BEGIN { printf("READY\n"); }
tracepoint:syscalls:sys_exit_recvfrom /comm == "nginx" && args->ret > 0/ { @begin[tid] = nsecs; }
tracepoint:syscalls:sys_exit_sendfile64 /@begin[tid]/ { @us = hist((nsecs - @begin[tid]) / 1000); delete(@begin[tid]); }
"#;

const MOUNT: &str =
    "[ -d /sys/kernel/debug/tracing ] || mount -t debugfs none /sys/kernel/debug; exec bpftrace -e \"$1\"";

impl Peer {
    /// Its name in the results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Histogram => "bpftrace latency histogram",
            Self::Trace => "perf trace -s",
            Self::Record => "perf record -F 99 -g",
        }
    }

    /// Starts it on a server's process and waits until it is tracing.
    pub(super) fn start(self, dir: &Path, server: i32) -> Result<Running> {
        let dir = dir.join("peer");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let (log, data) = (dir.join("log"), dir.join("perf.data").display().to_string());
        let server = server.to_string();
        let (program, args) = match self {
            // Older versions look for tracepoints in debugfs alone, which is not always mounted: they get one of their
            // own.
            Self::Histogram => ("unshare", vec!["--mount", "sh", "-c", MOUNT, "bpftrace", SCRIPT]),
            Self::Trace => ("perf", vec!["trace", "-s", "-p", &server]),
            // Virtual machines often lack a hardware counter: use the agent's clock.
            Self::Record => ("perf", vec!["record", "-e", "cpu-clock", "-F", "99", "-g", "-a", "-o", &data]),
        };
        if self == Self::Histogram && shell::find("bpftrace").is_none() {
            bail!("bpftrace is not installed");
        }
        let found = shell::find(program).with_context(|| format!("{program} is not installed"))?;
        let mut child = SupervisedChild::start(Root::Already, &found, &args, &[], &log)?;
        let until = Instant::now() + Duration::from_secs(10);
        // perf does not report when it starts tracing: wait a fixed time, and check at the end that it saw something.
        let looks = Instant::now() + Duration::from_millis(700);
        loop {
            let output = fs::read_to_string(&log).unwrap_or_default();
            if child.ended()?.is_some() || Instant::now() > until {
                bail!("{}", words(&output));
            }
            if Instant::now() > looks && (self != Self::Histogram || output.contains("READY")) {
                return Ok(Running { peer: self, child, log });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A peer at work.
pub(super) struct Running {
    peer: Peer,
    child: SupervisedChild,
    log: PathBuf,
}

impl Running {
    /// Ends it as Ctrl-C would; fails if it saw nothing.
    pub(super) fn end(mut self) -> Result<()> {
        let pid = self.child.pid()?;
        // SAFETY: a signal to our own child, not waited for yet.
        unsafe { libc::kill(pid, libc::SIGINT) };
        let until = Instant::now() + Duration::from_secs(10);
        while self.child.ended()?.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(self.child);
        let output = fs::read_to_string(&self.log).unwrap_or_default();
        if !saw(self.peer, &output) {
            bail!("it saw nothing: {}", words(&output));
        }
        Ok(())
    }
}

/// Whether a peer's output shows that it worked.
fn saw(peer: Peer, output: &str) -> bool {
    match peer {
        Peer::Histogram => output.contains("@us:") && output.contains('['),
        Peer::Trace => output.contains("events") && output.contains("sendfile"),
        // "[ perf record: Captured and wrote 0.123 MB perf.data (456 samples) ]"
        Peer::Record => output
            .split_once(" samples)")
            .and_then(|(before, _)| before.rsplit('(').next()?.parse::<u64>().ok())
            .is_some_and(|samples| samples > 0),
    }
}

/// The end of a program's output, on one line.
fn words(output: &str) -> String {
    let line = output.split_whitespace().collect::<Vec<_>>().join(" ");
    let skip = line.chars().count().saturating_sub(300);
    if line.is_empty() { "it printed nothing".into() } else { line.chars().skip(skip).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_must_have_seen_something() {
        assert!(saw(Peer::Histogram, "Attaching 3 probes...\nREADY\n\n@us: \n[4, 8)  12 |@@@|\n"));
        assert!(!saw(Peer::Histogram, "Attaching 3 probes...\nREADY\n"));
        assert!(saw(Peer::Trace, " nginx (4), 1200 events, 99%\n  sendfile  300 0 5.0\n"));
        assert!(!saw(Peer::Trace, " Summary of events:\n"));
        assert!(saw(Peer::Record, "[ perf record: Captured and wrote 0.1 MB perf.data (456 samples) ]"));
        assert!(!saw(Peer::Record, "[ perf record: Captured and wrote 0.1 MB perf.data (0 samples) ]"));
        assert!(!saw(Peer::Record, "[ perf record: Captured and wrote 0.1 MB perf.data ]"));
    }

    #[test]
    fn words_are_short() {
        assert_eq!(words(" a\n b"), "a b");
        assert_eq!(words(""), "it printed nothing");
        assert_eq!(words(&"é".repeat(900)).chars().count(), 300);
    }
}
