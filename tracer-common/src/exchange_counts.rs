//! Exchanges that the kernel side counts itself, without a record, when user space cannot keep up or was asked for less
//! detail.
//!
//! The kernel side parses nothing. User space tells it that requests of a process which begin with these bytes are of
//! this class ([`RequestPrefix`]), and where replies show their outcome ([`CountingRule`]); a message begins where a
//! connection's direction turns. What it does not know, it reports as always.

use crate::event::Header;
use crate::wire::wire;

/// Most bytes of a request that its class is known by.
pub const WINDOW_MAX: usize = 64;
/// Steps of an [`ExchangeSums`]'s durations.
pub const DURATION_STEPS: usize = 128;
/// Steps per doubling.
const STEPS_PER_DOUBLING: u32 = 4;
/// Lower bound of the first step, as a power of two of nanoseconds.
const LOWEST: u32 = 10;

/// [`SumsKey::outcome`]: the connection ended before a reply began.
pub const OUTCOME_NONE: u64 = 0;
/// [`SumsKey::outcome`]: the reply's first bytes could not be read.
pub const OUTCOME_UNREAD: u64 = u64::MAX;

/// [`CountedExchanges`]: requests of the connection were sent before earlier ones were answered. They were counted, but as of the
/// earlier one's class and outcome.
pub const COUNTED_SEVERAL: u8 = 1 << 0;

/// The step that a duration counts in; each is a quarter of a doubling, from 2^10 ns on, and the last has no end.
pub const fn duration_step(nanos: u64) -> usize {
    if nanos < 1 << LOWEST {
        return 0;
    }
    let doublings = u64::BITS - 1 - nanos.leading_zeros();
    // In 2^31 to 2^32, whatever the magnitude.
    let mantissa = ((nanos << (u64::BITS - 1 - doublings)) >> 32) as u32;
    // 2^31.25, 2^31.5 and 2^31.75.
    let quarter =
        (mantissa >= 2_553_802_834) as u32 + (mantissa >= 3_037_000_500) as u32 + (mantissa >= 3_611_622_603) as u32;
    let step = ((doublings - LOWEST) * STEPS_PER_DOUBLING + quarter) as usize;
    if step < DURATION_STEPS { step } else { DURATION_STEPS - 1 }
}

/// How exchanges of one process are counted; the upper three bytes of its process policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountingRule {
    /// Bytes of a request that its class is known by, a multiple of 8, [`WINDOW_MAX`] at most; not 0.
    pub window: u8,
    /// One in 2 to the power of this many exchanges is reported all the same; 15 at most.
    pub reported: u8,
    /// Where the outcome is among a reply's first bytes, 15 at most.
    pub outcome_at: u8,
    /// Its bytes, 1 to 8.
    pub outcome_len: u8,
    /// Outcomes that begin with this byte have eight bytes; 0 = none does.
    pub long_after: u8,
}

impl CountingRule {
    /// As part of a process policy.
    pub const fn encode(self) -> u32 {
        (self.window as u32 / 8) << 8
            | ((self.reported & 15) as u32) << 12
            | ((self.outcome_at & 15) as u32) << 16
            | ((self.outcome_len & 15) as u32) << 20
            | (self.long_after as u32) << 24
    }

    /// From a process policy; `None` if exchanges of the process are not counted.
    #[inline(always)]
    pub const fn of(policy: u32) -> Option<Self> {
        let window = ((policy >> 8) as u8 & 15) * 8;
        if window == 0 {
            return None;
        }
        let (outcome_at, outcome_len) = ((policy >> 16) as u8 & 15, (policy >> 20) as u8 & 15);
        let reported = (policy >> 12) as u8 & 15;
        Some(Self { window, reported, outcome_at, outcome_len, long_after: (policy >> 24) as u8 })
    }

    /// The outcome in `word`, eight bytes of a reply from [`CountingRule::outcome_at`] on.
    #[inline(always)]
    pub const fn outcome(self, word: u64) -> u64 {
        if self.outcome_len >= 8 || (self.long_after != 0 && word as u8 == self.long_after) {
            return word;
        }
        word & ((1 << (self.outcome_len as u32 * 8)) - 1)
    }
}

wire! {
    /// How a request begins: the key by which its class is found. Compared whole, so that no other request has it.
    pub struct RequestPrefix {
        /// The process that reads it, or that sends it.
        pub tgid: u32,
        /// Bytes of the operation that carries it: two requests in one operation are no request of this class.
        pub bytes: u32,
        /// Its first [`CountingRule::window`] bytes, then zeros.
        pub head: [u64; 8],
    }
}

wire! {
    /// Which exchanges an [`ExchangeSums`] counts.
    pub struct SumsKey {
        /// Their class, as the [`RequestPrefix`]'s value says; from 1.
        pub class: u32,
        /// Zero.
        pub reserved: u32,
        /// Their reply's bytes by [`CountingRule::outcome`]; `OUTCOME_…`.
        pub outcome: u64,
    }
}

/// Sums of exchanges of one class with one outcome, since the class is known. Times in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeSums {
    /// From the operation that began the request to the last of the reply.
    pub duration: u64,
    /// From the arrival of the first byte until it was read.
    pub queue: u64,
    /// Bytes of requests.
    pub request_bytes: u64,
    /// Bytes of replies.
    pub reply_bytes: u64,
    /// Exchanges by duration ([`duration_step`]).
    pub steps: [u64; DURATION_STEPS],
}

impl ExchangeSums {
    /// Of nothing.
    pub const NONE: Self = Self { duration: 0, queue: 0, request_bytes: 0, reply_bytes: 0, steps: [0; DURATION_STEPS] };

    /// How many exchanges.
    pub fn count(&self) -> u64 {
        self.steps.iter().sum()
    }
}

/// Sums of a class's exchanges with the first outcome that was counted of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstSums {
    /// As in [`SumsKey::outcome`]; [`OUTCOME_NONE`]: nothing was counted yet. Exchanges without a reply are not counted here.
    pub outcome: u64,
    /// The sums.
    pub sums: ExchangeSums,
}

wire! {
    /// What the threads of a server used for exchanges of one class, nanoseconds.
    pub struct ClassCosts {
        /// On the CPU.
        pub cpu: u64,
        /// Runnable, waiting for a CPU.
        pub runq: u64,
        /// Blocked while the thread had the request.
        pub blocked: u64,
        /// Zero.
        pub reserved: u64,
    }
}

/// How many usual outcomes of a class are distinguished from all others.
pub const USUAL_OUTCOMES: usize = 4;

wire! {
    /// Which counted exchanges of a class are reported one by one as well ([`NoteworthyExchange`]): the slow ones, and those with an
    /// unusual outcome. Only user space writes it, but for the kernel side's subtractions from [`ClassLimits::left`].
    pub struct ClassLimits {
        /// From this duration on an exchange is slow, nanoseconds.
        pub slow_from: u64,
        /// Outcomes ([`SumsKey::outcome`]) that are no failures.
        pub usual: [u64; USUAL_OUTCOMES],
        /// How many may still be reported.
        pub left: u64,
    }
}

impl ClassLimits {
    /// Whether an exchange is to be reported, if there are any left.
    #[inline(always)]
    pub const fn exceeded(&self, nanos: u64, outcome: u64) -> bool {
        let [first, second, third, fourth] = self.usual;
        let usual = outcome == first || outcome == second || outcome == third || outcome == fourth;
        nanos >= self.slow_from || !usual || outcome == OUTCOME_NONE
    }
}

wire! {
    /// One counted exchange that is worth a look. It is part of the sums, too.
    pub struct NoteworthyExchange {
        /// Common fields: the thread that read the request (server) or sent it (client), and when the reply ended.
        pub header: Header,
        /// The socket.
        pub cookie: u64,
        /// See [`SumsKey::outcome`].
        pub outcome: u64,
        /// When the request was read, or sent.
        pub start: u64,
        /// When the first byte of the reply was sent, or read; 0: there was none.
        pub first_reply: u64,
        /// From the arrival of the request's first byte until it was read, nanoseconds.
        pub queue: u64,
        /// Bytes of the request.
        pub request_bytes: u64,
        /// Bytes of the reply.
        pub reply_bytes: u64,
        /// What its thread used for it, as far as [`ClassCosts`] was charged for it (server).
        pub cpu: u64,
        /// See [`ClassCosts::runq`].
        pub runq: u64,
        /// See [`ClassCosts::blocked`].
        pub blocked: u64,
        /// Its class; see [`SumsKey::class`].
        pub class: u32,
        /// Zero.
        pub reserved: u32,
    }
}

wire! {
    /// Where a connection stands behind exchanges that were counted and not reported. Its next record begins a message.
    pub struct CountedExchanges {
        /// Common fields; [`COUNTED_SEVERAL`]; no thread (0) if a packet ended the connection.
        pub header: Header,
        /// The socket.
        pub cookie: u64,
        /// Bytes received so far.
        pub rx: u64,
        /// Bytes sent so far.
        pub tx: u64,
        /// Exchanges since the connection's last record.
        pub exchanges: u32,
        /// [`crate::event::Op::nth`] of the thread's last operation.
        pub nth: u32,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn steps_are_quarters_of_doublings() {
        for step in 1..DURATION_STEPS - 1 {
            let bound = (step as f64 / 4.0 + 10.0).exp2();
            // A few parts in 2^31 are not told apart.
            assert_eq!(duration_step((bound * 1.000_001) as u64 + 1), step);
            assert_eq!(duration_step((bound * 0.999_999) as u64 - 1), step - 1);
        }
        assert_eq!(duration_step(0), 0);
        assert_eq!(duration_step(u64::MAX), DURATION_STEPS - 1);
    }

    #[test]
    fn slow_exchanges_and_those_with_unusual_outcomes_are_reported() {
        let limits = ClassLimits { slow_from: 1000, usual: [200, 304, 0, 0], left: 9 };
        assert!(!limits.exceeded(999, 200) && !limits.exceeded(5, 304));
        assert!(limits.exceeded(1000, 200) && limits.exceeded(5, 500) && limits.exceeded(5, OUTCOME_UNREAD));
        // Nothing is usual about a connection that ended before the reply.
        assert!(limits.exceeded(5, OUTCOME_NONE));
    }

    #[test]
    fn a_rule_survives_the_policy_and_reads_outcomes() {
        let http = CountingRule { window: 64, reported: 0, outcome_at: 9, outcome_len: 3, long_after: 0 };
        assert_eq!(CountingRule::of(http.encode() | 1), Some(http));
        assert_eq!(http.outcome(u64::from_le_bytes(*b"404 Not ")), u64::from_le_bytes(*b"404\0\0\0\0\0"));
        let redis = CountingRule { window: 16, reported: 15, outcome_at: 0, outcome_len: 1, long_after: b'-' };
        assert_eq!(CountingRule::of(redis.encode() | 1), Some(redis));
        assert_eq!(redis.outcome(u64::from_le_bytes(*b"$5\r\nhell")), u64::from(b'$'));
        assert_eq!(redis.outcome(u64::from_le_bytes(*b"-WRONGTY")), u64::from_le_bytes(*b"-WRONGTY"));
        assert_eq!(CountingRule::of(1), None);
    }
}
