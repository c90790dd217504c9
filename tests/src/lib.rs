//! Harness of the tests that need root, a kernel and real programs: they start the agent's binary beside programs
//! whose truth is known and compare.
//!
//! A test begins with [`begin`]: without what it needs it prints `SKIPPED name: reason` and ends; with it, it holds a
//! lock so that no two tests of any binary run agents at once. Everything panics rather than returns errors: a panic
//! says where.

pub mod agent;
pub mod bpf;
pub mod cgroup;
pub mod chain;
pub mod faults;
pub mod go;
pub mod haproxy;
pub mod hosts;
pub mod http;
pub mod http2;
pub mod jars;
pub mod load;
pub mod mariadb;
pub mod messaging;
pub mod metrics;
pub mod mosquitto;
pub mod nats;
pub mod nginx;
pub mod peers;
pub mod php;
pub mod postgresql;
pub mod process;
pub mod python;
pub mod rabbitmq;
pub mod recorder;
pub mod redis;
pub mod secrets;
pub mod star;
pub mod stat;
pub mod truth;
pub mod truth_costs;
pub mod units;
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

/// Prints a line. Everything the tests say goes through here.
#[expect(clippy::print_stdout, reason = "tests report what they measured")]
pub fn say(line: &str) {
    println!("{line}");
}

/// Prints a figure that tables are made of (`cargo xtask vm`): what was measured, and the value as it is shown.
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

/// How much of the usual load a test is to make: less in an emulated guest (`TRACER_TEST_SCALE`).
pub fn scale() -> f64 {
    std::env::var("TRACER_TEST_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0)
}

/// How many losses a test may take as the explanation of what differs: in an emulated guest, whose kernel may skip
/// programs (7.2 and later), those the agent counted; elsewhere none.
pub fn explained(lost: &[(String, f64)]) -> f64 {
    if scale() < 1.0 { lost.iter().map(|(_, count)| count).sum() } else { 0.0 }
}

fn lock() -> File {
    let path = std::env::temp_dir().join("tracer-tests.lock");
    let file = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // SAFETY: a descriptor that is open as long as `file` is.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(locked, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
    file
}

/// Where a program is, by `PATH` and the directories of system programs.
pub fn find(program: &str) -> Option<PathBuf> {
    // The system's own first: a shim in front of an interpreter is a shell script.
    let system = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    system.into_iter().chain(std::env::split_paths(&path)).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Waits until `condition` gives something; panics with `what` after `limit`.
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

/// A directory of its own, removed when dropped.
pub fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("tracer-test-")
        .tempdir()
        .unwrap_or_else(|error| panic!("temporary directory: {error}"))
}

/// A port nobody listens on.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap_or_else(|error| panic!("free port: {error}"));
    listener.local_addr().unwrap_or_else(|error| panic!("free port: {error}")).port()
}

/// A generator of numbers that look random and are the same in every run (xorshift).
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
