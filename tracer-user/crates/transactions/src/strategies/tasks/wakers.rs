//! Work that one task does for another task's request: follows the wake-ups that hand over results, in processes where
//! wake-ups between tasks are traced.
//!
//! A wake-up alone proves nothing, as among threads ([`crate::strategies::thread_pool`]): mostly it means that a queue has an item
//! for whichever task comes first. Both directions together prove a call's cause: task A wakes B, B makes a call and
//! gets its reply, then B wakes A. A gave the work and takes the result. No other task may have given B work before the
//! call since B's last hand-over. A task that A spawned needs no first wake-up.
//!
//! Where the first wake-up was unnecessary because B was still running when A queued its work, the second alone counts
//! only if, in that process so far, the first wake-up after a reply has gone to the task that such a pair names
//! (`Trust`).
//!
//! A task that took its result without a wake-up, because it was still at work when the result was there, seems to wait for ever. It
//! does not keep the next one from being believed where something else explains its wake-up (`Relay::is_explained`) and B made one
//! call since the next one gave the work.
//!
//! Results travel on: a task that took a result and does not answer the request itself hands it to the next by the same
//! rule.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_common::event::{Op, TaskEdge};
use tracer_common::runtime::KIND_GO;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_model::{Nanos, Side};

use crate::cause::{CallState, Passed};
use crate::evidence::Doubt;
use crate::slot::Slot;
use crate::strategies::tasks::decision::decide_by_task;
use crate::task_identity::{is_named, kind};
use crate::task_table::{Id, TaskTable, Works};
use crate::world::World;

/// Undecided calls per task; beyond it the oldest no longer waits.
const CALLS: usize = 16;
/// Waking tasks remembered per task; beyond it the one that woke it longest ago is forgotten.
const GIVERS: usize = 8;
/// How long an inactive task is remembered, nanoseconds.
const REMEMBERED: Nanos = 15_000_000_000;

/// A call whose result is to be handed over.
#[derive(Clone, Copy, Debug)]
struct DetachedCall {
    call: Slot,
    /// When it was sent.
    start: Nanos,
    /// The interval it waits in; 0: none.
    waits: Id,
    /// The task that handed it over; 0: sent by this task.
    from: u64,
    /// The one task that seemed to wait for it when it was sent; 0: none, or several.
    sole: u64,
}

/// How often the first wake-up after a reply went to the task that had given the work, and how often to another.
#[derive(Clone, Copy, Debug, Default)]
struct Trust {
    agree: u32,
    against: u32,
}

/// Cases needed for trust, and cases needed for each exception.
const SEEN: u32 = 32;
const RARE: u32 = 2500;
/// Cases counted before the counts are halved.
const TIMES: u32 = 8192;

impl Trust {
    fn count(&mut self, agrees: bool) {
        if self.agree + self.against >= TIMES {
            // Round up: one exception counts until the rest is forgotten.
            (self.agree, self.against) = (self.agree / 2, self.against.div_ceil(2));
        }
        *(if agrees { &mut self.agree } else { &mut self.against }) += 1;
    }

    /// Whether the first wake-up after a reply is trusted by itself.
    fn is_earned(self) -> bool {
        self.agree >= SEEN && self.against.saturating_mul(RARE) <= self.agree
    }
}

/// The last hand-over, until the task makes another call.
#[derive(Clone, Debug, Default)]
struct Done {
    calls: SmallVec<[DetachedCall; 1]>,
    /// The receiving interval, and whether that one had given the work.
    to: Id,
    paired: bool,
    /// Time of the hand-over before this one.
    since: Nanos,
}

/// A process whose wake-ups between tasks are traced.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    trust: Trust,
    /// From when on each wake-up is seen. Probes are attached one after the other: before, work that was given may be seen and its
    /// hand-over not, and the task that gave it would seem to wait for ever.
    whole_since: Nanos,
}

/// A task that woke a relay.
#[derive(Clone, Copy, Debug)]
struct Giver {
    task: u64,
    /// When last.
    at: Nanos,
    /// It may have had another reason than to give work: the relay had woken it for the same request before (it goes on with that, and
    /// reads the rest of a reply, for example), or it read that request before all wake-ups were seen.
    is_explained: bool,
}

/// A task that works for others, or may.
#[derive(Clone, Debug, Default)]
struct Relay {
    /// The tasks that woke it.
    givers: SmallVec<[Giver; 2]>,
    calls: SmallVec<[DetachedCall; 2]>,
    /// It had several calls open at once: which reply it has when it wakes a task is unknown.
    several: bool,
    /// Time and receiver of its last hand-over.
    settled: Nanos,
    served: u64,
    /// Intervals of tasks that it woke.
    served_before: SmallVec<[Id; 4]>,
    /// It worked for another request than that of the task that spawned it.
    strange: bool,
    /// It woke, or was woken by, a task that works for another request.
    mixes: bool,
    done: Done,
    /// Time of its last event.
    seen: Nanos,
}

impl Relay {
    /// A task woke it, which works in an interval that began at that time.
    fn give(&mut self, (task, at): (u64, Nanos), (interval, began): (Id, Nanos), whole_since: Nanos) {
        self.givers.retain(|giver| giver.task != task);
        if self.givers.len() >= GIVERS {
            self.givers.remove(0);
        }
        let is_explained = interval != 0 && (self.served_before.contains(&interval) || began < whole_since);
        self.givers.push(Giver { task, at, is_explained });
    }

    /// It woke a task that works in this interval.
    fn serve(&mut self, interval: Id) {
        self.served_before.retain(|id| *id != interval);
        if self.served_before.len() >= GIVERS {
            self.served_before.remove(0);
        }
        self.served_before.push(interval);
    }

    /// Tasks that gave it work after `since` and before it sent a call at `start`, except tasks that work for no request and the task it
    /// last served: those go on with that work. `taker` took the result.
    fn waiting(
        &self,
        tasks: &TaskTable,
        tgid: u32,
        (since, start): (Nanos, Nanos),
        taker: u64,
    ) -> SmallVec<[u64; GIVERS]> {
        let somebody = |giver: u64| {
            giver != self.served
                && if kind(giver) == KIND_GO {
                    // Workers that a request once started wake each other through locks.
                    tasks.serves(tgid, giver)
                } else {
                    tasks.works_for_somebody(tgid, giver)
                }
        };
        let is_before = |giver: &&Giver| giver.at > since && giver.at <= start;
        let before = self.givers.iter().filter(is_before).map(|giver| giver.task);
        before.filter(|giver| *giver == taker || somebody(*giver)).collect()
    }

    /// Whether a task need not wait for a call sent at `start` though it woke it before: that may have had another reason, or an earlier
    /// call was that task's.
    fn is_explained(&self, giver: u64, start: Nanos) -> bool {
        self.givers.iter().any(|known| known.task == giver && known.is_explained)
            || self.calls.iter().any(|call| call.from == 0 && call.start < start && call.sole == giver)
    }

    /// The one task that seems to wait for a call sent at `start`; 0: none, or several.
    fn sole(&self, tasks: &TaskTable, tgid: u32, start: Nanos) -> u64 {
        let waiting = self.waiting(tasks, tgid, (self.settled, start), 0);
        let mut left = waiting.into_iter().filter(|giver| !self.is_explained(*giver, start));
        left.next().filter(|_| left.next().is_none()).unwrap_or(0)
    }
}

/// All such tasks.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    relays: FxHashMap<(u32, u64), Relay>,
    /// Processes whose wake-ups between tasks are traced.
    processes: FxHashMap<u32, Process>,
    limit: usize,
    /// Times all tasks were forgotten because there were too many.
    pub(crate) reached: u64,
}

impl Wakers {
    /// A table for at most `limit` tasks and as many processes.
    pub(crate) fn within(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Wake-ups between tasks are traced in a process.
    pub(crate) fn watch(&mut self, tgid: u32) {
        if self.processes.len() < self.limit {
            self.processes.entry(tgid).or_default();
        }
    }

    /// From now on each wake-up in the process is seen: what was seen before is forgotten.
    pub(crate) fn whole(&mut self, tgid: u32, now: Nanos) {
        self.watch(tgid);
        if let Some(process) = self.processes.get_mut(&tgid) {
            *process = Process { whole_since: now, ..Process::default() };
            self.relays.retain(|(process, _), _| *process != tgid);
        }
    }

    /// Number of tasks.
    pub(crate) fn tasks(&self) -> usize {
        self.relays.len()
    }

    /// The process has exited or runs another program.
    pub(crate) fn forget(&mut self, tgid: u32) {
        if self.processes.remove(&tgid).is_some() {
            self.relays.retain(|(process, _), _| *process != tgid);
        }
    }

    /// Records of the process are missing: among them may have been a wake-up.
    pub(crate) fn lose(&mut self, tgid: u32) {
        if self.processes.contains_key(&tgid) {
            self.relays.retain(|(process, _), _| *process != tgid);
        }
    }

    /// Whether wake-ups are traced in the process and show that the task worked only for the task that spawned it.
    /// `passed`: for a call handed to this task, which may send for others, rather than one it sent itself.
    pub(crate) fn is_own(&self, tgid: u32, entity: u64, passed: bool) -> bool {
        let own = |relay: &Relay| !relay.strange && (passed || !relay.mixes);
        self.processes.contains_key(&tgid) && self.relays.get(&(tgid, entity)).is_some_and(own)
    }

    fn relay(&mut self, tgid: u32, entity: u64, now: Nanos) -> &mut Relay {
        if self.relays.len() >= self.limit && !self.relays.contains_key(&(tgid, entity)) {
            self.reached += 1;
            self.relays.clear();
        }
        let relay = self.relays.entry((tgid, entity)).or_default();
        relay.seen = now;
        relay
    }

    /// About once a second: evicts old entries.
    pub(crate) fn tick(&mut self, now: Nanos) {
        self.relays.retain(|_, relay| now.saturating_sub(relay.seen) < REMEMBERED);
        if self.processes.len() > self.limit {
            self.processes.clear();
        }
        self.relays.shrink_excess();
        self.processes.shrink_excess();
    }
}

/// Another task took the call's result as well.
fn doubt_passed(world: &mut World, call: Slot) {
    let Some(live) = world.spans.get_mut(call) else { return };
    live.client.cause.passed = Passed::ToSeveral;
    if live.client.cause.state == CallState::DecidedByTask {
        live.client.cause.doubt = Some(Doubt::SeveralTasks);
    }
}

impl Wakers {
    /// The task of an operation sent a call; `waits`: the interval it waits in, 0: none.
    pub(crate) fn asked(&mut self, world: &mut World, tasks: &TaskTable, call: Slot, op: &Op, waits: Id) {
        let (tgid, entity, start) = (op.header.tgid, op.entity, op.header.nanos);
        // The tasks that a closure wakes are not seen: that it met no other task would prove nothing.
        let is_relay = is_named(entity) && !tasks.serves(tgid, entity) && !tasks.is_closure(tgid, entity);
        if !is_relay || !self.processes.contains_key(&tgid) {
            return;
        }
        if let Some(live) = world.spans.get_mut(call) {
            live.client.cause.task = entity;
        }
        let spans = &world.spans;
        let relay = self.relay(tgid, entity, start);
        relay.done = Done::default();
        let open =
            |detached_call: &DetachedCall| spans.get(detached_call.call).is_some_and(|live| live.first_reply == 0);
        if relay.calls.iter().any(open) {
            relay.several = true;
        } else if std::mem::take(&mut relay.several) {
            relay.calls.clear();
        }
        relay.calls.retain(|detached_call| spans.get(detached_call.call).is_some());
        let sole = relay.sole(tasks, tgid, start);
        if relay.calls.len() >= CALLS {
            relay.calls.remove(0);
        }
        relay.calls.push(DetachedCall { call, start, waits, from: 0, sole });
    }

    /// A task woke another one.
    pub(crate) fn woken(&mut self, world: &mut World, tasks: &mut TaskTable, task_edge: &TaskEdge) {
        let (tgid, now, waker, wakee) =
            (task_edge.header.tgid, task_edge.header.nanos, task_edge.parent, task_edge.child);
        world.advance(now);
        if !is_named(waker) || !is_named(wakee) || waker == wakee {
            return;
        }
        self.watch(tgid);
        if self.processes.get(&tgid).is_some_and(|process| now < process.whole_since) {
            return;
        }
        for (one, other) in [(waker, wakee), (wakee, waker)] {
            if tasks.is_made_by_any(tgid, one) && !tasks.is_kin(tgid, one, other) {
                self.relay(tgid, one, now).mixes = true;
            }
        }
        let is_back = self.hand_back(world, tasks, tgid, (waker, wakee), now);
        let (interval, _) = tasks.serving_since(tgid, wakee);
        if interval != 0 {
            self.relay(tgid, waker, now).serve(interval);
        }
        if !is_back {
            let whole_since = self.processes.get(&tgid).map_or(0, |process| process.whole_since);
            let works_in = tasks.serving_since(tgid, waker);
            self.relay(tgid, wakee, now).give((waker, now), works_in, whole_since);
        }
    }

    /// Whether the wake-up hands over work that `waker` did for `wakee`.
    fn hand_back(
        &mut self,
        world: &mut World,
        tasks: &mut TaskTable,
        tgid: u32,
        (waker, wakee): (u64, u64),
        now: Nanos,
    ) -> bool {
        let spans = &world.spans;
        let Some(relay) = self.relays.get(&(tgid, waker)) else { return false };
        let replied =
            |detached_call: &DetachedCall| spans.get(detached_call.call).is_some_and(|live| live.first_reply != 0);
        let again = relay.calls.is_empty();
        let due = if again { &relay.done.calls[..] } else { &relay.calls[..] };
        if relay.several || !due.last().is_some_and(replied) {
            return false;
        }
        let over = |slot: Slot| spans.get(slot).is_none_or(|live| live.end != 0);
        let to = tasks.current(tgid, wakee, now, &over);
        let made = tasks.is_made_in(tgid, waker, to);
        let since = if again { relay.done.since } else { relay.settled };
        let waiting = |start: Nanos| relay.waiting(tasks, tgid, (since, start), wakee);
        // Other reasons of the taker's wake-up cannot be distinguished from a second call.
        let given_at = relay.givers.iter().find(|giver| giver.task == wakee).map_or(now, |giver| giver.at);
        let is_only = due.iter().filter(|detached_call| detached_call.start >= given_at).count() == 1;
        let own = |detached_call: &&DetachedCall| {
            let start = detached_call.start;
            let waiting = waiting(start);
            let is_other_explained = |giver: &u64| *giver == wakee || relay.is_explained(*giver, start);
            // The task it last served may have given work again.
            let is_again = |giver: &Giver| giver.task == relay.served && giver.at > since && giver.at <= start;
            let by_it = match waiting[..] {
                [] => made,
                [giver] => giver == wakee && (is_only || giver == relay.served || !relay.givers.iter().any(is_again)),
                _ => !again && is_only && waiting.contains(&wakee) && waiting.iter().all(is_other_explained),
            };
            by_it && detached_call.from != wakee
        };
        let calls: SmallVec<[DetachedCall; 1]> = due.iter().filter(own).copied().collect();
        let (paired, calls) = if calls.is_empty() {
            // The giver of the work is unknown, and the first task it wakes now serves requests.
            let last = due.last().filter(|detached_call| detached_call.from != wakee);
            let Some(last) = last.filter(|_| tasks.serves(tgid, wakee)) else { return false };
            if again && relay.done.paired {
                return false;
            }
            if let Some(other) = waiting(last.start).first() {
                let same = tasks.is_made_in(tgid, *other, to);
                if let Some(process) = self.processes.get_mut(&tgid).filter(|_| !again && !same) {
                    process.trust.count(false);
                }
                return false;
            }
            let trusted = self.processes.get(&tgid).is_some_and(|process| process.trust.is_earned());
            if !again && (!trusted || tasks.is_made_for_open(tgid, waker, &over)) {
                return false;
            }
            (false, SmallVec::from_slice(&[*last]))
        } else {
            (true, calls)
        };
        if again {
            if !tasks.is_same(relay.done.to, to) {
                for detached_call in calls {
                    doubt_passed(world, detached_call.call);
                }
            }
            return paired;
        }
        if let Some(process) = self.processes.get_mut(&tgid).filter(|_| paired) {
            process.trust.count(true);
        }
        let strange = !made && tasks.is_made_by_any(tgid, waker);
        let relay = self.relay(tgid, waker, now);
        relay.calls.clear();
        relay.done = Done { calls: calls.clone(), to, paired, since: relay.settled };
        (relay.settled, relay.served) = (now, wakee);
        relay.strange |= strange;
        let serves = tasks.serves(tgid, wakee);
        for detached_call in calls {
            let waits = pass(world, tasks, detached_call, wakee, to);
            if serves || waits == 0 {
                continue;
            }
            let relay = self.relay(tgid, wakee, now);
            if relay.calls.len() < CALLS {
                relay.calls.push(DetachedCall { waits, from: waker, ..detached_call });
            }
        }
        true
    }
}

/// The call was made for whatever request interval `to` of task `by` serves. Returns the interval it waits in; 0:
/// none.
fn pass(world: &mut World, tasks: &mut TaskTable, detached_call: DetachedCall, by: u64, to: Id) -> Id {
    let DetachedCall { call, waits, .. } = detached_call;
    let Some(live) = world
        .spans
        .get_mut(call)
        .filter(|live| live.side == Side::Client && live.client.cause.state != CallState::DecidedByTask)
    else {
        return 0;
    };
    tasks.waits_no_more(waits, call);
    live.client.provisional_parent = None;
    if live.client.cause.passed == Passed::No {
        live.client.cause.passed = Passed::ToOne;
    }
    live.client.cause.task = by;
    let spans = &world.spans;
    let over = |slot: Slot| spans.get(slot).is_none_or(|live| live.end != 0);
    match tasks.works_in(to, &over) {
        Works::For(answer, doubt) => {
            decide_by_task(world, call, &answer, doubt);
            to
        }
        Works::Undecided(_) if tasks.waits(to, call) => {
            if let Some(live) = world.spans.get_mut(call) {
                live.client.cause.state = CallState::AwaitsTask;
            }
            to
        }
        _ => 0,
    }
}
