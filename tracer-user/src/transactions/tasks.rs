//! What tasks of runtimes say of calls: [`super::entities`] decides, this carries it out.

use tracer_common::event::{KIN_WATCHED, Kin, Op};
use tracer_common::runtime::KIND_TOKIO;

use super::begin::During;
use super::charge::UNIT_SAMPLES;
use super::engine::Engine;
use super::entities::{Answer, Id, LENT, Works, is_named, is_python, is_unique, kind};
use super::live::{Cause, Handed, Live, Slot, Vote};
use super::thread::{Target, Thread};
use super::wakers::PASSED;
use crate::model::{Nanos, Side};

/// Times the report of a call is put off for what its task turns out to work for.
const PATIENCE: u8 = 40;
/// The same where only this is not seen yet, that its task serves no connection.
const LENT_PATIENCE: u8 = 8;
/// How long after its first request what runs in a process may not be known yet, nanoseconds: its file is looked at for
/// that.
const LOOKED_AT: Nanos = 250_000_000;
/// What is said of calls before that.
const EARLY: &str = "made before it was known that its process runs several requests on one thread";
/// What such a call is said to be when that is never seen.
const NOBODY: &str = "its task answered no request";
/// What is said where the task is not known.
const UNKNOWN: &str = "several requests on one thread, and which task it was is not known";

impl Engine {
    /// The process runs loops that go on with requests in any order: its callbacks are not one request's.
    pub fn has_loops(&mut self, tgid: u32) {
        if self.loops.len() < self.limits.processes {
            self.loops.insert(tgid);
        }
    }

    /// Relations between tasks that were missing.
    pub fn kins_lost(&self) -> u64 {
        self.entities.lost
    }

    /// Processes that began to serve requests since last taken.
    pub fn take_serving(&mut self) -> std::vec::Drain<'_, u32> {
        self.served.drain(..)
    }

    pub(super) fn kin(&mut self, kin: &Kin) {
        self.now = self.now.max(kin.header.nanos);
        let units = &self.units;
        let over = |slot: Slot| units.get(slot).is_none_or(|live| live.end != 0);
        self.entities.kin(kin, kin.header.nanos, over);
        if kin.header.flags & KIN_WATCHED != 0 {
            self.wakers.watch(kin.header.tgid);
        }
    }

    /// Of a program that runs requests in tasks of its own that is known by the first operation of one.
    pub(super) fn note_task(&mut self, op: &Op) {
        if !is_unique(op.entity) {
            return;
        }
        if !self.loops.contains(&op.header.tgid) {
            self.has_loops(op.header.tgid);
        }
        if kind(op.entity) == KIND_TOKIO
            && let Some(thread) = self.thread(op.header.tid, op.header.tgid, op.header.nanos)
        {
            // What it polls next may be anybody's.
            thread.multiplexer = true;
        }
    }

    /// Whether it may yet be seen that a call's process runs requests in tasks: what its thread says is believed only
    /// then.
    pub(super) fn may_be_tasked(&self, live: &Live, now: Nanos) -> bool {
        let told = match live.side {
            Side::Client => !live.cause.tasked && live.cause.candidate.is_some(),
            // A request waits for the calls it may have caused: with them goes what its transaction is.
            Side::Server => !live.calls.is_empty(),
        };
        let since = self.serving.get(&live.pid).filter(|_| told);
        since.is_some_and(|since| now < since.saturating_add(LOOKED_AT) && !self.loops.contains(&live.pid))
    }

    /// What makes a call doubtful that was made before it was known that its process runs requests in tasks.
    pub(super) fn doubt_of_task(&self, live: &Live) -> Option<&'static str> {
        let early = live.side == Side::Client && !live.cause.tasked && live.cause.candidate.is_some();
        (early && self.loops.contains(&live.pid)).then_some(EARLY)
    }

    /// Whether only its task says for whom an operation is.
    fn is_tasked(&self, op: &Op) -> bool {
        is_unique(op.entity) || is_python(op.entity) || (op.entity == 0 && self.loops.contains(&op.header.tgid))
    }

    /// Who caused a call that is being sent.
    pub(super) fn cause_of(&self, opener: Option<(Slot, Option<u32>)>, op: Option<During<'_>>) -> Cause {
        let Some(during) = op.filter(|during| self.is_tasked(during.op)) else { return self.cause(opener, op) };
        if kind(during.op.entity) == KIND_TOKIO {
            let cause = self.cause(opener, op);
            let evidence = if cause.candidate.is_none() && !cause.alone { UNKNOWN } else { cause.evidence };
            return Cause { tasked: true, grouped: true, evidence, ..cause };
        }
        // A goroutine goes on on any thread; and a loop may be at a task whose request was not seen, or not understood, while
        // the only one that was waits for its turn: its word is good for the task that read that one.
        let of_reader = |slot: Slot| self.units.get(slot).is_some_and(|live| live.read_as == during.op.entity);
        let told_of = during.holder.or(opener.map(|(slot, _)| slot));
        let several = is_unique(during.op.entity)
            || (is_named(during.op.entity) && !told_of.is_none_or(of_reader))
            || self.threads.get(&during.op.header.tid).is_some_and(Thread::several);
        let cause = if several {
            // What its thread did before says nothing.
            self.cause(None, Some(During { group: None, holder: None, ..during }))
        } else {
            self.cause(opener, op)
        };
        let evidence = if several && !cause.alone { UNKNOWN } else { cause.evidence };
        Cause { tasked: true, evidence, ..cause }
    }

    /// A call was sent: for whom its task works. Gives whether it is a task that another made.
    pub(super) fn sent_by_task(&mut self, slot: Slot, op: &Op) -> bool {
        let Some(live) = self.units.get(slot).filter(|live| live.cause.tasked) else { return false };
        if live.cause.alone && live.cause.candidate.is_none() {
            // Its process serves nobody.
            return false;
        }
        let units = &self.units;
        let over = |slot: Slot| units.get(slot).is_none_or(|live| live.end != 0);
        let works = self.entities.works(op, over);
        let waits: Id = if let Works::Undecided(id) = works { id } else { 0 };
        self.asked_by_task(slot, op, waits);
        match works {
            Works::For(answer, doubt) => {
                self.tell(slot, &answer, doubt);
                return true;
            }
            Works::Undecided(id) => {
                if self.entities.waits(id, slot)
                    && let Some(live) = self.units.get_mut(slot)
                    && !live.cause.alone
                {
                    live.cause.waits = true;
                    live.cause.open = true;
                    live.cause.evidence = NOBODY;
                }
                return self.entities.is_made(id);
            }
            Works::Unknown(why) => {
                if let Some(live) = self.units.get_mut(slot)
                    && live.cause.candidate.is_none()
                {
                    live.cause.evidence = why;
                }
            }
        }
        false
    }

    /// A request was read by the task of an operation.
    pub(super) fn read_by_task(&mut self, cookie: u64, op: &Op) {
        for (call, doubt) in self.entities.reads(op, cookie) {
            let Some(live) = self.units.get_mut(call) else { continue };
            if live.cause.told {
                live.cause.handed = Some(Handed { doubt, futex: 0, calls: 1 });
            } else if live.cause.waits {
                live.cause.waits = false;
                live.cause.open = false;
                live.cause.evidence = doubt.unwrap_or(NOBODY);
            }
        }
    }

    /// A request is being answered by the task of an operation.
    pub(super) fn answered_by_task(&mut self, slot: Slot, op: &Op) {
        let Some(live) = self.units.get_mut(slot) else { return };
        if is_unique(op.entity) {
            live.alone = false;
            if live.multiplexed {
                // Streams of a connection are answered by one goroutine for all that work on them.
                return;
            }
        }
        let answer = Answer { request: slot, kept: live.kept(), start: live.start };
        let of = (live.cookie, !live.multiplexed);
        let units = &self.units;
        let over = |slot: Slot| units.get(slot).is_none_or(|live| live.end != 0);
        for (call, doubt) in self.entities.answers(op, answer, of, over) {
            self.tell(call, &answer, doubt);
        }
    }

    /// The call was made for the request of `answer`, its task says.
    pub(super) fn tell(&mut self, call: Slot, answer: &Answer, doubt: Option<&'static str>) {
        let Some(live) = self.units.get_mut(call).filter(|live| live.side == Side::Client) else { return };
        let mut doubt = live.cause.doubt.or(doubt);
        if doubt == Some(LENT) && !live.cause.told && !live.cause.alone {
            if !live.passed_on {
                live.lent = Some(Box::new(*answer));
                (live.cause.waits, live.cause.open) = (true, true);
                return;
            }
            doubt = None;
        }
        if live.cause.told {
            // A doubt can come later; nothing else does.
            if let Some(doubt) = doubt {
                live.cause.handed = Some(Handed { doubt: Some(doubt), futex: 0, calls: 1 });
            }
            return;
        }
        if live.cause.alone {
            // Its thread has told already, and is believed, unless they differ.
            if live.cause.candidate != Some(answer.request) {
                live.cause.alone = false;
                live.cause.vote = Vote::Split;
            }
            return;
        }
        live.cause.waits = false;
        if live.start < answer.start {
            live.cause.evidence = "sent before the request was read that its task answered";
            live.cause.open = false;
            return;
        }
        live.cause.open = false;
        live.cause.told = true;
        live.cause.candidate = Some(answer.request);
        live.cause.kept = Some(answer.kept);
        live.cause.handed = Some(Handed { doubt, futex: 0, calls: 1 });
        live.cause.vote = Vote::For(answer.request);
        live.cause.evidence =
            if live.cause.passed { PASSED } else { "its task, or the one that made it, answered the request" };
        let (cost, times) = (std::mem::take(&mut live.cost), (live.start, live.end));
        let (samples, tgid) = (std::mem::take(&mut live.samples), live.pid);
        self.post(Target::of(&self.units, answer.request), cost, tgid);
        if let Some(request) = self.units.get_mut(answer.request) {
            if times.1 != 0 && request.calls.len() < 1024 {
                request.calls.push(times);
            }
            let room = UNIT_SAMPLES.saturating_sub(request.samples.len());
            self.counters.samples_dropped += samples.len().saturating_sub(room) as u64;
            request.samples.extend(samples.into_iter().take(room));
        }
    }

    /// A call is sent by a task on a connection: the task that sent by it before serves no connection, if it was another,
    /// since then nobody else would have sent.
    pub(super) fn passed_on(&mut self, cookie: u64, call: Slot, entity: u64) {
        if kind(entity) != KIND_TOKIO || !is_named(entity) {
            return;
        }
        let Some(connection) = self.connections.get_mut(&cookie) else { return };
        for before in connection.sends(entity, call) {
            let Some(live) = self.units.get_mut(before) else { continue };
            live.passed_on = true;
            if let Some(answer) = live.lent.take() {
                self.tell(before, &answer, Some(LENT));
            }
        }
    }

    /// Whether it may yet be seen what the task of a call works for; if not, it does not wait any more.
    pub(super) fn still_waits(&mut self, slot: Slot, now: Nanos) -> bool {
        // Where there are very many, those that no request is answered for must not crowd out others.
        let crowded = self.units.len() > self.limits.units / 2;
        let Some(live) = self.units.get_mut(slot).filter(|live| live.cause.waits) else { return false };
        let patience = if live.lent.is_some() { LENT_PATIENCE } else { PATIENCE };
        let seen =
            live.cause.grouped && matches!(live.cause.vote, Vote::For(slot) if live.cause.candidate == Some(slot));
        if now != Nanos::MAX && !crowded && live.deferred < patience && !seen {
            return true;
        }
        live.cause.waits = false;
        let (tgid, task, passed) = (live.pid, live.cause.task, live.cause.passed);
        // Of those that send for others it would have been seen for whom, by now.
        if task != 0
            && live.first_reply != 0
            && self.wakers.is_own(tgid, task, passed)
            && let Some(answer) = live.lent.take()
        {
            live.passed_on = true;
            self.tell(slot, &answer, Some(LENT));
        }
        false
    }
}
