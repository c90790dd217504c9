//! Work that one task does for another's request: who wakes whom with its result. Only of processes in which that is asked for.
//!
//! A wake-up says nothing by itself, as among threads ([`super::handover`]): mostly it means that there is something in a queue, for
//! whoever comes first. What proves for whom a call was made is both ways together: a task woke another, that one then
//! made a call and had its reply, and woke the first: whose wake-up came first gave the work, and takes the result. Nobody
//! else may have given it work between that and the call; a task that was made by the other needs not have been woken by it.
//!
//! What is handed over goes on: a task that took a result and is no request's own, hands it to the next by the same rule.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tracer_common::event::{Kin, Op};

use super::engine::Engine;
use super::entities::{Id, Works, is_named};
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

/// What was handed over last, until the task asks again.
#[derive(Clone, Debug, Default)]
struct Done {
    calls: SmallVec<[Errand; 1]>,
    /// To which interval.
    to: Id,
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
    /// When it handed over last.
    settled: Nanos,
    done: Done,
    /// When it was heard of last.
    seen: Nanos,
}

impl Relay {
    /// When the task `by` woke it last.
    fn given(&self, by: u64) -> Option<Nanos> {
        self.givers.iter().find(|(giver, _)| *giver == by).map(|(_, at)| *at)
    }

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
    processes: FxHashSet<u32>,
    limit: usize,
    /// Times all tasks were forgotten because there were too many.
    pub reached: u64,
}

impl Wakers {
    /// At most this many tasks, and as many processes.
    pub fn within(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Tasks.
    pub fn len(&self) -> usize {
        self.relays.len()
    }

    /// The process is gone, or runs another program.
    pub fn forget(&mut self, tgid: u32) {
        if self.processes.remove(&tgid) {
            self.relays.retain(|(process, _), _| *process != tgid);
        }
    }

    /// Something of the process was not seen: what is missing may have been a wake-up.
    pub fn lose(&mut self, tgid: u32) {
        if self.processes.contains(&tgid) {
            self.relays.retain(|(process, _), _| *process != tgid);
        }
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
        if !self.wakers.processes.contains(&tgid) || !is_named(entity) || self.entities.serves(tgid, entity) {
            return;
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
        if self.wakers.processes.len() < self.wakers.limit {
            self.wakers.processes.insert(tgid);
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
        let given = match relay.given(wakee) {
            _ if made => 0,
            Some(at) if at > since => at,
            _ => return false,
        };
        let other = |start: Nanos| {
            relay.givers.iter().any(|(giver, at)| {
                *giver != wakee
                    && *at > since
                    && *at > given
                    && *at <= start
                    && self.entities.works_for_somebody(tgid, *giver)
            })
        };
        let own = |errand: &&Errand| errand.start >= given && errand.from != wakee && !other(errand.start);
        let calls: SmallVec<[Errand; 1]> = due.iter().filter(own).copied().collect();
        if calls.is_empty() {
            return false;
        }
        if again {
            if !self.entities.is_same(relay.done.to, to) {
                for errand in calls {
                    self.doubt_passed(errand.call);
                }
            }
            return true;
        }
        let relay = self.wakers.relay(tgid, waker, now);
        relay.calls.clear();
        relay.done = Done { calls: calls.clone(), to, since: relay.settled };
        relay.settled = now;
        let serves = self.entities.serves(tgid, wakee);
        for errand in calls {
            let waits = self.pass(errand, to);
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

    /// The call was made for whatever the interval `to` is for. Gives the interval it waits in, 0 none.
    fn pass(&mut self, errand: Errand, to: Id) -> Id {
        let Errand { call, waits, .. } = errand;
        let Some(live) = self.units.get_mut(call).filter(|live| live.side == Side::Client && !live.cause.told) else {
            return 0;
        };
        self.entities.waits_no_more(waits, call);
        live.lent = None;
        live.cause.passed = true;
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
            live.cause.handed = Some(Handed { doubt: Some(SEVERAL) });
        }
    }
}
