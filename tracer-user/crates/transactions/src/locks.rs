//! Futexes that are locks: a wake-up there does not hand over a result.
//!
//! One thread waits for a result, at a futex that is its own meanwhile. If two threads sleep at the same futex at the
//! same time, it is a lock or a queue, and whoever releases it wakes a thread unrelated to the work before. Memory is
//! reused: two threads that waited at one futex one after the other may have used two futexes.

use std::collections::VecDeque;

use tracer_common::event::Wake;
use tracer_model::Nanos;

/// Wake-ups remembered per process for comparison with later ones.
const WAKES: usize = 64;
/// Locks remembered per process; beyond it the one without a wake-up for longest is forgotten.
const LOCKS: usize = 64;

/// A thread's sleep at a futex.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    address: u64,
    thread: u32,
    from: Nanos,
    to: Nanos,
}

/// What is known of a process's futexes.
#[derive(Clone, Debug, Default)]
pub(super) struct Locks {
    sleeps: VecDeque<Sleep>,
    /// Addresses of locks, the most recent wake-up last.
    known: VecDeque<u64>,
}

impl Locks {
    /// A thread that held a request was woken: returns whether that was at a lock, as far as known by now.
    pub(super) fn woken(&mut self, wake: &Wake) -> bool {
        let sleep = Sleep { address: wake.address, thread: wake.wakee, from: wake.slept_at, to: wake.header.nanos };
        let together = |other: &Sleep| {
            other.address == sleep.address
                && other.thread != sleep.thread
                && other.from < sleep.to
                && sleep.from < other.to
        };
        // The start of a sleep that began before tracing is unknown.
        let lock = sleep.from != 0 && self.sleeps.iter().any(together);
        if self.sleeps.len() >= WAKES {
            self.sleeps.pop_front();
        }
        if sleep.from != 0 {
            self.sleeps.push_back(sleep);
        }
        let known = self.known.iter().position(|address| *address == sleep.address);
        if let Some(at) = known {
            self.known.remove(at);
        }
        if lock || known.is_some() {
            if self.known.len() >= LOCKS {
                self.known.pop_front();
            }
            self.known.push_back(sleep.address);
        }
        lock || known.is_some()
    }

    /// Whether the futex is known to be a lock.
    pub(super) fn holds(&self, address: u64) -> bool {
        self.known.contains(&address)
    }
}

#[cfg(test)]
mod tests {
    use tracer_common::event::Header;

    use super::*;

    fn wake(address: u64, wakee: u32, slept_at: Nanos, nanos: Nanos) -> Wake {
        Wake { header: Header { nanos, ..Header::default() }, wakee, address, slept_at, ..Wake::default() }
    }

    #[test]
    fn where_two_sleep_at_once_is_a_lock() {
        let mut locks = Locks::default();
        assert!(!locks.woken(&wake(1, 10, 100, 200)));
        assert!(!locks.woken(&wake(1, 11, 210, 300)), "one after the other: perhaps two results");
        assert!(!locks.woken(&wake(2, 12, 205, 300)), "elsewhere");
        assert!(!locks.woken(&wake(1, 11, 310, 400)), "the same thread again");
        assert!(locks.woken(&wake(1, 10, 390, 500)), "while the other slept there");
        assert!(locks.holds(1) && !locks.holds(2));
        assert!(locks.woken(&wake(1, 13, 9_000, 9_100)), "once known, always");
        assert!(
            !locks.woken(&wake(3, 13, 0, 9_100)) && !locks.woken(&wake(3, 14, 9_000, 9_200)),
            "since when is not known"
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut locks = Locks::default();
        for address in 0..1000 {
            locks.woken(&wake(address, 10, 100 * address + 1, 100 * address + 50));
            assert!(locks.woken(&wake(address, 11, 100 * address + 20, 100 * address + 60)));
            // The first lock is in constant use.
            assert!(locks.woken(&wake(0, 11, 100 * address + 70, 100 * address + 80)));
        }
        assert!(locks.known.len() == LOCKS && locks.sleeps.len() == WAKES && locks.holds(0) && locks.holds(999));
        assert!(!locks.holds(1));
    }
}
