//! Which processes qualify: whether the kernel side may count exchanges of a process, by what is seen of it.

use tracer_model::{ProtocolId, Side, Span};
use tracer_transactions::request_prefixes::rule;

/// Exchanges of a process that are seen whole before it qualifies.
pub(super) const SEEN_BEFORE: u32 = 64;
/// With [`ExchangeCounts::adapts`](super::ExchangeCounts), about how many exchanges of a process are seen whole a second, if it has more.
const WHOLE_A_SECOND: u64 = 1000;
/// One in 2 to the power of this many is the least.
const REPORTED_LEAST: u8 = 10;
/// HTTP: the connection speaks another protocol from here on (RFC 9110 §15.2.2).
const SWITCHING: u16 = 101;
/// Requests after which replies belong to others: of HTTP, a tunnel's; of Redis, transactions and subscriptions; of Memcached, a
/// log's.
const CHANGES_THE_CONNECTION: [&str; 8] =
    ["CONNECT", "MULTI", "EXEC", "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "watch"];

/// Names of [`ProcessState::state`].
pub(super) const STATES: [&str; 9] = [
    "counted",
    "too_few_seen",
    "protocol",
    "serves_and_calls",
    "tls",
    "makes_calls",
    "has_parents",
    "connection_changes",
    "pipelines",
];

/// What a process was seen to do.
#[derive(Debug)]
pub(super) enum ProcessState {
    /// It may qualify: its side, its protocol, and exchanges seen so far.
    Seen(Side, ProtocolId, u32),
    Qualified(Side, ProtocolId, ExchangeRate),
    /// It does something that must be seen whole.
    Refused(Refusal),
}

/// How many exchanges of a process there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExchangeRate {
    /// Since the last reading.
    pub(super) seen: u64,
    /// Some since then had their other end, or what caused them, in view.
    pub(super) joined: bool,
    /// [`CountingRule::reported`](tracer_common::exchange_counts::CountingRule::reported).
    pub(super) reported: u8,
}

impl ExchangeRate {
    /// What [`Self::reported`] is to be if a process has `second` exchanges in a second. It changes only where they have
    /// clearly become more or fewer, because each change has every thread look up its policy. Parts of larger transactions
    /// are seen whole, however many they are.
    pub(super) fn reported_of(self, second: u64) -> u8 {
        if self.joined {
            return 0;
        }
        let whole = |power: u8| second >> power;
        let few = self.reported > 0 && whole(self.reported) < WHOLE_A_SECOND / 4;
        if whole(self.reported) <= WHOLE_A_SECOND && !few {
            return self.reported;
        }
        (0..REPORTED_LEAST).find(|power| whole(*power) <= WHOLE_A_SECOND).unwrap_or(REPORTED_LEAST)
    }
}

/// Why every exchange of a process is seen whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refusal {
    /// Its protocol, or one of its protocols, is not counted so.
    Protocol,
    ServesAndCalls,
    Tls,
    /// Its requests cause calls.
    MakesCalls,
    /// Its calls are made for requests.
    HasParents,
    /// Requests change what follows on their connections.
    ConnectionChanges,
    /// Requests are sent before earlier ones are answered.
    Pipelines,
}

impl Refusal {
    fn name(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::ServesAndCalls => "serves_and_calls",
            Self::Tls => "tls",
            Self::MakesCalls => "makes_calls",
            Self::HasParents => "has_parents",
            Self::ConnectionChanges => "connection_changes",
            Self::Pipelines => "pipelines",
        }
    }
}

impl ProcessState {
    /// For a metric.
    pub(super) fn state(&self) -> &'static str {
        match self {
            Self::Seen(..) => "too_few_seen",
            Self::Qualified(..) => "counted",
            Self::Refused(why) => why.name(),
        }
    }
}

/// Why exchanges of the process that a span belongs to are not to be counted unseen; `side` and `protocol` are those of its
/// first one.
pub(super) fn refusal(side: Side, protocol: ProtocolId, span: &Span) -> Option<Refusal> {
    if rule(protocol).is_none() || protocol != span.protocol {
        return Some(Refusal::Protocol);
    }
    if side != span.side {
        return Some(Refusal::ServesAndCalls);
    }
    if span.encrypted {
        return Some(Refusal::Tls);
    }
    if span.calls > 0 {
        return Some(Refusal::MakesCalls);
    }
    if side == Side::Client && span.parent.is_some() {
        return Some(Refusal::HasParents);
    }
    let changes = span.status == Some(SWITCHING) || CHANGES_THE_CONNECTION.contains(&&*span.method);
    changes.then_some(Refusal::ConnectionChanges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_exchanges_about_a_thousand_a_second_are_seen_whole() {
        let of = |reported, second| ExchangeRate { seen: 0, joined: false, reported }.reported_of(second);
        assert_eq!([of(0, 900), of(0, 1_100), of(0, 30_000), of(0, u64::MAX)], [0, 1, 5, REPORTED_LEAST]);
        // It stays while as many as that are left, and follows when they are clearly more or fewer.
        assert_eq!([of(5, 16_000), of(5, 32_000), of(5, 33_000), of(5, 7_000), of(5, 10)], [5, 5, 6, 3, 0]);
        assert_eq!(ExchangeRate { seen: 0, joined: true, reported: 5 }.reported_of(32_000), 0);
    }
}
