//! Detects ended threads and processes whose exit record was lost; they would otherwise be kept for ever.
//!
//! The agent looks up threads and processes that were silent for a while in `/proc`, a bounded number per second. For
//! one that is gone it synthesizes the kernel's exit record with the counters it already has: the pipeline treats it
//! like any other, and a recording contains it.

use std::collections::VecDeque;
use std::path::Path;

use tracer_common::event::{Header, Kind, THREAD_STATS_DEAD, ThreadStats};
use tracer_model::Nanos;

use crate::pipeline::Pipeline;

/// Silence after which a thread is looked up, and time between two sweeps, nanoseconds.
const SILENCE: Nanos = 10_000_000_000;
/// Maximum look-ups per second: some 5 µs each.
const LOOKUPS: usize = 1024;
/// Target of `/proc/self/ns/pid` in the initial namespace; records carry the ids of that namespace.
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";

/// Pending look-ups, and threads found gone.
pub(super) struct Sweep {
    /// Whether `/proc` shows the ids in the records.
    able: bool,
    next_round: Nanos,
    /// Thread and process.
    todo: VecDeque<(u32, u32)>,
    /// Gone at the last look-up. Their own exit record may have been under way then; it has arrived since.
    gone: Vec<(u32, u32)>,
    /// Unreported exits detected here.
    pub(super) found: u64,
}

impl Sweep {
    pub(super) fn new() -> Self {
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let able = namespace == Path::new(INITIAL_NAMESPACE);
        Self { able, next_round: 0, todo: VecDeque::new(), gone: Vec::new(), found: 0 }
    }

    /// Call about once a second, with the rings empty: returns the records of exits that were lost.
    pub(super) fn tick(&mut self, pipeline: &Pipeline) -> Vec<Vec<u8>> {
        if !self.able {
            return Vec::new();
        }
        let now = pipeline.now();
        let silent = now.saturating_sub(SILENCE);
        let gone = std::mem::take(&mut self.gone);
        let records: Vec<_> = gone.iter().filter_map(|who| end(pipeline, *who, silent, now)).collect();
        self.found += records.len() as u64;
        if self.todo.is_empty() && now >= self.next_round {
            self.next_round = now + SILENCE;
            self.todo = pipeline.silent(silent).into();
        }
        for _ in 0..LOOKUPS {
            let Some((tid, tgid)) = self.todo.pop_front() else { break };
            if !Path::new(&format!("/proc/{tgid}/task/{tid}")).exists() {
                self.gone.push((tid, tgid));
            }
        }
        records
    }
}

/// The exit record of a thread, if the pipeline still considers it alive.
fn end(pipeline: &Pipeline, (tid, tgid): (u32, u32), silent: Nanos, now: Nanos) -> Option<Vec<u8>> {
    let counters = match pipeline.followed(tid, tgid) {
        // The thread reported meanwhile: its id was reused.
        Some((_, last_report)) if last_report >= silent => return None,
        Some((counters, _)) => counters,
        // A process without a tracked thread.
        None if tid == tgid && pipeline.knows(tgid) => tracer_common::event::ThreadCounters::default(),
        None => return None,
    };
    let mut comm = [0; 16];
    comm[..7].copy_from_slice(b"unknown");
    let len = ThreadStats::SIZE as u32;
    let header = Header {
        kind: Kind::ThreadStats as u8,
        flags: THREAD_STATS_DEAD,
        len,
        nanos: now,
        tgid,
        tid,
        ..Header::default()
    };
    let mut bytes = vec![0; ThreadStats::SIZE];
    ThreadStats { header, comm, counters }.encode(&mut bytes)?;
    Some(bytes)
}
