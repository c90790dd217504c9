//! What the watchdog's thread and the others tell each other: atomics, so that nobody waits for anybody.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::shed::Level;

/// Shared state; every part of it can be read and written from any thread without waiting.
#[derive(Debug, Default)]
pub struct Status {
    beats: AtomicU64,
    stopping: AtomicBool,
    level: AtomicU8,
    memory: AtomicU64,
    cpu_millis: AtomicU64,
    bpf_nanos: AtomicU64,
    detached: OnceLock<String>,
}

impl Status {
    /// The pipeline's thread is alive.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Beats so far.
    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// Somebody asked the agent to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether somebody did.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// How much is to be given up.
    pub fn level(&self) -> Level {
        Level::from_number(self.level.load(Ordering::Relaxed))
    }

    /// Memory of its own, bytes, and CPU over the last seconds, cores' worth, as measured last.
    pub fn usage(&self) -> (u64, f64) {
        (self.memory.load(Ordering::Relaxed), self.cpu_millis.load(Ordering::Relaxed) as f64 / 1e3)
    }

    /// Run time of the BPF programs, nanoseconds, where the kernel counts it.
    pub fn set_bpf(&self, nanos: u64) {
        self.bpf_nanos.store(nanos, Ordering::Relaxed);
    }

    /// The same.
    pub fn bpf(&self) -> u64 {
        self.bpf_nanos.load(Ordering::Relaxed)
    }

    /// Why every program was detached, if they were.
    pub fn detached(&self) -> Option<&str> {
        self.detached.get().map(String::as_str)
    }

    pub(super) fn measured(&self, level: Level, memory: u64, cpu: f64) {
        self.level.store(level as u8, Ordering::Relaxed);
        self.memory.store(memory, Ordering::Relaxed);
        self.cpu_millis.store((cpu * 1e3) as u64, Ordering::Relaxed);
    }

    /// Says that everything was detached; the first reason stays.
    pub fn set_detached(&self, why: &str) {
        let _ = self.detached.set(why.to_owned());
    }
}
