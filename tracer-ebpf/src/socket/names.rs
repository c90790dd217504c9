//! Which datagrams are reported: those of sockets that resolve names, recognised by their ports.
//!
//! Most UDP is something else (QUIC, statistics, games), so a socket with a peer costs only two loads and two
//! comparisons. A socket without a peer names a destination for each datagram: the first one decides.

use tracer_common::{
    arch::Shape,
    event::{FAMILY_INET, FAMILY_INET6},
    lost::Lost,
    policy::{CONTROL_UDP, Control},
};

use super::payload::{MMSGHDR, user};
use crate::{
    arch, emit,
    kernel::{regs::Regs, sock::SockPtr, task::Task},
    storage::{SOCK_IGNORED, SOCK_NAMES, SOCKS, Thread},
};

/// Offset of `sin6_addr` in `struct sockaddr_in6`.
const SIN6_ADDR: u64 = 8;

/// Bytes carried from the front of a datagram: a header and one question of maximum length.
pub(super) const HEAD: u32 = 288;

#[inline(always)]
fn resolves(control: &Control, port: u16) -> bool {
    port != 0 && (port == control.names || port == control.names_too)
}

/// Whether datagrams of this UDP socket are reported.
#[inline(always)]
pub(super) fn wanted<const TX: bool>(sk: SockPtr, control: &Control) -> bool {
    if control.flags & CONTROL_UDP != 0 {
        return true;
    }
    let remote = sk.remote_port();
    if resolves(control, remote) || resolves(control, sk.local_port()) {
        return true;
    }
    if remote != 0 || control.names == 0 {
        return false;
    }
    let sock = SOCKS.get(sk.0, TX);
    if sock.is_null() {
        if TX {
            emit::count(Lost::SocketStorage);
        }
        return false;
    }
    // SAFETY: not null; two threads that race write the same.
    let sock = unsafe { &mut *sock };
    if sock.flags & (SOCK_NAMES | SOCK_IGNORED) == 0 && TX {
        sock.flags |= if resolves(control, destination()) { SOCK_NAMES } else { SOCK_IGNORED };
    }
    sock.flags & SOCK_NAMES != 0
}

/// User address of the destination that a system call names for the datagram being sent, for the one with this `index`
/// if it sends several; 0 if it names none.
#[inline(always)]
fn address(regs: Regs, index: u32) -> u64 {
    let nr = regs.nr();
    match arch::shape(nr) {
        Shape::Buffer if arch::is_sendto(nr) => regs.arg4(),
        // The address is the first member of both structures.
        Shape::Message => user(regs.arg1()),
        Shape::Messages => user(regs.arg1() + index as u64 * MMSGHDR),
        _ => 0,
    }
}

/// Destination port of the datagram being sent, from its system call; 0 if that names none.
#[inline(always)]
pub(super) fn destination() -> u16 {
    let address = address(Regs::of(Task::current()), 0);
    if address == 0 {
        return 0;
    }
    let [family, port] = user::<[u16; 2]>(address);
    if family == FAMILY_INET || family == FAMILY_INET6 { u16::from_be(port) } else { 0 }
}

/// Destination of the datagram whose payload was copied, in the form of a record: the address, and family and port; all
/// zero if its system call names none.
#[inline(always)]
pub(super) fn remote(regs: Regs, thread: &Thread) -> (u64, u64, u64) {
    const NONE: (u64, u64, u64) = (0, 0, 0);
    // The copy of a `sendmmsg` payload has advanced the index already.
    let address = address(regs, thread.mmsg_next.wrapping_sub(1));
    if address == 0 {
        return NONE;
    }
    let [family, port, low, high] = user::<[u16; 4]>(address);
    let ends = (family as u64) << 16 | u16::from_be(port) as u64;
    match family {
        FAMILY_INET => (low as u64 | (high as u64) << 16, 0, ends),
        FAMILY_INET6 => {
            let [first, second] = user::<[u64; 2]>(address + SIN6_ADDR);
            (first, second, ends)
        }
        _ => NONE,
    }
}
