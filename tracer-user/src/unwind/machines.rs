//! Tables of code that processes made while running: which process has them, and when they are made again.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHasher};
use tracer_common::unwind::{FileKey, Rule};

use super::generated::{self, CODE};
use super::store::{Maps, Store};
use crate::runtimes::hotspot::Hotspot;
use crate::runtimes::hotspot::code_cache::Blob;
use crate::runtimes::python_code::ProcessMemory;

/// Most machines with a table.
const MACHINES: usize = 256;
/// Most processes that are known to run none.
const OTHERS: usize = 4096;
/// After this such a process may run one: its number may be another's by now.
const AGAIN: Duration = Duration::from_secs(60);
/// Between two looks at a machine's code: after one that found new code, and at most; and so many times what the last one took.
const SOON: Duration = Duration::from_millis(100);
const LATER: Duration = Duration::from_secs(1);
const SHARE: u32 = 50;
/// Looks that walks ask for: after each in vain the next one may come half as soon, so many times.
const FRUITLESS: u32 = 4;
/// A machine whose table was not used within so many units of the clock (about seconds) is not looked at.
const IDLE: u32 = 5;

/// Most rows of one machine; a large server has 300 000. And most of all machines that are kept for the next time, 24 bytes each.
const ROWS: usize = 1 << 20;
const KEPT: usize = 1 << 20;

/// A blob, and its rows.
type Piece = (Blob, Vec<(u64, Rule)>);

/// A machine with a table.
#[derive(Debug)]
struct Machine {
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

/// What a look at a machine found.
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

impl Machine {
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
                generated::rows(&blob, &code, |at, rule| rows.push((at, rule)));
                (blob, rows)
            });
            all.extend_from_slice(&rows);
            pieces.insert(blob.at, (blob, rows));
        }
        (self.fingerprint, self.pieces) = (hasher.finish(), pieces);
        Look::Rows(range, all)
    }
}

/// All machines.
#[derive(Debug, Default)]
pub(super) struct Machines {
    is_wanted: bool,
    known: HashMap<u32, Machine>,
    others: HashMap<u32, Instant>,
    made: u64,
}

impl Machines {
    /// None yet, and none ever unless they are wanted.
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { is_wanted, ..Self::default() }
    }

    /// Tables made.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// A walk met code of process `tgid` that neither the frame pointer nor its table leads out of.
    pub(super) fn serve(
        &mut self,
        tgid: u32,
        store: &mut Store,
        maps: &mut impl Maps,
        keys: &RandomState,
        now: (Instant, u32),
    ) {
        if let Some(machine) = self.known.get_mut(&tgid)
            && store.knows(FileKey::generated(tgid))
        {
            let wait = SOON * (1 << machine.fruitless.min(FRUITLESS));
            if now.0.saturating_duration_since(machine.looked) >= wait {
                machine.fruitless = machine.fruitless.saturating_add(1);
                self.refresh(tgid, store, maps, keys, now);
            }
            return;
        }
        let room = self.known.len() < MACHINES || self.known.contains_key(&tgid);
        let room = room && self.is_wanted;
        if let Some(hotspot) = room.then(|| Hotspot::of(tgid)).flatten() {
            let machine = Machine {
                hotspot,
                fingerprint: 0,
                pieces: FxHashMap::default(),
                rows: 0,
                next: now.0,
                wait: SOON,
                looked: now.0,
                fruitless: 0,
            };
            self.known.insert(tgid, machine);
            return self.refresh(tgid, store, maps, keys, now);
        }
        self.known.remove(&tgid);
        self.leave_out(tgid, store, maps, now);
    }

    /// How long until a machine's time has come; at most `longest`.
    pub(super) fn until_next(&self, longest: Duration) -> Duration {
        let now = Instant::now();
        let left = self.known.values().map(|machine| machine.next.saturating_duration_since(now)).min();
        left.map_or(longest, |left| left.min(longest))
    }

    /// Looks at the machines whose time has come.
    pub(super) fn tick(&mut self, store: &mut Store, maps: &mut impl Maps, keys: &RandomState, now: (Instant, u32)) {
        self.others.retain(|tgid, since| {
            let over = now.0.saturating_duration_since(*since) >= AGAIN;
            if over {
                store.forget(maps, FileKey::generated(*tgid), now.0);
            }
            !over
        });
        let due = |machine: &Machine| machine.next <= now.0;
        let due: Vec<u32> = self.known.iter().filter(|(_, machine)| due(machine)).map(|(tgid, _)| *tgid).collect();
        for tgid in due {
            self.refresh(tgid, store, maps, keys, now);
        }
    }

    /// Makes a machine's table again where its code changed.
    fn refresh(&mut self, tgid: u32, store: &mut Store, maps: &mut impl Maps, keys: &RandomState, now: (Instant, u32)) {
        let kept: usize = self.known.iter().filter(|(other, _)| **other != tgid).map(|(_, machine)| machine.rows).sum();
        let Some(machine) = self.known.get_mut(&tgid) else { return };
        let (key, begin) = (FileKey::generated(tgid), Instant::now());
        let used = maps.used(key).map_or(0, |used| now.1.wrapping_sub(used));
        // Clocks of other CPUs may be ahead.
        let is_idle = (IDLE..u32::MAX / 2).contains(&used) && Path::new(&format!("/proc/{tgid}")).exists();
        let look = if is_idle { Look::Same } else { machine.look() };
        let done = match look {
            Look::Gone => Err("its code can no longer be read".to_owned()),
            Look::TooLarge => Err("it is too much".to_owned()),
            Look::Same => {
                machine.wait = if is_idle { LATER } else { (machine.wait * 2).min(LATER) };
                Ok(())
            }
            Look::Rows(range, rows) => {
                (machine.wait, machine.fruitless, machine.rows) = (SOON, 0, rows.len());
                if kept + machine.rows > KEPT {
                    // The next look begins from nothing.
                    (machine.pieces, machine.rows) = (FxHashMap::default(), 0);
                }
                self.made += 1;
                let table = generated::table(&range, rows, store.rules());
                store.put(maps, key, keys.hash_one((tgid, self.made)), &table, now)
            }
        };
        let took = begin.elapsed();
        log::trace!("code of process {tgid}: {} rows, {:.1} ms", machine.rows, took.as_secs_f64() * 1e3);
        machine.looked = now.0;
        machine.next = now.0 + machine.wait.max(took * SHARE);
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
                store.forget(maps, FileKey::generated(tgid), now.0);
            }
        }
        self.others.insert(tgid, now.0);
        if let Err(why) = store.without(maps, FileKey::generated(tgid), now.1) {
            log::debug!("code of process {tgid}: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use tracer_common::unwind::FILE_FRAME_POINTERS;

    use super::*;
    use crate::unwind::store::Bounds;
    use crate::unwind::store::tests::Fake;

    #[test]
    fn code_of_other_processes_keeps_to_frame_pointers_and_is_asked_for_again_later() {
        let (mut told, mut store, keys) = (Fake::default(), Store::new(Bounds { bytes: 1 << 20 }), RandomState::new());
        let mut machines = Machines::new(true);
        let (own, begin) = (std::process::id(), Instant::now());
        machines.serve(own, &mut store, &mut told, &keys, (begin, 7));
        let entry = told.files.get(&FileKey::generated(own)).copied().expect("an answer");
        assert_eq!((entry.state, entry.used), (FILE_FRAME_POINTERS, 7));
        machines.tick(&mut store, &mut told, &keys, (begin + AGAIN / 2, 8));
        assert_eq!(told.files.len(), 1);
        machines.tick(&mut store, &mut told, &keys, (begin + AGAIN, 9));
        assert!(told.files.is_empty() && !store.knows(FileKey::generated(own)));
    }

    #[test]
    fn of_too_many_processes_all_are_asked_for_again() {
        let (mut told, mut store, keys) = (Fake::default(), Store::new(Bounds { bytes: 1 << 20 }), RandomState::new());
        let mut machines = Machines::new(false);
        for tgid in 1..=OTHERS as u32 + 1 {
            machines.serve(tgid, &mut store, &mut told, &keys, (Instant::now(), 1));
        }
        assert_eq!((machines.others.len(), told.files.len()), (1, 1));
        assert_eq!(machines.until_next(LATER), LATER);
    }
}
