//! Routing of contexts: which agent sees the other end of a call's connection.
//!
//! The address a caller connects to need not be the callee's: NAT and balancers change it. So a connection's contexts
//! go to the agent that answered for one of its requests; before any answer, to the agent discovered at its address and
//! to the configured agents.

use std::collections::VecDeque;
use std::net::IpAddr;

use rustc_hash::FxHashMap;

/// Most connections remembered.
const CONNECTIONS: usize = 65_536;
/// Most addresses probed for an agent.
pub const ADDRESSES: usize = 1024;

/// Which agent answers for a connection. An agent is identified by the number of its dialler.
#[derive(Debug, Default)]
pub struct Routes {
    connections: FxHashMap<u64, u64>,
    order: VecDeque<u64>,
}

impl Routes {
    /// Records that the agent behind dialler `number` answered for a request of `connection` (`RequestKey::connection`).
    pub fn learn(&mut self, connection: u64, number: u64) {
        if self.connections.insert(connection, number).is_none() {
            self.order.push_back(connection);
        }
        while self.order.len() > CONNECTIONS
            && let Some(oldest) = self.order.pop_front()
        {
            self.connections.remove(&oldest);
        }
    }

    /// The agent that answers for `connection`.
    pub fn of(&self, connection: u64) -> Option<u64> {
        self.connections.get(&connection).copied()
    }
}

/// Whether discovery may dial an agent at an address that was not configured: only in private networks. A call to a
/// public service must not make this host probe it.
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            // 100.64.0.0/10 is shared address space (RFC 6598).
            v4.is_private() || v4.is_link_local() || (a == 100 && b & 0xc0 == 64)
        }
        // fc00::/7 (RFC 4193).
        IpAddr::V6(v6) => v6.segments().first().is_some_and(|first| first & 0xfe00 == 0xfc00),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_connections_are_remembered() {
        let mut routes = Routes::default();
        for connection in 0..CONNECTIONS as u64 + 10 {
            routes.learn(connection, 1);
        }
        routes.learn(20, 2);
        assert_eq!((routes.of(0), routes.of(20), routes.connections.len()), (None, Some(2), CONNECTIONS));
    }

    #[test]
    fn the_world_is_left_alone() {
        for private in ["10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.0.1", "100.64.0.1", "fd00::1"] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in ["8.8.8.8", "100.128.0.1", "172.32.0.1", "2001:db8::1", "127.0.0.1", "fe80::1"] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }
}
