//! First messages of TLS clients: which socket each passed on, by its random number. A library's object has that number,
//! too, which proves whose socket it is, whoever moves the object's bytes.

use aya_ebpf::{macros::map, maps::LruHashMap};
use tracer_common::limits::TLS_HELLOS_MAX;

use crate::{
    kernel::task::peek,
    offsets::OFF_SK_COOKIE,
    socket::user,
    storage::{SOCK_PASSIVE, Sock},
};

/// The first message of a TLS client, as a process sent or received it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Hello {
    /// Of its random number, the bytes from [`IN_RANDOM`] on.
    random: [u64; 2],
    tgid: u64,
}

/// Where it passed.
#[repr(C)]
#[derive(Clone, Copy)]
struct HelloSocket {
    /// The socket; 0: several, which proves nothing.
    cookie: u64,
    sk: u64,
    accepted: u32,
    /// Sequence number of its first byte, if it was sent; else 0.
    begins: u32,
}

/// What an object's random number proves.
pub(crate) struct HelloProof {
    /// The socket's address in the kernel; 0: nothing is proved.
    pub(crate) sk: u64,
    /// Whether the socket was accepted.
    pub(crate) accepted: bool,
    /// Sequence number of the first byte that the object wrote, if it is a client's; else 0.
    pub(crate) begins: u32,
}

impl HelloProof {
    const NOTHING: Self = Self { sk: 0, accepted: false, begins: 0 };
}

/// First of the bytes of a client's random number that are compared: they are the third and the fourth word of its
/// message.
const IN_RANDOM: u64 = 5;

/// Clients' first messages. The least recently used go first.
#[map]
static HELLOS: LruHashMap<Hello, HelloSocket> = LruHashMap::with_max_entries(TLS_HELLOS_MAX, 0);

/// The socket on which the process sent or received the first message of the object's client: two random numbers are
/// never the same. `to_random`: where the object has the number; 0: not known.
#[inline(always)]
pub(crate) fn socket_of(object: u64, to_random: u64, tgid: u32) -> HelloProof {
    if to_random == 0 {
        return HelloProof::NOTHING;
    }
    let at = object + to_random + IN_RANDOM;
    let hello = Hello { random: [user(at), user(at + 8)], tgid: tgid as u64 };
    // SAFETY: the value is copied out at once.
    let Some(passed) = (unsafe { HELLOS.get(hello) }) else { return HelloProof::NOTHING };
    // The socket may be gone, and its memory another's.
    let is_there = passed.cookie != 0 && peek(passed.sk, OFF_SK_COOKIE.load()) == passed.cookie;
    let sk = if is_there { passed.sk } else { 0 };
    HelloProof { sk, accepted: passed.accepted != 0, begins: passed.begins }
}

/// Bytes of an operation that show whether a client's first message begins it, and which.
pub(crate) const HELLO: u32 = 32;

/// Notes which socket a client's first message moved on, if an operation begins with one. `begins`: the sequence number
/// of the operation's first byte, if it was sent; else 0.
///
/// # Safety
/// At `first` are [`HELLO`] bytes, aligned.
#[inline(always)]
pub(crate) unsafe fn note(first: *const u64, tgid: u32, sock: &Sock, sk: u64, begins: u32) {
    // SAFETY: as promised.
    let word = |n: usize| unsafe { first.add(n).read_volatile() };
    // A record of a handshake, version 3, and in it a message of type 1 with less than 64 KiB.
    if word(0) & 0x00ff_ff00_0000_ffff != 0x0000_0100_0000_0316 {
        return;
    }
    let hello = Hello { random: [word(2), word(3)], tgid: tgid as u64 };
    if let Some(known) = HELLOS.get_ptr_mut(hello) {
        // SAFETY: words of map memory. It may have come again on the same socket.
        unsafe {
            if (*known).cookie != sock.cookie {
                (*known).cookie = 0;
            }
        }
        return;
    }
    let accepted = (sock.flags & SOCK_PASSIVE != 0) as u32;
    let _ = HELLOS.insert(hello, HelloSocket { cookie: sock.cookie, sk, accepted, begins }, 0);
}
