//! Lost records: absence of evidence inside a loss window, and for long after it, proves nothing.

use smallvec::SmallVec;
use tracer_common::event::{Header, OP_TX, Op};

use super::engine::Engine;
use super::evidence::Evidence;
use super::open_span::Slot;
use super::thread::Thread;
use crate::model::{Nanos, Side};

/// How long after a loss a process not seen to serve requests may still work for one whose record was lost,
/// nanoseconds. A process that serves requests shows it when it reads the next one.
pub const SUSPECT: Nanos = 60_000_000_000;
/// The same for requests read before tracing began: shorter, because it affects every host at every start.
pub const BEGINNING: Nanos = 10_000_000_000;

/// The latest loss window, extended to the end of its aftermath; and the start of tracing, before which nothing was
/// recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    from: Nanos,
    /// 0: no losses.
    until: Nanos,
    /// Until then there may be work for requests read before tracing began.
    begun_until: Nanos,
}

impl Losses {
    fn note(&mut self, since: Nanos, until: Nanos) {
        if self.until == 0 || since > self.until {
            self.from = since;
        }
        self.until = self.until.max(until);
    }

    /// Why events at or before `at` may have been missed, if so.
    pub(super) fn cover(&self, at: Nanos) -> Option<Evidence> {
        if self.until != 0 && (self.from..=self.until).contains(&at) {
            Some(Evidence::EventsLost)
        } else {
            (at <= self.begun_until).then_some(Evidence::JustBegun)
        }
    }
}

impl Engine {
    /// Records of operations were lost after `since`; until `until` there may be work for the requests they reported.
    /// `since` 0: tracing begins, nothing was lost.
    pub fn lost(&mut self, since: Nanos, until: Nanos) {
        if since == 0 {
            self.world.losses.begun_until = self.world.losses.begun_until.max(until);
        } else {
            self.world.losses.note(since, until);
        }
    }

    /// Detects missing records of a thread; for a thread that is not tracked, any may be missing.
    pub(super) fn follow(&mut self, header: &Header, nth: u32) {
        let followed = self.world.thread(header.tid, header.tgid, header.nanos).map(|thread| thread.follow(nth));
        if matches!(followed, Some(None)) {
            return;
        }
        self.tasks.lose(header.tgid, header.nanos);
        if let Some(doubted) = followed.flatten() {
            self.doubt(header.tid, doubted);
        }
    }

    /// Records of thread `tid` are missing: `doubted` may not be its only requests.
    pub(super) fn doubt(&mut self, tid: u32, doubted: SmallVec<[Slot; 2]>) {
        self.thread_pools.release(&mut self.world, tid);
        self.world.counters.threads_doubted += 1;
        let now = self.world.now;
        if let Some(thread) = self.world.threads.get_mut(&tid) {
            thread.lost_at = now;
        }
        for slot in doubted {
            if let Some(live) = self.world.spans.get_mut(slot) {
                live.alone = false;
            }
        }
    }

    /// An operation that later ones of its connection overtook: replies may have been paired with the wrong requests,
    /// and the threads that read them may have read others.
    pub(super) fn overtaken(&mut self, op: &Op) {
        let Some(connection) = self.world.connections.get(&op.cookie).filter(|known| known.last > op.header.nanos)
        else {
            return;
        };
        let readers: SmallVec<[u32; 4]> = connection
            .spans()
            .filter_map(|slot| self.world.spans.get(slot))
            .map(|live| live.tid)
            .chain([op.header.tid])
            .collect();
        if op.header.flags & OP_TX == 0 && connection.side() == Some(Side::Server) {
            // Its bytes may go unparsed: they can have been a request.
            self.world.serves(op.header.tgid, op.header.nanos);
        }
        for tid in readers {
            if let Some(doubted) = self.world.threads.get_mut(&tid).map(Thread::lose) {
                self.doubt(tid, doubted);
            }
        }
    }

    /// A thread read bytes of `span`. If another thread began to read that request, this thread may now work for it as
    /// well as for those it holds; and if the end of that request is unknown, for one whose start was not seen.
    pub(super) fn reads_for(&mut self, header: &Header, span: Option<Slot>) {
        let Header { tid, tgid, nanos, .. } = *header;
        let Some(live) = span.and_then(|slot| self.world.spans.get(slot)) else { return };
        if live.side != Side::Server || live.tid == tid {
            return;
        }
        let endless = live.request.cut;
        self.world.serves(tgid, nanos);
        let thread = self.world.threads.get_mut(&tid).filter(|thread| endless || !thread.open.is_empty());
        let thread = thread.filter(|thread| !span.is_some_and(|slot| thread.open.contains(&slot)));
        if let Some(doubted) = thread.map(Thread::lose) {
            self.doubt(tid, doubted);
        }
    }

    /// Marks a call as doubtful that was taken for the start of a transaction because its process serves no requests,
    /// if the evidence may have been lost; and one sent after a wait, if the end of its request may have been lost.
    /// Losses are counted with a delay, but before the call is reported.
    pub(super) fn suspect(&mut self, slot: Slot) {
        let (losses, serving) = (self.world.losses, &self.world.processes.serving);
        let Some(live) = self.world.spans.get_mut(slot).filter(|live| live.side == Side::Client) else { return };
        let served =
            || serving.get(&live.pid).is_some_and(|since| *since <= live.start).then_some(Evidence::ServesLater);
        if live.cause.evidence == Evidence::Begins
            && let Some(why) = losses.cover(live.start).or_else(served)
        {
            live.cause.evidence = why;
        }
        if live.cause.evidence == Evidence::AfterPoll && losses.cover(live.start) == Some(Evidence::EventsLost) {
            live.cause.evidence = Evidence::MaybeOver;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_makes_doubtful_what_follows_for_a_while() {
        let mut losses = Losses::default();
        let lost = |losses: &Losses, at| losses.cover(at) == Some(Evidence::EventsLost);
        assert!(losses.cover(1).is_none() && losses.cover(5).is_none());
        losses.note(100, 200);
        assert!(!lost(&losses, 99) && lost(&losses, 100) && lost(&losses, 200) && !lost(&losses, 201));
        // A second loss in between extends the window: from the first until long after the second.
        losses.note(150, 300);
        assert!(lost(&losses, 100) && lost(&losses, 300) && !lost(&losses, 301));
        losses.note(400, 500);
        assert!(!lost(&losses, 350) && lost(&losses, 400));
    }

    #[test]
    fn the_beginning_is_no_loss() {
        let mut losses = Losses { begun_until: 100, ..Losses::default() };
        assert_eq!((losses.cover(100), losses.cover(101)), (Some(Evidence::JustBegun), None));
        losses.note(50, 70);
        assert_eq!(losses.cover(60), Some(Evidence::EventsLost), "what was really lost goes before");
    }
}
