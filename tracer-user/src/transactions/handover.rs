//! Calls that a thread makes while it holds no request: for whom, by who waited for what it did.
//!
//! A thread of a pool makes a call, reads its reply, and with its next wake-up hands the result to the thread that
//! waits for it, which holds the request: the call was made for that. A call is an *errand* until its thread does
//! something else: asks again after a hand-back, reads or answers a request, is given work by another, ends, or does
//! nothing of interest for a while. Whoever was woken until then is a candidate; two of them that may have waited for
//! the result make it ambiguous, because one of them waited for a lock.

use std::ops::ControlFlow;

use smallvec::SmallVec;
use tracer_common::event::{Op, WAKE_RESULT, Wake};

use super::charge::{UNIT_SAMPLES, add, less};
use super::engine::{Engine, Output};
use super::live::{Handed, Kept, Live, Slot, Vote};
use super::pools::{End, Pools};
use super::rivals::{Rivals, SEVERAL};
use super::thread::Target;
use crate::model::{Cost, Nanos, Owner, Side};

/// Most calls of one thread that wait; beyond it the oldest is nobody's.
const ERRANDS: usize = 32;
/// What is said where operations are missing.
const UNSEEN: &str = "something of its thread was not seen";
/// Most threads woken that are remembered; with more, none is sure.
const BACKS: usize = 8;
/// A thread that held a request and was woken by one that had made a call.
#[derive(Clone, Copy, Debug)]
struct Back {
    /// Its request.
    request: Slot,
    /// When that was read.
    since: Nanos,
    kept: Kept,
    /// The thread.
    by: u32,
    /// Whether it slept before the reply came: who waits for a lock that was taken after it, did not.
    waited: bool,
    /// Whether it had woken the other one before.
    paired: bool,
    /// When it fell asleep, to wait; when it woke the other one last, if it was the last to.
    slept_at: Nanos,
    given_at: Nanos,
    /// How often the thread of its request had been woken or had called.
    stirs: u32,
    /// The futex it waited at; 0: it was not woken.
    futex: u64,
}

/// How a job began: what its thread's books said at its first call.
#[derive(Clone, Copy, Debug)]
struct Began {
    /// Waits for work so far, and when the last of them was over.
    idles: u32,
    idle_end: Nanos,
}

/// Calls of one thread that are nobody's yet.
#[derive(Clone, Debug, Default)]
pub struct Errands {
    calls: SmallVec<[Slot; 2]>,
    backs: SmallVec<[Back; 1]>,
    /// When the last thread was woken.
    back_at: Nanos,
    /// There were more than are remembered.
    more: bool,
    /// When the job before ended at the latest: its result was handed back then.
    settled: Nanos,
    /// Waits for work of the thread when it handed that back, where it is certain that it did.
    settled_idles: Option<u32>,
    /// The same at the last wake-up.
    back_idles: u32,
    /// At the first of `calls`.
    began: Option<Began>,
}

impl Errands {
    /// How long a job that `began` so waited for its thread, whose requester gave it at `given_at` (0: not seen) and fell asleep
    /// at `slept_at` to wait for it; `None` when it is not certain when it began. That was when the one before was handed
    /// back, if its thread has not waited since; or when its one wait since then was over, if the requester ended that.
    fn pool_queue(&self, began: Option<Began>, given_at: Nanos, slept_at: Nanos) -> Option<u64> {
        let Began { idles, idle_end } = began?;
        let at = match idles.checked_sub(self.settled_idles?)? {
            0 => self.settled,
            1 if given_at > self.settled && given_at <= idle_end => idle_end,
            _ => return None,
        };
        (slept_at != 0).then(|| at.saturating_sub(slept_at))
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

/// Whether the woken thread gave work to the waking one after `before`, then slept until it was done.
fn given(wake: &Wake, before: Nanos) -> bool {
    wake.given_by == wake.wakee && wake.given_at > before && wake.slept_at > wake.given_at
}

/// Whether what the waking thread did since `before`, or since it waited last, was a job of the woken one: it gave it, or
/// was asleep already when that began.
fn job(wake: &Wake, before: Nanos) -> bool {
    given(wake, before) || (wake.slept_at != 0 && wake.slept_at < before.max(wake.books.idle_end))
}

impl Engine {
    /// A call that nobody is known to have caused, of a thread that may work for others.
    pub(super) fn errand(&mut self, slot: Slot, op: &Op) {
        let (tid, tgid) = (op.header.tid, op.header.tgid);
        if self.threads.get(&tid).is_none_or(|thread| thread.multiplexer) {
            return;
        }
        if !self.pools.contains_key(&tgid) && self.pools.len() < self.limits.processes {
            let shared = self.threads.iter().any(|(_, thread)| thread.tgid == tgid && thread.shares());
            self.pools.insert(tgid, Pools::new(shared));
            if self.wanted.len() < self.limits.processes {
                self.wanted.push(tgid);
            }
        }
        // What is asked after a hand-back is another job's.
        if self.threads.get(&tid).is_some_and(|thread| !thread.errands.backs.is_empty()) {
            self.decide(tid);
        }
        let asked = self.threads.get(&tid).and_then(|thread| thread.errands.calls.last()).copied();
        let asked = asked.and_then(|slot| self.units.get(slot));
        // A name is asked for by two questions at once.
        let juggles = asked.is_some_and(|call| call.first_reply == 0 && call.end == 0 && call.protocol != "dns");
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.kind.juggles |= juggles;
        if let ControlFlow::Break(bare) = thread.kind.calls()
            && let Some(pools) = self.pools.get_mut(&tgid)
        {
            pools.bare(End::HandedBack, bare);
        }
        if thread.errands.calls.is_empty() {
            thread.errands.began = Some(Began { idles: op.books.idles, idle_end: op.books.idle_end });
        }
        let given_up = (thread.errands.calls.len() >= ERRANDS).then(|| thread.errands.calls.remove(0));
        thread.errands.calls.push(slot);
        if let Some(live) = self.units.get_mut(slot) {
            live.cause.open = true;
        }
        if let Some(call) = given_up {
            self.counters.errands_given_up += 1;
            self.dismiss(call);
        }
    }

    /// A thread woke another.
    pub(super) fn woken(&mut self, wake: &Wake, out: &mut Vec<Output>) {
        let header = &wake.header;
        self.now = self.now.max(header.nanos);
        self.follow(header, wake.nth);
        let (tid, tgid) = (header.tid, header.tgid);
        let Some(from) = self.threads.get(&tid).filter(|thread| thread.tgid == tgid && thread.died == 0) else {
            return;
        };
        if from.multiplexer || !from.open.is_empty() {
            return;
        }
        let result = header.flags & WAKE_RESULT != 0;
        if result {
            self.given(tid, tgid, wake.given_at);
        }
        let holder = self.threads.get(&wake.wakee).filter(|thread| thread.tgid == tgid);
        // It works for the oldest of several of one connection, unless an answer was not seen for what it was.
        let several = holder.is_some_and(|thread| thread.open.len() > 1);
        let Some(request) = holder.and_then(super::thread::Thread::holder) else { return };
        let stirs = self.stirred(request);
        let lock = self.pools.get_mut(&tgid).is_some_and(|pools| pools.woken(wake));
        let Some(errands) = self.threads.get(&tid).map(|thread| &thread.errands) else { return };
        let Some(last) = errands.calls.last().copied() else {
            self.done(wake, request, out);
            return;
        };
        let settled = errands.settled;
        if errands.backs.is_empty() {
            self.charge_wake(wake, Target::of(&self.units, last), out);
        } else {
            // What the call was for was handed over already: another job, or one that went on.
            let owner = job(wake, settled.max(errands.back_at)).then_some(request);
            self.charge_wake(wake, owner.map_or(Target::Nobody, |slot| Target::of(&self.units, slot)), out);
        }
        let (Some(call), Some(live)) = (self.units.get(last), self.units.get(request)) else { return };
        let replied = call.first_reply;
        // Between a call and its reply it wakes for locks of its client library; and what was asked before the request
        // was read, was asked for another.
        if !result || lock || replied == 0 || call.start < live.start {
            return;
        }
        let back = Back {
            request,
            since: live.start,
            kept: live.kept(),
            by: wake.wakee,
            waited: wake.slept_at < replied,
            paired: wake.given_by == wake.wakee && wake.given_at > settled,
            slept_at: wake.slept_at,
            given_at: if wake.given_by == wake.wakee { wake.given_at } else { 0 },
            stirs,
            futex: wake.address,
        };
        let calls = self.threads.get(&tid).map(|thread| thread.errands.calls.clone()).unwrap_or_default();
        if let Some(live) = self.units.get_mut(request) {
            for call in calls {
                if live.helped.len() < ERRANDS && !live.helped.contains(&call) {
                    live.helped.push(call);
                }
            }
        }
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.errands.more |= several;
        thread.errands.back_at = header.nanos;
        thread.errands.back_idles = wake.books.idles;
        if thread.errands.backs.len() < BACKS {
            thread.errands.backs.push(back);
        } else {
            thread.errands.more = true;
        }
    }

    /// A thread without calls that are anybody's yet woke one that holds `request`: it may have done a job without a call.
    fn done(&mut self, wake: &Wake, request: Slot, out: &mut Vec<Output>) {
        let (tid, tgid) = (wake.header.tid, wake.header.tgid);
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let began = Began { idles: wake.books.idles, idle_end: wake.books.idle_end };
        let waited = thread.errands.pool_queue(Some(began), wake.given_at, wake.slept_at);
        let before = std::mem::replace(&mut thread.errands.settled, wake.header.nanos);
        let given = given(wake, before);
        // Others may have been woken for a lock, in the midst of a job.
        thread.errands.settled_idles = given.then_some(wake.books.idles);
        let works = thread.works;
        if given
            && thread.kind.bare()
            && let Some(pools) = self.pools.get_mut(&tgid)
        {
            pools.bare(End::HandedBack, 1);
        }
        if given && let Some(live) = self.units.get_mut(request) {
            live.pool_queue.job(waited);
        }
        // Threads of a virtual machine of which that is not known wake others for reasons of their own.
        let owner = if works && job(wake, before) { Target::of(&self.units, request) } else { Target::Nobody };
        if works || given {
            self.charge_wake(wake, owner, out);
        }
    }

    /// The thread was given work at `at` by one that holds a request: what it asked before was not for that.
    fn given(&mut self, tid: u32, tgid: u32, at: Nanos) {
        let Some(errands) = self.threads.get(&tid).map(|thread| &thread.errands) else { return };
        let before = |slot: &Slot| self.units.get(*slot).is_some_and(|live| live.start < at);
        if at == 0 || !errands.calls.iter().any(before) {
            return;
        }
        if !errands.backs.is_empty() {
            // Those that were woken were woken before; so was asked whatever is still open.
            self.decide(tid);
            return;
        }
        let (old, new): (SmallVec<[Slot; 2]>, SmallVec<[Slot; 2]>) = errands.calls.iter().copied().partition(before);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.errands.calls = new;
        }
        let now = self.now;
        if let Some(pools) = self.pools.get_mut(&tgid) {
            pools.unreturned(true, now);
        }
        for call in old {
            self.dismiss(call);
        }
    }

    /// Thread `tid`, which held no request, wrote the answer of one that another had read.
    pub(super) fn answered(&mut self, tid: u32, request: Slot) {
        let Some(live) = self.units.get(request) else { return };
        let (since, kept, now) = (live.start, live.kept(), self.now);
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        if thread.multiplexer || !thread.open.is_empty() {
            return;
        }
        if thread.errands.calls.is_empty() {
            if thread.kind.bare()
                && let Some(pools) = self.pools.get_mut(&thread.tgid)
            {
                pools.bare(End::Answered, 1);
            }
            return;
        }
        let mut calls = thread.errands.calls.iter().filter_map(|call| self.units.get(*call));
        // Who still waits for a reply writes this between two things it does for somebody else.
        let waits = calls.any(|call| call.start >= since && call.first_reply == 0);
        thread.errands.more |= waits || !thread.errands.backs.is_empty();
        thread.errands.backs.push(Back {
            request,
            since,
            kept,
            by: tid,
            waited: true,
            paired: false,
            slept_at: 0,
            given_at: 0,
            stirs: 0,
            futex: 0,
        });
        thread.errands.back_at = now;
        self.decide(tid);
    }

    /// Decides whose the calls were that `tid` made.
    pub(super) fn decide(&mut self, tid: u32) {
        let now = self.now;
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        if thread.errands.calls.is_empty() {
            return;
        }
        let errands = std::mem::take(&mut thread.errands);
        thread.errands.settled = if errands.backs.is_empty() { now } else { errands.back_at };
        let (tgid, works) = (thread.tgid, thread.works);
        let doubted = !errands.backs.is_empty() && thread.settled();
        let pool_queue =
            errands.backs.first().and_then(|back| errands.pool_queue(errands.began, back.given_at, back.slept_at));
        let Errands { calls, backs, more, back_idles, .. } = errands;
        let Some(first) = backs.first().copied() else {
            // Others ask for themselves now and then, and nobody ever waits for them.
            if works && let Some(pools) = self.pools.get_mut(&tgid) {
                pools.unreturned(false, now);
            }
            for call in calls {
                self.dismiss(call);
            }
            return;
        };
        let one = |which: &dyn Fn(&&Back) -> bool| {
            let mut some = backs.iter().filter(which);
            let first = some.next()?;
            some.all(|other| other.request == first.request).then_some(*first)
        };
        // Who did not sleep before the reply came may have waited for a lock.
        let (back, doubt) = match (one(&|_| true), one(&|back| back.waited)) {
            (_, Some(back)) => (back, None),
            (Some(back), None) => (back, (!back.paired).then_some("who took its result may have waited for a lock")),
            (None, None) => (backs.iter().find(|back| back.waited).copied().unwrap_or(first), Some(SEVERAL)),
        };
        let end = if back.by == tid { End::Answered } else { End::HandedBack };
        let doubt = match doubt {
            None if more => Some("its thread woke more, or made more calls, than can be told apart"),
            None if doubted => Some(UNSEEN),
            doubt => doubt,
        };
        let (own, others): (SmallVec<[Slot; 2]>, SmallVec<[Slot; 2]>) =
            calls.iter().copied().partition(|call| self.units.get(*call).is_some_and(|live| live.start >= back.since));
        for call in others {
            self.dismiss(call);
        }
        let certain = doubt.is_none() && backs.len() == 1 && !own.is_empty() && self.doubt_of(tgid, end).is_none();
        if let Some(request) = self.units.get_mut(back.request) {
            request.pool_queue.job(pool_queue.filter(|_| certain));
        }
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.errands.settled_idles = certain.then_some(back_idles);
        }
        let count = own.len();
        let mut unreturned = false;
        if let Some(pools) = self.pools.get_mut(&tgid) {
            pools.returned(end, count);
            unreturned = pools.is_unreturned(now);
        }
        let others: SmallVec<[(Slot, u32); 2]> =
            backs.iter().filter(|o| o.waited && o.request != back.request).map(|o| (o.request, o.stirs)).collect();
        let rivals = (doubt == Some(SEVERAL)).then(|| Box::new(Rivals { own: back.stirs, others }));
        for (index, call) in own.into_iter().enumerate() {
            let last = index + 1 == count;
            let alone = last || (back.paired && !unreturned);
            self.hand(call, &back, Handed { doubt, futex: back.futex, calls: if alone { 1 } else { count } });
            if let Some(live) = self.units.get_mut(call) {
                live.rivals.clone_from(&rivals);
                live.cause.open |= rivals.is_some();
            }
        }
    }

    /// The call was made for the request of whoever was woken.
    fn hand(&mut self, call: Slot, back: &Back, handed: Handed) {
        // An answer that was begun before the call was made says nothing of it.
        let asked_at = self.units.get(call).map_or(0, |live| live.start);
        let answered = self.units.get(back.request).filter(|live| live.first_reply > asked_at);
        let answered = answered.map(|live| live.answered_by);
        let Some(live) = self.units.get_mut(call).filter(|live| !live.cause.told) else { return };
        if let Some(thread) = self.threads.get_mut(&live.tid) {
            thread.works = true;
        }
        live.cause.open = false;
        live.cause.waits = false;
        live.cause.candidate = Some(back.request);
        live.cause.kept = Some(back.kept);
        live.cause.by = back.by;
        live.cause.handed = Some(handed);
        live.cause.evidence = if back.by == live.tid {
            "its thread read the reply and answered the request"
        } else {
            "the thread that held the request waited for its result"
        };
        if let Some(tid) = answered {
            live.cause.vote = if tid == back.by { Vote::For(back.request) } else { Vote::Split };
        }
        let (cost, times, end) = (std::mem::take(&mut live.cost), (live.start, live.end), live.end);
        let samples = std::mem::take(&mut live.samples);
        let tgid = live.pid;
        let target = Target::of(&self.units, back.request);
        self.post(target, cost, tgid);
        if let Some(request) = self.units.get_mut(back.request) {
            if end != 0 && request.calls.len() < 1024 {
                request.calls.push(times);
            }
            let room = UNIT_SAMPLES.saturating_sub(request.samples.len());
            self.counters.samples_dropped += samples.len().saturating_sub(room) as u64;
            request.samples.extend(samples.into_iter().take(room));
        }
    }

    /// The request was answered by thread `tid`: whoever worked for it, worked for that one.
    pub(super) fn confirm(&mut self, request: Slot, tid: u32) {
        let Some(live) = self.units.get_mut(request) else { return };
        live.answered_by = tid;
        live.answered_after.get_or_insert(live.stirs);
        let helped = live.helped.clone();
        for call in helped {
            let Some(live) = self.units.get_mut(call) else { continue };
            if live.cause.handed.is_some() && !live.cause.told && live.cause.candidate == Some(request) {
                live.cause.vote = if live.cause.by == tid { Vote::For(request) } else { Vote::Split };
            }
        }
    }

    /// Forgets what thread `tid` did for others: something of it was not seen.
    pub(super) fn release(&mut self, tid: u32) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        for call in std::mem::take(&mut thread.errands).calls {
            self.dismiss(call);
        }
    }

    pub(super) fn dismiss(&mut self, call: Slot) {
        if let Some(live) = self.units.get_mut(call) {
            live.cause.open = live.cause.waits;
            live.rivals = None;
        }
    }

    /// Decides whose the call was, if nothing more is waited for.
    pub(super) fn settle_due(&mut self, slot: Slot, now: Nanos) {
        let Some(live) = self.units.get(slot).filter(|live| live.cause.open) else { return };
        let (tid, end) = (live.tid, live.end);
        let errands = self.threads.get(&tid).map(|thread| &thread.errands);
        match errands.filter(|errands| errands.calls.contains(&slot)).map(|errands| errands.back_at) {
            Some(back_at) => {
                if end.max(back_at).saturating_add(self.limits.handover) <= now {
                    self.decide(tid);
                }
            }
            None => {
                if !self.still_waits(slot, now) && !self.still_rivals(slot, now) {
                    self.dismiss(slot);
                }
            }
        }
    }

    /// What of the process puts it in doubt that who took a call's result caused it. That who took it had also given
    /// work does not help: a thread that is woken often takes another job first.
    pub(super) fn doubt_of(&self, tgid: u32, end: End) -> Option<&'static str> {
        let pools = self.pools.get(&tgid)?;
        if pools.shares_threads() {
            return Some("requests of its process move between threads");
        }
        pools.mixed(end).then_some("its process has jobs nobody waits for, and some without calls")
    }

    /// What puts it in doubt, by now, that a call was made for who took a result.
    pub(super) fn doubt_of_errand(&self, live: &Live) -> Option<&'static str> {
        let handed = live.cause.handed.filter(|handed| handed.doubt.is_none() && !live.cause.told)?;
        // Whoever took it may have read another request, unseen, since the one it seemed to hold.
        if self.threads.get(&live.cause.by).is_some_and(|thread| thread.lost_at >= live.start) {
            return Some(UNSEEN);
        }
        let pools = self.pools.get(&live.pid);
        if handed.futex != 0 && pools.is_some_and(|pools| pools.is_lock(handed.futex)) {
            return Some("who took its result waited for a lock");
        }
        let end = if live.cause.by == live.tid { End::Answered } else { End::HandedBack };
        if handed.calls > 1 && !pools.is_some_and(|pools| pools.is_usual(end, handed.calls)) {
            return Some("not the last call of its thread before somebody took a result");
        }
        if end == End::Answered && self.threads.get(&live.tid).is_some_and(|thread| thread.kind.juggles) {
            return Some("its thread does several things at once");
        }
        self.doubt_of(live.pid, end)
    }

    /// What a call cost that is nobody's is its service's overhead; what is left of one that is somebody's, that one's.
    pub(super) fn leave(&mut self, live: &mut Live, out: &mut Vec<Output>) {
        if live.side != Side::Client || (live.cost == Cost::default() && live.samples.is_empty()) {
            return;
        }
        let rest = less(std::mem::take(&mut live.cost), live.posted);
        live.posted = Cost::default();
        let class = live.cause.kept.and_then(|(.., class)| class).filter(|_| live.cause.handed.is_some());
        match class {
            Some(class) => add(&mut self.class_costs, class.0, rest),
            None => add(&mut self.overhead, live.service.0, rest),
        }
        let owner = class.map_or(Owner::Overhead(live.service), Owner::Class);
        for mut sample in std::mem::take(&mut live.samples) {
            sample.owner = owner;
            out.push(Output::Sample(sample));
        }
    }
}
