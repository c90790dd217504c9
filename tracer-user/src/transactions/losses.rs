//! When records were lost: what was not seen then, and for long after, is not known not to have been.

use smallvec::SmallVec;
use tracer_common::event::{Header, OP_TX, Op};

use super::engine::Engine;
use super::live::Slot;
use super::thread::Thread;
use crate::model::{Nanos, Side};

/// So long after a loss a process that was not seen to serve requests may be at work for one whose record was lost,
/// nanoseconds. One that serves is seen to when it reads the next.
pub const SUSPECT: Nanos = 60_000_000_000;
/// The same for requests that were read before tracing began: shorter, because it concerns every host every time.
pub const BEGINNING: Nanos = 10_000_000_000;

/// What is said of a call of a process that is not seen to serve any request.
pub const BEGINS: &str = "its process serves no requests: the transaction begins here";
/// The same where that may have been lost.
pub const SUSPECTED: &str = "its process was not seen to serve requests, but events were lost";

/// The latest stretch of time in which records were lost, and after which that is not over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    from: Nanos,
    /// 0: nothing was lost.
    until: Nanos,
}

impl Losses {
    fn note(&mut self, since: Nanos, until: Nanos) {
        if self.until == 0 || since > self.until {
            self.from = since;
        }
        self.until = self.until.max(until);
    }

    /// Whether what happened before `at` may not have been seen.
    pub(super) fn cover(&self, at: Nanos) -> bool {
        self.until != 0 && (self.from..=self.until).contains(&at)
    }
}

impl Engine {
    /// Records of operations were lost on their way, after `since`; up to `until` there may be work for what they told of.
    pub fn lost(&mut self, since: Nanos, until: Nanos) {
        self.losses.note(since, until);
        // Answers to other hosts' lookups may be among them.
        self.lookups_lost(None, self.now.max(since));
    }

    /// Notices that records of a thread are missing; of one there is no room for, any may be.
    pub(super) fn follow(&mut self, header: &Header, nth: u32) {
        let followed = self.thread(header.tid, header.tgid, header.nanos).map(|thread| thread.follow(nth));
        if matches!(followed, Some(None)) {
            return;
        }
        self.entities.lose(header.tgid, header.nanos);
        self.lookups_lost(Some(header.tgid), header.nanos);
        self.wakers.lose(header.tgid);
        if let Some(doubted) = followed.flatten() {
            self.doubt(header.tid, doubted);
        }
    }

    /// Thread `tid` lost something: these are no longer sure to be its only requests.
    pub(super) fn doubt(&mut self, tid: u32, doubted: SmallVec<[Slot; 2]>) {
        self.release(tid);
        self.counters.threads_doubted += 1;
        let now = self.now;
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.lost_at = now;
        }
        for slot in doubted {
            if let Some(live) = self.units.get_mut(slot) {
                live.alone = false;
            }
        }
    }

    /// An operation that later ones of its connection have overtaken: what these were taken to answer, or to ask, may be
    /// another's, and whoever read it may have read others.
    pub(super) fn overtaken(&mut self, op: &Op) {
        let Some(connection) = self.connections.get(&op.cookie).filter(|known| known.last > op.header.nanos) else {
            return;
        };
        let readers: SmallVec<[u32; 4]> = connection
            .units()
            .filter_map(|slot| self.units.get(slot))
            .map(|live| live.tid)
            .chain([op.header.tid])
            .collect();
        if op.header.flags & OP_TX == 0 && connection.side() == Some(Side::Server) {
            // What it read may not be looked at any more: it can have been a request.
            self.serves(op.header.tgid, op.header.nanos);
        }
        for tid in readers {
            if let Some(doubted) = self.threads.get_mut(&tid).map(Thread::lose) {
                self.doubt(tid, doubted);
            }
        }
    }

    /// A thread read bytes of `unit`. Where that is a request that another thread began to read, it may be at work for that
    /// now, not only for those it holds; and where the end of that one is not known, for one whose beginning was not seen.
    pub(super) fn reads_for(&mut self, header: &Header, unit: Option<Slot>) {
        let Header { tid, tgid, nanos, .. } = *header;
        let Some(live) = unit.and_then(|slot| self.units.get(slot)) else { return };
        if live.side != Side::Server || live.tid == tid {
            return;
        }
        let endless = live.request.cut;
        self.serves(tgid, nanos);
        let thread = self.threads.get_mut(&tid).filter(|thread| endless || !thread.open.is_empty());
        let thread = thread.filter(|thread| !unit.is_some_and(|slot| thread.open.contains(&slot)));
        if let Some(doubted) = thread.map(Thread::lose) {
            self.doubt(tid, doubted);
        }
    }

    /// A call was said to be of nobody because its process serves nobody, as far as was seen: not where that may have been
    /// lost. What was lost is counted some time after it was, but before the call is reported.
    pub(super) fn suspect(&mut self, slot: Slot) {
        let (losses, serving) = (self.losses, &self.serving);
        let Some(live) = self.units.get_mut(slot).filter(|live| live.side == Side::Client) else { return };
        let served = || serving.get(&live.pid).is_some_and(|since| *since <= live.start);
        if live.cause.evidence == BEGINS && (losses.cover(live.start) || served()) {
            live.cause.alone = false;
            live.cause.evidence = SUSPECTED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_makes_doubtful_what_follows_for_a_while() {
        let mut losses = Losses::default();
        assert!(!losses.cover(0) && !losses.cover(5));
        losses.note(100, 200);
        assert!(!losses.cover(99) && losses.cover(100) && losses.cover(200) && !losses.cover(201));
        // Another one meanwhile: from the first on, until long after the second.
        losses.note(150, 300);
        assert!(losses.cover(100) && losses.cover(300) && !losses.cover(301));
        losses.note(400, 500);
        assert!(!losses.cover(350) && losses.cover(400));
    }
}
