//! Joins the two ends of a request on one host: the caller's call and the server's request.
//!
//! TCP: by the sequence number of the request's first byte and the initial sequence number of the accepting end; both
//! ends know both from any established socket. (The opener's own initial number differs by one between the ends, so it
//! is not used.) This survives address translation. UNIX: by the kernel addresses of both ends and the position in the
//! stream.

use rustc_hash::FxHashMap;
use tracer_host::guard::shrink::ShrinkExcess;

use super::slot::Slot;

/// Key that both ends can compute for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JoinKey {
    /// Sequence number of the first byte; initial sequence number of the accepting end.
    Tcp(u32, u32),
    /// Kernel addresses of the caller's and the server's end; position of the first byte.
    Unix(u64, u64, u64),
}

/// Limit of unmatched ends of each kind.
pub(super) const LIMIT: usize = 65_536;

/// Unmatched ends. The server's record can arrive before the caller's.
#[derive(Debug, Default)]
pub struct Joins {
    calls: FxHashMap<JoinKey, Slot>,
    requests: FxHashMap<JoinKey, Slot>,
    /// Ends not remembered because the table was full.
    pub refused: u64,
}

impl Joins {
    /// Number of unmatched ends.
    pub fn waiting(&self) -> usize {
        self.calls.len() + self.requests.len()
    }

    /// A call was sent: returns the matching request if already seen.
    pub fn call(&mut self, key: JoinKey, slot: Slot) -> Option<Slot> {
        if let Some(request) = self.requests.remove(&key) {
            return Some(request);
        }
        if self.calls.len() < LIMIT {
            self.calls.insert(key, slot);
        } else {
            self.refused += 1;
        }
        None
    }

    /// A request was read: returns the matching call if already seen.
    pub fn request(&mut self, key: JoinKey, slot: Slot) -> Option<Slot> {
        if let Some(call) = self.calls.remove(&key) {
            return Some(call);
        }
        if self.requests.len() < LIMIT {
            self.requests.insert(key, slot);
        } else {
            self.refused += 1;
        }
        None
    }

    /// Forgets ends whose span is gone.
    pub fn sweep(&mut self, alive: impl Fn(Slot) -> bool) {
        self.calls.retain(|_, slot| alive(*slot));
        self.requests.retain(|_, slot| alive(*slot));
    }

    /// Releases the memory of tables that are mostly empty.
    pub fn shrink_excess(&mut self) {
        self.calls.shrink_excess();
        self.requests.shrink_excess();
    }
}
