//! What other agents report about the requests read here and the calls made here.

use std::collections::VecDeque;
use std::net::IpAddr;

use rustc_hash::FxHashMap;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::{TableUse, scaled};
use tracer_model::{Nanos, SpanId, TraceId};
use tracer_relay::Agent;
use tracer_relay::bounds::Bounds;
use tracer_relay::calls::{self, Calls};
use tracer_relay::clocks::Clocks;
use tracer_relay::event::Mode;
use tracer_relay::key::RequestKey;
use tracer_relay::matches::{self, Given, KEEP, Matches};
use tracer_relay::message::Summary;

use super::slot::Slot;

/// How long a request waits for its caller's context, from its start; nanoseconds.
pub(super) const WAIT: Nanos = 1_000_000_000;
/// The same on a connection another agent has reported on: a context is certain to come unless that agent is lost.
pub(super) const KNOWN_WAIT: Nanos = 5_000_000_000;
/// How long a request waits for the final trace id if the caller does not know it yet, nanoseconds.
pub(super) const SETTLES: Nanos = 10_000_000_000;
/// Times the report of a call is deferred for the summary of its other end; and the same on a connection another agent
/// has reported on.
pub(super) const PATIENCE: u8 = 4;
pub(super) const KNOWN_PATIENCE: u8 = 20;

/// Whether another agent reports on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contact {
    /// Unknown yet.
    #[default]
    Unknown,
    /// It has reported.
    Yes,
    /// A wait for it was in vain.
    No,
}

/// A span's relation to another host.
#[derive(Debug)]
pub struct Relayed {
    /// The request's key between hosts.
    pub key: RequestKey,
    /// The connection's remote address.
    pub remote: IpAddr,
    /// Server side: how long to wait for the caller's context; 0: no wait.
    pub until: Nanos,
    /// Server side: the context of its call.
    pub given: Option<Given>,
    /// Time from its start until that context arrived, nanoseconds.
    pub delay: Nanos,
    /// Server side: the caller's agent has its summary.
    pub answered: bool,
    /// Client side: the trace id sent to its other end, and whether that was final.
    pub sent: Option<(TraceId, bool)>,
    /// Client side: the summary from its other end, and which agent sent it.
    pub summary: Option<(Summary, Agent)>,
}

impl Relayed {
    pub(super) fn new(key: RequestKey, remote: IpAddr, until: Nanos) -> Self {
        let nothing = (None, None, None);
        let (given, sent, summary) = nothing;
        Self { key, remote, until, given, delay: 0, answered: false, sent, summary }
    }
}

/// What remains of a request after its report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) slot: Slot,
    pub(super) cookie: u64,
    pub(super) id: SpanId,
    /// The trace id before any other agent's context.
    pub(super) trace: TraceId,
    /// The connection's remote address.
    pub(super) remote: IpAddr,
}

/// The engine's part of the relay.
#[derive(Debug)]
pub(super) struct Relays {
    pub(super) mode: Mode,
    pub(super) bounds: Bounds,
    pub(super) matches: Matches<Served>,
    pub(super) calls: Calls<Slot>,
    /// Sockets of calls by connection (`RequestKey::connection`): a summary that arrives after a call's report still shows
    /// that an agent reports on the connection.
    pub(super) callers: FxHashMap<u64, u64>,
    /// Calls sent before their transaction was known.
    pub(super) unsettled: VecDeque<Slot>,
    /// Ended requests whose summary is due.
    pub(super) answers: VecDeque<Slot>,
    /// Old trace ids of renamed transactions, for a while.
    pub(super) renamed: FxHashMap<TraceId, TraceId>,
    pub(super) renames: VecDeque<(Nanos, TraceId)>,
    pub(super) late_answers: u64,
    pub(super) clocks: Clocks,
}

impl Relays {
    pub(super) fn new(memory: u64) -> Self {
        Self {
            mode: Mode::Off,
            bounds: Bounds::default(),
            matches: Matches::new(scaled(matches::LIMIT, memory)),
            calls: Calls::new(scaled(calls::LIMIT, memory)),
            callers: FxHashMap::default(),
            unsettled: VecDeque::new(),
            answers: VecDeque::new(),
            renamed: FxHashMap::default(),
            renames: VecDeque::new(),
            late_answers: 0,
            clocks: Clocks::default(),
        }
    }

    /// The current trace id of a transaction.
    pub(super) fn name(&self, mut trace: TraceId) -> TraceId {
        // Renames come from several hosts: bound the walk, they may form a cycle.
        for _ in 0..4 {
            match self.renamed.get(&trace) {
                Some(now) => trace = *now,
                None => break,
            }
        }
        trace
    }

    pub(super) fn rename(&mut self, now: Nanos, was: TraceId, is: TraceId) {
        if was == is {
            return;
        }
        if self.renames.len() >= self.matches.limit()
            && let Some((_, oldest)) = self.renames.pop_front()
        {
            self.renamed.remove(&oldest);
        }
        self.renamed.insert(was, is);
        self.renames.push_back((now + KEEP, was));
    }

    pub(super) fn expire(&mut self, now: Nanos, open: impl Fn(Slot) -> bool) {
        self.matches.expire(now, |served| open(served.slot));
        while let Some((due, was)) = self.renames.front().copied()
            && due <= now
        {
            self.renames.pop_front();
            self.renamed.remove(&was);
        }
    }

    pub(super) fn shrink_excess(&mut self) {
        self.matches.shrink_excess();
        self.calls.shrink_excess();
        self.callers.shrink_excess();
        self.unsettled.shrink_excess();
        self.answers.shrink_excess();
        self.renamed.shrink_excess();
        self.renames.shrink_excess();
    }

    /// Requests and contexts that wait for each other; calls that wait for a summary of their other end.
    pub(super) fn table_use(&self) -> [TableUse; 2] {
        [
            TableUse::new(
                self.matches.len(),
                self.matches.limit(),
                self.matches.evicted + self.matches.outcomes.dropped,
            ),
            TableUse::new(self.calls.len(), self.calls.limit(), self.calls.refused),
        ]
    }
}

/// Times the report of a call is deferred.
pub(super) fn patience(contact: Contact) -> u8 {
    if contact == Contact::Yes { KNOWN_PATIENCE } else { PATIENCE }
}

/// A call's context, without its class name.
#[derive(Clone, Copy, Debug)]
pub struct CallContext {
    /// The request.
    pub key: RequestKey,
    /// The connection's remote address.
    pub remote: IpAddr,
    /// Its transaction.
    pub trace: TraceId,
    /// Whether the trace id is final.
    pub settled: bool,
}
