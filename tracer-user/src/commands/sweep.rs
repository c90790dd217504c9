//! Threads and processes whose end nobody reported: the record of it was lost, and they would be kept for ever.
//!
//! What was silent for a while is looked up in `/proc`, a bounded number a second. For one that is gone the agent makes
//! the record that the kernel would have made, with the books it knows already: the pipeline treats it as any other, and
//! a recording holds it.

use std::collections::VecDeque;
use std::path::Path;

use tracer_common::event::{Header, Kind, TICK_DEAD, Tick};

use crate::model::Nanos;
use crate::pipeline::Pipeline;

/// Silence after which a thread is looked up, and time between two rounds, nanoseconds.
const SILENCE: Nanos = 10_000_000_000;
/// Most look-ups a second: some 5 µs each.
const LOOKUPS: usize = 1024;
/// What `/proc/self/ns/pid` names in the initial namespace, whose ids the records carry.
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";

/// What is to be looked up, and what was found gone.
pub(super) struct Sweep {
    /// Whether `/proc` shows the ids that records carry.
    able: bool,
    next_round: Nanos,
    /// Thread and process.
    todo: VecDeque<(u32, u32)>,
    /// Gone when last looked at. Their own last record may still have been on its way then; it has come since.
    gone: Vec<(u32, u32)>,
    /// Ends that were not reported and found out here.
    pub(super) found: u64,
}

impl Sweep {
    pub(super) fn new() -> Self {
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let able = namespace == Path::new(INITIAL_NAMESPACE);
        Self { able, next_round: 0, todo: VecDeque::new(), gone: Vec::new(), found: 0 }
    }

    /// About once a second, with the rings empty: gives the records of ends that were lost.
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

/// The record of the end of a thread, if it is still thought to live.
fn end(pipeline: &Pipeline, (tid, tgid): (u32, u32), silent: Nanos, now: Nanos) -> Option<Vec<u8>> {
    let books = match pipeline.followed(tid, tgid) {
        // It reported meanwhile: its id was given to another.
        Some((_, heard)) if heard >= silent => return None,
        Some((books, _)) => books,
        // A process without a thread that is followed.
        None if tid == tgid && pipeline.knows(tgid) => tracer_common::event::Books::default(),
        None => return None,
    };
    let mut comm = [0; 16];
    comm[..7].copy_from_slice(b"unknown");
    let len = Tick::SIZE as u32;
    let header = Header { kind: Kind::Tick as u8, flags: TICK_DEAD, len, nanos: now, tgid, tid, ..Header::default() };
    let mut bytes = vec![0; Tick::SIZE];
    Tick { header, comm, books }.encode(&mut bytes)?;
    Some(bytes)
}
