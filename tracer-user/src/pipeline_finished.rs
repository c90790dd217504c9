//! What becomes of a unit of work that is over: its class, the sums, and whoever wants it whole.

use super::relayed;
use super::{Pipeline, classify_late};
use crate::model::{ClassId, Outcome, Owner, Side, Sink, Unit};
use crate::protocols::{Conventions, conventions, grpc, messaging};
use crate::transactions::engine::Verdicts;
use crate::transactions::live::Live;

impl Pipeline {
    pub(super) fn finished(&mut self, mut live: Box<Live>, verdicts: Verdicts) {
        let class = match live.class {
            Some(class) => class,
            None => classify_late(&mut self.classifier, &mut self.names, &mut live),
        };
        self.engine.settle(&live, class);
        for mut sample in std::mem::take(&mut live.samples) {
            sample.owner = Owner::Class(class);
            self.profiles.sample(&self.names, &sample);
        }
        self.last_word(&live, class, &verdicts);
        let unit = Self::unit(live, class, &verdicts);
        self.metrics.unit(&self.names, &unit);
        self.stats.unit(&self.names, &unit);
        for writer in &mut self.writers {
            writer.unit(&self.names, &unit);
        }
        self.store.take(unit);
    }

    fn unit(live: Box<Live>, class: ClassId, verdicts: &Verdicts) -> Unit {
        let downstream = live.downstream();
        let outcome = live.outcome.unwrap_or(Outcome::Unfinished);
        let failed = match (live.side, live.status) {
            _ if live.protocol == grpc::NAME => grpc::failed(live.side, live.status),
            (_, None) => outcome != Outcome::Upgraded && !(live.request.asked.silent || live.request.asked.optional),
            (_, Some(0)) => live.failure.is_some(),
            (Side::Server, Some(status)) => status >= 500,
            (Side::Client, Some(status)) => status >= 400,
        };
        // A message's context is its producer's: a link, no parent.
        let messaging = conventions(live.protocol) == Conventions::Messaging;
        let named = live.request.traceparent.filter(|_| live.side == Side::Server);
        let producer = named.filter(|_| messaging && *live.request.method == *messaging::DELIVER);
        let context = named.filter(|_| !messaging);
        Unit {
            id: live.id,
            trace: verdicts.trace,
            parent: verdicts.parent,
            carrier: relayed::carrier(context, verdicts.parent, &live),
            sampled: live.sampled,
            linked: producer.map(|context| Box::new(context.into())).or(live.linked),
            carried: live.passed,
            side: live.side,
            protocol: live.protocol,
            service: live.service,
            class,
            pid: live.pid,
            tid: live.tid,
            cookie: live.cookie,
            method: live.request.method,
            path: live.request.path,
            version: live.request.version,
            local_port: live.local_port,
            peer: live.peer,
            peer_port: live.peer_port,
            arrived: live.arrived,
            accepted: live.accepted,
            pool_queue: live.pool_queue.sum(),
            start: live.start,
            first_reply: live.first_reply,
            end: live.end,
            request_bytes: live.request_bytes,
            reply_bytes: live.reply_bytes,
            reply_body_bytes: live.reply_body_bytes,
            status: live.status.filter(|status| *status != 0 || live.protocol == grpc::NAME),
            failure: live.failure,
            error: failed || outcome == Outcome::Aborted,
            outcome,
            cost: live.cost,
            downstream,
            grade: verdicts.grade,
            evidence: verdicts.evidence,
            far: relayed::far(live.relay.as_deref(), live.end.saturating_sub(live.start)),
            request_id: live.request.request_id,
        }
    }
}
