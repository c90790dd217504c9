//! Sends without payload (sendfile): kept in the thread's record and reported with its next event, instead of an event
//! each.
//!
//! Such an operation only shows how far a reply has come. A reply of one head and one body by sendfile then costs one
//! event and not two; position and time are those of the operation.

use aya_ebpf::helpers::generated::bpf_get_smp_processor_id;
use tracer_common::{
    event::{Header, Kind, OP_NO_PAYLOAD, OP_TX, Op, ThreadCounters},
    lost::Lost,
};

use crate::{
    emit,
    kernel::task::Task,
    storage::{Sock, Thread},
};

/// Most bytes kept at once: a record has 32 bits for them.
const MOST: u64 = 1 << 30;

/// Stores that `thread` sent the bytes from `pos` to the end of what `sock` sent; returns false if it already holds
/// others.
#[inline(always)]
pub(super) fn remember(thread: &mut Thread, sock: &Sock, pos: u64) -> bool {
    if thread.sent_cookie == 0 {
        thread.sent_cookie = sock.cookie;
        thread.sent_pos = pos;
    } else if thread.sent_cookie != sock.cookie || thread.sent_end != pos || sock.tx - thread.sent_pos > MOST {
        return false;
    }
    thread.sent_end = sock.tx;
    thread.sent_at = sock.last_tx;
    true
}

/// Drops what was sent by the socket `cookie`: another record reports it.
#[inline(always)]
pub(super) fn forget_sent(thread: &mut Thread, cookie: u64) {
    if thread.sent_cookie == cookie {
        thread.sent_cookie = 0;
    }
}

/// Reports what is kept: the thread stops running, and its next operation may be far off.
#[inline(always)]
pub(crate) fn flush(task: Task, thread: &mut Thread, counters: ThreadCounters) {
    thread.ops = thread.ops.wrapping_add(1);
    let op = Op {
        header: Header {
            kind: Kind::Op as u8,
            flags: OP_TX | OP_NO_PAYLOAD,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<Op>() as u32,
            nanos: thread.sent_at,
            tgid: task.tgid(),
            tid: task.tid(),
        },
        cookie: thread.sent_cookie,
        pos: thread.sent_pos,
        arrived: 0,
        bytes: (thread.sent_end - thread.sent_pos) as u32,
        seq: 0,
        head: 0,
        tail: 0,
        nth: thread.ops,
        sent_cookie: 0,
        sent_pos: 0,
        sent_end: 0,
        sent_at: 0,
        // The current task may be another than the sender.
        entity: 0,
        edge_seq: 0,
        frames: 0,
        path: super::NO_PATH,
        counters,
    };
    thread.sent_cookie = 0;
    emit::event(&op, Lost::RingOp);
}
