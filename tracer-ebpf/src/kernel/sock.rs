//! `sock`, `tcp_sock`, `unix_sock`.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_get_socket_cookie, bpf_probe_read_kernel, bpf_skc_to_tcp_sock};
use tracer_common::{
    event::{FAMILY_INET, FAMILY_INET6, FAMILY_UNIX, NetworkPath},
    members::ABSENT,
};

use super::{load, mptcp::IPPROTO_MPTCP, task::peek};
use crate::offsets::{
    MASK_SK_ZEROCOPY, OFF_FILE_FLAGS, OFF_MINMAX_VALUE, OFF_NET_INUM, OFF_SK_DADDR, OFF_SK_DPORT, OFF_SK_ERROR,
    OFF_SK_FAMILY, OFF_SK_FLAGS, OFF_SK_NET, OFF_SK_NUM, OFF_SK_OWNED, OFF_SK_PROTOCOL, OFF_SK_RCV_SADDR,
    OFF_SK_SHUTDOWN, OFF_SK_SOCKET, OFF_SK_STATE, OFF_SK_TYPE, OFF_SK_V6_DADDR, OFF_SK_V6_RCV_SADDR, OFF_SOCKET_FILE,
    OFF_SOCKET_SK, OFF_TCP_BYTES_ACKED, OFF_TCP_BYTES_RECEIVED, OFF_TCP_COPIED_SEQ, OFF_TCP_RCV_NXT,
    OFF_TCP_RETRANSMITS, OFF_TCP_RTT, OFF_TCP_RTT_MIN, OFF_TCP_SND_UNA, OFF_TCP_WRITE_SEQ, OFF_UNIX_ADDR,
    OFF_UNIX_PEER,
};

const SOCK_STREAM: u16 = 1;
const IPPROTO_TCP: u16 = 6;
const IPPROTO_UDP: u16 = 17;
const IPPROTO_SMC: u16 = 256;
const FAMILY_SMC: u16 = 43;
const TCP_LISTEN: u8 = 10;
const RCV_SHUTDOWN: u8 = 1;
/// `include/uapi/asm-generic/fcntl.h`.
const O_NONBLOCK: u32 = 0o4000;

/// What a socket is, as far as tracing cares.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Also over several paths (`mptcp.rs`): such a socket has no [`SockPtr::tcp`].
    Tcp,
    UnixStream,
    Udp,
    Other,
}

/// A socket the verifier trusts.
#[derive(Clone, Copy)]
pub(crate) struct SockPtr(pub(crate) *mut c_void);

impl SockPtr {
    /// The socket below a `struct socket`, unless it is being released.
    #[inline(always)]
    pub(crate) fn of_socket(socket: *mut c_void) -> Option<Self> {
        // SAFETY: offset of the pointer `sk`.
        let sk: *mut c_void = unsafe { load(socket, OFF_SOCKET_SK.load()) };
        (!sk.is_null()).then_some(Self(sk))
    }

    #[inline(always)]
    pub(crate) fn family(self) -> u16 {
        // SAFETY: offset of an unsigned short.
        unsafe { load(self.0, OFF_SK_FAMILY.load()) }
    }

    #[inline(always)]
    pub(crate) fn what(self) -> What {
        // SAFETY: offsets of u16 members.
        let (family, protocol, kind) = unsafe {
            (
                load::<u16>(self.0, OFF_SK_FAMILY.load()),
                load::<u16>(self.0, OFF_SK_PROTOCOL.load()),
                load::<u16>(self.0, OFF_SK_TYPE.load()),
            )
        };
        match (family, protocol, kind) {
            (FAMILY_INET | FAMILY_INET6, IPPROTO_TCP | IPPROTO_MPTCP, _) => What::Tcp,
            (FAMILY_UNIX, _, SOCK_STREAM) => What::UnixStream,
            (FAMILY_INET | FAMILY_INET6, IPPROTO_UDP, _) => What::Udp,
            _ => What::Other,
        }
    }

    /// Whether it is a connection by shared memory (SMC), whose bytes are not read.
    #[inline(always)]
    pub(crate) fn is_smc(self) -> bool {
        // SAFETY: offset of a u16 member.
        self.family() == FAMILY_SMC || unsafe { load::<u16>(self.0, OFF_SK_PROTOCOL.load()) } == IPPROTO_SMC
    }

    #[inline(always)]
    pub(crate) fn state(self) -> u8 {
        // SAFETY: offset of `skc_state`.
        unsafe { load(self.0, OFF_SK_STATE.load()) }
    }

    #[inline(always)]
    pub(crate) fn is_listening(self) -> bool {
        self.state() == TCP_LISTEN
    }

    /// Local port, host order.
    #[inline(always)]
    pub(crate) fn local_port(self) -> u16 {
        // SAFETY: offset of `skc_num`.
        unsafe { load(self.0, OFF_SK_NUM.load()) }
    }

    /// Remote port, host order.
    #[inline(always)]
    pub(crate) fn remote_port(self) -> u16 {
        // SAFETY: offset of `skc_dport`.
        u16::from_be(unsafe { load(self.0, OFF_SK_DPORT.load()) })
    }

    /// Unique for the life of the host.
    #[inline(always)]
    pub(crate) fn cookie(self) -> u64 {
        // SAFETY: trusted socket.
        unsafe { bpf_get_socket_cookie(self.0) }
    }

    /// Network namespace inode number.
    #[inline(always)]
    pub(crate) fn netns(self) -> u32 {
        // SAFETY: pointer member.
        let net: u64 = unsafe { load(self.0, OFF_SK_NET.load()) };
        peek(net, OFF_NET_INUM.load()) as u32
    }

    /// Local and remote address into `local` and `remote`.
    #[inline(always)]
    pub(crate) fn addresses(self, local: &mut [u8; 16], remote: &mut [u8; 16]) {
        let (from, to, len) = match self.family() {
            FAMILY_INET => (OFF_SK_RCV_SADDR.load(), OFF_SK_DADDR.load(), 4),
            FAMILY_INET6 => (OFF_SK_V6_RCV_SADDR.load(), OFF_SK_V6_DADDR.load(), 16),
            _ => return,
        };
        // SAFETY: the helper tolerates any address; lengths fit the arrays.
        unsafe {
            bpf_probe_read_kernel(local.as_mut_ptr().cast(), len, self.0.byte_add(from as usize).cast_const());
            bpf_probe_read_kernel(remote.as_mut_ptr().cast(), len, self.0.byte_add(to as usize).cast_const());
        }
    }

    /// Kernel address of a UNIX socket's other end. Only for [`What::UnixStream`].
    #[inline(always)]
    pub(crate) fn unix_peer(self) -> u64 {
        // A `sock` is the first member of its `unix_sock`; the helper reads beyond what BTF allows for `sock`.
        peek(self.0 as u64, OFF_UNIX_PEER.load())
    }

    /// Which end of a connection a UNIX socket is: (it accepted, it connected). An accepted socket has its listener's address, one
    /// that connected mostly has none; of a pair neither has one. Only for [`What::UnixStream`].
    #[inline(always)]
    pub(crate) fn unix_ends(self) -> (bool, bool) {
        let (own, far) = (self.0 as u64, self.unix_peer());
        let (own, far) = (peek(own, OFF_UNIX_ADDR.load()) != 0, peek(far, OFF_UNIX_ADDR.load()) != 0);
        (own & !far, far & !own)
    }

    #[inline(always)]
    pub(crate) fn receive_shut(self) -> bool {
        // SAFETY: offset of `sk_shutdown` (a byte).
        unsafe { load::<u8>(self.0, OFF_SK_SHUTDOWN.load()) & RCV_SHUTDOWN != 0 }
    }

    /// Why the socket can no longer be used, as a number of `errno.h`; 0: it can, or this kernel does not say.
    #[inline(always)]
    pub(crate) fn error(self) -> u16 {
        if OFF_SK_ERROR.load() == ABSENT {
            return 0;
        }
        // SAFETY: offset of an int.
        unsafe { load::<i32>(self.0, OFF_SK_ERROR.load()) as u16 }
    }

    /// A thread holds the socket's lock, so what happens to it happens in that thread: packets wait. `false` where this kernel does
    /// not say.
    #[inline(always)]
    pub(crate) fn is_locked(self) -> bool {
        if OFF_SK_OWNED.load() == ABSENT {
            return false;
        }
        // SAFETY: offset of an int.
        unsafe { load::<i32>(self.0, OFF_SK_OWNED.load()) != 0 }
    }

    /// No process owns the socket: it was not accepted yet (or was closed).
    #[inline(always)]
    pub(crate) fn is_unowned(self) -> bool {
        // SAFETY: offset of the pointer `sk_socket`.
        unsafe { load::<u64>(self.0, OFF_SK_SOCKET.load()) == 0 }
    }

    /// The same socket as TCP; `None` for another protocol.
    #[inline(always)]
    pub(crate) fn tcp(self) -> Option<Tcp> {
        // SAFETY: trusted socket.
        let tcp = unsafe { bpf_skc_to_tcp_sock(self.0) };
        (!tcp.is_null()).then_some(Tcp(tcp as *const c_void))
    }
}

/// A TCP socket.
#[derive(Clone, Copy)]
pub(crate) struct Tcp(*const c_void);

macro_rules! member {
    ($(#[$meta:meta])* $name:ident, $ty:ty, $offset:ident) => {
        $(#[$meta])*
        #[inline(always)]
        pub(crate) fn $name(self) -> $ty {
            // SAFETY: offset and type of a `tcp_sock` member.
            unsafe { load(self.0, $offset.load()) }
        }
    };
}

impl Tcp {
    member!(
        /// Sequence number after the last byte given to the socket.
        write_seq, u32, OFF_TCP_WRITE_SEQ
    );
    member!(
        /// Sequence number after the last byte taken from the socket.
        copied_seq, u32, OFF_TCP_COPIED_SEQ
    );
    member!(
        /// Sequence number after the last byte received in order.
        rcv_nxt, u32, OFF_TCP_RCV_NXT
    );
    /// Whether reads of the socket block, as its file's flags say; false without a file.
    #[inline(always)]
    pub(crate) fn blocks(self) -> bool {
        // SAFETY: a `sock` is the first member of its `tcp_sock`; pointers to pointers to an unsigned int, and a load
        // that faults gives zero.
        unsafe {
            let socket: *const c_void = load(self.0, OFF_SK_SOCKET.load());
            if socket.is_null() {
                return false;
            }
            let file: *const c_void = load(socket, OFF_SOCKET_FILE.load());
            !file.is_null() && load::<u32>(file, OFF_FILE_FLAGS.load()) & O_NONBLOCK == 0
        }
    }

    /// Whether the owner may send from memory it shares with the kernel (`SO_ZEROCOPY`).
    #[inline(always)]
    pub(crate) fn lends(self) -> bool {
        // SAFETY: as above; offset of an unsigned long.
        unsafe { load::<u64>(self.0, OFF_SK_FLAGS.load()) & MASK_SK_ZEROCOPY.load() != 0 }
    }

    /// What it has measured so far.
    #[inline(always)]
    pub(crate) fn path(self) -> NetworkPath {
        let member = |offset: u64| {
            if offset == ABSENT {
                return 0;
            }
            // SAFETY: offset of an unsigned int of a `tcp_sock`.
            unsafe { load::<u32>(self.0, offset) }
        };
        let value = OFF_MINMAX_VALUE.load();
        let rtt_min = OFF_TCP_RTT_MIN.load();
        NetworkPath {
            // The kernel keeps eighths.
            rtt: member(OFF_TCP_RTT.load()) >> 3,
            rtt_min: member(if rtt_min == ABSENT || value == ABSENT { ABSENT } else { rtt_min + value }),
            retransmits: member(OFF_TCP_RETRANSMITS.load()),
            reserved: 0,
        }
    }

    member!(snd_una, u32, OFF_TCP_SND_UNA);
    member!(bytes_acked, u64, OFF_TCP_BYTES_ACKED);
    member!(bytes_received, u64, OFF_TCP_BYTES_RECEIVED);
}
