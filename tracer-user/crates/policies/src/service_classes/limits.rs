//! Which requests are ended, by a reset of their connection, because their class says so. Pure: open requests in, ends out.
//!
//! - *Too long*: a request is open for `end_after` or longer.
//! - *Too many*: more than `max_open` requests of the class are open in one service; those that began last are ended.
//!
//! A request is only ended where nothing else is on its connection: where several share one (HTTP/2), none is. What was ended
//! does not count as open any more, though the program may go on with it for a while.

use std::collections::HashMap;
use std::time::Duration;

use tracer_host::guard::tables::TableUse;
use tracer_model::{Nanos, ServiceId};

/// Shortest and longest `end_after`.
pub const END_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));
/// Highest `max_open`.
pub const OPEN_MAX: i64 = 100_000;
/// Most requests that are remembered as ended.
const ENDED_MAX: usize = 8192;

/// Limits of a service class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLimits {
    /// A request that is open for this long is ended.
    pub end_after: Option<Duration>,
    /// Requests that may be open at once in a service.
    pub max_open: Option<u32>,
}

impl RequestLimits {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A request that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// Its connection.
    pub connection: ConnectionId,
    /// Index of its service class.
    pub class: usize,
    /// The service that serves it.
    pub service: ServiceId,
    /// When it was read.
    pub since: Nanos,
    /// Whether other requests can be on its connection at the same time.
    pub shared: bool,
}

/// A connection, as the kernel finds its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId {
    /// The socket's cookie: unlike ports it is never used again.
    pub cookie: u64,
    /// A process that has the socket.
    pub pid: u32,
    /// Local and remote port; 0: it is no TCP connection.
    pub ports: (u16, u16),
}

/// Why a request is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndReason {
    /// It is open for too long.
    TooLong,
    /// Too many are open.
    TooMany,
}

impl EndReason {
    /// Every reason.
    pub const ALL: [Self; 2] = [Self::TooLong, Self::TooMany];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::TooMany => "too_many",
        }
    }
}

/// A request that is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestToEnd {
    /// Its connection.
    pub connection: ConnectionId,
    /// Index of its service class.
    pub class: usize,
    /// Why.
    pub reason: EndReason,
    /// It cannot be: others may be on its connection.
    pub shared: bool,
}

/// The decisions.
#[derive(Debug, Default)]
pub struct LimitDecision {
    /// By service class.
    limits: Vec<RequestLimits>,
    /// Requests that were decided about, by connection and beginning; and whether they were open at the last look.
    ended: HashMap<(u64, Nanos), bool>,
    refused: u64,
}

impl LimitDecision {
    /// Decides for classes with these limits.
    pub fn new(limits: Vec<RequestLimits>) -> Self {
        Self { limits, ended: HashMap::new(), refused: 0 }
    }

    /// Requests that were decided about and are still open.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.ended.len(), ENDED_MAX, self.refused)
    }

    /// Decides at `now`, with every request that is open. Each is ended once.
    pub fn decide(&mut self, now: Nanos, open: &[OpenRequest]) -> Vec<RequestToEnd> {
        for is_open in self.ended.values_mut() {
            *is_open = false;
        }
        let mut left: Vec<&OpenRequest> = Vec::new();
        for one in open {
            match self.ended.get_mut(&(one.connection.cookie, one.since)) {
                Some(is_open) => *is_open = true,
                None => left.push(one),
            }
        }
        self.ended.retain(|_, is_open| *is_open);
        left.sort_by_key(|one| (one.class, one.service, one.since, one.connection.cookie));
        let mut ends = Vec::new();
        let (mut group, mut position) = (None, 0u32);
        for one in left {
            if group != Some((one.class, one.service)) {
                (group, position) = (Some((one.class, one.service)), 0);
            }
            let limits = self.limits.get(one.class).copied().unwrap_or_default();
            let age = Duration::from_nanos(now.saturating_sub(one.since));
            let reason = if limits.end_after.is_some_and(|after| age >= after) {
                EndReason::TooLong
            } else if limits.max_open.is_some_and(|most| position >= most) {
                EndReason::TooMany
            } else {
                position += 1;
                continue;
            };
            if self.ended.len() >= ENDED_MAX {
                self.refused += 1;
                continue;
            }
            self.ended.insert((one.connection.cookie, one.since), true);
            ends.push(RequestToEnd { connection: one.connection, class: one.class, reason, shared: one.shared });
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Nanos = 1_000_000_000;

    fn decision() -> LimitDecision {
        let limits = |end_after: Option<u64>, max_open| RequestLimits {
            end_after: end_after.map(Duration::from_secs),
            max_open,
        };
        LimitDecision::new(vec![limits(None, None), limits(Some(5), None), limits(None, Some(2))])
    }

    fn request(cookie: u64, class: usize, since: Nanos) -> OpenRequest {
        let connection = ConnectionId { cookie, pid: 1, ports: (80, cookie as u16) };
        OpenRequest { connection, class, service: ServiceId(0), since, shared: false }
    }

    fn ended(ends: &[RequestToEnd]) -> Vec<(u64, EndReason)> {
        ends.iter().map(|end| (end.connection.cookie, end.reason)).collect()
    }

    #[test]
    fn what_is_open_for_too_long_is_ended_once() {
        let mut decision = decision();
        let open = [request(1, 0, 0), request(2, 1, 0), request(3, 1, 3 * SECOND)];
        assert!(decision.decide(4 * SECOND, &open).is_empty());
        assert_eq!(ended(&decision.decide(5 * SECOND, &open)), [(2, EndReason::TooLong)]);
        assert!(decision.decide(6 * SECOND, &open).is_empty());
        assert_eq!(decision.table_use().entries, 1);
        // The next request on the same connection is another one.
        assert_eq!(ended(&decision.decide(12 * SECOND, &[request(2, 1, 6 * SECOND)])), [(2, EndReason::TooLong)]);
        assert!(decision.decide(13 * SECOND, &[]).is_empty());
        assert_eq!(decision.table_use().entries, 0);
    }

    #[test]
    fn of_too_many_the_last_are_ended() {
        let mut decision = decision();
        let other = OpenRequest { service: ServiceId(1), ..request(9, 2, 9) };
        let open = [request(4, 2, 40), request(1, 2, 10), request(3, 2, 30), request(2, 2, 20), other];
        assert_eq!(ended(&decision.decide(50, &open)), [(3, EndReason::TooMany), (4, EndReason::TooMany)]);
        // What was ended is open for a while, and does not count.
        let open = [request(3, 2, 30), request(4, 2, 40), request(2, 2, 20), request(5, 2, 50), request(6, 2, 60)];
        assert_eq!(ended(&decision.decide(70, &open)), [(6, EndReason::TooMany)]);
    }

    proptest! {
        /// However requests come and go: never more than the limit stay, and no request is ended twice.
        #[test]
        fn limits_hold(looks in proptest::collection::vec(proptest::collection::vec((0u64..30, 0u64..4), 0..20), 1..20)) {
            let mut decision = decision();
            for (now, look) in looks.into_iter().enumerate() {
                let mut open: Vec<OpenRequest> = look.iter().map(|(cookie, since)| request(*cookie, 2, *since)).collect();
                open.sort_by_key(|one| (one.connection.cookie, one.since));
                open.dedup();
                let before: Vec<(u64, Nanos)> = decision.ended.keys().copied().collect();
                let ends = decision.decide(now as Nanos, &open);
                let left = open.iter().filter(|one| !decision.ended.contains_key(&(one.connection.cookie, one.since)));
                prop_assert!(left.count() <= 2);
                prop_assert!(decision.ended.len() <= open.len());
                prop_assert!(ends.len() + before.len() >= decision.ended.len());
            }
        }
    }
}
