//! Joins the two ends of a request on one host: the call as its caller saw it and the request as its server did.
//!
//! TCP: the sequence number of the request's first byte and the initial sequence number of the accepting end, which
//! both ends know, from any live socket (the opener's own differs by one between the ends, so it is not used). Holds
//! through address translation. UNIX: the kernel addresses of both ends, and the position in the stream.

use rustc_hash::FxHashMap;

use super::live::Slot;
use crate::guard::room::Room;

/// What both ends know of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Sequence number of the first byte; initial sequence number of the accepting end.
    Tcp(u32, u32),
    /// Kernel addresses of the caller's and the server's end; position of the first byte.
    Unix(u64, u64, u64),
}

/// Most ends of each kind that wait for the other.
pub(super) const LIMIT: usize = 65_536;

/// Ends that wait for the other. The server's record can come before the caller's.
#[derive(Debug, Default)]
pub struct Joins {
    calls: FxHashMap<Key, Slot>,
    requests: FxHashMap<Key, Slot>,
    /// Ends not remembered because the table was full.
    pub refused: u64,
}

impl Joins {
    /// Ends that wait.
    pub fn waiting(&self) -> usize {
        self.calls.len() + self.requests.len()
    }

    /// A call was made: the request it is, if that was already seen.
    pub fn call(&mut self, key: Key, slot: Slot) -> Option<Slot> {
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

    /// A request was read: the call it is, if that was already seen.
    pub fn request(&mut self, key: Key, slot: Slot) -> Option<Slot> {
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

    /// Forgets ends whose unit is gone.
    pub fn sweep(&mut self, alive: impl Fn(Slot) -> bool) {
        self.calls.retain(|_, slot| alive(*slot));
        self.requests.retain(|_, slot| alive(*slot));
    }

    /// Gives back the room of tables that are mostly empty.
    pub fn give_back(&mut self) {
        self.calls.give_back();
        self.requests.give_back();
    }
}
