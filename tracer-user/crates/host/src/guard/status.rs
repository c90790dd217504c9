//! State shared between the watchdog and the other threads: atomics, so that no thread waits for another.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::shed::Level;
use super::wakeup_fd::WakeupFd;

/// Shared state; any thread reads and writes any part of it without waiting.
#[derive(Debug)]
pub struct Status {
    beats: AtomicU64,
    stopping: AtomicBool,
    level: AtomicU8,
    memory: AtomicU64,
    cpu_millis: AtomicU64,
    bpf_nanos: AtomicU64,
    detached: OnceLock<String>,
    /// Wakes the pipeline's thread; `None`: there was no descriptor for it, and that thread must look by itself.
    wakeup: Option<WakeupFd>,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            beats: AtomicU64::default(),
            stopping: AtomicBool::default(),
            level: AtomicU8::default(),
            memory: AtomicU64::default(),
            cpu_millis: AtomicU64::default(),
            bpf_nanos: AtomicU64::default(),
            detached: OnceLock::default(),
            wakeup: WakeupFd::new().ok(),
        }
    }
}

impl Status {
    /// Heartbeat of the pipeline's thread.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Heartbeats so far.
    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// Asks the agent to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Has the pipeline's thread look for what there is to do, if it rests for long.
    pub fn wake(&self) {
        if let Some(wakeup) = &self.wakeup {
            wakeup.wake();
        }
    }

    /// Readable after [`Self::wake`], while it is armed.
    pub fn wakeup(&self) -> Option<&WakeupFd> {
        self.wakeup.as_ref()
    }

    /// Whether the agent was asked to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The load shedding level.
    pub fn level(&self) -> Level {
        Level::from_number(self.level.load(Ordering::Relaxed))
    }

    /// Last measured memory of its own, bytes, and CPU over the last seconds, cores.
    pub fn usage(&self) -> (u64, f64) {
        (self.memory.load(Ordering::Relaxed), self.cpu_millis.load(Ordering::Relaxed) as f64 / 1e3)
    }

    /// Sets the run time of the BPF programs, nanoseconds, if the kernel counts it.
    pub fn set_bpf(&self, nanos: u64) {
        self.bpf_nanos.store(nanos, Ordering::Relaxed);
    }

    /// Run time of the BPF programs, nanoseconds; 0 if the kernel does not count it.
    pub fn bpf(&self) -> u64 {
        self.bpf_nanos.load(Ordering::Relaxed)
    }

    /// Why every program was detached, if it happened.
    pub fn detached(&self) -> Option<&str> {
        self.detached.get().map(String::as_str)
    }

    pub(super) fn measured(&self, level: Level, memory: u64, cpu: f64) {
        self.memory.store(memory, Ordering::Relaxed);
        self.cpu_millis.store((cpu * 1e3) as u64, Ordering::Relaxed);
        if self.level.swap(level as u8, Ordering::Relaxed) != level as u8 {
            self.wake();
        }
    }

    /// Records that everything was detached; the first reason stays.
    pub fn set_detached(&self, why: &str) {
        let _ = self.detached.set(why.to_owned());
    }
}
