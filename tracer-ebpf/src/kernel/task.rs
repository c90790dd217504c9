//! `task_struct`.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_probe_read_kernel};

use tracer_common::members::ABSENT;

use super::load;
use crate::offsets::{
    OFF_FDT_FD, OFF_FILE_INODE, OFF_FILE_PRIVATE, OFF_FILES_FDT, OFF_INODE_MODE, OFF_SOCKET_SK, OFF_TASK_COMM,
    OFF_TASK_EXEC, OFF_TASK_EXIT_CODE, OFF_TASK_FILES, OFF_TASK_FLAGS, OFF_TASK_FSBASE, OFF_TASK_MM, OFF_TASK_PID,
    OFF_TASK_RUN_DELAY, OFF_TASK_TGID,
};

/// `PF_EXITING` (`include/linux/sched.h`).
const PF_EXITING: u32 = 0x0000_0004;
/// `PF_KTHREAD` (`include/linux/sched.h`).
const PF_KTHREAD: u32 = 0x0020_0000;
/// `TASK_DEAD` (`include/linux/sched.h`).
pub(crate) const TASK_DEAD: u32 = 0x80;

/// A task the verifier trusts.
#[derive(Clone, Copy)]
pub(crate) struct Task(pub(crate) *mut c_void);

impl Task {
    /// The task that runs here.
    #[inline(always)]
    pub(crate) fn current() -> Self {
        // SAFETY: always valid.
        Self(unsafe { bpf_get_current_task_btf() }.cast())
    }

    /// Thread id; 0 for idle.
    #[inline(always)]
    pub(crate) fn tid(self) -> u32 {
        // SAFETY: offset of `pid` (an int).
        unsafe { load(self.0, OFF_TASK_PID.load()) }
    }

    /// Process id.
    #[inline(always)]
    pub(crate) fn tgid(self) -> u32 {
        // SAFETY: offset of `tgid` (an int).
        unsafe { load(self.0, OFF_TASK_TGID.load()) }
    }

    #[inline(always)]
    pub(crate) fn is_kernel(self) -> bool {
        // SAFETY: offset of `flags` (unsigned int).
        unsafe { load::<u32>(self.0, OFF_TASK_FLAGS.load()) & PF_KTHREAD != 0 }
    }

    /// How it exits, as `wait` reports it: what `do_exit` was called with, which is its process's unless it ends alone. `None`: it
    /// does not exit, or this kernel does not say.
    #[inline(always)]
    pub(crate) fn exit_status(self) -> Option<u16> {
        if OFF_TASK_EXIT_CODE.load() == ABSENT {
            return None;
        }
        // SAFETY: offset of `flags` (unsigned int).
        if unsafe { load::<u32>(self.0, OFF_TASK_FLAGS.load()) } & PF_EXITING == 0 {
            return None;
        }
        // SAFETY: offset of `exit_code` (an int).
        Some(unsafe { load::<u32>(self.0, OFF_TASK_EXIT_CODE.load()) } as u16)
    }

    /// CPU time used so far as the scheduler counts it, nanoseconds; exact only when the task was just switched.
    #[inline(always)]
    pub(crate) fn exec(self) -> u64 {
        // SAFETY: offset of `se.sum_exec_runtime` (a u64).
        unsafe { load(self.0, OFF_TASK_EXEC.load()) }
    }

    /// Time spent waiting for a CPU so far, nanoseconds, as the kernel itself counts it; 0 where it does not.
    #[inline(always)]
    pub(crate) fn run_delay(self) -> u64 {
        if OFF_TASK_RUN_DELAY.load() == ABSENT {
            return 0;
        }
        // SAFETY: offset of `sched_info.run_delay` (an unsigned long long).
        unsafe { load(self.0, OFF_TASK_RUN_DELAY.load()) }
    }

    /// Where thread-local data lies, from the register that holds it on x86-64; 0 elsewhere.
    #[inline(always)]
    pub(crate) fn fsbase(self) -> u64 {
        if OFF_TASK_FSBASE.load() == ABSENT {
            return 0;
        }
        // SAFETY: offset of `thread.fsbase` (an unsigned long).
        unsafe { load(self.0, OFF_TASK_FSBASE.load()) }
    }

    /// Address of its `mm_struct`.
    #[inline(always)]
    pub(crate) fn mm(self) -> u64 {
        // SAFETY: offset of `mm` (a pointer).
        unsafe { load(self.0, OFF_TASK_MM.load()) }
    }

    /// `comm`.
    #[inline(always)]
    pub(crate) fn comm(self) -> [u8; 16] {
        let mut comm = [0u8; 16];
        // SAFETY: 16 bytes at the offset of `comm`; the helper tolerates any address.
        unsafe {
            bpf_probe_read_kernel(
                comm.as_mut_ptr().cast(),
                16,
                self.0.byte_add(OFF_TASK_COMM.load() as usize).cast_const(),
            );
        }
        comm
    }

    /// The kernel address of the inode behind descriptor `fd`, 0 if there is none or it cannot be read. This kernel has
    /// `OFF_FILE_INODE`.
    #[inline(always)]
    pub(crate) fn inode_of(self, fd: u32) -> u64 {
        peek(self.file_of(fd), OFF_FILE_INODE.load())
    }

    /// The kernel address of the file behind descriptor `fd`, 0 if there is none or it cannot be read.
    #[inline(always)]
    pub(crate) fn file_of(self, fd: u32) -> u64 {
        // SAFETY: `files` is a pointer member; what follows is read by the fault-tolerant helper.
        let files: u64 = unsafe { load(self.0, OFF_TASK_FILES.load()) };
        let table = peek(peek(files, OFF_FILES_FDT.load()), OFF_FDT_FD.load());
        peek(table, fd as u64 * 8)
    }

    /// The kernel address of the socket behind descriptor `fd`, 0 if it is not a socket or cannot be read.
    #[inline(always)]
    pub(crate) fn socket_of(self, fd: u32) -> u64 {
        socket_of_file(self.file_of(fd))
    }
}

/// Type of the file at kernel address `file` as `i_mode` has it above 12 bits; 0 = none, or unknown.
#[inline(always)]
pub(crate) fn type_of_file(file: u64) -> u8 {
    if OFF_INODE_MODE.load() == ABSENT || OFF_FILE_INODE.load() == ABSENT {
        return 0;
    }
    (peek(peek(file, OFF_FILE_INODE.load()), OFF_INODE_MODE.load()) >> 12) as u8 & 15
}

/// The kernel address of the socket that the file at kernel address `file` is, 0 if it is none or cannot be read.
#[inline(always)]
pub(crate) fn socket_of_file(file: u64) -> u64 {
    peek(peek(file, OFF_FILE_PRIVATE.load()), OFF_SOCKET_SK.load())
}

/// Reads a pointer at `base + offset` of kernel memory; 0 when `base` is 0 or it faults.
#[inline(always)]
pub(crate) fn peek(base: u64, offset: u64) -> u64 {
    if base == 0 {
        return 0;
    }
    let mut value = 0u64;
    // SAFETY: the helper tolerates any address.
    unsafe { bpf_probe_read_kernel((&raw mut value).cast(), 8, (base + offset) as *const c_void) };
    value
}
