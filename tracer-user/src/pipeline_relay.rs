//! What the pipeline hears of other agents, and what it wants them told.

use super::{Names, Pipeline, classify};
use crate::model::{ClassId, Far, FarEnd, Nanos, Outcome, Side, UnitId};
use crate::protocols::context::TraceParent;
use crate::relay::clocks::Clock;
use crate::relay::event::Event;
use crate::relay::message::{Context, Summary};
use crate::relay::{Outcomes, Outgoing};
use crate::transactions::engine::Verdicts;
use crate::transactions::live::{Live, Slot};
use crate::transactions::relayed::{Relayed, Told};

/// Most that waits to be taken by whoever sends it.
const OUTGOING: usize = 65_536;

/// How well the offset between the clocks of one host is known, nanoseconds: two readings one after the other, at each end.
const READING: u64 = 50_000;

impl Pipeline {
    /// Another agent said something, or time passed; `now` of `CLOCK_MONOTONIC`.
    pub fn relayed(&mut self, now: Nanos, event: Event) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engine.relayed(now, event, &mut outputs);
        self.give(&mut outputs);
        if self.engine.now.saturating_sub(self.reported) >= super::REPORT_EVERY {
            self.reported = self.engine.now;
            self.engine.report(self.engine.now, &mut outputs);
            self.give(&mut outputs);
        }
        self.outputs = outputs;
    }

    /// Adds what became known of transactions and ends to what other agents are to be told.
    pub fn sweep_outgoing(&mut self) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engine.relay_sweep(&mut outputs);
        self.give(&mut outputs);
        self.outputs = outputs;
    }

    /// What other agents are to be told since last taken.
    pub fn take_outgoing(&mut self) -> std::vec::Drain<'_, Outgoing> {
        self.outgoing.drain(..)
    }

    /// What became of other agents' contexts.
    pub fn relay_outcomes(&self) -> Outcomes {
        self.engine.relay_outcomes()
    }

    /// How far the wall clock of an agent's host is ahead of this one's, nanoseconds; and the error of that.
    pub fn clock_of(&self, agent: u64) -> Option<Clock> {
        let clock = self.engine.clock_of(agent)?;
        let error = clock.error.saturating_add(READING);
        Some(Clock { offset: clock.offset.saturating_sub(self.wall_offset), error })
    }

    fn send(&mut self, outgoing: Outgoing) {
        // Whoever drives this takes it after every record or two; this is for one that does not.
        if self.outgoing.len() < OUTGOING {
            self.outgoing.push(outgoing);
        }
    }

    /// The other end of a call is told of it, as far as it was not.
    pub(super) fn tell(&mut self, slot: Slot) {
        self.engine.inherit(slot);
        let Some(told) = self.engine.context(slot) else { return };
        let Some(live) = self.engine.unit(slot) else { return };
        let class = match live.class {
            Some(class) => class,
            None => classify(&mut self.classifier, &mut self.names, live, live.status),
        };
        let outgoing = context(&self.names, told, live, class);
        self.send(outgoing);
    }

    /// The caller of a request that is over is told how it went.
    pub(super) fn answer(&mut self, slot: Slot) {
        let offset = self.wall_offset;
        if let Some(outgoing) = self.engine.answer(slot).and_then(|live| summary(live, offset)) {
            self.send(outgoing);
        }
    }

    /// What was not told until a unit was reported.
    pub(super) fn last_word(&mut self, live: &Live, class: ClassId, verdicts: &Verdicts) {
        let Some(relay) = &live.relay else { return };
        if live.side == Side::Server {
            // A lookup's word is only said when it is over.
            if relay.given.is_some() && relay.lookup.is_none() {
                self.metrics.relay_delay(relay.delay);
            }
            if !relay.answered
                && let Some(outgoing) = summary(live, self.wall_offset)
            {
                self.send(outgoing);
            }
        } else if relay.sent.is_some_and(|sent| sent != (verdicts.trace, true)) {
            let told =
                Told { key: relay.key, far: relay.far, trace: verdicts.trace, settled: true, lookup: relay.lookup };
            let outgoing = context(&self.names, told, live, class);
            self.send(outgoing);
        }
    }
}

fn context(names: &Names, told: Told, live: &Live, class: ClassId) -> Outgoing {
    let Told { key, far, trace, settled, lookup } = told;
    let context = Context {
        key,
        trace,
        parent: live.id,
        settled,
        broadcast: false,
        sampled: live.sampled,
        service: names.service(live.service),
        class: names.class(class).map_or_else(|| "".into(), |info| info.name.clone()),
        carried: live.passed.clone(),
        lookup,
    };
    Outgoing::Context { far, context }
}

fn summary(live: &Live, wall_offset: i64) -> Option<Outgoing> {
    let relay = live.relay.as_ref()?;
    let given = relay.given.as_ref()?;
    let summary = Summary {
        key: given.context.key,
        unit: live.id,
        duration: live.end.saturating_sub(live.start),
        queue: if live.arrived == 0 { 0 } else { live.start.saturating_sub(live.arrived) },
        cpu: live.cost.cpu,
        start: (live.start as i64).saturating_add(wall_offset),
        status: live.status.unwrap_or(0),
        error: live.status.is_some_and(|status| status >= 500)
            || live.failure.is_some()
            || live.outcome == Some(Outcome::Aborted),
    };
    Some(Outgoing::Summary { to: given.from.number, summary })
}

/// Which carrier gave a unit its parent; empty where none did.
pub(super) fn carrier(context: Option<TraceParent>, parent: Option<UnitId>, live: &Live) -> &'static str {
    if let Some(context) = context {
        return context.carrier.name();
    }
    match (parent, live.side) {
        (None, _) | (_, Side::Client) => "",
        (Some(_), Side::Server) if live.caller.is_some() => "connection",
        (Some(_), Side::Server) if live.relayed_parent().is_some() => "relay",
        (Some(_), Side::Server) => "tcp_option",
    }
}

/// What a unit of `duration` nanoseconds shows of its other end.
pub(super) fn far(relay: Option<&Relayed>, duration: u64) -> Option<Box<Far>> {
    let relay = relay?;
    if let Some(given) = &relay.given {
        let (service, class) = (given.context.service.clone(), given.context.class.clone());
        return Some(Box::new(Far { host: given.from.host.clone(), service, class, end: None }));
    }
    let (summary, agent) = relay.summary.as_ref()?;
    let end = FarEnd {
        unit: summary.unit,
        duration: summary.duration,
        queue: summary.queue,
        cpu: summary.cpu,
        network: duration.saturating_sub(summary.duration.saturating_add(summary.queue)),
        error: summary.error,
    };
    Some(Box::new(Far { host: agent.host.clone(), service: "".into(), class: "".into(), end: Some(end) }))
}
