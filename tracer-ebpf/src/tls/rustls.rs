//! Text of rustls, whose objects have no socket and move in memory: the thread's operations on sockets tell where it belongs.
//!
//! A connection decrypts what it has just received before its thread does anything else, and sends what it has encrypted
//! before its caller's buffer is given up. So text that is read belongs to the socket that the thread last received on; text
//! that is written, to the one it sends on next, if that sends exactly as many bytes as the text takes when it is encrypted.
//! Text for which this is not so is counted, and reported nowhere. User space compares what servers read with the records they
//! received.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext,
    helpers::generated::bpf_probe_read_user,
    macros::{btf_tracepoint, fexit, map, uprobe},
    maps::ProgramArray,
    programs::{BtfTracePointContext, FExitContext, ProbeContext},
};
use tracer_common::{
    lost::Lost,
    runtime::{UserProbe, tls},
};

use super::{Caller, Object, Text, caller, find, put, registers::arguments, report, report_by};
use crate::{
    bound, call_stack, emit,
    kernel::{
        mptcp::write_seq,
        sock::{SockPtr, What},
    },
    runtime,
    socket::{frames::FRAMES_TX, user},
    storage::{PIECES, SOCK_PASSIVE, SOCKS},
};

/// Tail-called after a send by a thread that has unsent text.
#[map]
static TEXT_SENT: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Marks the sockets' cookies among the objects of other libraries, which are addresses of a program.
const BY_SOCKET: u64 = 1 << 63;

/// hook: uprobe `rustls::common_state::CommonState::buffer_plaintext`(self, `OutboundChunks`, …). Emits nothing: stores the text.
#[uprobe]
pub(crate) fn tls_rustls_write(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::TlsRustlsWrite);
    let Some(caller) = caller() else { return 0 };
    let [_, chunks, ..] = arguments(&ctx);
    // One buffer: 0, its address and its length. Several: the list's address, how many, and which of all their bytes.
    let [first, second, third, fourth]: [u64; 4] = user(chunks);
    let unsent = &mut caller.thread.unsent;
    let before = unsent.len;
    let (list, count, len) = if first == 0 { (chunks + 8, 1, third) } else { (first, second, fourth) };
    // Writers give all of the bytes.
    let is_whole = first == 0 || third == 0;
    let size = bound::at_most::<{ size_of::<[[u64; 2]; PIECES]>() as u64 }>(count * 16);
    // SAFETY: the array has that size; the helper tolerates any address.
    let refused = unsafe { bpf_probe_read_user((&raw mut unsent.pieces).cast(), size as u32, list as *const c_void) };
    let is_known = is_whole && count <= PIECES as u64 && refused == 0 && len <= super::LONGEST;
    (unsent.len, unsent.count) = if is_known { (len, count) } else { (0, 0) };
    if before != 0 || !is_known {
        emit::count(Lost::TlsUnbound);
    }
    0
}

/// hook: uprobe `rustls::common_state::CommonState::take_received_plaintext`(self, `Payload`). Emits
/// [`tracer_common::event::Kind::Text`].
#[uprobe]
pub(crate) fn tls_rustls_read(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::TlsRustlsRead);
    let Some(caller) = caller() else { return 0 };
    let [connection, payload, ..] = arguments(&ctx);
    // A vector (capacity, address, length) or a slice (a mark, address, length).
    let [_, buffer, len]: [u64; 3] = user(payload);
    let thread = &mut *caller.thread;
    // TLS inside TLS: what was received is the text of the connection that took it first.
    let other = thread.io_reader != 0 && thread.io_reader != connection;
    if thread.io_cookie == 0 || thread.io_sent != 0 || other || len > tls::LONGEST as u64 {
        emit::count(Lost::TlsUnbound);
        return 0;
    }
    thread.io_reader = connection;
    let (cookie, sk, accepted) = (thread.io_cookie, thread.io_sk, thread.io_flags & SOCK_PASSIVE as u64 != 0);
    let Some(found) = of_socket(&caller, cookie, sk, accepted) else { return 0 };
    let pos = found.pos[0];
    found.pos[0] = pos + len;
    runtime::note_text::<false>(caller.task, caller.thread, caller.tgid, None);
    let text = Text { object: cookie | BY_SOCKET, pos, buffer, len, asked: tls::WHOLE_RECORD, seq: 0 };
    report::<false>(&ctx, caller, found, text);
    0
}

/// Hands a send to the program that reports the text it carries; returns if there is none.
#[inline(always)]
pub(crate) fn carried(ctx: &impl EbpfContext) {
    // SAFETY: the array holds only programs for this hook.
    unsafe { TEXT_SENT.tail_call(ctx, 0) };
}

/// hook: tp_btf sock_send_length(sk, ret, flags), tail-called by [`crate::socket::tx`]. Emits
/// [`tracer_common::event::Kind::Text`].
#[btf_tracepoint(function = "sock_send_length")]
pub(crate) fn text_sent(ctx: BtfTracePointContext) -> i32 {
    sent(&ctx, SockPtr(ctx.arg(0)), ctx.arg::<i32>(1) as u32);
    call_stack::go_on_of_current::<false>(&ctx);
    0
}

/// hook: fexit (socket, msg, size) → int, tail-called by the programs of `socket/functions.rs`. As [`text_sent`].
#[fexit(function = "inet_sendmsg")]
pub(crate) fn text_sent_exit(ctx: FExitContext) -> i32 {
    if let Some(sk) = SockPtr::of_socket(ctx.arg(0)) {
        sent(&ctx, sk, ctx.arg::<i32>(3) as u32);
        call_stack::go_on_of_current::<false>(&ctx);
    }
    0
}

/// The thread's unsent text left with `bytes` bytes, or with others.
#[inline(always)]
fn sent(ctx: &impl EbpfContext, sk: SockPtr, bytes: u32) {
    let Some(caller) = caller() else { return };
    let unsent = &mut caller.thread.unsent;
    let most = unsent.len;
    unsent.len = 0;
    let sock = SOCKS.get(sk.0, false);
    if sock.is_null() || sk.what() != What::Tcp {
        emit::count(Lost::TlsUnbound);
        return;
    }
    // SAFETY: not null.
    let (cookie, flags) = unsafe { ((*sock).cookie, (*sock).flags) };
    let known = find(cookie | BY_SOCKET, caller.tgid).map_or(0, |found| found.wrote.overhead);
    let Some((len, overhead)) = tls::text_in(bytes, most as u32, known) else {
        emit::count(Lost::TlsUnbound);
        return;
    };
    let Some(found) = of_socket(&caller, cookie, sk.0 as u64, flags & SOCK_PASSIVE != 0) else { return };
    let seq = write_seq(sk.0 as u64).wrapping_sub(bytes);
    if found.wrote.records != 0 && found.wrote.at != seq {
        // Something else was sent since the text before this one.
        emit::count(Lost::TlsObject);
        *found = Object::new(cookie, found.sk, found.accepted != 0, true);
    }
    found.wrote = tls::UnsentRecords { bytes: 0, records: 1, at: seq.wrapping_add(bytes), overhead };
    let pos = found.pos[1];
    found.pos[1] = pos + len as u64;
    runtime::note_text::<true>(caller.task, caller.thread, caller.tgid, None);
    let text = Text { object: cookie | BY_SOCKET, pos, buffer: 0, len: len as u64, asked: 0, seq };
    report_by::<true, true>(ctx, caller, found, text, &FRAMES_TX);
}

/// What is known of a socket's text.
#[inline(always)]
fn of_socket(caller: &Caller, cookie: u64, sk: u64, accepted: bool) -> Option<&'static mut Object> {
    let object = cookie | BY_SOCKET;
    if find(object, caller.tgid).is_none() && !put(object, caller.tgid, &Object::new(cookie, sk, accepted, true)) {
        return None;
    }
    find(object, caller.tgid)
}
