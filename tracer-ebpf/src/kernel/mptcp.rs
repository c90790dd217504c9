//! `mptcp_sock`: a connection over several paths, each a TCP socket of the kernel's own.
//!
//! It has no sequence numbers of 32 bits that both ends could compare, but both ends know the two keys that were exchanged
//! when it began, and count the bytes. So each direction is numbered from its sender's key on, and everything that joins the
//! ends of TCP by sequence numbers joins these. Where the other end knows only TCP, the first path has TCP's own numbers, and
//! its bytes are those of the connection.

use super::task::peek;
use crate::offsets::{
    OFF_MPTCP_BYTES_CONSUMED, OFF_MPTCP_BYTES_RECEIVED, OFF_MPTCP_BYTES_SENT, OFF_MPTCP_FIRST, OFF_MPTCP_LOCAL_KEY,
    OFF_MPTCP_REMOTE_KEY, OFF_MPTCP_SND_NXT, OFF_MPTCP_WRITE_SEQ, OFF_SK_PROTOCOL, OFF_TCP_BYTES_ACKED,
    OFF_TCP_BYTES_RECEIVED, OFF_TCP_RCV_NXT, OFF_TCP_SND_UNA,
};
use tracer_common::members::ABSENT;

pub(super) const IPPROTO_MPTCP: u16 = 262;

/// The kernel address of a `mptcp_sock`.
#[derive(Clone, Copy)]
pub(crate) struct Mptcp(u64);

impl Mptcp {
    /// The socket at `sk`; `None` if it is another protocol's.
    #[inline(always)]
    pub(crate) fn of(sk: u64) -> Option<Self> {
        let exists = OFF_MPTCP_LOCAL_KEY.load() != ABSENT;
        (exists && peek(sk, OFF_SK_PROTOCOL.load()) as u16 == IPPROTO_MPTCP).then_some(Self(sk))
    }

    /// Whether this kernel counts its bytes. If not, they have no sequence numbers.
    #[inline(always)]
    pub(crate) fn counts() -> bool {
        OFF_MPTCP_BYTES_CONSUMED.load() != ABSENT && OFF_MPTCP_BYTES_SENT.load() != ABSENT
    }

    /// Numbers before the first byte of this end and of the other.
    #[inline(always)]
    pub(crate) fn initial(self) -> (u32, u32) {
        let remote = peek(self.0, OFF_MPTCP_REMOTE_KEY.load());
        if remote != 0 {
            return (peek(self.0, OFF_MPTCP_LOCAL_KEY.load()) as u32, remote as u32);
        }
        let first = peek(self.0, OFF_MPTCP_FIRST.load());
        let difference = |next: u64, bytes: u64| (peek(first, next) as u32).wrapping_sub(peek(first, bytes) as u32);
        // This end connected: a kernel accepts other connections as TCP sockets. Its first number acknowledged the opening.
        let local = difference(OFF_TCP_SND_UNA.load(), OFF_TCP_BYTES_ACKED.load()).wrapping_add(1);
        (local, difference(OFF_TCP_RCV_NXT.load(), OFF_TCP_BYTES_RECEIVED.load()))
    }

    /// Bytes given to the socket.
    #[inline(always)]
    pub(crate) fn written(self) -> u64 {
        let sent = peek(self.0, OFF_MPTCP_BYTES_SENT.load());
        let begin = peek(self.0, OFF_MPTCP_SND_NXT.load()).wrapping_sub(sent);
        peek(self.0, OFF_MPTCP_WRITE_SEQ.load()).wrapping_sub(begin)
    }

    /// Bytes taken from the socket.
    #[inline(always)]
    pub(crate) fn taken(self) -> u64 {
        peek(self.0, OFF_MPTCP_BYTES_CONSUMED.load())
    }

    /// Bytes received in order.
    #[inline(always)]
    pub(crate) fn received(self) -> u64 {
        peek(self.0, OFF_MPTCP_BYTES_RECEIVED.load())
    }

    /// Sequence number after the last byte given to the socket.
    #[inline(always)]
    pub(crate) fn write_seq(self) -> u32 {
        self.initial().0.wrapping_add(self.written() as u32)
    }

    /// Sequence numbers after the last byte taken from the socket, and after the last received.
    #[inline(always)]
    pub(crate) fn read_seq(self) -> (u32, u32) {
        let begin = self.initial().1;
        (begin.wrapping_add(self.taken() as u32), begin.wrapping_add(self.received() as u32))
    }
}

/// Sequence number after the last byte given to the TCP or MPTCP socket at `sk`.
#[inline(always)]
pub(crate) fn write_seq(sk: u64) -> u32 {
    match Mptcp::of(sk) {
        Some(socket) if Mptcp::counts() => socket.write_seq(),
        Some(_) => 0,
        None => peek(sk, crate::offsets::OFF_TCP_WRITE_SEQ.load()) as u32,
    }
}
