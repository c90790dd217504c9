//! Spans not yet reported.

mod client_side;
mod on_demand;
mod rare;
mod server_side;
mod slab;

use std::sync::Arc;

use smallvec::SmallVec;
use tracer_common::event::NetworkPath;
use tracer_model::{
    Accepted, AfterReply, ClassId, Cost, DimensionValues, Nanos, Outcome, ProtocolId, ServiceId, Side, SpanId, TraceId,
};
use tracer_protocols::{Conventions, Request};

use super::endpoints::Endpoints;
use super::network::NetworkSoFar;
use super::request_prefixes::Beginning;
use super::slot::SpanRef;
pub use client_side::ClientSide;
pub use on_demand::OnDemand;
pub use rare::{GroupMembership, Rare};
pub use server_side::{CallTime, PoolQueue, ServerSide};
pub use slab::Slab;

/// CPU time after a reply below this is not reported, nanoseconds.
const LITTLE: u64 = 1_000_000;

/// Calls counted per request; further ones are ignored.
const CALLS: usize = 1024;

/// An open span, or an ended one in its grace time.
///
/// All that a plain exchange needs is in the struct itself: four lines of the processor's cache. What other spans have
/// besides is in the three parts at its end, which have memory only where there is something to remember.
#[derive(Debug)]
pub struct OpenSpan {
    /// Span id.
    pub id: SpanId,
    /// Trace id, generated or from a `traceparent`; a parent on this host overrides it.
    pub trace: TraceId,
    /// Entry or exit port.
    pub side: Side,
    /// Protocol name.
    pub protocol: ProtocolId,
    /// Service of the process.
    pub service: ServiceId,
    /// Its class, once given.
    pub class: Option<ClassId>,
    /// The parsed request.
    pub request: Box<Request>,
    /// Hash of what a proxy leaves unchanged; 0: unknown.
    pub fingerprint: u64,
    /// How its request begins, as the number of a class of the kernel side that begins so; 0: it knows none.
    known_beginning: u32,

    /// Socket.
    pub cookie: u64,
    /// Exchange number on the socket.
    pub exchange: u64,
    /// What it shares with the other spans of its connection.
    pub endpoints: Arc<Endpoints>,
    /// Its connection is encrypted.
    pub encrypted: bool,
    /// Its connection carries several exchanges at once.
    pub multiplexed: bool,
    /// What TCP measured meanwhile.
    pub network: NetworkSoFar,

    /// Process that read or sent the request.
    pub pid: u32,
    /// Thread that read or sent the request.
    pub tid: u32,
    /// The task that began it, as the records name it; 0: none, or unknown.
    pub read_as: u64,
    /// Server side: whether its thread ran one request at a time throughout.
    pub alone: bool,
    /// Server side: whether it is listed by its fingerprint or only counted; none: neither.
    pub in_forwarding: Option<bool>,

    /// First byte arrived in the socket; 0: unknown.
    pub arrived: Nanos,
    /// First byte read or sent.
    pub start: Nanos,
    /// First byte of the reply; 0: none.
    pub first_reply: Nanos,
    /// End; 0 while open.
    pub end: Nanos,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Times its report was deferred.
    pub deferred: u8,

    /// Status, if there was a reply; 0 where the protocol has none.
    pub status: Option<u16>,
    /// Request bytes.
    pub request_bytes: u64,
    /// Reply bytes.
    pub reply_bytes: u64,
    /// Reply bytes after the head, if that was not cut.
    reply_body_bytes: u64,
    reply_head_cut: bool,
    /// Server side: the thread that answered it; 0: none yet.
    pub answered_by: u32,
    /// Server side: whether a thread is known to have begun its answer.
    answer_begun: bool,

    /// Cost charged so far.
    pub cost: Cost,
    /// Part of `cost.cpu` used after its reply, nanoseconds.
    pub after_reply_cpu: u64,
    /// Server side: one operation answered it together with others, and they share the cost.
    pub batch: bool,
    /// Server side: its bytes were sent together with other streams', and they share the cost evenly.
    pub shared: bool,

    /// Server side: what only a request has that has to do with calls, threads and processes.
    pub server: OnDemand<ServerSide>,
    /// Client side: what only a call has.
    pub client: OnDemand<ClientSide>,
    /// What few spans have.
    pub rare: OnDemand<Rare>,
}

/// What is known of a span when it begins; each as in [`OpenSpan`].
pub(super) struct NewSpan {
    pub(super) id: SpanId,
    pub(super) trace: TraceId,
    pub(super) remote_parent: Option<SpanId>,
    pub(super) side: Side,
    pub(super) protocol: ProtocolId,
    pub(super) service: ServiceId,
    pub(super) request: Box<Request>,
    pub(super) cookie: u64,
    pub(super) exchange: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) endpoints: Arc<Endpoints>,
    pub(super) encrypted: bool,
    pub(super) arrived: Nanos,
    pub(super) start: Nanos,
    pub(super) fingerprint: u64,
    pub(super) beginning: Option<Beginning>,
    pub(super) read_as: u64,
    pub(super) multiplexed: bool,
}

/// The memory that a span's parts have before anything is known of them.
#[derive(Debug, Default)]
struct BlankParts {
    server: OnDemand<ServerSide>,
    client: OnDemand<ClientSide>,
    rare: OnDemand<Rare>,
}

impl OpenSpan {
    /// A span of which nothing else is known yet.
    #[inline]
    fn new(begins: NewSpan, parts: BlankParts) -> Self {
        let mut live = Self {
            id: begins.id,
            trace: begins.trace,
            side: begins.side,
            protocol: begins.protocol,
            service: begins.service,
            request: begins.request,
            cookie: begins.cookie,
            exchange: begins.exchange,
            pid: begins.pid,
            tid: begins.tid,
            endpoints: begins.endpoints,
            encrypted: begins.encrypted,
            arrived: begins.arrived,
            start: begins.start,
            fingerprint: begins.fingerprint,
            read_as: begins.read_as,
            multiplexed: begins.multiplexed,
            client: parts.client,
            server: parts.server,
            rare: parts.rare,
            known_beginning: 0,
            network: NetworkSoFar::default(),
            class: None,
            first_reply: 0,
            end: 0,
            after_reply_cpu: 0,
            request_bytes: 0,
            reply_bytes: 0,
            reply_body_bytes: 0,
            reply_head_cut: false,
            status: None,
            outcome: None,
            cost: Cost::default(),
            in_forwarding: None,
            answer_begun: false,
            answered_by: 0,
            alone: true,
            batch: false,
            shared: false,
            deferred: 0,
        };
        if begins.remote_parent.is_some() {
            live.rare.remote_parent = begins.remote_parent;
        }
        match begins.beginning {
            None => {}
            Some(Beginning::Known(class)) => live.known_beginning = class,
            Some(Beginning::New(prefix)) => live.rare.new_beginning = Some(prefix),
        }
        live
    }

    /// Forgets what its parts know; their memory stays.
    fn clear_parts(&mut self) {
        self.server.clear();
        self.client.clear();
        self.rare.clear();
    }

    /// Gives the memory of its parts, which are cleared.
    #[inline]
    fn take_parts(&mut self) -> BlankParts {
        BlankParts {
            server: std::mem::take(&mut self.server),
            client: std::mem::take(&mut self.client),
            rare: std::mem::take(&mut self.rare),
        }
    }

    /// Its first operation on the network.
    pub(super) fn begins_on(&mut self, path: NetworkPath) {
        self.network.measured(path, true);
    }

    /// A later one.
    pub(super) fn goes_on(&mut self, path: NetworkPath) {
        self.network.measured(path, false);
    }

    /// Whether its connection was accepted by the time its first byte arrived.
    pub fn accepted(&self) -> Accepted {
        self.endpoints.accepted(self.arrived)
    }

    /// Bytes of the reply after its head; `None`: the head was cut.
    pub fn reply_body_bytes(&self) -> Option<u64> {
        (!self.reply_head_cut).then_some(self.reply_body_bytes)
    }

    /// The reply is over and has so many bytes after its head, unless that was cut.
    pub(super) fn has_reply_body(&mut self, bytes: Option<u64>) {
        (self.reply_body_bytes, self.reply_head_cut) = (bytes.unwrap_or(0), bytes.is_none());
    }

    /// How its request begins, if the kernel side could know its class by that.
    pub fn take_beginning(&mut self) -> Option<Beginning> {
        let new = self.rare.take(|rare| &mut rare.new_beginning).map(Beginning::New);
        new.or_else(|| (self.known_beginning != 0).then_some(Beginning::Known(self.known_beginning)))
    }

    /// Its reply names this kind of failure, or none.
    pub(super) fn fails_with(&mut self, failure: Option<&'static str>) {
        if self.rare.failure != failure {
            self.rare.failure = failure;
        }
    }

    /// Server side: it has these of the declared dimensions.
    pub(super) fn has_dimensions(&mut self, dimensions: DimensionValues) {
        if self.rare.dimensions != dimensions {
            self.rare.dimensions = dimensions;
        }
    }

    /// What remains of it once it is reported.
    pub fn kept(&self) -> SpanRef {
        (self.id, self.trace, self.service, self.class)
    }

    /// The call on another host that is this request's other end, as reported by that host's agent.
    pub fn relayed_parent(&self) -> Option<SpanId> {
        let given = self.rare.relay.as_ref()?.given.as_ref()?;
        Some(given.context.parent)
    }

    /// Server side: the parent, by the strongest carrier that names one: its own header, the other end on this host,
    /// another agent, its in-band context.
    pub fn named_parent(&self) -> Option<SpanId> {
        let here = || self.server.caller.map(|(_, id)| id);
        let came = || self.rare.inband.and_then(|inband| inband.parent);
        self.rare.remote_parent.or_else(here).or_else(|| self.relayed_parent()).or_else(came)
    }

    /// Adds a call that it may have caused.
    pub fn add_call(&mut self, time: CallTime) {
        if self.server.calls.len() < CALLS {
            self.server.calls.push(time);
        }
    }

    /// Server side: thread `tid` begins its answer.
    pub fn answer_begins(&mut self, tid: u32) {
        self.answered_by = tid;
        if !std::mem::replace(&mut self.answer_begun, true)
            && let Some(server) = self.server.get_mut()
        {
            server.answered_after = server.wakeups_or_calls;
        }
    }

    /// Server side: how often its thread had been woken or had called when its answer began, if it has.
    pub fn answered_after(&self) -> Option<u32> {
        self.answer_begun.then_some(self.server.answered_after)
    }

    /// Work done for it after its reply. Every server does a little: closing, logging.
    pub fn after_reply(&self) -> Option<AfterReply> {
        let time = self.server.after_reply_until.saturating_sub(self.end);
        let worked = self.server.after_reply_until != 0 || self.after_reply_cpu >= LITTLE;
        worked.then(|| AfterReply { time, cpu: self.after_reply_cpu.min(self.cost.cpu) })
    }

    /// Time before its end in which at least one call was open.
    pub fn downstream(&self) -> u64 {
        let mut calls: SmallVec<[(Nanos, Nanos); 8]> =
            self.server.calls.iter().map(|time| (time.start, time.end)).collect();
        calls.sort_unstable();
        let (mut total, mut until) = (0, 0);
        let over = if self.end == 0 { Nanos::MAX } else { self.end };
        for (start, end) in calls {
            let (start, end) = (start.max(until), end.min(over));
            if end > start {
                total += end - start;
                until = end;
            }
        }
        total
    }
}

/// Whether the call's connection multiplexes calls of its process over HTTP/2.
pub(super) fn is_stream(live: &OpenSpan) -> bool {
    let by_http = matches!(live.protocol.conventions(), Conventions::Http | Conventions::Rpc);
    live.side == Side::Client && live.multiplexed && by_http
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_span_stays_within_its_size() {
        // It is written when a request begins and read when that is reported, mostly from memory that has left the caches.
        assert!(size_of::<OpenSpan>() <= 256, "{}", size_of::<OpenSpan>());
        let parts = [size_of::<ServerSide>(), size_of::<ClientSide>(), size_of::<Rare>()];
        assert!(parts.iter().sum::<usize>() <= 800, "{parts:?}");
    }
}
