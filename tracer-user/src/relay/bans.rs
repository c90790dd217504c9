//! Addresses that sent what no agent sends: left alone for a while.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long an address is kept out.
pub const BAN: Duration = Duration::from_secs(10);
/// Most addresses remembered; beyond it the oldest may come again.
const MOST: usize = 1024;

/// The list.
#[derive(Debug, Default)]
pub struct Bans {
    until: VecDeque<(Instant, IpAddr)>,
}

impl Bans {
    /// `address` is kept out from `now` on.
    pub fn ban(&mut self, now: Instant, address: IpAddr) {
        self.until.retain(|(until, known)| *until > now && *known != address);
        if self.until.len() >= MOST {
            self.until.pop_front();
        }
        self.until.push_back((now + BAN, address));
    }

    /// Whether it is.
    pub fn is_banned(&self, now: Instant, address: IpAddr) -> bool {
        self.until.iter().any(|(until, known)| *known == address && *until > now)
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
}
