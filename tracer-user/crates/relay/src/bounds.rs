//! Which connections an agent may report on: those whose remote address belongs to its own host.
//!
//! Pure. An agent owns the address its session comes from or goes to, or the addresses in its certificate. Reports by
//! others on connections with an owned address are refused, unless the owner says that its host forwards packets: then
//! other hosts may be behind that address. An address without an agent may be a NAT's, and any agent may report on it,
//! unless [`Policy::strict`] forbids that.

use std::net::IpAddr;

use rustc_hash::FxHashMap;
use tracer_model::Nanos;

/// How long an agent still owns its address after its session ended, nanoseconds: a short disconnect must not let
/// another agent take the address over.
const LINGER: Nanos = 60_000_000_000;
/// Most sessions remembered; when full, the session that ended first is dropped.
const ENDS: usize = 4096;
/// Most addresses per agent.
pub const ADDRESSES: usize = 16;

/// A network, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// A prefix of `bits` bits; `None` if the address has fewer bits.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        (bits <= if address.is_ipv4() { 32 } else { 128 }).then_some(Self { address, bits })
    }

    /// A prefix of one address.
    pub fn one(address: IpAddr) -> Self {
        Self { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// Reads `10.0.0.7`, `10.1.0.0/16` or `fd00::/8`.
    pub fn parse(text: &str) -> Option<Self> {
        let Some((address, bits)) = text.split_once('/') else {
            return text.parse().ok().map(Self::one);
        };
        Self::new(address.parse().ok()?, bits.parse().ok()?)
    }

    /// Whether the prefix contains `address`.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let apart = own.to_bits() ^ other.to_bits();
                apart.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let apart = own.to_bits() ^ other.to_bits();
                apart.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// The address and the prefix length.
    pub fn parts(&self) -> (IpAddr, u8) {
        (self.address, self.bits)
    }
}

/// The configured policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Agents may only report on their own addresses, even where no agent owns an address.
    pub strict: bool,
    /// Addresses that stand for several hosts (NAT): any agent may report on connections with them.
    pub translated: Vec<Prefix>,
    /// Networks that agents at an address may report on besides that address; other agents may not.
    pub declared: Vec<(Prefix, Vec<Prefix>)>,
}

/// An agent's location, sent when its session begins and when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionChange {
    /// Number of the agent, which its messages carry.
    pub agent: u64,
    /// True if this host dialled it: it answers. False if it dialled: it reports calls.
    pub dialled: bool,
    /// True if the session begins; false if it ended.
    pub up: bool,
    /// Its host forwards packets of other hosts, so connections with its addresses may be theirs.
    pub forwards: bool,
    /// Its proven addresses; at most [`ADDRESSES`].
    pub addresses: Vec<IpAddr>,
}

#[derive(Debug)]
struct Peer {
    dialled: bool,
    forwards: bool,
    addresses: Vec<IpAddr>,
    /// Further networks it may report on.
    declared: Vec<Prefix>,
    /// When the entry expires; never while the session is up.
    until: Nanos,
}

impl Peer {
    /// The addresses it owns.
    fn places(&self) -> Vec<(bool, IpAddr)> {
        let addresses = self.addresses.iter().filter(|_| !self.forwards);
        addresses.map(|address| (self.dialled, *address)).collect()
    }
}

/// An address with an agent.
#[derive(Debug, Default)]
struct Owned {
    /// Sessions that are up.
    there: usize,
    /// How long an agent that disconnected still owns it.
    until: Nanos,
}

/// Locations of all agents.
#[derive(Debug, Default)]
pub struct Bounds {
    policy: Policy,
    ends: FxHashMap<u64, Peer>,
    /// Addresses of agents that dialled or were dialled and whose hosts do not forward.
    owned: FxHashMap<(bool, IpAddr), Owned>,
}

impl Bounds {
    /// Starts without agents.
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Records the begin or end of a session.
    pub fn learn(&mut self, now: Nanos, session: &SessionChange) {
        if !session.up {
            if let Some(end) = self.ends.get_mut(&session.agent).filter(|end| end.until == Nanos::MAX) {
                end.until = now.saturating_add(LINGER);
                let (until, places) = (end.until, end.places());
                self.leave(places, until);
            }
            return;
        }
        if self.ends.len() >= ENDS {
            self.ends.retain(|_, end| end.until > now);
            self.owned.retain(|_, owned| owned.there > 0 || owned.until > now);
        }
        if self.ends.len() >= ENDS
            && let Some((oldest, _)) = self.ends.iter().map(|(agent, end)| (*agent, end.until)).min_by_key(|end| end.1)
        {
            self.forget(oldest);
        }
        self.forget(session.agent);
        let addresses: Vec<IpAddr> = session.addresses.iter().take(ADDRESSES).map(IpAddr::to_canonical).collect();
        let at = |peer: &Prefix| addresses.iter().any(|address| peer.contains(*address));
        let declared = self.policy.declared.iter().filter(|(peer, _)| at(peer));
        let declared = declared.flat_map(|(_, networks)| networks).copied().collect();
        let (dialled, forwards) = (session.dialled, session.forwards);
        let end = Peer { dialled, forwards, addresses, declared, until: Nanos::MAX };
        for place in end.places() {
            self.owned.entry(place).or_default().there += 1;
        }
        self.ends.insert(session.agent, end);
    }

    /// Removes one session from these addresses.
    fn leave(&mut self, places: Vec<(bool, IpAddr)>, until: Nanos) {
        for place in places {
            if let Some(owned) = self.owned.get_mut(&place) {
                owned.there = owned.there.saturating_sub(1);
                owned.until = owned.until.max(until);
            }
        }
    }

    fn forget(&mut self, agent: u64) {
        if let Some(end) = self.ends.remove(&agent).filter(|end| end.until == Nanos::MAX) {
            self.leave(end.places(), 0);
        }
    }

    /// Whether `agent` may report on connections whose remote address is `remote`, as this host sees it.
    pub fn may(&self, now: Nanos, agent: u64, remote: IpAddr) -> bool {
        let remote = remote.to_canonical();
        let holds = |networks: &[Prefix]| networks.iter().any(|network| network.contains(remote));
        let end = self.ends.get(&agent);
        if holds(&self.policy.translated)
            || end.is_some_and(|end| end.addresses.contains(&remote) || holds(&end.declared))
        {
            return true;
        }
        if self.policy.strict || self.policy.declared.iter().any(|(_, networks)| holds(networks)) {
            return false;
        }
        // Recordings of earlier versions hold no agent locations.
        let is_owned =
            |end: &Peer| self.owned.get(&(end.dialled, remote)).is_some_and(|o| o.there > 0 || o.until > now);
        !end.is_some_and(is_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn session(agent: u64, address: &str) -> SessionChange {
        SessionChange { agent, dialled: false, up: true, forwards: false, addresses: vec![ip(address)] }
    }

    fn prefix(text: &str) -> Prefix {
        Prefix::parse(text).unwrap()
    }

    #[test]
    fn networks_are_read_and_hold_their_addresses() {
        for (network, inside, outside) in [
            ("10.1.0.0/16", "10.1.255.3", "10.2.0.1"),
            ("10.1.2.3", "::ffff:10.1.2.3", "10.1.2.4"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("::1", "::1", "::2"),
            ("10.1.2.3/31", "10.1.2.2", "::ffff:10.1.2.4"),
        ] {
            let network = prefix(network);
            assert!(network.contains(ip(inside)) && !network.contains(ip(outside)), "{network:?}");
        }
        assert!(prefix("0.0.0.0/0").contains(ip("8.8.8.8")) && prefix("::/0").contains(ip("fd00::1")));
        for wrong in ["", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "host", "10.0.0.1/", "10.0.0.1/-1"] {
            assert_eq!(Prefix::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_address_is_its_agents_alone() {
        let (one, two, nat) = (ip("10.0.0.1"), ip("10.0.0.2"), ip("10.0.0.9"));
        let mut bounds = Bounds::default();
        bounds.learn(1, &session(1, "10.0.0.1"));
        assert!(bounds.may(2, 2, one), "who it is is not known");
        bounds.learn(3, &session(2, "::ffff:10.0.0.2"));
        assert!(bounds.may(4, 1, one) && bounds.may(4, 2, two));
        assert!(!bounds.may(4, 1, two) && !bounds.may(4, 2, one), "another's");
        assert!(bounds.may(4, 1, nat) && bounds.may(4, 2, nat), "an address without an agent");
        // Behind the same NAT.
        bounds.learn(5, &session(3, "10.0.0.1"));
        assert!(bounds.may(6, 1, one) && bounds.may(6, 3, one) && !bounds.may(6, 3, two));
        // A dialled address says nothing about where calls come from.
        bounds.learn(7, &SessionChange { dialled: true, ..session(4, "10.0.0.2") });
        bounds.learn(7, &SessionChange { dialled: true, ..session(5, "10.0.0.7") });
        assert!(bounds.may(8, 1, ip("10.0.0.7")) && !bounds.may(8, 5, two) && bounds.may(8, 5, one));
    }

    #[test]
    fn a_broken_session_lets_no_other_agent_claim_its_address() {
        let mut bounds = Bounds::default();
        bounds.learn(1, &session(1, "10.0.0.1"));
        bounds.learn(1, &session(2, "10.0.0.2"));
        bounds.learn(5, &SessionChange { up: false, ..session(1, "10.0.0.1") });
        assert!(!bounds.may(4 + LINGER, 2, ip("10.0.0.1")) && bounds.may(5 + LINGER, 2, ip("10.0.0.1")));
        assert!(bounds.may(4 + LINGER, 1, ip("10.0.0.1")), "its messages from before it went");
        bounds.learn(5, &SessionChange { up: false, ..session(1, "10.0.0.1") });
        // It reconnects with another number.
        bounds.learn(6, &session(3, "10.0.0.1"));
        assert!(bounds.may(6, 3, ip("10.0.0.1")) && !bounds.may(2 * LINGER, 2, ip("10.0.0.1")));
    }

    #[test]
    fn a_forwarding_agent_may_report_for_others() {
        let mut bounds = Bounds::default();
        bounds.learn(1, &SessionChange { forwards: true, ..session(1, "10.0.0.1") });
        bounds.learn(1, &session(2, "10.0.0.2"));
        assert!(bounds.may(2, 2, ip("10.0.0.1")) && !bounds.may(2, 1, ip("10.0.0.2")));
    }

    #[test]
    fn declared_networks_take_precedence() {
        let (translated, networks) = (vec![prefix("10.9.0.0/16")], vec![prefix("10.1.0.0/16")]);
        let declared = vec![(prefix("10.0.0.1"), networks)];
        for strict in [false, true] {
            let policy = Policy { strict, translated: translated.clone(), declared: declared.clone() };
            let mut bounds = Bounds::new(policy);
            bounds.learn(1, &session(1, "10.0.0.1"));
            bounds.learn(1, &session(2, "10.0.0.2"));
            assert!(bounds.may(2, 1, ip("10.1.3.4")) && !bounds.may(2, 2, ip("10.1.3.4")));
            assert!(bounds.may(2, 1, ip("10.9.3.4")) && bounds.may(2, 2, ip("10.9.3.4")));
            assert!(bounds.may(2, 2, ip("10.0.0.2")) && !bounds.may(2, 2, ip("10.0.0.1")));
            assert_eq!(bounds.may(2, 1, ip("10.0.0.7")), !strict, "an address without an agent");
            assert_eq!(bounds.may(2, 77, ip("10.0.0.7")), !strict, "an unknown agent");
        }
    }

    #[test]
    fn they_are_bounded() {
        let mut bounds = Bounds::default();
        let remote = (1..=255u8).map(|n| IpAddr::from([10, 0, 1, n])).collect::<Vec<_>>();
        bounds.learn(1, &session(0, "10.0.0.1"));
        for n in 1..=2 * ENDS as u64 {
            let session = SessionChange { addresses: remote.clone(), ..session(n, "10.0.0.2") };
            bounds.learn(n, &session);
            bounds.learn(n, &SessionChange { up: false, ..session });
        }
        assert!(bounds.ends.len() <= ENDS && bounds.owned.len() <= ADDRESSES + 1);
        for n in 0..2 * ENDS as u32 {
            let session =
                SessionChange { addresses: vec![IpAddr::from(n.to_be_bytes())], ..session(u64::from(n) << 32, "::") };
            bounds.learn(LINGER * (1 + u64::from(n)), &session);
            bounds.learn(LINGER * (1 + u64::from(n)), &SessionChange { up: false, ..session });
        }
        assert!(bounds.ends.len() <= ENDS && bounds.owned.len() <= ENDS, "{}", bounds.owned.len());
    }
}
