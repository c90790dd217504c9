//! Which processes encrypt, of which of them text was seen, and the certificates of their servers.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use tracer_model::Nanos;

/// Between two looks at what runs in a process that encrypts, nanoseconds.
const LOOK_AGAIN: Nanos = 1_000_000_000;
/// Most servers' certificates that wait to be taken, which is done once a second; others are shown by a later handshake.
const CERTIFICATES: usize = 256;

/// Processes that use TLS.
#[derive(Debug, Default)]
pub(super) struct Encryption {
    /// When each process that encrypts was last handed out.
    begun: FxHashMap<u32, Nanos>,
    /// Those to hand out.
    due: Vec<u32>,
    /// Those of which text was seen.
    texts: FxHashSet<u32>,
    /// Certificates that handshakes showed: the server's name and when they expire, seconds since 1970.
    certificates: BTreeMap<Box<str>, i64>,
}

impl Encryption {
    /// The process began to use TLS on a connection; at most `limit` processes are remembered.
    pub(super) fn begins(&mut self, tgid: u32, now: Nanos, limit: usize) {
        let has_room = self.begun.len() < limit || self.begun.contains_key(&tgid);
        let is_due = self.begun.get(&tgid).is_none_or(|at| now.saturating_sub(*at) >= LOOK_AGAIN);
        if has_room && is_due {
            self.begun.insert(tgid, now);
            self.due.push(tgid);
        }
    }

    /// Text of the process was seen; at most `limit` processes are remembered.
    pub(super) fn text_seen(&mut self, tgid: u32, limit: usize) {
        if self.texts.len() < limit {
            self.texts.insert(tgid);
        }
    }

    /// Whether text of the process was seen.
    pub(super) fn has_text(&self, tgid: u32) -> bool {
        self.texts.contains(&tgid)
    }

    /// A handshake showed its server's certificate.
    pub(super) fn certified(&mut self, name: Box<str>, expires: i64) {
        if self.certificates.len() < CERTIFICATES || self.certificates.contains_key(&name) {
            self.certificates.insert(name, expires);
        }
    }

    /// Processes that began to use TLS on a connection, since last taken.
    pub(super) fn take_begun(&mut self) -> std::vec::Drain<'_, u32> {
        self.due.drain(..)
    }

    /// Certificates since last taken.
    pub(super) fn take_certificates(&mut self) -> BTreeMap<Box<str>, i64> {
        std::mem::take(&mut self.certificates)
    }

    /// The process has exited.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.begun.remove(&tgid);
        self.texts.remove(&tgid);
    }
}
