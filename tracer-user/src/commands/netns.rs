//! Restricts tracing to sockets of the agent's own network namespace: drops records of others before anything (the
//! recording included) sees them, and tells the kernel side to ignore those sockets.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use tracer_common::event::{CallStack, Kind, Op, Open, State};
use tracer_common::policy::{CapturePolicy, VERDICT_IGNORE};

/// Sockets remembered before the oldest half is forgotten. A socket forgotten too early shows up again only if the
/// kernel side did not get its policy either.
const SOCKETS: usize = 65_536;

/// Separates the agent's namespace's sockets from others.
#[derive(Debug)]
pub(super) struct OwnNetns {
    inode: u32,
    /// Sockets of other namespaces: the recent half, and the older one.
    others: HashSet<u64>,
    before: HashSet<u64>,
    /// Policies that make the kernel side ignore sockets from now on.
    asks: Vec<(u64, CapturePolicy)>,
}

impl OwnNetns {
    /// The namespace this process runs in.
    pub(super) fn new() -> Result<Self, String> {
        let found = std::fs::metadata("/proc/self/ns/net");
        let inode = found.map_err(|error| format!("the agent's own network namespace is not known: {error}"))?.ino();
        let (others, before, asks) = Default::default();
        Ok(Self { inode: inode as u32, others, before, asks })
    }

    /// Whether the record belongs to a socket of another namespace.
    pub(super) fn is_foreign(&mut self, bytes: &[u8]) -> bool {
        let kind = bytes.first().copied().and_then(Kind::from_byte);
        let cookie = match kind {
            Some(Kind::Open) => {
                let Some(open) = Open::decode(bytes) else { return false };
                if open.netns == self.inode {
                    self.others.remove(&open.cookie);
                    self.before.remove(&open.cookie);
                    return false;
                }
                if self.others.len() >= SOCKETS / 2 {
                    self.before = std::mem::take(&mut self.others);
                }
                self.others.insert(open.cookie);
                self.asks.push((open.cookie, CapturePolicy { verdict: VERDICT_IGNORE, ..CapturePolicy::default() }));
                return true;
            }
            Some(Kind::Op | Kind::Text) => Op::decode(bytes).map(|op| op.cookie),
            Some(Kind::State) => State::decode(bytes).map(|state| state.cookie),
            Some(Kind::CallStack) => CallStack::decode(bytes).map(|call| call.cookie),
            _ => None,
        };
        let Some(cookie) = cookie.filter(|_| !self.others.is_empty() || !self.before.is_empty()) else { return false };
        self.others.contains(&cookie) || self.before.contains(&cookie)
    }

    /// Takes the policies for the kernel collected since the last call.
    pub(super) fn take_policies(&mut self) -> std::vec::Drain<'_, (u64, CapturePolicy)> {
        self.asks.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_common::event::Header;

    fn bytes(open: Open) -> Vec<u8> {
        let mut bytes = vec![0; Open::SIZE];
        let header = Header { kind: Kind::Open as u8, len: Open::SIZE as u32, ..Header::default() };
        Open { header, ..open }.encode(&mut bytes).unwrap();
        bytes
    }

    fn op(cookie: u64) -> Vec<u8> {
        let mut bytes = vec![0; Op::SIZE];
        let header = Header { kind: Kind::Op as u8, len: Op::SIZE as u32, ..Header::default() };
        Op { header, cookie, ..Op::default() }.encode(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn others_are_left_out() {
        let mut own = OwnNetns::new().unwrap();
        let (mine, other) = (own.inode, own.inode.wrapping_add(1));
        assert!(!own.is_foreign(&bytes(Open { cookie: 1, netns: mine, ..Open::default() })));
        assert!(own.is_foreign(&bytes(Open { cookie: 2, netns: other, ..Open::default() })));
        assert!(own.is_foreign(&op(2)) && !own.is_foreign(&op(1)) && !own.is_foreign(&[]));
        assert_eq!(
            own.take_policies().map(|(cookie, ask)| (cookie, ask.verdict)).collect::<Vec<_>>(),
            [(2, VERDICT_IGNORE)]
        );
        for cookie in 10..3 * SOCKETS as u64 {
            own.is_foreign(&bytes(Open { cookie, netns: other, ..Open::default() }));
            own.take_policies().for_each(drop);
        }
        assert!(own.others.len() + own.before.len() <= SOCKETS);
    }
}
