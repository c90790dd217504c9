//! What both ends of a TCP connection know of a request, and nobody between them changes: the initial sequence numbers
//! of both ends and the sequence number of the request's first byte. Holds through address translation (SNAT, DNAT) and
//! balancers that keep the stream; not through whatever ends the connection and begins another. Of a question by UDP it is
//! a digest of what is asked, and the client's port (`lookups.rs`).

/// Names a request between hosts.
///
/// The request's first byte tells the streams of a multiplexed connection apart, too: each begins with a frame of its own.
/// Sequence numbers come again after 4 GiB, so a key means something for some seconds only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// First sequence number of the end that connected, its SYN not counted.
    pub opener: u32,
    /// First sequence number of the end that accepted, its SYN not counted.
    pub accepting: u32,
    /// Sequence number of the request's first byte.
    pub seq: u32,
}

impl Key {
    /// The key of a request whose first byte is `seq`, by what one end of its connection knows: `local` and `remote` as
    /// `event::Open` has them, `opened` whether this end connected. `None` where the kernel did not say.
    pub fn new(local: u32, remote: u32, opened: bool, seq: u32) -> Option<Self> {
        if (local, remote) == (0, 0) {
            return None;
        }
        // The end that connected has its SYN acknowledged as a byte (`bytes_acked`), and seems to begin one earlier.
        Some(if opened {
            Self { opener: local.wrapping_add(1), accepting: remote, seq }
        } else {
            Self { opener: remote, accepting: local, seq }
        })
    }

    /// The key of a question by UDP, whose client sends from `port`; `question` is a digest of its number and of what it
    /// asks for, which both ends reckon alike. Who the client is stands beside it ([`super::lookups::Asker`]).
    pub fn of_lookup(question: u64, port: u16) -> Self {
        // One more step of the digest (FNV-1a), so that equal questions of several sockets are apart.
        let mixed = (question ^ u64::from(port)).wrapping_mul(0x100_0000_01b3);
        // Ports next to each other do not fit: see [`Self::fits`].
        Self { opener: u32::from(port) << 8, accepting: (mixed >> 32) as u32, seq: mixed as u32 }
    }

    /// What a table looks it up by; see [`Self::fits`].
    pub fn place(self) -> u64 {
        u64::from(self.accepting) << 32 | u64::from(self.seq)
    }

    /// Whether both are of the same request. The opener's number may be one off: a FIN that was received before the first
    /// byte was read counts as a byte at its other end.
    pub fn fits(self, other: Self) -> bool {
        let apart = self.opener.wrapping_sub(other.opener).wrapping_add(1);
        self.place() == other.place() && apart <= 2
    }

    /// The connection, whatever the request: equal for all keys one end makes of it.
    pub fn connection(self) -> u64 {
        u64::from(self.opener) << 32 | u64::from(self.accepting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_make_the_same_key() {
        // The opener begins at 1000: it sees 1000 for itself, the other end the first byte after its SYN.
        for (opener, accepting) in [(1000u32, 7u32), (u32::MAX, 3), (5, u32::MAX)] {
            let first = opener.wrapping_add(1);
            for offset in [0u32, 17, u32::MAX] {
                let seq = first.wrapping_add(offset);
                let caller = Key::new(opener, accepting, true, seq).unwrap();
                let callee = Key::new(accepting, first, false, seq).unwrap();
                assert_eq!(caller, callee);
                assert_eq!(caller.connection(), callee.connection());
                let after_fin = Key::new(accepting, first.wrapping_add(1), false, seq).unwrap();
                assert!(caller.fits(callee) && caller.fits(after_fin) && after_fin.fits(caller));
                let other = Key { opener: caller.opener.wrapping_add(2), ..caller };
                assert!(!caller.fits(other), "another connection");
                assert!(!caller.fits(Key { seq: seq.wrapping_add(1), ..caller }), "another request");
            }
        }
        assert_eq!(Key::new(0, 0, true, 1), None, "not TCP");
    }

    #[test]
    fn lookups_are_apart_by_question_and_by_port() {
        let key = Key::of_lookup(99, 4000);
        assert_eq!(key, Key::of_lookup(99, 4000));
        for other in [Key::of_lookup(99, 4001), Key::of_lookup(98, 4000), Key::of_lookup(99, 3999)] {
            assert!(!key.fits(other) && key.place() != other.place());
        }
    }
}
