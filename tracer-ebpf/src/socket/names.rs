//! Which datagrams are reported: those of sockets that resolve names, told by their ports.
//!
//! Most UDP is something else (QUIC, statistics, games), so that two loads and two comparisons are all that a socket with a
//! peer costs. One without a peer says where it sends with each datagram: the first one decides.

use tracer_common::{
    arch::Shape,
    event::{FAMILY_INET, FAMILY_INET6},
    lost::Lost,
    policy::{CONTROL_UDP, Control},
};

use super::payload::user;
use crate::{
    arch, emit,
    kernel::{regs::Regs, sock::SockPtr, task::Task},
    storage::{SOCK_IGNORED, SOCK_NAMES, SOCKS},
};

/// Bytes carried from the front of a datagram: a header and one question of the greatest length.
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

/// Port the datagram that is being sent goes to, out of the address its system call names; 0 when it names none.
#[inline(always)]
fn destination() -> u16 {
    let regs = Regs::of(Task::current());
    let nr = regs.nr();
    let address = match arch::shape(nr) {
        Shape::Buffer if arch::is_sendto(nr) => regs.arg4(),
        // The address is the first member of both structures.
        Shape::Message | Shape::Messages => user::<u64>(regs.arg1()),
        _ => 0,
    };
    if address == 0 {
        return 0;
    }
    let [family, port] = user::<[u16; 2]>(address);
    if family == FAMILY_INET || family == FAMILY_INET6 { u16::from_be(port) } else { 0 }
}
