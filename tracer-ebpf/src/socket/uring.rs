//! `io_uring`: the buffer of a request, kept from its submission until the socket hook sees the bytes move.
//!
//! Not covered: registered files and provided buffers (chosen later); such operations are reported without bytes.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::bpf_probe_read_user, macros::btf_tracepoint, macros::map, maps::LruHashMap,
    programs::BtfTracePointContext,
};
use tracer_common::{limits::URING_MAX, members::ABSENT};

use crate::{
    kernel::{
        sock::SockPtr,
        task::{Task, peek},
    },
    offsets::{OFF_URING_FD, OFF_URING_FLAGS, OFF_URING_OPCODE, OFF_URING_RW_ADDR, OFF_URING_SR_BUF, OFF_URING_SR_MSG},
    policy,
};

// include/uapi/linux/io_uring.h
const READV: u8 = 1;
const WRITEV: u8 = 2;
const SENDMSG: u8 = 9;
const RECVMSG: u8 = 10;
const READ: u8 = 22;
const WRITE: u8 = 23;
const SEND: u8 = 26;
const RECV: u8 = 27;
const SEND_ZC: u8 = 47;
const SENDMSG_ZC: u8 = 48;
const REQ_F_FIXED_FILE: u64 = 1;

/// Socket and direction.
#[repr(C)]
#[derive(Clone, Copy)]
struct UringKey {
    sk: u64,
    tx: u64,
}

/// A buffer (`count` 0) or an array of `count` I/O vectors.
#[repr(C)]
#[derive(Clone, Copy)]
struct Buffer {
    at: u64,
    count: u64,
}

#[map]
static URING: LruHashMap<UringKey, Buffer> = LruHashMap::with_max_entries(URING_MAX, 0);

/// Takes the entry of `sk`: address and number of vectors (0 = a plain buffer).
#[inline(always)]
pub(super) fn take(sk: SockPtr, tx: bool) -> Option<(u64, u64)> {
    let key = UringKey { sk: sk.0 as u64, tx: tx as u64 };
    // SAFETY: copied out at once.
    let found = unsafe { URING.get(key) }.copied()?;
    // Used up: a stale address would name unrelated bytes.
    let _ = URING.remove(key);
    Some((found.at, found.count))
}

/// hook: tp_btf io_uring_submit_req(req). First seen: 6.12 (before, under another name). Emits nothing.
#[btf_tracepoint(function = "io_uring_submit_req")]
pub(crate) fn submit(ctx: BtfTracePointContext) -> i32 {
    let req: *const c_void = ctx.arg(0);
    remember(req as u64);
    0
}

#[inline(always)]
fn remember(req: u64) {
    if policy::control().is_none() || OFF_URING_OPCODE.load() == ABSENT || OFF_URING_FD.load() == ABSENT {
        return;
    }
    if peek(req, OFF_URING_FLAGS.load()) & REQ_F_FIXED_FILE != 0 {
        return;
    }
    let opcode = peek(req, OFF_URING_OPCODE.load()) as u8;
    let (at, count) = match opcode {
        SEND | RECV | SEND_ZC => (peek(req, OFF_URING_SR_BUF.load()), 0),
        READ | WRITE => (peek(req, OFF_URING_RW_ADDR.load()), 0),
        // The length is in a member of the request that moved between kernels: read only the first vector.
        READV | WRITEV => (peek(req, OFF_URING_RW_ADDR.load()), 1),
        SENDMSG | RECVMSG | SENDMSG_ZC => {
            let mut vector = [0u64; 2];
            let message = peek(req, OFF_URING_SR_MSG.load());
            // SAFETY: the helper tolerates any address.
            unsafe { bpf_probe_read_user((&raw mut vector).cast(), 16, (message + 16) as *const c_void) };
            (vector[0], vector[1])
        }
        _ => return,
    };
    let tx = matches!(opcode, SEND | SEND_ZC | WRITE | WRITEV | SENDMSG | SENDMSG_ZC);
    let fd = peek(req, OFF_URING_FD.load()) as u32;
    let sk = Task::current().socket_of(fd);
    if sk != 0 && at != 0 {
        let _ = URING.insert(UringKey { sk, tx: tx as u64 }, Buffer { at, count }, 0);
    }
}
