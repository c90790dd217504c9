//! Calls that a thread makes while it holds no request: attributes them by which thread waited for the result.
//!
//! A pool thread makes a call, reads its reply, and with its next wake-up hands the result to the waiting thread, which
//! holds the request: the call was made for that request. Such a *detached call* stays undecided until its thread does
//! something else: sends another call after a hand-back, reads or answers a request, gets work from another thread,
//! exits, or does nothing relevant for a while. Every thread woken until then is a candidate; two that may have waited
//! for the result make it ambiguous, because one of them waited for a lock.

pub(crate) mod wakeup_candidates;

use std::ops::ControlFlow;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_common::event::{Op, WAKE_RESULT, Wake};
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_model::{Nanos, ProtocolId};

use crate::cause::{CallState, Candidate, Taken};
use crate::combine::Vote;
use crate::detached_calls::{DetachedCalls, JobStart, ResultWakeup};
use crate::evidence::{Doubt, Evidence};
use crate::open_span::{CallTime, OpenSpan};
use crate::pools::{JobEnd, Pools};
use crate::request_mobility;
use crate::slot::Slot;
use crate::thread::Target;
use crate::wakeup_candidates::WakeupCandidates;
use crate::world::World;

/// Undecided calls per thread; beyond it the oldest stays without a parent.
const MAX_DETACHED_CALLS: usize = 32;
/// Woken threads remembered per job; with more, none is certain.
const MAX_WAKEUPS: usize = 8;

/// Whether the woken thread gave work to the waking one after `before`, then slept until it was done.
fn given(wake: &Wake, before: Nanos) -> bool {
    wake.given_by == wake.wakee && wake.given_at > before && wake.slept_at > wake.given_at
}

/// Whether the waking thread's work since `before`, or since its last wait, was a job of the woken thread: that one
/// gave the job, or already slept when it began.
fn job(wake: &Wake, before: Nanos) -> bool {
    given(wake, before) || (wake.slept_at != 0 && wake.slept_at < before.max(wake.counters.idle_end))
}

/// The pools of all processes whose threads make calls while they hold no request.
#[derive(Debug, Default)]
pub(crate) struct ThreadPools {
    /// Statistics of their jobs, by process.
    pools: FxHashMap<u32, Pools>,
    /// Processes whose wake-ups are to be traced, until taken.
    pub(crate) wanted: Vec<u32>,
}

impl ThreadPools {
    /// The process has exited.
    pub(crate) fn forget(&mut self, tgid: u32) {
        self.pools.remove(&tgid);
    }

    /// A thread of the process read a request; `shared`: one that also makes calls for others.
    pub(crate) fn read(&mut self, tgid: u32, shared: bool) {
        if let Some(pools) = self.pools.get_mut(&tgid) {
            pools.read(shared);
        }
    }

    /// A thread answered a request for which it had made `calls`.
    pub(crate) fn returned(&mut self, tgid: u32, calls: usize) {
        if let Some(pools) = self.pools.get_mut(&tgid) {
            pools.returned(JobEnd::Answered, calls);
        }
    }

    /// Releases the memory of tables that are mostly empty.
    pub(crate) fn shrink(&mut self) {
        self.pools.shrink_excess();
        self.wanted.shrink_excess();
    }
}

/// The call was made for the woken thread's request.
fn hand(world: &mut World, call: Slot, back: &ResultWakeup, doubt: Option<Doubt>, calls: usize) {
    // An answer begun before the call was sent proves nothing about it.
    let asked_at = world.spans.get(call).map_or(0, |live| live.start);
    let answered = world.spans.get(back.request).filter(|live| live.first_reply > asked_at);
    let answered = answered.map(|live| live.answered_by);
    let Some(live) = world.spans.get_mut(call).filter(|live| live.client.cause.state != CallState::DecidedByTask)
    else {
        return;
    };
    if let Some(thread) = world.threads.get_mut(&live.tid) {
        thread.works = true;
    }
    live.client.cause.state = CallState::Settled;
    live.client.cause.candidate = Some(Candidate { slot: back.request, kept: back.kept });
    live.client.cause.taken = Some(Taken { by: back.by, futex: back.futex, calls });
    live.client.cause.doubt = doubt;
    live.client.cause.evidence = if back.by == live.tid { Evidence::TookReply } else { Evidence::AwaitedResult };
    if let Some(tid) = answered {
        live.client.cause.vote = if tid == back.by { Vote::For(back.request) } else { Vote::Split };
    }
    // Its cost is charged when it is reported: a doubt may still come.
    let time = CallTime { call: Some(call), start: live.start, end: live.end };
    if time.end != 0
        && let Some(request) = world.spans.get_mut(back.request)
    {
        request.add_call(time);
    }
}

/// Thread `tid` answered the request: calls handed to that thread were made for it.
pub(crate) fn confirm(world: &mut World, request: Slot, tid: u32) {
    let Some(live) = world.spans.get_mut(request) else { return };
    live.answer_begins(tid);
    let candidate_calls = live.server.candidate_calls.clone();
    for call in candidate_calls {
        let Some(live) = world.spans.get_mut(call) else { continue };
        if let Some(taken) = live.client.cause.taken.filter(|_| live.client.cause.request() == Some(request)) {
            live.client.cause.vote = if taken.by == tid { Vote::For(request) } else { Vote::Split };
        }
    }
}

pub(crate) fn dismiss(world: &mut World, call: Slot) {
    if let Some(live) = world.spans.get_mut(call) {
        if live.client.cause.state == CallState::AwaitsResult {
            live.client.cause.state = CallState::Settled;
        }
        live.client.wakeup_candidates = None;
    }
}

impl ThreadPools {
    /// Registers a call without a known cause, by a thread that may work for others.
    pub(crate) fn sent(&mut self, world: &mut World, slot: Slot, op: &Op) {
        let (tid, tgid) = (op.header.tid, op.header.tgid);
        if world.threads.get(&tid).is_none_or(|thread| thread.multiplexer) {
            return;
        }
        if !self.pools.contains_key(&tgid) && self.pools.len() < world.limits.processes {
            let shared = world.threads.iter().any(|(_, thread)| thread.tgid == tgid && thread.shares());
            self.pools.insert(tgid, Pools::new(shared));
            if self.wanted.len() < world.limits.processes {
                self.wanted.push(tgid);
            }
        }
        // A call after a hand-back belongs to another job.
        if world.threads.get(&tid).is_some_and(|thread| !thread.detached_calls.wakeups.is_empty()) {
            self.decide(world, tid);
        }
        let asked = world.threads.get(&tid).and_then(|thread| thread.detached_calls.calls.last()).copied();
        let asked = asked.and_then(|slot| world.spans.get(slot));
        // Resolvers send two questions at once for one name.
        let juggles =
            asked.is_some_and(|call| call.first_reply == 0 && call.end == 0 && call.protocol != ProtocolId::Dns);
        let Some(thread) = world.threads.get_mut(&tid) else { return };
        thread.kind.juggles |= juggles;
        if let ControlFlow::Break(bare) = thread.kind.calls()
            && let Some(pools) = self.pools.get_mut(&tgid)
        {
            pools.bare(JobEnd::HandedBack, bare);
        }
        if thread.detached_calls.calls.is_empty() {
            thread.detached_calls.began = Some(JobStart { idles: op.counters.idles, idle_end: op.counters.idle_end });
        }
        let given_up =
            (thread.detached_calls.calls.len() >= MAX_DETACHED_CALLS).then(|| thread.detached_calls.calls.remove(0));
        thread.detached_calls.calls.push(slot);
        if let Some(live) = world.spans.get_mut(slot).filter(|live| live.client.cause.state == CallState::Settled) {
            live.client.cause.state = CallState::AwaitsResult;
        }
        if let Some(call) = given_up {
            world.counters.detached_calls_given_up += 1;
            dismiss(world, call);
        }
    }

    /// A thread woke another. Returns what the waking thread worked for until then, if its work is to be charged now.
    pub(crate) fn woken(&mut self, world: &mut World, wake: &Wake) -> Option<Target> {
        let header = &wake.header;
        let (tid, tgid) = (header.tid, header.tgid);
        let from = world.threads.get(&tid).filter(|thread| thread.tgid == tgid && thread.died == 0)?;
        if from.multiplexer || !from.open.is_empty() {
            return None;
        }
        let result = header.flags & WAKE_RESULT != 0;
        if result {
            self.given(world, tid, tgid, wake.given_at);
        }
        let holder = world.threads.get(&wake.wakee).filter(|thread| thread.tgid == tgid);
        // With several requests of one connection it works for the oldest, unless an answer went unrecognised.
        let several = holder.is_some_and(|thread| thread.open.len() > 1);
        let request = holder.and_then(crate::thread::Thread::holder)?;
        let wakeups_or_calls = wakeup_candidates::stirred(world, request);
        let lock = self.pools.get_mut(&tgid).is_some_and(|pools| pools.woken(wake));
        let detached_calls = world.threads.get(&tid).map(|thread| &thread.detached_calls)?;
        let Some(last) = detached_calls.calls.last().copied() else {
            return self.done(world, wake, request);
        };
        let settled = detached_calls.settled;
        let owner = if detached_calls.wakeups.is_empty() {
            Target::of(&world.spans, last)
        } else {
            // The call's result was handed over already: this is another job, or one that went on.
            let owner = job(wake, settled.max(detached_calls.back_at)).then_some(request);
            owner.map_or(Target::Overhead, |slot| Target::of(&world.spans, slot))
        };
        may_be_result(world, wake, (request, last), (settled, result && !lock), (several, wakeups_or_calls));
        Some(owner)
    }

    /// A thread without undecided calls woke one that holds `request`: it may have done a job without a call.
    fn done(&mut self, world: &mut World, wake: &Wake, request: Slot) -> Option<Target> {
        let (tid, tgid) = (wake.header.tid, wake.header.tgid);
        let thread = world.threads.get_mut(&tid)?;
        let began = JobStart { idles: wake.counters.idles, idle_end: wake.counters.idle_end };
        let waited = thread.detached_calls.pool_queue(Some(began), wake.given_at, wake.slept_at);
        let before = std::mem::replace(&mut thread.detached_calls.settled, wake.header.nanos);
        let given = given(wake, before);
        // The other wake-ups may have released a lock in the middle of a job.
        thread.detached_calls.settled_idles = given.then_some(wake.counters.idles);
        let works = thread.works;
        if given
            && thread.kind.bare()
            && let Some(pools) = self.pools.get_mut(&tgid)
        {
            pools.bare(JobEnd::HandedBack, 1);
        }
        if given && let Some(live) = world.spans.get_mut(request) {
            live.server.pool_queue.job(waited);
        }
        // Threads not known to do jobs may belong to a virtual machine and wake others for their own reasons.
        let owner = if works && job(wake, before) { Target::of(&world.spans, request) } else { Target::Overhead };
        (works || given).then_some(owner)
    }

    /// A thread that holds a request gave this thread work at `at`: earlier calls do not belong to that work.
    fn given(&mut self, world: &mut World, tid: u32, tgid: u32, at: Nanos) {
        let Some(detached_calls) = world.threads.get(&tid).map(|thread| &thread.detached_calls) else { return };
        let before = |slot: &Slot| world.spans.get(*slot).is_some_and(|live| live.start < at);
        if at == 0 || !detached_calls.calls.iter().any(before) {
            return;
        }
        if !detached_calls.wakeups.is_empty() {
            // All wake-ups so far came before the new work, and so did all undecided calls.
            self.decide(world, tid);
            return;
        }
        let (old, new): (SmallVec<[Slot; 2]>, SmallVec<[Slot; 2]>) =
            detached_calls.calls.iter().copied().partition(before);
        if let Some(thread) = world.threads.get_mut(&tid) {
            thread.detached_calls.calls = new;
        }
        let now = world.now;
        if let Some(pools) = self.pools.get_mut(&tgid) {
            pools.unreturned(true, now);
        }
        for call in old {
            dismiss(world, call);
        }
    }

    /// Thread `tid`, which held no request, wrote the answer of a request another thread had read.
    pub(crate) fn answered(&mut self, world: &mut World, tid: u32, request: Slot) {
        let Some(live) = world.spans.get(request) else { return };
        let (since, kept, now) = (live.start, live.kept(), world.now);
        let Some(thread) = world.threads.get_mut(&tid) else { return };
        if thread.multiplexer || !thread.open.is_empty() {
            return;
        }
        thread.kind.answers = true;
        if thread.detached_calls.calls.is_empty() {
            if thread.kind.bare()
                && let Some(pools) = self.pools.get_mut(&thread.tgid)
            {
                pools.bare(JobEnd::Answered, 1);
            }
            return;
        }
        let mut calls = thread.detached_calls.calls.iter().filter_map(|call| world.spans.get(*call));
        // A thread that still waits for a reply writes this answer in the middle of other work.
        let waits = calls.any(|call| call.start >= since && call.first_reply == 0);
        thread.detached_calls.more |= waits || !thread.detached_calls.wakeups.is_empty();
        thread.detached_calls.wakeups.push(ResultWakeup {
            request,
            since,
            kept,
            by: tid,
            waited: true,
            paired: false,
            slept_at: 0,
            given_at: 0,
            wakeups_or_calls: 0,
            futex: 0,
        });
        thread.detached_calls.back_at = now;
        self.decide(world, tid);
    }

    /// Decides the parents of thread `tid`'s detached calls.
    pub(crate) fn decide(&mut self, world: &mut World, tid: u32) {
        let now = world.now;
        let Some(thread) = world.threads.get_mut(&tid) else { return };
        if thread.detached_calls.calls.is_empty() {
            return;
        }
        let detached_calls = std::mem::take(&mut thread.detached_calls);
        thread.detached_calls.settled = if detached_calls.wakeups.is_empty() { now } else { detached_calls.back_at };
        let (tgid, works) = (thread.tgid, thread.works);
        let answers = thread.kind.answers;
        let doubted = !detached_calls.wakeups.is_empty() && thread.settled();
        let pool_queue = detached_calls
            .wakeups
            .first()
            .and_then(|back| detached_calls.pool_queue(detached_calls.began, back.given_at, back.slept_at));
        let DetachedCalls { calls, wakeups, more, back_idles, .. } = detached_calls;
        let Some(first) = wakeups.first().copied() else {
            // Some threads occasionally make calls for themselves that no thread ever waits for.
            if works && let Some(pools) = self.pools.get_mut(&tgid) {
                pools.unreturned(false, now);
            }
            for call in calls {
                dismiss(world, call);
            }
            return;
        };
        let one = |which: &dyn Fn(&&ResultWakeup) -> bool| {
            let mut some = wakeups.iter().filter(which);
            let first = some.next()?;
            some.all(|other| other.request == first.request).then_some(*first)
        };
        // A thread that did not sleep before the reply came may have waited for a lock.
        let (back, doubt) = match (one(&|_| true), one(&|back| back.waited)) {
            (_, Some(back)) => (back, None),
            (Some(back), None) => (back, (!back.paired).then_some(Doubt::MaybeLock)),
            (None, None) => {
                (wakeups.iter().find(|back| back.waited).copied().unwrap_or(first), Some(Doubt::SeveralWoken))
            }
        };
        let end = if back.by == tid { JobEnd::Answered } else { JobEnd::HandedBack };
        let doubt = match doubt {
            None if more => Some(Doubt::TooMany),
            None if doubted => Some(Doubt::ThreadUnseen),
            doubt => doubt,
        };
        let (own, others): (SmallVec<[Slot; 2]>, SmallVec<[Slot; 2]>) =
            calls.iter().copied().partition(|call| world.spans.get(*call).is_some_and(|live| live.start >= back.since));
        for call in others {
            dismiss(world, call);
        }
        let hands_back = end == JobEnd::Answered || !answers;
        let certain = doubt.is_none()
            && hands_back
            && wakeups.len() == 1
            && !own.is_empty()
            && self.doubt_of(world, tgid, end).is_none();
        if let Some(request) = world.spans.get_mut(back.request) {
            request.server.pool_queue.job(pool_queue.filter(|_| certain));
        }
        if let Some(thread) = world.threads.get_mut(&tid) {
            thread.detached_calls.settled_idles = certain.then_some(back_idles);
        }
        let count = own.len();
        let mut unreturned = false;
        if let Some(pools) = self.pools.get_mut(&tgid) {
            pools.returned(end, count);
            unreturned = pools.is_unreturned(now);
        }
        let others: SmallVec<[(Slot, u32); 2]> = wakeups
            .iter()
            .filter(|o| o.waited && o.request != back.request)
            .map(|o| (o.request, o.wakeups_or_calls))
            .collect();
        let wakeup_candidates = (doubt == Some(Doubt::SeveralWoken))
            .then(|| Box::new(WakeupCandidates { own: back.wakeups_or_calls, others }));
        for (index, call) in own.into_iter().enumerate() {
            let last = index + 1 == count;
            let alone = last || (back.paired && !unreturned);
            hand(world, call, &back, doubt, if alone { 1 } else { count });
            if let Some(live) =
                world.spans.get_mut(call).filter(|live| live.client.cause.state != CallState::DecidedByTask)
            {
                live.client.wakeup_candidates.clone_from(&wakeup_candidates);
                if wakeup_candidates.is_some() {
                    live.client.cause.state = CallState::AwaitsResult;
                }
            }
        }
    }

    /// A call's time to be reported has come: whether its thread still has it among its undecided calls. If so, decides it
    /// once no more evidence is expected.
    pub(crate) fn has_undecided(&mut self, world: &mut World, slot: Slot, now: Nanos) -> bool {
        let Some(live) = world.spans.get(slot) else { return false };
        let (tid, end) = (live.tid, live.end);
        let detached_calls = world.threads.get(&tid).map(|thread| &thread.detached_calls);
        let Some(detached_calls) = detached_calls.filter(|detached_calls| detached_calls.calls.contains(&slot)) else {
            return false;
        };
        if end.max(detached_calls.back_at).saturating_add(world.limits.handover) <= now {
            self.decide(world, tid);
        }
        true
    }

    /// Why, in this process, taking a call's result does not prove having caused it. It does not help that the thread
    /// that took it had also given work: a woken thread often takes another job first.
    pub(crate) fn doubt_of(&self, world: &World, tgid: u32, end: JobEnd) -> Option<Doubt> {
        let pools = self.pools.get(&tgid)?;
        if pools.shares_threads() || world.processes.affinity.moves(tgid) {
            return Some(Doubt::Moves);
        }
        if end == JobEnd::Answered && world.processes.affinity.calls_move(tgid) {
            return Some(Doubt::Moves);
        }
        pools.mixed(end).then_some(Doubt::MixedJobs)
    }

    /// Why it is doubtful, by now, that the thread that took the result caused the call.
    pub(crate) fn doubt(&self, world: &World, live: &OpenSpan) -> Option<Doubt> {
        let taken = live.client.cause.taken.filter(|_| live.client.cause.doubt.is_none())?;
        // That thread may have read another request since, unseen.
        if world.threads.get(&taken.by).is_some_and(|thread| thread.lost_at >= live.start) {
            return Some(Doubt::ThreadUnseen);
        }
        if request_mobility::seems_moved(world, live) {
            return Some(Doubt::MayMove);
        }
        let pools = self.pools.get(&live.pid);
        if taken.futex != 0 && pools.is_some_and(|pools| pools.is_lock(taken.futex)) {
            return Some(Doubt::Lock);
        }
        let end = if taken.by == live.tid { JobEnd::Answered } else { JobEnd::HandedBack };
        if taken.calls > 1 && !pools.is_some_and(|pools| pools.is_usual(end, taken.calls)) {
            return Some(Doubt::NotLastCall);
        }
        let kind = world.threads.get(&live.tid).map(|thread| thread.kind).unwrap_or_default();
        // Between two calls for the request it will answer, a thread of Ruby releases the interpreter's lock: each thread
        // waits for that at a futex of its own, as for a result.
        if end == JobEnd::HandedBack && kind.answers {
            return Some(Doubt::AnswersItself);
        }
        if end == JobEnd::Answered && kind.juggles {
            return Some(Doubt::Juggles);
        }
        self.doubt_of(world, live.pid, end)
    }
}

/// Notes a wake-up that may hand the result of the thread's calls, the last of which is `last`, to the thread with
/// `request`. `settled`: when the previous job was handed back; `may`: whether nothing speaks against it yet.
fn may_be_result(
    world: &mut World,
    wake: &Wake,
    (request, last): (Slot, Slot),
    (settled, may): (Nanos, bool),
    (several, wakeups_or_calls): (bool, u32),
) {
    let header = &wake.header;
    let tid = header.tid;
    let (Some(call), Some(live)) = (world.spans.get(last), world.spans.get(request)) else { return };
    let replied = call.first_reply;
    // Wake-ups between a call and its reply come from locks of its client library; and a call sent before the
    // request was read belongs to another request.
    if !may || replied == 0 || call.start < live.start {
        return;
    }
    let back = ResultWakeup {
        request,
        since: live.start,
        kept: live.kept(),
        by: wake.wakee,
        waited: wake.slept_at < replied,
        paired: wake.given_by == wake.wakee && wake.given_at > settled,
        slept_at: wake.slept_at,
        given_at: if wake.given_by == wake.wakee { wake.given_at } else { 0 },
        wakeups_or_calls,
        futex: wake.address,
    };
    let calls = world.threads.get(&tid).map(|thread| thread.detached_calls.calls.clone()).unwrap_or_default();
    if let Some(live) = world.spans.get_mut(request) {
        for call in calls {
            if live.server.candidate_calls.len() < MAX_DETACHED_CALLS && !live.server.candidate_calls.contains(&call) {
                live.server.candidate_calls.push(call);
            }
        }
    }
    let Some(thread) = world.threads.get_mut(&tid) else { return };
    thread.detached_calls.more |= several;
    thread.detached_calls.back_at = header.nanos;
    thread.detached_calls.back_idles = wake.counters.idles;
    if thread.detached_calls.wakeups.len() < MAX_WAKEUPS {
        thread.detached_calls.wakeups.push(back);
    } else {
        thread.detached_calls.more = true;
    }
}

/// Forgets the detached calls of thread `tid`: records of it are missing.
pub(crate) fn release(world: &mut World, tid: u32) {
    let Some(thread) = world.threads.get_mut(&tid) else { return };
    for call in std::mem::take(&mut thread.detached_calls).calls {
        dismiss(world, call);
    }
}
