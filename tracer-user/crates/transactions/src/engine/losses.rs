//! Lost records: absence of evidence inside a loss window, and for long after it, proves nothing.

use smallvec::SmallVec;
use tracer_common::event::{Header, OP_TX, Op};
use tracer_model::{Nanos, Side};

use crate::engine::Engine;
use crate::evidence::Evidence;
use crate::slot::Slot;
use crate::strategies::thread_pool;
use crate::thread::Thread;

impl Engine {
    /// Records of operations were lost after `since`; until `until` there may be work for the requests they reported.
    /// `since` 0: tracing begins, nothing was lost.
    pub fn lost(&mut self, since: Nanos, until: Nanos) {
        if since == 0 {
            self.world.losses.begun_until = self.world.losses.begun_until.max(until);
        } else {
            self.world.losses.note(since, until);
            self.world.processes.affinity.lost(since);
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

    /// The thread's operations up to number `nth` were counted in the kernel: nothing is lost, but less is known of it.
    pub(super) fn follow_counted(&mut self, header: &Header, nth: u32) {
        let doubted = self.world.thread(header.tid, header.tgid, header.nanos).map(|thread| {
            thread.follow(nth);
            thread.lose()
        });
        self.tasks.lose(header.tgid, header.nanos);
        if let Some(doubted) = doubted {
            self.doubt_requests(header.tid, doubted);
        }
    }

    /// Records of thread `tid` are missing: `doubted` may not be its only requests.
    pub(super) fn doubt(&mut self, tid: u32, doubted: SmallVec<[Slot; 2]>) {
        self.world.counters.threads_doubted += 1;
        self.doubt_requests(tid, doubted);
    }

    /// `doubted` may not be the only requests of thread `tid`.
    fn doubt_requests(&mut self, tid: u32, doubted: SmallVec<[Slot; 2]>) {
        thread_pool::release(&mut self.world, tid);
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
        if live.client.cause.evidence == Evidence::Begins
            && let Some(why) = losses.cover(live.start).or_else(served)
        {
            live.client.cause.evidence = why;
        }
        if live.client.cause.evidence == Evidence::AfterPoll && losses.cover(live.start) == Some(Evidence::EventsLost) {
            live.client.cause.evidence = Evidence::MaybeOver;
        }
    }
}
