//! Finished spans: class, metrics, and hand-over to writers and the store.

use std::sync::Arc;

use tracer_model::{ClassId, Grade, Nanos, Outcome, Owner, ProtocolId, Side, Sink, Span};
use tracer_protocols::{Conventions, grpc, messaging};
use tracer_results::profiles::SlowRequest;
use tracer_runtimes::exceptions::RawTypeName;
use tracer_transactions::open_span::OpenSpan;
use tracer_transactions::output::Verdicts;

use super::relay;
use super::roots::charged;
use super::{Pipeline, classify_late};

/// The type of an exception that could not be read.
const UNKNOWN_TYPE: &str = "_unknown";

impl Pipeline {
    pub(super) fn finished(&mut self, mut live: Box<OpenSpan>, verdicts: Verdicts) {
        if live.rare.withdrawn {
            self.engine.disown(&live);
            self.disown_root(&live);
            for mut sample in live.rare.take(|rare| &mut rare.samples) {
                sample.owner = Owner::Overhead(live.service);
                self.profiles.sample(&self.names, &sample);
            }
            return;
        }
        // A class that the end could still change says nothing of other requests that begin alike.
        let beginning = live.class.and(live.take_beginning());
        let class = match live.class {
            Some(class) => class,
            None => classify_late(&mut self.classifier, &mut self.names, &mut live),
        };
        self.engine.settle(&live, class);
        self.session_began(&live);
        for mut sample in live.rare.take(|rare| &mut rare.samples) {
            (sample.owner, sample.dimensions) = (Owner::Class(class), live.rare.dimensions);
            self.profiles.sample(&self.names, &sample);
        }
        let calls = live.rare.take(|rare| &mut rare.declared);
        for span in calls {
            self.write_declared(Span { trace: verdicts.trace, ..*span });
        }
        self.last_word(&live, class, &verdicts);
        if live.side == Side::Server {
            self.subsystems.request(live.pid, live.cookie, class, live.cost.cpu);
        }
        let (root, charged) = (self.root_link(&live, &verdicts), charged(&live));
        let is_top = match live.side {
            Side::Server => live.server.caller.is_none(),
            Side::Client => verdicts.parent.is_none(),
        };
        let thrown = live.rare.exception.as_ref().map(|thrown| (thrown.tid, thrown.at));
        let mut span = Self::span(&mut live, class, &verdicts);
        self.engine.give_back(live);
        self.seen_whole(&span, beginning);
        if let Some(thrown) = thrown {
            let site = self.profiles.exception_ended(thrown);
            span.thrown_at = site.filter(|_| span.exception.is_some());
        }
        if span.side == Side::Client {
            span.called_from = self.profiles.call_ended(&span);
            self.wake_demand.call(span.pid, matches!(span.grade, Grade::Certain | Grade::Confirmed));
        } else {
            self.wake_demand.request(span.pid);
        }
        let mut threshold = || self.slow.threshold(&self.stats, class, self.engine.now());
        let over = |threshold: &Nanos| span.side == Side::Server && span.duration() > *threshold;
        self.profiles
            .request_ended(span.id, || threshold().filter(over).map(|threshold| SlowRequest::new(&span, threshold)));
        self.metrics.span(&self.names, &span);
        self.stats.span(&self.names, &span);
        self.attainment.span(&self.names, &span);
        self.history.span(&self.names, &span);
        self.roots.span(&self.names, &span, root, charged);
        self.export(&span, is_top);
        self.store.take(span);
    }

    /// A request that began a session was accepted: the process that serves it is known to serve its user.
    fn session_began(&mut self, live: &OpenSpan) {
        let outcome = live.outcome.unwrap_or(Outcome::Unfinished);
        if let Some(session) = &live.request.session
            && live.side == Side::Server
            && live.status.is_some()
            && outcome == Outcome::Complete
            && !is_error(live.protocol, live.side, live.status, live.rare.failure, outcome)
        {
            self.subsystems.session(live.pid, live.cookie, &session.user, &session.database);
        }
    }

    fn span(live: &mut OpenSpan, class: ClassId, verdicts: &Verdicts) -> Span {
        let (downstream, after_reply) = (live.downstream(), live.after_reply());
        let calls = live.server.calls.len() as u32;
        let outcome = live.outcome.unwrap_or(Outcome::Unfinished);
        let error = is_error(live.protocol, live.side, live.status, live.rare.failure, outcome);
        // A message's context names its producer: a link, not a parent.
        let messaging = live.protocol.conventions() == Conventions::Messaging;
        let named = live.request.traceparent.filter(|_| live.side == Side::Server);
        let producer = named.filter(|_| messaging && *live.request.method == *messaging::DELIVER);
        let context = named.filter(|_| !messaging);
        Span {
            id: live.id,
            trace: verdicts.trace,
            parent: verdicts.parent,
            carrier: relay::carrier(context, verdicts.parent, live),
            trace_flags: live.rare.trace_flags,
            linked: producer.map(|context| Box::new(context.into())).or(live.rare.take(|rare| &mut rare.linked)),
            carried: live.rare.take(|rare| &mut rare.passed),
            side: live.side,
            protocol: live.protocol,
            service: live.service,
            class,
            pid: live.pid,
            tid: live.tid,
            cookie: live.cookie,
            method: Arc::clone(&live.request.method),
            path: Arc::clone(&live.request.path),
            version: live.request.version,
            local_port: live.endpoints.local_port,
            peer: Arc::clone(&live.endpoints.peer),
            peer_port: live.endpoints.peer_port,
            encrypted: live.encrypted,
            arrived: live.arrived,
            accepted: live.accepted(),
            pool_queue: live.server.pool_queue.sum(),
            after_reply,
            start: live.start,
            first_reply: live.first_reply,
            end: live.end,
            request_bytes: live.request_bytes,
            reply_bytes: live.reply_bytes,
            reply_body_bytes: live.reply_body_bytes(),
            status: live.status.filter(|status| *status != 0 || live.protocol == ProtocolId::Grpc),
            failure: live.rare.failure,
            error,
            outcome,
            process_end: live.rare.process_end.filter(|_| outcome == Outcome::Aborted),
            // One that was handled is no failure.
            exception: live
                .rare
                .take(|rare| &mut rare.exception)
                .filter(|_| error)
                .map(|thrown| exception_name(thrown.kind.as_ref())),
            thrown_at: None,
            log_lines: live.rare.take(|rare| &mut rare.log_lines).map(|lines| Arc::new(*lines)),
            cost: live.cost,
            downstream,
            calls,
            grade: verdicts.grade,
            evidence: verdicts.reason.text(),
            network: live.network.latest(),
            opening: live.client.take(|client| &mut client.opening),
            callee: live.client.callee_service,
            remote: relay::remote(live.rare.relay.as_deref(), live.end.saturating_sub(live.start)),
            request_id: live.request.request_id.take(),
            namespace: live.request.namespace.take(),
            declared: None,
            called_from: None,
            kept: None,
        }
    }
}

/// The type of an exception, as it is shown.
fn exception_name(thrown: Option<&RawTypeName>) -> Arc<str> {
    thrown.map_or_else(|| Arc::from(UNKNOWN_TYPE), RawTypeName::name)
}

/// Whether a span failed: by its status, by a failure its reply names, or because its connection ended before the reply
/// did. Losses of the agent are not failures of the application.
pub(super) fn is_error(
    protocol: ProtocolId,
    side: Side,
    status: Option<u16>,
    failure: Option<&'static str>,
    outcome: Outcome,
) -> bool {
    let failed = match (side, status) {
        _ if protocol == ProtocolId::Grpc => grpc::failed(side, status),
        (_, None) => false,
        (_, Some(0)) => failure.is_some(),
        (Side::Server, Some(status)) => status >= 500,
        (Side::Client, Some(status)) => status >= 400,
    };
    failed || outcome == Outcome::Aborted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_agent_lost_is_no_error() {
        for (protocol, side, status, failure, outcome, error) in [
            // The end, or the whole reply, was in lost records.
            (ProtocolId::Http, Side::Server, None, None, Outcome::Unfinished, false),
            (ProtocolId::Http, Side::Client, None, None, Outcome::Unfinished, false),
            (ProtocolId::Http, Side::Server, Some(200), None, Outcome::Unfinished, false),
            (ProtocolId::Http, Side::Server, None, None, Outcome::Complete, false),
            (ProtocolId::Redis, Side::Server, None, None, Outcome::Unfinished, false),
            (ProtocolId::Grpc, Side::Server, None, None, Outcome::Unfinished, false),
            // The application reported an error, or hung up.
            (ProtocolId::Http, Side::Server, Some(500), None, Outcome::Unfinished, true),
            (ProtocolId::Http, Side::Client, Some(404), None, Outcome::Complete, true),
            (ProtocolId::Http, Side::Server, Some(404), None, Outcome::Complete, false),
            (ProtocolId::Http, Side::Server, None, None, Outcome::Aborted, true),
            (ProtocolId::Redis, Side::Server, Some(0), Some("WRONGTYPE"), Outcome::Complete, true),
            (ProtocolId::Dns, Side::Client, Some(0), Some("timeout"), Outcome::Unfinished, true),
        ] {
            assert_eq!(is_error(protocol, side, status, failure, outcome), error, "{protocol} {status:?} {outcome:?}");
        }
    }
}
