//! Harness of the tests that need root, a kernel and real programs: they start the agent's binary beside programs with
//! known truth and compare.
//!
//! A test begins with [`begin`]: if something it needs is missing, it prints `SKIPPED name: reason` and ends; otherwise
//! it holds a lock, so that no two tests of any binary run agents at once. Everything panics instead of returning
//! errors: a panic shows where.

pub mod agent;
pub mod bpf;
pub mod bucket;
pub mod call_pairs;
pub mod cgroup;
pub mod chain;
pub mod changed_code;
pub mod collector;
pub mod declared;
pub mod faults;
pub mod findings;
pub mod folded;
pub mod go;
pub mod haproxy;
pub mod hosts;
pub mod http;
pub mod http2;
pub mod interpreted;
pub mod jars;
pub mod late_errors;
pub mod load;
pub mod mariadb;
pub mod mcp;
pub mod memcached;
pub mod messaging;
pub mod metrics;
pub mod mosquitto;
pub mod nats;
pub mod nginx;
pub mod peers;
pub mod perf;
pub mod php;
pub mod postgresql;
pub mod process;
pub mod python;
pub mod rabbitmq;
pub mod recorder;
pub mod recording;
pub mod redis;
pub mod rings;
pub mod roots;
pub mod secrets;
pub mod spans;
pub mod star;
pub mod stat;
pub mod statements;
pub mod tls;
pub mod tls_pair;
pub mod tls_servers;
pub mod truth;
pub mod truth_costs;
pub mod uwsgi;
pub mod vitals;
pub mod wire;
pub mod workload;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Proof that a test may run the agent; released when dropped.
#[derive(Debug)]
pub struct Turn {
    _lock: File,
}

/// Prints a line. All test output goes through here.
#[expect(clippy::print_stdout, reason = "tests report what they measured")]
pub fn say(line: &str) {
    println!("{line}");
}

/// Prints a figure for tables (`cargo xtask vm`): its name, and the formatted value.
pub fn figure(name: &str, value: &str) {
    say(&format!("FIGURE {name}: {value}"));
}

/// Begins test `name`, which needs root, the agent's binary and `programs`; `None` when it cannot run here.
pub fn begin(name: &str, programs: &[&str]) -> Option<Turn> {
    // SAFETY: takes nothing, cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let needed = |program: &&&str| **program != "cc" || workload::prebuilt().is_none();
    let missing = programs.iter().filter(needed).find(|program| find(program).is_none());
    let reason = if !root {
        Some("needs root".to_owned())
    } else if let Some(program) = missing {
        Some(format!("needs the program {program}"))
    } else if !agent::binary().exists() {
        Some(format!("needs the agent at {} (cargo xtask build --release)", agent::binary().display()))
    } else {
        None
    };
    if let Some(reason) = reason {
        say(&format!("SKIPPED {name}: {reason}"));
        return None;
    }
    Some(Turn { _lock: lock() })
}

/// Share of the usual load a test generates: less in an emulated guest (`TRACER_TEST_SCALE`).
pub fn scale() -> f64 {
    std::env::var("TRACER_TEST_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0)
}

/// Reasons of `tracer_events_lost_total` that mean an unseen socket operation.
pub const OPERATION_LOST: [&str; 4] =
    ["ring_full_op", "socket_storage_refused", "thread_storage_refused", "hook_skipped"];

/// How many operations the agent reports as unseen.
pub fn operations_lost(lost: &[(String, f64)]) -> f64 {
    let of = |(reason, _): &&(String, f64)| OPERATION_LOST.contains(&reason.as_str());
    lost.iter().filter(of).map(|(_, count)| count).sum()
}

/// How many lost operations may explain missing or different requests in a test: in an emulated guest, whose kernel may
/// skip programs (7.2 and later), those the agent counted; elsewhere none. Any other loss (of samples, names, files,
/// attributions) explains no such difference.
pub fn explained(lost: &[(String, f64)]) -> f64 {
    if scale() < 1.0 { operations_lost(lost) } else { 0.0 }
}

fn lock() -> File {
    let path = std::env::temp_dir().join("tracer-tests.lock");
    let file = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // SAFETY: a descriptor that is open as long as `file` is.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(locked, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
    file
}

/// Finds a program in `PATH` and the directories of system programs.
pub fn find(program: &str) -> Option<PathBuf> {
    // The system's own first: a shim for an interpreter is a shell script.
    let system = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    system.into_iter().chain(std::env::split_paths(&path)).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Waits until `condition` returns a value; panics with `what` after `limit`.
pub fn wait<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < end, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A temporary directory, removed when dropped.
pub fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("tracer-test-")
        .tempdir()
        .unwrap_or_else(|error| panic!("temporary directory: {error}"))
}

/// A free port.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap_or_else(|error| panic!("free port: {error}"));
    listener.local_addr().unwrap_or_else(|error| panic!("free port: {error}")).port()
}

/// A deterministic pseudo-random generator (xorshift).
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// Every seed gives its own sequence.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next one, less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_operations_that_were_not_seen_explain_requests_that_differ() {
        let lost = |reason: &str, count| (reason.to_owned(), count);
        let some = [lost("hook_skipped", 2.0), lost("ring_full_op", 1.0), lost("symbols_stuck", 50.0)];
        assert!((operations_lost(&some) - 3.0).abs() < 1e-9);
        assert!(operations_lost(&[lost("records_not_written", 9.0), lost("requests_unnamed", 9.0)]) < 1e-9);
    }
}
