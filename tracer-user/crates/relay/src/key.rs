//! What both ends of a TCP connection know about a request and no middlebox changes: the initial sequence numbers of
//! both ends and the sequence number of the request's first byte. Survives address translation (SNAT, DNAT) and
//! balancers that pass the stream through; does not survive proxies that terminate the connection.

/// Identifies a request between hosts.
///
/// The first byte's sequence number also tells the streams of a multiplexed connection apart: each begins with its own
/// frame. Sequence numbers wrap after 4 GiB, so a key is only valid for some seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    /// First sequence number of the end that connected, not counting its SYN.
    pub opener: u32,
    /// First sequence number of the end that accepted, not counting its SYN.
    pub accepting: u32,
    /// Sequence number of the request's first byte.
    pub seq: u32,
}

impl RequestKey {
    /// The key of a request whose first byte is `seq`, as one end of its connection sees it: `local` and `remote` as in
    /// `event::Open`, `opened` is whether this end connected. `None` if the kernel did not report the numbers.
    pub fn new(local: u32, remote: u32, opened: bool, seq: u32) -> Option<Self> {
        if (local, remote) == (0, 0) {
            return None;
        }
        // The kernel counts the connecting end's acknowledged SYN as a byte (`bytes_acked`), so its number seems one
        // too low.
        Some(if opened {
            Self { opener: local.wrapping_add(1), accepting: remote, seq }
        } else {
            Self { opener: remote, accepting: local, seq }
        })
    }

    /// The hash table key; see [`Self::fits`].
    pub fn place(self) -> u64 {
        u64::from(self.accepting) << 32 | u64::from(self.seq)
    }

    /// Whether both identify the same request. The opener's number may be off by one: its other end counts a FIN that
    /// arrived before the first byte was read as a byte.
    pub fn fits(self, other: Self) -> bool {
        let apart = self.opener.wrapping_sub(other.opener).wrapping_add(1);
        self.place() == other.place() && apart <= 2
    }

    /// The connection without the request: equal for all keys that one end makes of it.
    pub fn connection(self) -> u64 {
        u64::from(self.opener) << 32 | u64::from(self.accepting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_make_the_same_key() {
        // The opener starts at 1000: it sees 1000 for itself, the other end sees the first byte after its SYN.
        for (opener, accepting) in [(1000u32, 7u32), (u32::MAX, 3), (5, u32::MAX)] {
            let first = opener.wrapping_add(1);
            for offset in [0u32, 17, u32::MAX] {
                let seq = first.wrapping_add(offset);
                let caller = RequestKey::new(opener, accepting, true, seq).unwrap();
                let callee = RequestKey::new(accepting, first, false, seq).unwrap();
                assert_eq!(caller, callee);
                assert_eq!(caller.connection(), callee.connection());
                let after_fin = RequestKey::new(accepting, first.wrapping_add(1), false, seq).unwrap();
                assert!(caller.fits(callee) && caller.fits(after_fin) && after_fin.fits(caller));
                let other = RequestKey { opener: caller.opener.wrapping_add(2), ..caller };
                assert!(!caller.fits(other), "another connection");
                assert!(!caller.fits(RequestKey { seq: seq.wrapping_add(1), ..caller }), "another request");
            }
        }
        assert_eq!(RequestKey::new(0, 0, true, 1), None, "not TCP");
    }
}
