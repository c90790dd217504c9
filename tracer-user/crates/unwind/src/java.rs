//! Unwind tables of the code that Java's virtual machine made: which process has them, and when they are made again.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHasher};
use tracer_common::unwind::{FileKey, Rule};
use tracer_runtimes::hotspot::Hotspot;
use tracer_runtimes::hotspot::code_cache::CodeBlob;
use tracer_runtimes::process_memory::ProcessMemory;

use super::java_code::{self, CODE};
use super::store::{Maps, Store};

/// Most processes with a table.
const PROCESSES: usize = 256;
/// Most processes that are known not to run it.
const OTHERS: usize = 4096;
/// After this such a process may run Java: its number may be another's by now.
const AGAIN: Duration = Duration::from_secs(60);
/// Between two looks at a process's code: after one that found new code, and at most; and so many times what the last one took.
const SOON: Duration = Duration::from_millis(100);
const LATER: Duration = Duration::from_secs(1);
const SHARE: u32 = 50;
/// Looks that walks ask for: after each in vain the next one may come half as soon, so many times.
const FRUITLESS: u32 = 4;
/// A process whose table was not used within so many units of the clock (about seconds) is not looked at.
const IDLE: u32 = 5;

/// Most rows of one process; a large server has 300 000. And most of all processes that are kept for the next time, 24 bytes each.
const ROWS: usize = 1 << 20;
const KEPT: usize = 1 << 20;

/// A blob, and its rows.
type Piece = (CodeBlob, Vec<(u64, Rule)>);

/// A process that runs Java.
#[derive(Debug)]
struct JavaProcess {
    hotspot: Hotspot,
    /// Of what its code looked like.
    fingerprint: u64,
    /// By where the blob begins, and the rows of all.
    pieces: FxHashMap<u64, Piece>,
    rows: usize,
    /// When it is looked at next, and how long that is after the last time.
    next: Instant,
    wait: Duration,
    /// When it was looked at last, and how often in vain, because a walk met code that its table does not know.
    looked: Instant,
    fruitless: u32,
}

/// What a look at a process found.
enum Look {
    /// Its code can no longer be read.
    Gone,
    /// It is more than is believed.
    TooLarge,
    /// Nothing changed.
    Same,
    /// All rows, and what they cover.
    Rows(Range<u64>, Vec<(u64, Rule)>),
}

impl JavaProcess {
    fn look(&mut self) -> Look {
        let Some((memory, cache)) = self.hotspot.code() else { return Look::Gone };
        let Some(segments) = cache.segments(memory) else { return Look::Gone };
        let mut hasher = FxHasher::default();
        segments.hash(&mut hasher);
        if hasher.finish() == self.fingerprint {
            return Look::Same;
        }
        let blobs = cache.blobs(memory, &segments);
        let (mut pieces, mut all) = (FxHashMap::default(), Vec::new());
        // Blobs do not overlap, if they are what they say.
        let range = cache.range();
        let mut left = range.end - range.start;
        for blob in blobs {
            let bytes = blob.code.end - blob.code.start;
            if all.len() > ROWS || bytes > left {
                return Look::TooLarge;
            }
            left -= bytes;
            let known = self.pieces.remove(&blob.at).filter(|(known, _)| *known == blob);
            let (blob, rows) = known.unwrap_or_else(|| {
                let mut code = vec![0; bytes.min(CODE) as usize];
                if !memory.read(blob.code.start, &mut code) {
                    code.clear();
                }
                let mut rows = Vec::new();
                java_code::rows(&blob, &code, |at, rule| rows.push((at, rule)));
                (blob, rows)
            });
            all.extend_from_slice(&rows);
            pieces.insert(blob.at, (blob, rows));
        }
        (self.fingerprint, self.pieces) = (hasher.finish(), pieces);
        Look::Rows(range, all)
    }
}

/// All processes that run Java, and those that were asked about and do not.
#[derive(Debug, Default)]
pub(super) struct JavaProcesses {
    is_wanted: bool,
    known: HashMap<u32, JavaProcess>,
    others: HashMap<u32, Instant>,
    made: u64,
}

impl JavaProcesses {
    /// None yet, and none ever unless they are wanted.
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { is_wanted, ..Self::default() }
    }

    /// Tables made.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// A walk met code that process `tgid` made, and knows no table for it, or one without this code.
    pub(super) fn serve(
        &mut self,
        tgid: u32,
        store: &mut Store,
        maps: &mut impl Maps,
        keys: &RandomState,
        now: (Instant, u32),
    ) {
        if let Some(process) = self.known.get_mut(&tgid)
            && store.knows(FileKey::jit_code(tgid))
        {
            let wait = SOON * (1 << process.fruitless.min(FRUITLESS));
            if now.0.saturating_duration_since(process.looked) >= wait {
                process.fruitless = process.fruitless.saturating_add(1);
                self.refresh(tgid, store, maps, keys, now);
            }
            return;
        }
        let room = self.known.len() < PROCESSES || self.known.contains_key(&tgid);
        let room = room && self.is_wanted;
        if let Some(hotspot) = room.then(|| Hotspot::of(tgid)).flatten() {
            let process = JavaProcess {
                hotspot,
                fingerprint: 0,
                pieces: FxHashMap::default(),
                rows: 0,
                next: now.0,
                wait: SOON,
                looked: now.0,
                fruitless: 0,
            };
            self.known.insert(tgid, process);
            return self.refresh(tgid, store, maps, keys, now);
        }
        self.known.remove(&tgid);
        self.leave_out(tgid, store, maps, now);
    }

    /// How long until a process's time has come; at most `longest`.
    pub(super) fn until_next(&self, longest: Duration) -> Duration {
        let now = Instant::now();
        let left = self.known.values().map(|process| process.next.saturating_duration_since(now)).min();
        left.map_or(longest, |left| left.min(longest))
    }

    /// Looks at the processes whose time has come.
    pub(super) fn tick(&mut self, store: &mut Store, maps: &mut impl Maps, keys: &RandomState, now: (Instant, u32)) {
        self.others.retain(|tgid, since| {
            let over = now.0.saturating_duration_since(*since) >= AGAIN;
            if over {
                store.forget(maps, FileKey::jit_code(*tgid), now.0);
            }
            !over
        });
        let due = |process: &JavaProcess| process.next <= now.0;
        let due: Vec<u32> = self.known.iter().filter(|(_, process)| due(process)).map(|(tgid, _)| *tgid).collect();
        for tgid in due {
            self.refresh(tgid, store, maps, keys, now);
        }
    }

    /// Makes a process's table again where its code changed.
    fn refresh(&mut self, tgid: u32, store: &mut Store, maps: &mut impl Maps, keys: &RandomState, now: (Instant, u32)) {
        let kept: usize = self.known.iter().filter(|(other, _)| **other != tgid).map(|(_, process)| process.rows).sum();
        let Some(process) = self.known.get_mut(&tgid) else { return };
        let (key, begin) = (FileKey::jit_code(tgid), Instant::now());
        let used = maps.used(key).map_or(0, |used| now.1.wrapping_sub(used));
        // Clocks of other CPUs may be ahead.
        let is_idle = (IDLE..u32::MAX / 2).contains(&used) && Path::new(&format!("/proc/{tgid}")).exists();
        let look = if is_idle { Look::Same } else { process.look() };
        let done = match look {
            Look::Gone => Err("its code can no longer be read".to_owned()),
            Look::TooLarge => Err("it is too much".to_owned()),
            Look::Same => {
                process.wait = if is_idle { LATER } else { (process.wait * 2).min(LATER) };
                Ok(())
            }
            Look::Rows(range, rows) => {
                (process.wait, process.fruitless, process.rows) = (SOON, 0, rows.len());
                if kept + process.rows > KEPT {
                    // The next look begins from nothing.
                    (process.pieces, process.rows) = (FxHashMap::default(), 0);
                }
                self.made += 1;
                let table = java_code::table(&range, rows, store.rules());
                store.put(maps, key, keys.hash_one((tgid, self.made)), &table, now)
            }
        };
        let took = begin.elapsed();
        log::trace!("code of process {tgid}: {} rows, {:.1} ms", process.rows, took.as_secs_f64() * 1e3);
        process.looked = now.0;
        process.next = now.0 + process.wait.max(took * SHARE);
        if let Err(why) = done {
            log::debug!("no unwind table for the code of process {tgid}: {why}");
            self.known.remove(&tgid);
            self.leave_out(tgid, store, maps, now);
        }
    }

    /// Leaves the code of a process to frame pointers, for a while.
    fn leave_out(&mut self, tgid: u32, store: &mut Store, maps: &mut impl Maps, now: (Instant, u32)) {
        if self.others.len() >= OTHERS {
            for (tgid, _) in self.others.drain() {
                store.forget(maps, FileKey::jit_code(tgid), now.0);
            }
        }
        self.others.insert(tgid, now.0);
        if let Err(why) = store.without(maps, FileKey::jit_code(tgid), now.1) {
            log::debug!("code of process {tgid}: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use tracer_common::unwind::FILE_FRAME_POINTERS;

    use super::*;
    use crate::store::Bounds;
    use crate::store::tests::Fake;

    #[test]
    fn code_of_other_processes_keeps_to_frame_pointers_and_is_asked_for_again_later() {
        let (mut maps, mut store, keys) = (Fake::default(), Store::new(Bounds { bytes: 1 << 20 }), RandomState::new());
        let mut java = JavaProcesses::new(true);
        let (own, begin) = (std::process::id(), Instant::now());
        java.serve(own, &mut store, &mut maps, &keys, (begin, 7));
        let entry = maps.files.get(&FileKey::jit_code(own)).copied().expect("an answer");
        assert_eq!((entry.state, entry.used), (FILE_FRAME_POINTERS, 7));
        java.tick(&mut store, &mut maps, &keys, (begin + AGAIN / 2, 8));
        assert_eq!(maps.files.len(), 1);
        java.tick(&mut store, &mut maps, &keys, (begin + AGAIN, 9));
        assert!(maps.files.is_empty() && !store.knows(FileKey::jit_code(own)));
    }

    #[test]
    fn of_too_many_processes_all_are_asked_for_again() {
        let (mut maps, mut store, keys) = (Fake::default(), Store::new(Bounds { bytes: 1 << 20 }), RandomState::new());
        let mut java = JavaProcesses::new(false);
        for tgid in 1..=OTHERS as u32 + 1 {
            java.serve(tgid, &mut store, &mut maps, &keys, (Instant::now(), 1));
        }
        assert_eq!((java.others.len(), maps.files.len()), (1, 1));
        assert_eq!(java.until_next(LATER), LATER);
    }
}
