//! The pipeline's part of the relay between agents.

use std::sync::Arc;

use tracer_model::{ClassId, Nanos, Outcome, Remote, RemoteEnd, Side, SpanId};
use tracer_protocols::context::TraceParent;
use tracer_relay::clocks::Clock;
use tracer_relay::event::Event;
use tracer_relay::message::{Context, ContextRoot, Summary};
use tracer_relay::{Outcomes, Outgoing};
use tracer_transactions::open_span::OpenSpan;
use tracer_transactions::output::Verdicts;
use tracer_transactions::relayed::{CallContext, Relayed};
use tracer_transactions::slot::Slot;

use super::{Names, Pipeline, provisional};

/// Limit of messages that wait to be sent.
const OUTGOING: usize = 65_536;

/// Error of the clock offset within one host, nanoseconds: two consecutive clock readings at each end.
const READING: u64 = 50_000;

impl Pipeline {
    /// Handles a message of another agent, or the passage of time; `now` of `CLOCK_MONOTONIC`.
    pub fn relayed(&mut self, now: Nanos, event: Event) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engine.relayed(now, event, &mut outputs);
        self.give(&mut outputs);
        if self.engine.now().saturating_sub(self.reported) >= super::REPORT_EVERY {
            self.reported = self.engine.now();
            self.engine.report(self.engine.now(), &mut outputs);
            self.give(&mut outputs);
        }
        self.outputs = outputs;
    }

    /// Queues messages about transactions and ends that became known.
    pub fn sweep_outgoing(&mut self) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engine.relay_sweep(&mut outputs);
        self.give(&mut outputs);
        self.outputs = outputs;
    }

    /// Messages for other agents since last taken.
    pub fn take_outgoing(&mut self) -> std::vec::Drain<'_, Outgoing> {
        self.outgoing.drain(..)
    }

    /// Outcomes of other agents' contexts.
    pub fn relay_outcomes(&self) -> Outcomes {
        self.engine.relay_outcomes()
    }

    /// How far the wall clock of an agent's host is ahead of this one's, nanoseconds, and the error of that.
    pub fn clock_of(&self, agent: u64) -> Option<Clock> {
        let clock = self.engine.clock_of(agent)?;
        let error = clock.error.saturating_add(READING);
        Some(Clock { offset: clock.offset.saturating_sub(self.wall_offset), error })
    }

    fn send(&mut self, outgoing: Outgoing) {
        // The driver takes messages after every record or two; the limit guards against one that does not.
        if self.outgoing.len() < OUTGOING {
            self.outgoing.push(outgoing);
        }
    }

    /// Sends a call's context to its other end, unless sent already.
    pub(super) fn tell(&mut self, slot: Slot) {
        self.engine.inherit(slot);
        let Some(sent) = self.engine.context(slot) else { return };
        let Some(live) = self.engine.span(slot) else { return };
        let class = match live.class {
            Some(class) => class_name(&self.names, class),
            None => provisional(&mut self.classifier, &mut self.names, live),
        };
        let root = self.root_of_call(self.engine.open_root(live));
        let Some(live) = self.engine.span(slot) else { return };
        let outgoing = context(&self.names, sent, live, (class, root));
        self.send(outgoing);
    }

    /// Sends the summary of an ended request to its caller.
    pub(super) fn answer(&mut self, slot: Slot) {
        let offset = self.wall_offset;
        if let Some(outgoing) = self.engine.answer(slot).and_then(|live| summary(live, offset)) {
            self.send(outgoing);
        }
    }

    /// Sends what was not sent before a span was reported.
    pub(super) fn last_word(&mut self, live: &OpenSpan, class: ClassId, verdicts: &Verdicts) {
        let Some(relay) = &live.rare.relay else { return };
        if live.side == Side::Server {
            if relay.given.is_some() {
                self.metrics.relay_delay(relay.delay);
            }
            if !relay.answered
                && let Some(outgoing) = summary(live, self.wall_offset)
            {
                self.send(outgoing);
            }
        } else if relay.sent.is_some_and(|sent| sent != (verdicts.trace, true)) {
            let sent = CallContext { key: relay.key, remote: relay.remote, trace: verdicts.trace, settled: true };
            let root = self.root_of_call(self.engine.open_root(live));
            let outgoing = context(&self.names, sent, live, (class_name(&self.names, class), root));
            self.send(outgoing);
        }
    }
}

pub(super) fn class_name(names: &Names, class: ClassId) -> Arc<str> {
    names.class(class).map_or_else(|| "".into(), |info| info.name.clone())
}

fn context(names: &Names, sent: CallContext, live: &OpenSpan, (class, root): (Arc<str>, ContextRoot)) -> Outgoing {
    let CallContext { key, remote, trace, settled } = sent;
    let context = Context {
        key,
        trace,
        parent: live.id,
        settled,
        broadcast: false,
        trace_flags: live.rare.trace_flags,
        service: names.service(live.service),
        class,
        carried: live.rare.passed.clone(),
        root,
    };
    Outgoing::Context { remote, context }
}

fn summary(live: &OpenSpan, wall_offset: i64) -> Option<Outgoing> {
    let relay = live.rare.relay.as_ref()?;
    let given = relay.given.as_ref()?;
    let summary = Summary {
        key: given.context.key,
        span: live.id,
        duration: live.end.saturating_sub(live.start),
        queue: if live.arrived == 0 { 0 } else { live.start.saturating_sub(live.arrived) },
        cpu: live.cost.cpu,
        start: (live.start as i64).saturating_add(wall_offset),
        status: live.status.unwrap_or(0),
        error: live.status.is_some_and(|status| status >= 500)
            || live.rare.failure.is_some()
            || live.outcome == Some(Outcome::Aborted),
    };
    Some(Outgoing::Summary { to: given.from.number, summary })
}

/// The carrier that named a span's parent; empty if none did.
pub(super) fn carrier(context: Option<TraceParent>, parent: Option<SpanId>, live: &OpenSpan) -> &'static str {
    if let Some(context) = context {
        return context.carrier.name();
    }
    match (parent, live.side) {
        (None, _) | (_, Side::Client) => "",
        (Some(_), Side::Server) if live.server.caller.is_some() => "connection",
        (Some(_), Side::Server) if live.relayed_parent().is_some() => "relay",
        (Some(_), Side::Server) => "tcp_option",
    }
}

/// The remote end of a span that took `duration` nanoseconds.
pub(super) fn remote(relay: Option<&Relayed>, duration: u64) -> Option<Box<Remote>> {
    let relay = relay?;
    if let Some(given) = &relay.given {
        let (service, class) = (given.context.service.clone(), given.context.class.clone());
        return Some(Box::new(Remote { host: given.from.host.clone(), service, class, end: None }));
    }
    let (summary, agent) = relay.summary.as_ref()?;
    let end = RemoteEnd {
        span: summary.span,
        duration: summary.duration,
        queue: summary.queue,
        cpu: summary.cpu,
        network: duration.saturating_sub(summary.duration.saturating_add(summary.queue)),
        error: summary.error,
    };
    Some(Box::new(Remote { host: agent.host.clone(), service: "".into(), class: "".into(), end: Some(end) }))
}
