//! Admission of incoming sessions: bans addresses that sent what no agent sends, and limits sessions in total and per
//! address.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How long a ban lasts.
pub const BAN: Duration = Duration::from_secs(10);
/// Most addresses remembered; beyond it the oldest ban is dropped.
const MOST: usize = 1024;
/// Most sessions that others may open, in total and from one address (agents behind one NAT share an address).
pub const SESSIONS: usize = 256;
const SESSIONS_EACH: usize = 32;

/// The bans and the open sessions.
#[derive(Debug, Default)]
pub struct Bans {
    until: VecDeque<(Instant, IpAddr)>,
    inside: HashMap<IpAddr, usize>,
    count: usize,
}

/// The network a ban covers: one IPv4 address, or an IPv6 /64, because a client with one IPv6 address has 2^64.
fn place(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Bans {
    /// Bans `address` from `now` on.
    pub fn ban(&mut self, now: Instant, address: IpAddr) {
        let address = place(address);
        self.until.retain(|(until, known)| *until > now && *known != address);
        if self.until.len() >= MOST {
            self.until.pop_front();
        }
        self.until.push_back((now + BAN, address));
    }

    /// Whether `address` is banned.
    pub fn is_banned(&self, now: Instant, address: IpAddr) -> bool {
        let address = place(address);
        self.until.iter().any(|(until, known)| *known == address && *until > now)
    }

    /// Admits a session from `address` if there is room; `None` if the session comes through a NATS server, which hides
    /// the address. Call [`Self::leave`] once for each admitted session.
    pub fn enter(&mut self, now: Instant, address: Option<IpAddr>) -> bool {
        if self.count >= SESSIONS {
            return false;
        }
        let Some(address) = address else {
            self.count += 1;
            return true;
        };
        if self.is_banned(now, address) {
            return false;
        }
        let inside = self.inside.entry(place(address)).or_default();
        if *inside >= SESSIONS_EACH {
            return false;
        }
        *inside += 1;
        self.count += 1;
        true
    }

    /// A session from `address` has ended.
    pub fn leave(&mut self, address: Option<IpAddr>) {
        let Some(address) = address.map(place) else {
            self.count = self.count.saturating_sub(1);
            return;
        };
        if let Some(inside) = self.inside.get_mut(&address) {
            *inside -= 1;
            self.count -= 1;
            if *inside == 0 {
                self.inside.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_end_and_are_bounded() {
        let (now, mut bans) = (Instant::now(), Bans::default());
        let address = |n: u32| IpAddr::from(n.to_be_bytes());
        bans.ban(now, address(1));
        assert!(bans.is_banned(now, address(1)) && !bans.is_banned(now, address(2)));
        assert!(!bans.is_banned(now + BAN, address(1)));
        for n in 0..3000 {
            bans.ban(now, address(n));
        }
        assert_eq!(bans.until.len(), MOST);
    }

    #[test]
    fn no_address_gets_all_the_room() {
        let (now, mut bans) = (Instant::now(), Bans::default());
        let place = |host: u8, n: u8| IpAddr::from([0x2001, 0xdb8, 0, host.into(), 0, 0, 0, n.into()]);
        let address = |host: u8, n: u8| Some(place(host, n));
        let entered = (0..100).filter(|n| bans.enter(now, address(1, *n))).count();
        assert_eq!(entered, SESSIONS_EACH, "addresses of one host's network");
        assert!(bans.enter(now, address(2, 1)));
        bans.leave(address(1, 99));
        assert!(bans.enter(now, address(1, 100)) && !bans.enter(now, address(1, 101)));
        bans.ban(now, place(3, 7));
        assert!(!bans.enter(now, address(3, 8)) && bans.enter(now + BAN, address(3, 8)));
        let entered = (10..200).flat_map(|host| (0..2).map(move |n| (host, n)));
        let entered = entered.filter(|(host, n)| bans.enter(now, address(*host, *n))).count();
        assert_eq!(entered + SESSIONS_EACH + 2, SESSIONS);
        (10..200).for_each(|host| (0..2).for_each(|_| bans.leave(address(host, 0))));
        (0..SESSIONS_EACH).for_each(|_| bans.leave(address(1, 0)));
        bans.leave(address(2, 0));
        bans.leave(address(3, 0));
        assert_eq!((0..2 * SESSIONS).filter(|_| bans.enter(now, None)).count(), SESSIONS);
        (0..SESSIONS).for_each(|_| bans.leave(None));
        assert!(bans.inside.is_empty() && bans.count == 0);
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        bans.ban(now, mapped);
        assert!(bans.is_banned(now, IpAddr::from([10, 0, 0, 1])) && !bans.is_banned(now, IpAddr::from([10, 0, 0, 2])));
    }
}
