//! What the threads of a few processes write to logs. Loaded only if the configuration names services whose lines are kept.
//!
//! No hook sees writes of one process alone, so these ask first whether the process is wanted: one look-up, which is all that others
//! pay. At the end of the functions that every write passes, only writes pay it; where the kernel lets nothing hang there, at the end
//! of every system call. A log is a regular file that is opened for appending, or whatever the process has as standard output or error;
//! of sockets only the journal's. Everything else that is written (uploads, databases, self-pipes, replies) is left alone.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_user},
    macros::{btf_tracepoint, fexit, map},
    maps::HashMap,
    programs::{BtfTracePointContext, FExitContext},
};
use tracer_common::{
    event::{Header, Kind},
    log_write::{
        LOG_PIECES, LOG_TEXT, LOGGING_MAX, LogWrite, LoggingProcess, NO_POSITION, TYPE_DEVICE, TYPE_FILE, TYPE_PIPE,
        TYPE_SOCKET,
    },
    lost::Lost,
    members::ABSENT,
};

use crate::{
    bound, emit,
    kernel::{
        regs::Regs,
        task::{Task, peek},
    },
    offsets::{OFF_FILE_FLAGS, OFF_FILE_INODE, OFF_FILE_POS, OFF_INODE_INO, OFF_INODE_MODE, OFF_INODE_SB, OFF_SB_DEV},
    ring, runtime, sched,
    socket::user,
    storage::THREADS,
};

/// Processes whose lines are wanted.
#[map]
static LOGGING: HashMap<u32, LoggingProcess> = HashMap::with_max_entries(LOGGING_MAX, 0);

/// `O_APPEND` (`include/uapi/asm-generic/fcntl.h`).
const O_APPEND: u64 = 0o2000;
/// `write` and `writev` of x86-64 (`arch/x86/entry/syscalls/syscall_64.tbl`).
const NR_WRITE: u64 = 1;
const NR_WRITEV: u64 = 20;
const SECOND: u64 = 1_000_000_000;
/// Standard output and error.
const STANDARD: [u32; 2] = [1, 2];

/// A write that is over.
struct Written {
    /// Address of its `struct file`.
    file: u64,
    /// What was written: a buffer, or an array of them.
    from: u64,
    /// Buffers in the array; 0: there is no array.
    pieces: u64,
    /// Where the position is that the file system counted on, if the file has any; 0: it has none.
    position: u64,
    bytes: i64,
}

/// hook: fexit vfs_write(file, buf, count, pos) → ssize_t. First seen: 5.10. Emits [`LogWrite`].
#[fexit(function = "vfs_write")]
pub(crate) fn log_written(ctx: FExitContext) -> i32 {
    let (file, from, position) = (ctx.arg(0), ctx.arg(1), ctx.arg(3));
    written(Written { file, from, pieces: 0, position, bytes: ctx.arg(4) });
    0
}

/// hook: fexit vfs_writev(file, vec, vlen, pos, flags) → ssize_t. First seen: 5.10; a compiler may inline it. Emits [`LogWrite`].
#[fexit(function = "vfs_writev")]
pub(crate) fn log_written_pieces(ctx: FExitContext) -> i32 {
    let (file, from, pieces, position) = (ctx.arg(0), ctx.arg(1), ctx.arg(2), ctx.arg(3));
    written(Written { file, from, pieces, position, bytes: ctx.arg(5) });
    0
}

/// hook: tp_btf sys_exit(regs, ret), where the kernel has no function exits. First seen: 5.10. Emits [`LogWrite`]. Another thread may
/// have moved the file's position on meanwhile.
#[btf_tracepoint(function = "sys_exit")]
pub(crate) fn log_written_call(ctx: BtfTracePointContext) -> i32 {
    // Nothing else writes a line; and on arm64 the first argument is gone by now.
    let regs = Regs::of(Task::current());
    let pieces = match regs.nr() {
        NR_WRITE => 0,
        NR_WRITEV => regs.arg2(),
        _ => return 0,
    };
    if cfg!(bpf_target_arch = "aarch64") || regs.is_compat() || OFF_FILE_POS.load() == ABSENT {
        return 0;
    }
    let task = Task::current();
    if LOGGING.get_ptr(task.tgid()).is_none() {
        return 0;
    }
    let file = task.file_of(regs.arg0() as u32);
    let position = file + OFF_FILE_POS.load();
    written(Written { file, from: regs.arg1(), pieces, position, bytes: ctx.arg(1) });
    0
}

#[inline(always)]
fn written(write: Written) {
    if write.bytes <= 0 || OFF_INODE_MODE.load() == ABSENT || OFF_FILE_INODE.load() == ABSENT {
        return;
    }
    let task = Task::current();
    let tgid = task.tgid();
    let Some(process) = LOGGING.get_ptr_mut(tgid) else { return };
    let inode = peek(write.file, OFF_FILE_INODE.load());
    let file_type = (peek(inode, OFF_INODE_MODE.load()) >> 12) as u8 & 15;
    let number = peek(inode, OFF_INODE_INO.load());
    // SAFETY: an element of the map.
    let journal = unsafe { (&raw const (*process).journal).read_volatile() };
    let is_log = match file_type {
        TYPE_FILE if peek(write.file, OFF_FILE_FLAGS.load()) & O_APPEND != 0 => true,
        TYPE_FILE | TYPE_PIPE | TYPE_DEVICE => {
            inode == task.inode_of(STANDARD[0]) || inode == task.inode_of(STANDARD[1])
        }
        TYPE_SOCKET => number == journal,
        _ => false,
    };
    if !is_log || number == 0 {
        return;
    }
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: an element of the map; threads of several CPUs may count a few writes to the wrong second.
    let is_too_much = unsafe {
        if now.wrapping_sub((&raw const (*process).since).read_volatile()) > SECOND {
            (&raw mut (*process).since).write_volatile(now);
            (&raw mut (*process).writes).write_volatile(0);
        }
        emit::increment(&raw mut (*process).writes);
        (&raw const (*process).writes).read_volatile() > (&raw const (*process).max_rate).read_volatile()
    };
    if is_too_much {
        // SAFETY: as above.
        unsafe { emit::increment(&raw mut (*process).missed) };
        emit::count(Lost::LogRate);
        return;
    }
    let thread = THREADS.get(task.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return;
    }
    let entity = runtime::writing(task, tgid);
    // Lines never take the room of requests.
    let Some(slot) = ring::reserve_of::<1, false>((size_of::<LogWrite>() + LOG_TEXT) as u64, Some(Lost::RingLog))
    else {
        // SAFETY: as above.
        unsafe { emit::increment(&raw mut (*process).missed) };
        return;
    };
    // SAFETY: the slot has room for the record and its text.
    let (text, last) = unsafe { copy(slot.record.add(size_of::<LogWrite>()), &write) };
    let len = size_of::<LogWrite>() as u64 + text;
    let record = LogWrite {
        header: Header {
            kind: Kind::LogWrite as u8,
            flags: 0,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: len as u32,
            nanos: now,
            tgid,
            tid: task.tid(),
        },
        entity,
        inode: number,
        end: if file_type == TYPE_FILE && write.position != 0 { peek(write.position, 0) } else { NO_POSITION },
        bytes: write.bytes as u64,
        // SAFETY: an element of the map.
        missed: unsafe { (&raw const (*process).missed).read_volatile() },
        device: peek(peek(inode, OFF_INODE_SB.load()), OFF_SB_DEV.load()) as u32,
        text: text as u16,
        file_type,
        last,
        // SAFETY: not null; the current thread's own record.
        counters: sched::counters(task, unsafe { &mut *thread }, now),
    };
    let (from, to) = (ptr::from_ref(&record).cast::<u64>(), slot.record.cast::<u64>());
    for i in 0..size_of::<LogWrite>() / 8 {
        // SAFETY: within the record and the slot. Volatile, so that the compiler makes no call to `memcpy`.
        unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
    }
    slot.complete(len);
}

/// Copies the front of what was written; its length, and the last byte written.
///
/// # Safety
/// There is room for twice [`LOG_TEXT`] bytes at `to`: the verifier takes each piece at its longest.
#[inline(always)]
unsafe fn copy(to: *mut u8, write: &Written) -> (u64, u8) {
    if write.pieces == 0 {
        let len = bound::at_most::<{ LOG_TEXT as u64 }>(write.bytes as u64);
        // SAFETY: the helper tolerates any address.
        let failed = unsafe { bpf_probe_read_user(to.cast(), len as u32, write.from as *const c_void) };
        return if failed == 0 { (len, user(write.from + write.bytes as u64 - 1)) } else { (0, 0) };
    }
    let (mut have, mut left, mut last) = (0u64, write.bytes as u64, 0);
    for piece in 0..LOG_PIECES as u64 {
        if piece >= write.pieces || left == 0 {
            break;
        }
        let [at, len]: [u64; 2] = user(write.from + piece * 16);
        let len = if len < left { len } else { left };
        if len == 0 {
            continue;
        }
        left -= len;
        last = user(at + len - 1);
        let begin = bound::at_most::<{ LOG_TEXT as u64 }>(have);
        let room = LOG_TEXT as u64 - begin;
        let part = bound::at_most::<{ LOG_TEXT as u64 }>(if len < room { len } else { room });
        if part == 0 {
            continue;
        }
        // SAFETY: as promised; the helper tolerates any address.
        if unsafe { bpf_probe_read_user(to.add(begin as usize).cast(), part as u32, at as *const c_void) } != 0 {
            return (0, 0);
        }
        have = begin + part;
    }
    // What lies in further buffers is not known.
    (have, if left == 0 { last } else { 0 })
}
