//! When a unit is reported, and what is decided of it then.

use std::sync::Arc;

use super::charge::{add, less};
use super::engine::{Engine, Output, Verdicts};
use super::live::{Handed, Kept, Live, Slot, Vote, grade};
use crate::model::{ClassId, Grade, Nanos, Side, TraceId, UnitId};

/// How long, and how often, a report is put off for a call whose parent has not begun its answer.
const DEFERRAL: Nanos = 250_000_000;
const DEFERRALS: u8 = 40;
/// Generations of parents followed to the beginning of a transaction.
pub(super) const DEPTH: u32 = 64;

impl Engine {
    /// Gives out the units whose grace time ended by `now`.
    pub fn report(&mut self, now: Nanos, out: &mut Vec<Output>) {
        self.bury(now, out);
        self.relay_sweep(out);
        loop {
            // Two queues, each in the order of time.
            let slot = if self.waiting.front().is_some_and(|(due, _)| *due <= now) {
                self.waiting.pop_front()
            } else if self.deferred.front().is_some_and(|(due, _)| *due <= now) {
                self.deferred.pop_front()
            } else {
                break;
            };
            let Some((_, slot)) = slot else { break };
            self.settle_due(slot, now);
            if now != Nanos::MAX && self.undecided(slot, now) {
                if let Some(live) = self.units.get_mut(slot) {
                    live.deferred += 1;
                }
                self.deferred.push_back((now + DEFERRAL, slot));
                continue;
            }
            self.give_out(slot, out);
        }
    }

    /// Whether evidence for this unit's place in its transaction can still come: a call (or the request at the other
    /// end of one) whose supposed parent has not begun its answer, or one above it that is nobody's yet; or for its cost:
    /// a call that may have been made for it.
    fn undecided(&self, slot: Slot, now: Nanos) -> bool {
        let Some(live) = self.units.get(slot) else { return false };
        if live.deferred >= DEFERRALS {
            return false;
        }
        if self.may_be_tasked(live, now) {
            return true;
        }
        let is_open = |call: &Slot| self.units.get(*call).is_some_and(|call| call.cause.open);
        if live.helped.iter().any(is_open) || self.awaits_word(live) {
            return true;
        }
        let above = |live: &Live| live.caller.and_then(|(call, _)| self.units.get(call));
        let mut call = if live.side == Side::Client { Some(live) } else { above(live) };
        if let Some((live, tie)) = call.and_then(|call| Some((call, call.tie?)))
            && self.loop_waits(live, tie)
        {
            return true;
        }
        let waits = call.is_some_and(|call| {
            !call.cause.alone
                && call.cause.vote == Vote::None
                && call
                    .cause
                    .candidate
                    .and_then(|parent| self.units.get(parent))
                    .is_some_and(|parent| parent.end == 0 && parent.first_reply == 0)
        });
        if waits {
            return true;
        }
        for _ in 0..DEPTH {
            let Some(live) = call else { return false };
            if live.cause.open {
                return true;
            }
            call = live.cause.candidate.and_then(|parent| self.units.get(parent)).and_then(above);
        }
        false
    }

    /// The transaction a unit belongs to: that of the first request up its chain of parents.
    pub(super) fn trace(&self, live: &Live, depth: u32) -> TraceId {
        if depth == 0 {
            return live.trace;
        }
        match live.side {
            Side::Server => match live.caller.and_then(|(call, _)| self.units.get(call)) {
                Some(call) if live.remote_parent.is_none() => self.trace(call, depth - 1),
                _ => live.trace,
            },
            Side::Client => {
                let (parent, _, _) = self.grade(live);
                match parent.and_then(|parent| self.units.get(parent)) {
                    Some(parent) => self.trace(parent, depth - 1),
                    None => self.kept(live).map_or(live.trace, |(_, trace, _, _)| trace),
                }
            }
        }
    }

    /// Gives a unit out, whatever is still missing.
    pub(super) fn give_out(&mut self, slot: Slot, out: &mut Vec<Output>) {
        self.settle_due(slot, Nanos::MAX);
        self.inherit(slot);
        let Some(live) = self.units.get(slot) else { return };
        if let Some(doubt) = self.doubt_of_errand(live)
            && let Some(live) = self.units.get_mut(slot)
        {
            live.cause.handed = Some(Handed { doubt: Some(doubt), futex: 0, calls: 1 });
        }
        let Some(live) = self.units.get(slot) else { return };
        if let Some(doubt) = self.doubt_of_task(live)
            && let Some(live) = self.units.get_mut(slot)
        {
            live.cause.handed = Some(Handed { doubt: Some(doubt), futex: 0, calls: 1 });
        }
        self.judge_stream(slot);
        self.suspect(slot);
        let Some(live) = self.units.get(slot) else { return };
        let trace = self.trace(live, DEPTH);
        let trace = self.relay_over(slot, trace);
        let Some(live) = self.units.get(slot) else { return };
        let verdicts = match live.side {
            Side::Server => {
                let parent = live.named_parent();
                let (grade, evidence) = if live.request.asked.timed {
                    (Grade::Ambiguous, "a turn: what it cost is not known")
                } else if live.shared {
                    (Grade::Ambiguous, "sent at once with other streams: even shares of their cost")
                } else if live.batch {
                    (Grade::Confirmed, "answered at once with others: even shares of their cost")
                } else if live.alone {
                    (Grade::Certain, "its thread ran one request at a time")
                } else {
                    (Grade::Confirmed, "charged by callback group")
                };
                Verdicts { trace, parent, grade, evidence }
            }
            Side::Client => {
                let (parent, grade, evidence) = self.grade(live);
                let parent = parent.and_then(|parent| self.id_of(parent, live));
                Verdicts { trace, parent, grade, evidence }
            }
        };
        let Some(mut live) = self.units.remove(slot) else { return };
        self.tag_over(&live, verdicts.parent, verdicts.trace);
        if let Some(tie) = live.tie {
            self.knots.untie(tie.knot);
        }
        live.trace = trace;
        self.leave(&mut live, out);
        // The other end outlives it at times, and must find the transaction.
        if let Some(callee) = live.callee.and_then(|callee| self.units.get_mut(callee))
            && callee.remote_parent.is_none()
        {
            callee.trace = trace;
        }
        if live.end == 0 {
            live.end = self.now;
        }
        out.push(Output::Finished(live, verdicts));
    }

    /// The call's parent, how sure that is and why.
    pub(super) fn grade(&self, live: &Live) -> (Option<Slot>, Grade, &'static str) {
        live.tie.map_or_else(|| grade(&live.cause), |tie| self.loop_grade(live, tie))
    }

    /// What is remembered of that parent.
    fn kept(&self, live: &Live) -> Option<Kept> {
        live.tie.and_then(|tie| self.loop_kept(tie)).or(live.cause.kept)
    }

    fn id_of(&self, parent: Slot, call: &Live) -> Option<UnitId> {
        self.units.get(parent).map(|parent| parent.id).or_else(|| {
            let kept = self.kept(call).filter(|_| self.grade(call).0 == Some(parent));
            kept.map(|(id, _, _, _)| id)
        })
    }

    /// The class of a live unit, and the service class its rule says; its cost so far counts for it from now on.
    pub fn classify(&mut self, slot: Slot, class: ClassId, service_class: Option<&Arc<str>>) {
        if let Some(live) = self.units.get_mut(slot) {
            live.class = Some(class);
            if let Some(service_class) = service_class {
                live.set_service_class(service_class);
            }
        }
    }

    /// Posts what a finished unit cost and was not posted yet to the class it ended up in.
    pub fn settle(&mut self, live: &Live, class: ClassId) {
        let rest = less(live.cost, live.posted);
        add(&mut self.class_costs, class.0, rest);
    }
}
