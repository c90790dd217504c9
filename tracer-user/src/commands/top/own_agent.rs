//! An agent of `tracer top`'s own, for a host where none runs: it ends with the program that started it, however that ends.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::table::Snapshot;
use crate::commands::Failure;
use crate::commands::api_client::Client;

/// How long it may take to be ready: on old kernels its programs take a while to verify.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long it may take to detach before it is killed, which the kernel follows by detaching.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks whether it is ready, or gone.
const LOOK: Duration = Duration::from_millis(100);
/// Most bytes of what it wrote that are shown if it fails.
const SHOWN: usize = 2000;

/// The agent, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct OwnAgent {
    agent: Child,
    /// What it writes: the terminal is the table's.
    log: File,
}

impl OwnAgent {
    /// Starts an agent that listens where `client` asks, with the defaults of `tracer run`. To be called by the main
    /// thread: the kernel ends the agent when the thread that started it ends.
    pub(super) fn start(client: &Client) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::Running(format!("cannot start an agent: {error}"));
        let log = memory_file().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["run", "--log", "warn", "--listen", client.host()]);
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        command.stdout(log.try_clone().map_err(failed)?).stderr(log.try_clone().map_err(failed)?);
        // SAFETY: prctl is async-signal-safe and touches no memory of this process.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Ok(Self { agent: command.spawn().map_err(failed)?, log })
    }

    /// Waits until it answers; `None` if `stop` is set before.
    pub(super) fn ready(&mut self, client: &Client, stop: &AtomicBool) -> Result<Option<Snapshot>, Failure> {
        let end = Instant::now() + READY_WITHIN;
        while !stop.load(Ordering::Relaxed) {
            if let Ok(Some(status)) = self.agent.try_wait() {
                return Err(Failure::Running(format!("its own agent ended ({status}):\n{}", self.written())));
            }
            if client.is_ready() {
                return client.snapshot().map(Some).map_err(Failure::Running);
            }
            if Instant::now() >= end {
                let seconds = READY_WITHIN.as_secs();
                return Err(Failure::Running(format!(
                    "its own agent was not ready in {seconds} s:\n{}",
                    self.written()
                )));
            }
            std::thread::sleep(LOOK);
        }
        Ok(None)
    }

    /// The end of what it wrote.
    fn written(&mut self) -> String {
        let mut bytes = Vec::new();
        let length = self.log.metadata().map_or(0, |meta| meta.len());
        let from = length.saturating_sub(SHOWN as u64);
        let read =
            self.log.seek(SeekFrom::Start(from)).and_then(|_| (&self.log).take(SHOWN as u64).read_to_end(&mut bytes));
        match read {
            Ok(_) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            Err(error) => format!("(what it wrote cannot be read: {error})"),
        }
    }
}

/// A file without a name, in memory.
fn memory_file() -> std::io::Result<File> {
    // SAFETY: the name is a C string; the descriptor is new, and owned from here on.
    unsafe {
        match libc::memfd_create(c"tracer-top".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(std::io::Error::last_os_error()),
            descriptor => Ok(File::from_raw_fd(descriptor)),
        }
    }
}

impl Drop for OwnAgent {
    fn drop(&mut self) {
        let Ok(pid) = i32::try_from(self.agent.id()) else { return };
        // SAFETY: a system call; the child has not been waited for, so the number is its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let end = Instant::now() + END_WITHIN;
        while Instant::now() < end {
            if !matches!(self.agent.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK);
        }
        // Errors mean that it is gone.
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}
