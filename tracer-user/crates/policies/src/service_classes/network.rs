//! Which connections send with another packet priority, and for how long. Pure: time and facts in, orders out.
//!
//! The rule in one sentence: a connection that carries a request of a class with `network = "high"` or `"low"` sends with
//! that priority from when the request was read until [`LINGER`] or [`LINGER_LOW`] after its end, or until it carries one of another
//! class.
//!
//! - *The connection is known before the reply is.* A request that is over before it was looked at counts, too: the next
//!   one on its connection is most likely of the same class, and is sent with the priority from its first byte on.
//! - *Several at once* (HTTP/2): the highest priority among the open ones.
//! - *Nobody holds the link.* A request of high priority that is open for longer than [`PATIENCE`] is a download, and is
//!   sent like everything else from then on. Low priority stays: what it gets is what the queueing discipline gives.
//!
//! Every priority has an end, which is put off while it is needed: without the agent it ends by itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tracer_host::guard::tables::TableUse;
use tracer_model::Nanos;

use super::Priority;

/// How long a connection keeps high priority after the last request of its class, nanoseconds. Also how long a priority lasts that
/// is not put off.
pub const LINGER: Nanos = 1_000_000_000;
/// The same of low priority: what the server has written may take this long to leave by a narrow link.
pub const LINGER_LOW: Nanos = 10_000_000_000;
/// The end of a priority is put off when it is nearer than this, nanoseconds.
const RENEW: Nanos = LINGER / 2;
/// From this age on a request has no high priority any more, nanoseconds.
pub const PATIENCE: Nanos = 10_000_000_000;
/// Most connections with another priority.
pub const CONNECTIONS_MAX: usize = tracer_common::limits::SEND_PRIORITIES_MAX as usize;

/// Packet priorities for high and low network priority. A queueing discipline makes something of them: `pfifo_fast`,
/// `prio`, `mqprio` and, since Linux 6.7, `fq` choose a band by them; for others, such as `htb`, the handle of a class
/// chooses the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPriorities {
    /// Of classes with high priority.
    pub high: u32,
    /// Of those with low priority.
    pub low: u32,
}

impl Default for PacketPriorities {
    fn default() -> Self {
        // `TC_PRIO_INTERACTIVE` and `TC_PRIO_BULK` (`include/uapi/linux/pkt_sched.h`).
        Self { high: 6, low: 2 }
    }
}

impl PacketPriorities {
    /// Reads a priority from 0 to 15, or the handle of a class, `MAJOR:MINOR` in hexadecimal digits as `tc` writes it.
    pub fn parse(text: &str) -> Option<u32> {
        let part = |text: &str, least: u16| {
            let is_hex = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            u16::from_str_radix(text, 16).ok().filter(|number| is_hex && *number >= least)
        };
        match text.split_once(':') {
            Some((major, minor)) => Some(u32::from(part(major, 1)?) << 16 | u32::from(part(minor, 0)?)),
            None => text.parse().ok().filter(|number| *number <= 15 && !text.starts_with('+')),
        }
    }

    /// The packets' priority; `None` leaves them alone.
    pub fn of(self, priority: Priority) -> Option<u32> {
        match priority {
            Priority::High => Some(self.high),
            Priority::Normal => None,
            Priority::Low => Some(self.low),
        }
    }
}

/// What was done for one service class since the start, by connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkActions {
    /// Priorities set.
    pub applied: u64,
    /// Priorities that a dry run would have set.
    pub would_apply: u64,
    /// Connections that send as before again.
    pub restored: u64,
    /// Priorities that the kernel did not take.
    pub refused: u64,
}

/// A request on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendingRequest {
    /// The socket's cookie.
    pub cookie: u64,
    /// Index of the request's service class.
    pub class: usize,
    /// When the request was read.
    pub since: Nanos,
    /// Whether its reply has not ended.
    pub open: bool,
}

/// What is to be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkOrder {
    /// Send with this priority until then.
    Set {
        /// The socket's cookie.
        cookie: u64,
        /// Index of the service class that this is for.
        class: usize,
        /// The priority; never normal.
        priority: Priority,
        /// When it ends by itself.
        until: Nanos,
        /// Whether only the end is put off.
        renewed: bool,
    },
    /// Send as without service classes.
    Clear {
        /// The socket's cookie.
        cookie: u64,
        /// Index of the service class that it was set for.
        class: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct ConnectionPriority {
    class: usize,
    priority: Priority,
    until: Nanos,
    /// When a request last wanted it.
    last: Nanos,
    /// What the requests of this round want: priority, class, and whether the request is open.
    wanted: Option<(Priority, usize, bool)>,
}

/// The decisions.
#[derive(Debug)]
pub struct NetworkDecision {
    /// By service class.
    priorities: Vec<Priority>,
    connections: HashMap<u64, ConnectionPriority>,
    refused: u64,
}

impl NetworkDecision {
    /// Decides for classes of these priorities.
    pub fn new(priorities: Vec<Priority>) -> Self {
        Self { priorities, connections: HashMap::new(), refused: 0 }
    }

    /// Connections with another priority.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.connections.len(), CONNECTIONS_MAX, self.refused)
    }

    /// Forgets every connection, and orders that clear them.
    pub fn restore_orders(&mut self) -> Vec<NetworkOrder> {
        self.connections.drain().map(|(cookie, known)| NetworkOrder::Clear { cookie, class: known.class }).collect()
    }

    /// Decides at `now`: `sending` has every request that is open, and those that ended since the last time.
    pub fn decide(&mut self, now: Nanos, sending: &[SendingRequest], orders: &mut Vec<NetworkOrder>) {
        for one in sending {
            let given = self.priorities.get(one.class).copied().unwrap_or_default();
            let is_old = given == Priority::High && now.saturating_sub(one.since) >= PATIENCE;
            let priority = if is_old { Priority::Normal } else { given };
            let full = self.connections.len() >= CONNECTIONS_MAX;
            let known = match self.connections.entry(one.cookie) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(_) if priority == Priority::Normal => continue,
                Entry::Vacant(_) if full => {
                    self.refused += 1;
                    continue;
                }
                Entry::Vacant(place) => place.insert(ConnectionPriority {
                    class: one.class,
                    priority: Priority::Normal,
                    until: 0,
                    last: now,
                    wanted: None,
                }),
            };
            // Open ones count before those that ended, then the higher priority does.
            let wanted = (priority, one.class, one.open);
            let is_better = |(other, _, open): (Priority, usize, bool)| (one.open, priority) > (open, other);
            if known.wanted.is_none_or(is_better) {
                known.wanted = Some(wanted);
            }
        }
        self.connections.retain(|cookie, known| {
            let clear = NetworkOrder::Clear { cookie: *cookie, class: known.class };
            let lingering = if known.priority == Priority::Low { LINGER_LOW } else { LINGER };
            let (priority, class) = match known.wanted.take() {
                Some((priority, class, _)) => {
                    known.last = now;
                    (priority, class)
                }
                None if now.saturating_sub(known.last) < lingering => (known.priority, known.class),
                None => {
                    orders.push(clear);
                    return false;
                }
            };
            if priority == Priority::Normal {
                // Unless it came up in this very round.
                if known.priority != Priority::Normal {
                    orders.push(clear);
                }
                return false;
            }
            let renewed = (known.priority, known.class) == (priority, class);
            if !renewed || known.until.saturating_sub(now) < RENEW {
                let until = now.saturating_add(LINGER);
                *known = ConnectionPriority { class, priority, until, last: known.last, wanted: None };
                orders.push(NetworkOrder::Set { cookie: *cookie, class, priority, until, renewed });
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLI: Nanos = 1_000_000;
    const SECOND: Nanos = 1000 * MILLI;
    const GOLD: usize = 0;
    const BRONZE: usize = 1;
    const PLAIN: usize = 2;

    fn decision() -> NetworkDecision {
        NetworkDecision::new(vec![Priority::High, Priority::Low, Priority::Normal])
    }

    fn request(cookie: u64, class: usize, since: Nanos, open: bool) -> SendingRequest {
        SendingRequest { cookie, class, since, open }
    }

    fn at(decision: &mut NetworkDecision, now: Nanos, sending: &[SendingRequest]) -> Vec<NetworkOrder> {
        let mut orders = Vec::new();
        decision.decide(now, sending, &mut orders);
        orders
    }

    fn set(cookie: u64, class: usize, priority: Priority, now: Nanos, renewed: bool) -> NetworkOrder {
        NetworkOrder::Set { cookie, class, priority, until: now + LINGER, renewed }
    }

    #[test]
    fn a_connection_is_set_once_and_cleared_once() {
        let mut decision = decision();
        let brief = request(7, GOLD, SECOND, false);
        assert_eq!(at(&mut decision, SECOND, &[brief]), [set(7, GOLD, Priority::High, SECOND, false)]);
        for now in 1..500 {
            assert_eq!(at(&mut decision, SECOND + now * MILLI, &[]), []);
        }
        let put_off = SECOND + 501 * MILLI;
        assert_eq!(at(&mut decision, put_off, &[]), [set(7, GOLD, Priority::High, put_off, true)]);
        assert_eq!(at(&mut decision, 2 * SECOND, &[]), [NetworkOrder::Clear { cookie: 7, class: GOLD }]);
        assert_eq!(decision.table_use().entries, 0);
    }

    #[test]
    fn what_is_of_low_priority_stays_so_until_it_has_left() {
        let mut decision = decision();
        assert_eq!(at(&mut decision, SECOND, &[request(7, BRONZE, SECOND, false)]).len(), 1);
        for now in 1..10_000 {
            for order in at(&mut decision, SECOND + now * MILLI, &[]) {
                assert!(matches!(order, NetworkOrder::Set { renewed: true, priority: Priority::Low, .. }), "{order:?}");
            }
        }
        assert_eq!(at(&mut decision, 11 * SECOND, &[]), [NetworkOrder::Clear { cookie: 7, class: BRONZE }]);
    }

    #[test]
    fn what_is_open_for_long_is_put_off() {
        let mut decision = decision();
        let mut orders = Vec::new();
        for now in (0..60_000).step_by(4) {
            decision.decide(now * MILLI, &[request(7, BRONZE, 0, true)], &mut orders);
        }
        assert!(orders.len() < 130 && orders.len() > 100, "{}", orders.len());
        let ends = orders.iter().map(|order| match order {
            NetworkOrder::Set { until, .. } => *until,
            NetworkOrder::Clear { .. } => panic!("{order:?}"),
        });
        assert!(ends.is_sorted());
    }

    #[test]
    fn a_long_reply_does_not_hold_the_link() {
        let mut decision = decision();
        let long = request(7, GOLD, 0, true);
        assert_eq!(at(&mut decision, SECOND, &[long]).len(), 1);
        assert_eq!(at(&mut decision, PATIENCE, &[long]), [NetworkOrder::Clear { cookie: 7, class: GOLD }]);
        assert_eq!(at(&mut decision, PATIENCE + MILLI, &[long]), []);
    }

    #[test]
    fn the_class_of_the_open_request_counts_then_the_higher() {
        let mut decision = decision();
        let both = [request(7, GOLD, 0, false), request(7, BRONZE, 0, true)];
        assert_eq!(at(&mut decision, MILLI, &both), [set(7, BRONZE, Priority::Low, MILLI, false)]);
        let both = [request(7, BRONZE, 0, true), request(7, GOLD, 0, true)];
        assert_eq!(at(&mut decision, 2 * MILLI, &both), [set(7, GOLD, Priority::High, 2 * MILLI, false)]);
        let plain = [request(7, PLAIN, 0, true), request(7, GOLD, 0, false)];
        assert_eq!(at(&mut decision, 3 * MILLI, &plain), [NetworkOrder::Clear { cookie: 7, class: GOLD }]);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut decision = decision();
        let all: Vec<SendingRequest> =
            (0..2 * CONNECTIONS_MAX as u64).map(|cookie| request(cookie, BRONZE, 0, true)).collect();
        assert_eq!(at(&mut decision, MILLI, &all).len(), CONNECTIONS_MAX);
        assert_eq!(decision.table_use().reached, CONNECTIONS_MAX as u64);
        assert_eq!(decision.restore_orders().len(), CONNECTIONS_MAX);
    }

    #[test]
    fn priorities_are_numbers_or_handles() {
        for (text, expected) in [
            ("0", Some(0)),
            ("15", Some(15)),
            ("1:10", Some(0x1_0010)),
            ("ffff:ffff", Some(u32::MAX)),
            ("1:", None),
            ("0:1", None),
            (":1", None),
            ("1:10000", None),
            ("1:2:3", None),
            ("16", None),
            ("+6", None),
            ("-1", None),
            ("", None),
            ("high", None),
        ] {
            assert_eq!(PacketPriorities::parse(text), expected, "{text}");
        }
    }

    proptest! {
        /// Whatever comes: orders alternate by connection, and without requests everything is cleared within the linger.
        #[test]
        fn everything_that_is_set_is_cleared(
            turns in proptest::collection::vec((0u64..900, proptest::collection::vec((1u64..6, 0usize..4, 0u64..20_000, any::<bool>()), 0..6)), 1..60)
        ) {
            let mut decision = decision();
            let mut values: HashMap<u64, Priority> = HashMap::new();
            let mut now = 30_000;
            let mut apply = |orders: Vec<NetworkOrder>| {
                for order in orders {
                    match order {
                        NetworkOrder::Set { cookie, priority, renewed, .. } => {
                            assert_ne!(priority, Priority::Normal);
                            let before = values.insert(cookie, priority);
                            assert!(!renewed || before == Some(priority));
                        }
                        NetworkOrder::Clear { cookie, .. } => assert!(values.remove(&cookie).is_some(), "cleared twice"),
                    }
                }
                values.len()
            };
            for (step, requests) in turns {
                now += step;
                let sending: Vec<SendingRequest> = requests.into_iter().map(|(cookie, class, age, open)| request(cookie, class, (now - age) * MILLI, open)).collect();
                let left = apply(at(&mut decision, now * MILLI, &sending));
                prop_assert_eq!(left, decision.connections.len());
            }
            prop_assert_eq!(apply(at(&mut decision, now * MILLI + LINGER_LOW, &[])), 0);
        }
    }
}
