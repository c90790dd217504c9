//! Work that one task does for another's request: who wakes whom with its result. Only of processes in which that is asked for.
//!
//! A wake-up says nothing by itself, as among threads ([`super::handover`]): mostly it means that there is something in a queue, for
//! whoever comes first. What proves for whom a call was made is both ways together: a task woke another, that one then
//! made a call and had its reply, and woke the first: whose wake-up came first gave the work, and takes the result. Nobody
//! else may have given it work before the call, since it handed something over last; a task that was made by the other needs not have been woken by it.
//!
//! Whose wake-up was not needed, because the other one was at work still when it left something for it, is only believed where
//! the first wake-up after a reply goes to whom such a pair names, in that process, so far (`Trust`).
//!
//! What is handed over goes on: a task that took a result and is no request's own, hands it to the next by the same rule.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_common::event::{Kin, Op};
use tracer_common::runtime::KIND_GO;

use super::engine::Engine;
use super::entities::{Id, Works, is_named, kind};
use super::live::{Handed, Slot};
use crate::guard::room::Room;
use crate::model::{Nanos, Side};

/// Calls of one task that wait for who takes their result; with more the oldest is not waited for.
const CALLS: usize = 16;
/// Tasks that woke one that are remembered; with more the one that did longest ago is not.
const GIVERS: usize = 8;
/// How long a task that did nothing is remembered, nanoseconds.
const REMEMBERED: Nanos = 15_000_000_000;

/// What a call that was handed over says.
pub const PASSED: &str =
    "the task that gave the work and took its result answered the request, or one that waited for it did";
/// What is said where two took it.
const SEVERAL: &str = "its task woke several that had given it work";

/// A call whose result is to be handed over.
#[derive(Clone, Copy, Debug)]
struct Errand {
    call: Slot,
    /// When it was sent.
    start: Nanos,
    /// The interval it waits in, 0 none.
    waits: Id,
    /// The task it came from; 0: its own.
    from: u64,
}

/// How often the first wake-up after a reply went to whoever had given the work, and how often to another.
#[derive(Clone, Copy, Debug, Default)]
struct Trust {
    agree: u32,
    against: u32,
}

/// Times that must have been seen, and more than that for each that was otherwise.
const SEEN: u32 = 32;
const RARE: u32 = 2500;
/// Times counted before the counts are halved.
const TIMES: u32 = 8192;

impl Trust {
    fn count(&mut self, agrees: bool) {
        if self.agree + self.against >= TIMES {
            // One against it counts for as long as there are any.
            (self.agree, self.against) = (self.agree / 2, self.against.div_ceil(2));
        }
        *(if agrees { &mut self.agree } else { &mut self.against }) += 1;
    }

    /// Whether the first wake-up after a reply is believed by itself.
    fn is_earned(self) -> bool {
        self.agree >= SEEN && self.against.saturating_mul(RARE) <= self.agree
    }
}

/// What was handed over last, until the task asks again.
#[derive(Clone, Debug, Default)]
struct Done {
    calls: SmallVec<[Errand; 1]>,
    /// To which interval, and whether that one had given the work.
    to: Id,
    paired: bool,
    /// When what was done before that had been.
    since: Nanos,
}

/// A task that does something for others, or may.
#[derive(Clone, Debug, Default)]
struct Relay {
    /// Who woke it, when last.
    givers: SmallVec<[(u64, Nanos); 2]>,
    calls: SmallVec<[Errand; 2]>,
    /// It had several calls under way at once: whose reply it has when it wakes somebody is not known.
    several: bool,
    /// When it handed over last, and to whom.
    settled: Nanos,
    served: u64,
    /// It worked for another request than that of its maker.
    strange: bool,
    /// It woke, or was woken by, a task that does not work for that one.
    mixes: bool,
    done: Done,
    /// When it was heard of last.
    seen: Nanos,
}

impl Relay {
    fn give(&mut self, by: u64, at: Nanos) {
        self.givers.retain(|(giver, _)| *giver != by);
        if self.givers.len() >= GIVERS {
            self.givers.remove(0);
        }
        self.givers.push((by, at));
    }
}

/// All such tasks.
#[derive(Debug, Default)]
pub struct Wakers {
    relays: FxHashMap<(u32, u64), Relay>,
    /// Processes in which it is seen who wakes whom.
    processes: FxHashMap<u32, Trust>,
    limit: usize,
    /// Times all tasks were forgotten because there were too many.
    pub reached: u64,
}

impl Wakers {
    /// At most this many tasks, and as many processes.
    pub fn within(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// It is seen who wakes whom in a process.
    pub fn watch(&mut self, tgid: u32) {
        if self.processes.len() < self.limit {
            self.processes.entry(tgid).or_default();
        }
    }

    /// Tasks.
    pub fn tasks(&self) -> usize {
        self.relays.len()
    }

    /// The process is gone, or runs another program.
    pub fn forget(&mut self, tgid: u32) {
        if self.processes.remove(&tgid).is_some() {
            self.relays.retain(|(process, _), _| *process != tgid);
        }
    }

    /// Something of the process was not seen: what is missing may have been a wake-up.
    pub fn lose(&mut self, tgid: u32) {
        if self.processes.contains_key(&tgid) {
            self.relays.retain(|(process, _), _| *process != tgid);
        }
    }

    /// Whether who wakes whom is seen in a process, and its task worked for nobody but its maker, as far as that says; `passed`: for a
    /// call that was left to another one, who sends for others, not for one it sent itself.
    pub(super) fn is_own(&self, tgid: u32, entity: u64, passed: bool) -> bool {
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

    /// About once a second: forgets what is old.
    pub fn tick(&mut self, now: Nanos) {
        self.relays.retain(|_, relay| now.saturating_sub(relay.seen) < REMEMBERED);
        if self.processes.len() > self.limit {
            self.processes.clear();
        }
        self.relays.give_back();
        self.processes.give_back();
    }
}

impl Engine {
    /// A call was sent by the task of an operation; `waits`: in which interval it waits, 0 none.
    pub(super) fn asked_by_task(&mut self, call: Slot, op: &Op, waits: Id) {
        let (tgid, entity, start) = (op.header.tgid, op.entity, op.header.nanos);
        if !self.wakers.processes.contains_key(&tgid) || !is_named(entity) || self.entities.serves(tgid, entity) {
            return;
        }
        if let Some(live) = self.units.get_mut(call) {
            live.cause.task = entity;
        }
        let units = &self.units;
        let relay = self.wakers.relay(tgid, entity, start);
        relay.done = Done::default();
        let open = |errand: &Errand| units.get(errand.call).is_some_and(|live| live.first_reply == 0);
        if relay.calls.iter().any(open) {
            relay.several = true;
        } else if std::mem::take(&mut relay.several) {
            relay.calls.clear();
        }
        relay.calls.retain(|errand| units.get(errand.call).is_some());
        if relay.calls.len() >= CALLS {
            relay.calls.remove(0);
        }
        relay.calls.push(Errand { call, start, waits, from: 0 });
    }

    /// A task woke another one.
    pub(super) fn woken_task(&mut self, kin: &Kin) {
        let (tgid, now, waker, wakee) = (kin.header.tgid, kin.header.nanos, kin.parent, kin.child);
        self.now = self.now.max(now);
        if !is_named(waker) || !is_named(wakee) || waker == wakee {
            return;
        }
        self.wakers.watch(tgid);
        for (one, other) in [(waker, wakee), (wakee, waker)] {
            if self.entities.is_made_by_any(tgid, one) && !self.entities.is_kin(tgid, one, other) {
                self.wakers.relay(tgid, one, now).mixes = true;
            }
        }
        if self.hand_back(tgid, (waker, wakee), now) {
            return;
        }
        self.wakers.relay(tgid, wakee, now).give(waker, now);
    }

    /// Whether the wake-up hands over what its giver did for the other one.
    fn hand_back(&mut self, tgid: u32, (waker, wakee): (u64, u64), now: Nanos) -> bool {
        let units = &self.units;
        let Some(relay) = self.wakers.relays.get(&(tgid, waker)) else { return false };
        let replied = |errand: &Errand| units.get(errand.call).is_some_and(|live| live.first_reply != 0);
        let again = relay.calls.is_empty();
        let due = if again { &relay.done.calls[..] } else { &relay.calls[..] };
        if relay.several || !due.last().is_some_and(replied) {
            return false;
        }
        let over = |slot: Slot| units.get(slot).is_none_or(|live| live.end != 0);
        let to = self.entities.current(tgid, wakee, now, &over);
        let made = self.entities.is_made_in(tgid, waker, to);
        let since = if again { relay.done.since } else { relay.settled };
        // Who gave it work before a call, but for those whose work is nobody's, and for whom it did something before: they go on
        // with that.
        let givers = |start: Nanos| {
            let before = relay.givers.iter().filter(|(giver, at)| {
                let somebody = || {
                    *giver != relay.served
                        && if kind(*giver) == KIND_GO {
                            // Workers that a request once started wake each other by locks.
                            self.entities.serves(tgid, *giver)
                        } else {
                            self.entities.works_for_somebody(tgid, *giver)
                        }
                };
                *at > since && *at <= start && (*giver == wakee || somebody())
            });
            let mut before = before.map(|(giver, _)| *giver);
            (before.next(), before.next().is_some())
        };
        let own = |errand: &&Errand| {
            let by_it = match givers(errand.start) {
                (Some(giver), several) => giver == wakee && !several,
                (None, _) => made,
            };
            by_it && errand.from != wakee
        };
        let calls: SmallVec<[Errand; 1]> = due.iter().filter(own).copied().collect();
        let (paired, calls) = if calls.is_empty() {
            // It is not known who gave the work, and the first one that it wakes now has a request.
            let last = due.last().filter(|errand| errand.from != wakee);
            let Some(last) = last.filter(|_| self.entities.serves(tgid, wakee)) else { return false };
            if again && relay.done.paired {
                return false;
            }
            if let (Some(other), _) = givers(last.start) {
                let same = self.entities.is_made_in(tgid, other, to);
                if let Some(trust) = self.wakers.processes.get_mut(&tgid).filter(|_| !again && !same) {
                    trust.count(false);
                }
                return false;
            }
            let trusted = self.wakers.processes.get(&tgid).is_some_and(|trust| trust.is_earned());
            if !again && (!trusted || self.entities.is_made_for_open(tgid, waker, &over)) {
                return false;
            }
            (false, SmallVec::from_slice(&[*last]))
        } else {
            (true, calls)
        };
        if again {
            if !self.entities.is_same(relay.done.to, to) {
                for errand in calls {
                    self.doubt_passed(errand.call);
                }
            }
            return paired;
        }
        if let Some(trust) = self.wakers.processes.get_mut(&tgid).filter(|_| paired) {
            trust.count(true);
        }
        let strange = !made && self.entities.is_made_by_any(tgid, waker);
        let relay = self.wakers.relay(tgid, waker, now);
        relay.calls.clear();
        relay.done = Done { calls: calls.clone(), to, paired, since: relay.settled };
        (relay.settled, relay.served) = (now, wakee);
        relay.strange |= strange;
        let serves = self.entities.serves(tgid, wakee);
        for errand in calls {
            let waits = self.pass(errand, wakee, to);
            if serves || waits == 0 {
                continue;
            }
            let relay = self.wakers.relay(tgid, wakee, now);
            if relay.calls.len() < CALLS {
                relay.calls.push(Errand { waits, from: waker, ..errand });
            }
        }
        true
    }

    /// The call was made for whatever the interval `to` of the task `by` is for. Gives the interval it waits in, 0 none.
    fn pass(&mut self, errand: Errand, by: u64, to: Id) -> Id {
        let Errand { call, waits, .. } = errand;
        let Some(live) = self.units.get_mut(call).filter(|live| live.side == Side::Client && !live.cause.told) else {
            return 0;
        };
        self.entities.waits_no_more(waits, call);
        live.lent = None;
        live.cause.passed = true;
        live.cause.task = by;
        let units = &self.units;
        let over = |slot: Slot| units.get(slot).is_none_or(|live| live.end != 0);
        match self.entities.works_in(to, &over) {
            Works::For(answer, doubt) => {
                self.tell(call, &answer, doubt);
                to
            }
            Works::Undecided(_) if self.entities.waits(to, call) => {
                if let Some(live) = self.units.get_mut(call) {
                    (live.cause.waits, live.cause.open) = (true, true);
                }
                to
            }
            _ => 0,
        }
    }

    /// Another task took the result of the call as well.
    fn doubt_passed(&mut self, call: Slot) {
        let Some(live) = self.units.get_mut(call) else { return };
        live.cause.doubt = Some(SEVERAL);
        if live.cause.told {
            live.cause.handed = Some(Handed { doubt: Some(SEVERAL), futex: 0, calls: 1 });
        }
    }
}
