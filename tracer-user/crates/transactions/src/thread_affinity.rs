//! What is known of processes and their threads about whether requests stay on the threads that read them.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::TableUse;
use tracer_model::Nanos;

use super::slot::Slot;

/// Requests that must stay on their threads, while others are open, before a process is known to keep them there.
pub(super) const SEEN: u32 = 8;
/// The same once a verdict that they move was withdrawn: what moves seldom stays a few times in a row, too.
pub(super) const SEEN_AGAIN: u32 = 256;

/// What a thread was seen to do with requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestUse {
    /// It made a call for a request that it held or had just read, as far as its thread shows.
    pub(super) calls: bool,
    /// It sent a call or an answer.
    pub(super) sends: bool,
    /// It read the reply of a call that another thread had sent, before it sent anything itself.
    pub(super) collects: bool,
    /// It shares requests or calls with other threads.
    pub(super) crosses: bool,
}

impl RequestUse {
    pub(super) fn moves(self) -> bool {
        self.calls && self.crosses
    }

    /// It works for the request that it holds: returns whether it crosses.
    pub(super) fn works(&mut self) -> bool {
        self.calls = true;
        self.crosses
    }

    /// It sent something: returns whether it crosses. A thread that collects replies for others and sends is no mere
    /// reader.
    pub(super) fn sent(&mut self) -> bool {
        self.sends = true;
        self.crosses |= self.collects;
        self.crosses
    }
}

/// What is known of a process.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// Requests with calls that stayed on their thread while other threads held requests.
    pub(super) stayed: u32,
    /// A thread crossed.
    pub(super) crossed: bool,
    /// A thread that crosses makes calls for the requests it holds: requests move between threads.
    pub(super) moves: bool,
    /// When that was seen; 0 if it is known of the process's program.
    pub(super) seen_to_move: Nanos,
    /// That was seen while records were missing: a connection whose reply is missing pairs its next reply with the call
    /// before, which another thread may have sent. To be seen again once nothing is missing.
    pub(super) provisional: bool,
    /// Such a verdict was withdrawn.
    pub(super) withdrawn: bool,
    /// Requests that may be open, until it is known that requests stay.
    pub(super) open: SmallVec<[Slot; 4]>,
    /// Others may be open, too: it was known once that requests stay.
    pub(super) others_open: bool,
    /// When requests last seemed to move while records were missing.
    pub(super) unjudged: Nanos,
    /// A thread that sends read the reply of a call that another one had sent: calls move between threads.
    pub(super) calls_move: bool,
    /// The first thread that read a request or sent a call, and whether there are others.
    pub(super) first: u32,
    pub(super) several: bool,
}

impl Process {
    pub(super) fn is_known(&self) -> bool {
        self.moves || self.stays_known()
    }

    fn stays_known(&self) -> bool {
        self.stayed >= if self.withdrawn { SEEN_AGAIN } else { SEEN }
    }

    /// A thread read a request or sent a call.
    pub(super) fn works(&mut self, tid: u32) {
        if self.first == 0 {
            self.first = tid;
        }
        self.several |= self.first != tid;
    }

    /// A request stayed on its thread.
    pub(super) fn stays(&mut self) {
        self.stayed = self.stayed.saturating_add(1);
        if self.is_known() {
            (self.open, self.others_open) = (SmallVec::new(), false);
        }
    }

    /// Withdraws that requests move.
    pub(super) fn withdraw(&mut self, now: Nanos) {
        (self.moves, self.seen_to_move, self.provisional) = (false, 0, false);
        (self.withdrawn, self.others_open) = (true, true);
        self.is_doubtful(now);
    }

    /// A request perhaps did not stay, or it only seems so because records are missing: what was seen before proves no
    /// longer that requests stay.
    pub(super) fn is_doubtful(&mut self, now: Nanos) {
        self.others_open |= self.stays_known();
        (self.crossed, self.stayed, self.unjudged) = (true, 0, now);
    }
}

/// What is known of all processes that serve requests.
#[derive(Debug, Default)]
pub(super) struct ThreadAffinity {
    pub(super) processes: FxHashMap<u32, Process>,
    /// Requests of processes that found no room.
    pub(super) reached: u64,
}

impl ThreadAffinity {
    /// Use of the table.
    pub(super) fn table_use(&self, limit: usize) -> TableUse {
        TableUse::new(self.processes.len(), limit, self.reached)
    }

    /// Records were lost after `since`: verdicts of that time are provisional.
    pub(super) fn lost(&mut self, since: Nanos) {
        for process in self.processes.values_mut() {
            process.provisional |= process.moves && process.seen_to_move >= since;
        }
    }

    /// The process has exited.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.processes.remove(&tgid);
    }

    /// Releases the memory of tables that are mostly empty.
    pub(super) fn shrink(&mut self) {
        self.processes.shrink_excess();
    }

    /// Whether calls of the process move between threads: who reads a reply need not work for the call's request.
    pub(super) fn calls_move(&self, tgid: u32) -> bool {
        self.processes.get(&tgid).is_some_and(|process| process.calls_move)
    }

    /// Whether requests of the process move between threads.
    pub(super) fn moves(&self, tgid: u32) -> bool {
        self.processes.get(&tgid).is_some_and(|process| process.moves)
    }
}
