//! Context between hosts, out of band: agents tell each other which call a request is the other end of.
//!
//! The traced connections carry nothing more than they did. The caller's agent sends a [`message::Context`] to the agent
//! at the other end, which finds the request by its [`key::Key`] and answers with a [`message::Summary`]. Pure:
//! keys, messages (`message.rs`), what waits for what (`matches.rs`, `calls.rs`; lookups by UDP: `lookups.rs`), whom to tell (`routes.rs`), whom to believe (`bounds.rs`, `san.rs`), whose clock is where (`clocks.rs`), what to tell once
//! and together (`outbox.rs`) or in few bytes (`recent.rs`). The rest are
//! tasks: sessions between agents (`channel.rs`, `tls.rs`, `nats.rs`, `session.rs`), who keeps them (`hub.rs`), who is kept out (`bans.rs`), who is woken (`bell.rs`).
//!
//! The pipeline is told by [`event::Event`]s, which a recording holds, so that a replay gives the same units; it says what
//! to send by [`Outgoing`]. Neither side ever waits for the other.

mod addresses;
pub mod bans;
pub mod bell;
pub mod bounds;
pub mod calls;
pub mod channel;
pub mod clocks;
pub mod event;
pub mod hub;
pub mod key;
pub mod lookups;
pub mod matches;
pub mod message;
pub mod nats;
pub mod outbox;
mod recent;
pub mod routes;
mod san;
pub mod session;
pub mod settings;
pub mod tls;

use std::net::IpAddr;
use std::sync::Arc;

use bounds::Stand;
use message::{Context, Message, Summary};

/// Another agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Number it made at its start.
    pub number: u64,
    /// Its host, as it calls itself.
    pub host: Arc<str>,
}

/// What an agent said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The agent.
    pub from: Agent,
    /// Contexts and summaries.
    pub messages: Vec<Message>,
    /// Where it is, when its session begins or is over; nothing was said then.
    pub stand: Option<Stand>,
}

/// What the pipeline wants sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// To whoever sees the other end of the connection to this address.
    Context {
        /// The call's remote address, as its caller sees it.
        far: IpAddr,
        /// What to say.
        context: Context,
    },
    /// To an agent that sent a context.
    Summary {
        /// Its number.
        to: u64,
        /// What to say.
        summary: Summary,
    },
}

/// What became of contexts: `tracer_relay_total{outcome}`. Each that was received has one of those after `received`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Sent to an agent.
    pub sent: u64,
    /// Came from an agent.
    pub received: u64,
    /// Found their request.
    pub matched: u64,
    /// Said the transaction of a request for good that was known before.
    pub settled: u64,
    /// Came when the request was reported.
    pub late: u64,
    /// Their request was not seen.
    pub unmatched: u64,
    /// The same, but sent to several agents.
    pub elsewhere: u64,
    /// Were known.
    pub duplicate: u64,
    /// Contradicted what was known first, or were of a connection that is not their sender's; summaries of such
    /// connections; sessions that were none.
    pub refused: u64,
    /// Found no room, or their session had gone.
    pub dropped: u64,
    /// Lookups that were not told: the agent there does not know of them yet, or by which address was asked is not known.
    pub untold: u64,
    /// Words of the other end that came when their call was reported; not contexts.
    pub answer_late: u64,
}

impl Outcomes {
    /// Both together.
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
            untold: self.untold + other.untold,
            answer_late: self.answer_late + other.answer_late,
        }
    }

    /// By the names they are exported by.
    pub fn all(&self) -> [(&'static str, u64); 12] {
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
            untold,
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
            ("untold", untold),
            ("answer_late", answer_late),
        ]
    }
}
