//! Out-of-band context between hosts: agents tell each other which request belongs to which call.
//!
//! The traced connections carry no extra bytes. The caller's agent sends a [`message::Context`] to the agent at the
//! other end, which finds the request by its [`key::RequestKey`] and answers with a [`message::Summary`].
//!
//! Pure modules: keys (`key.rs`), messages (`message.rs`), matching (`matches.rs`, `calls.rs`), routing (`routes.rs`),
//! authorization (`bounds.rs`, `san.rs`), clock offsets (`clocks.rs`), batching (`outbox.rs`) and back references
//! (`context_backrefs.rs`). Tasks: sessions (`channel.rs`, `tls.rs`, `nats.rs`, `session.rs`), the hub that keeps them
//! (`hub.rs`) and bans (`bans.rs`).
//!
//! The pipeline receives [`event::Event`]s, which a recording holds so that a replay gives the same spans, and emits
//! [`Outgoing`] messages. Neither side ever waits for the other.

mod addresses;
pub mod bans;
pub mod bounds;
pub mod calls;
pub mod channel;
pub mod clocks;
mod context_backrefs;
pub mod event;
pub mod hub;
pub mod key;
pub mod matches;
pub mod message;
pub mod nats;
pub mod outbox;
pub mod routes;
mod san;
pub mod session;
pub mod settings;
pub mod tls;

use std::net::IpAddr;
use std::sync::Arc;

use bounds::SessionChange;
use message::{Context, Message, Summary};

/// Another agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Number it generated at its start.
    pub number: u64,
    /// The host name it reports.
    pub host: Arc<str>,
}

/// Messages from an agent, or a change of its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender.
    pub from: Agent,
    /// Contexts and summaries.
    pub messages: Vec<Message>,
    /// Its location, when its session begins or ends; `messages` is empty then.
    pub session: Option<SessionChange>,
}

/// A message the pipeline wants sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// To the agent that sees the other end of the connection to this address.
    Context {
        /// The call's remote address, as its caller sees it.
        remote: IpAddr,
        /// The context.
        context: Context,
    },
    /// To an agent that sent a context.
    Summary {
        /// The agent's number.
        to: u64,
        /// The summary.
        summary: Summary,
    },
}

/// Outcomes of contexts: `tracer_relay_total{outcome}`. Each received context also counts as one of the outcomes after
/// `received`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Sent to an agent.
    pub sent: u64,
    /// Received from an agent.
    pub received: u64,
    /// Matched their request.
    pub matched: u64,
    /// Settled the transaction of a request that had a context before.
    pub settled: u64,
    /// Came after the request was reported.
    pub late: u64,
    /// Their request was not seen here.
    pub unmatched: u64,
    /// The same, for a context sent to several agents.
    pub elsewhere: u64,
    /// Were already known.
    pub duplicate: u64,
    /// Contradicted an earlier context, or named a connection their sender may not report on; summaries of such
    /// connections; sessions that failed the handshake; contexts of UDP questions, which only earlier agents send.
    pub refused: u64,
    /// Dropped because a queue was full or the session had ended.
    pub dropped: u64,
    /// Summaries that came after their call was reported; not contexts.
    pub answer_late: u64,
}

impl Outcomes {
    /// The sum of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            received: self.received + other.received,
            matched: self.matched + other.matched,
            settled: self.settled + other.settled,
            late: self.late + other.late,
            unmatched: self.unmatched + other.unmatched,
            elsewhere: self.elsewhere + other.elsewhere,
            duplicate: self.duplicate + other.duplicate,
            refused: self.refused + other.refused,
            dropped: self.dropped + other.dropped,
            answer_late: self.answer_late + other.answer_late,
        }
    }

    /// Values by the names they are exported under.
    pub fn all(&self) -> [(&'static str, u64); 11] {
        let Self {
            sent,
            received,
            matched,
            settled,
            late,
            unmatched,
            elsewhere,
            duplicate,
            refused,
            dropped,
            answer_late,
        } = *self;
        [
            ("sent", sent),
            ("received", received),
            ("matched", matched),
            ("settled", settled),
            ("late", late),
            ("unmatched", unmatched),
            ("elsewhere", elsewhere),
            ("duplicate", duplicate),
            ("refused", refused),
            ("dropped", dropped),
            ("answer_late", answer_late),
        ]
    }
}
