//! Registers and system call numbers: the only place that knows the processor.
//!
//! The BPF target names no processor, so the kernel side selects it by the cfg `bpf_target_arch`; user space takes the
//! machine it is compiled for. Both read the same tables.

use crate::members::Member;

/// Numbers of the system calls the kernel side distinguishes, and the offsets of the saved registers.
#[derive(Clone, Copy, Debug)]
pub struct Arch {
    /// Name as `uname -m` gives it.
    pub name: &'static str,
    /// Members of `pt_regs`: the number of the system call, its first three arguments and its fifth, the register in
    /// which Go keeps its goroutine, that in which Java keeps its thread, and those a walk over the stack begins with.
    pub registers: &'static [Member],
    /// Added to the offset of an argument register, per argument, in bytes (arm64 keeps them in one array).
    pub argument_step: [u64; 4],
}

/// x86-64 (`arch/x86/include/asm/ptrace.h`, `arch/x86/entry/syscalls/syscall_64.tbl`).
pub const X86_64: Arch = Arch {
    name: "x86_64",
    registers: &[
        Member { global: "OFF_REG_NR", of: "pt_regs", path: "orig_ax", required: true },
        Member { global: "OFF_REG_ARG0", of: "pt_regs", path: "di", required: true },
        Member { global: "OFF_REG_ARG1", of: "pt_regs", path: "si", required: true },
        Member { global: "OFF_REG_ARG2", of: "pt_regs", path: "dx", required: true },
        Member { global: "OFF_REG_ARG4", of: "pt_regs", path: "r8", required: true },
        Member { global: "OFF_REG_TASK", of: "pt_regs", path: "r14", required: false },
        Member { global: "OFF_REG_THREAD", of: "pt_regs", path: "r15", required: false },
        Member { global: "OFF_REG_PC", of: "pt_regs", path: "ip", required: false },
        Member { global: "OFF_REG_SP", of: "pt_regs", path: "sp", required: false },
        Member { global: "OFF_REG_FP", of: "pt_regs", path: "bp", required: false },
        Member { global: "OFF_REG_CS", of: "pt_regs", path: "cs", required: false },
    ],
    argument_step: [0, 0, 0, 0],
};

/// arm64 (`arch/arm64/include/asm/ptrace.h`, `include/uapi/asm-generic/unistd.h`).
pub const AARCH64: Arch = Arch {
    name: "aarch64",
    registers: &[
        Member { global: "OFF_REG_NR", of: "pt_regs", path: "syscallno", required: true },
        Member { global: "OFF_REG_ARG0", of: "pt_regs", path: "regs", required: true },
        Member { global: "OFF_REG_ARG1", of: "pt_regs", path: "regs", required: true },
        Member { global: "OFF_REG_ARG2", of: "pt_regs", path: "regs", required: true },
        Member { global: "OFF_REG_ARG4", of: "pt_regs", path: "regs", required: true },
        // Not used.
        Member { global: "OFF_REG_TASK", of: "pt_regs", path: "r14", required: false },
        Member { global: "OFF_REG_THREAD", of: "pt_regs", path: "r15", required: false },
    ],
    argument_step: [0, 8, 16, 32],
};

/// What a system call does with user memory, as far as the socket hooks care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Shape {
    /// Second argument is a buffer: read, write, sendto, recvfrom.
    Buffer,
    /// Second argument is an array of `iovec`, third its length: readv, writev.
    Vectors,
    /// Second argument is a `msghdr`: sendmsg, recvmsg.
    Message,
    /// Second argument is an array of `mmsghdr`, third its length: sendmmsg, recvmmsg.
    Messages,
    /// The bytes are not in user memory: sendfile, splice.
    Pages,
    /// Anything else: `io_uring`, in-kernel users.
    Other,
}

/// Why a thread sleeps, as far as attribution cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wait {
    /// In a poller or accept: it waits for whatever comes next.
    Poll,
    /// In a receive, a futex or a sleep: it may be waiting for work.
    Work,
    /// Anything else.
    Other,
}

/// [`Shape`] of system call `nr` on x86-64.
#[inline(always)]
pub const fn shape_x86_64(nr: u64) -> Shape {
    match nr {
        0 | 1 | 44 | 45 => Shape::Buffer,
        19 | 20 | 327 | 328 => Shape::Vectors,
        46 | 47 => Shape::Message,
        299 | 307 => Shape::Messages,
        40 | 275 => Shape::Pages,
        _ => Shape::Other,
    }
}

/// Whether system call `nr` is sendto, whose fifth argument is an address, on x86-64.
#[inline(always)]
pub const fn is_sendto_x86_64(nr: u64) -> bool {
    nr == 44
}

/// Whether system call `nr` is sendto, on arm64.
#[inline(always)]
pub const fn is_sendto_aarch64(nr: u64) -> bool {
    nr == 206
}

/// [`Wait`] of system call `nr` on x86-64.
#[inline(always)]
pub const fn wait_x86_64(nr: u64) -> Wait {
    match nr {
        // poll select accept epoll_wait pselect6 ppoll epoll_pwait accept4 io_uring_enter epoll_pwait2
        7 | 23 | 43 | 232 | 270 | 271 | 281 | 288 | 426 | 441 => Wait::Poll,
        // read readv nanosleep recvfrom recvmsg futex clock_nanosleep recvmmsg futex_waitv
        0 | 19 | 35 | 45 | 47 | 202 | 230 | 299 | 449 => Wait::Work,
        _ => Wait::Other,
    }
}

/// [`Shape`] of system call `nr` on arm64.
#[inline(always)]
pub const fn shape_aarch64(nr: u64) -> Shape {
    match nr {
        63 | 64 | 206 | 207 => Shape::Buffer,
        65 | 66 | 286 | 287 => Shape::Vectors,
        211 | 212 => Shape::Message,
        243 | 269 => Shape::Messages,
        71 | 76 => Shape::Pages,
        _ => Shape::Other,
    }
}

/// [`Wait`] of system call `nr` on arm64.
#[inline(always)]
pub const fn wait_aarch64(nr: u64) -> Wait {
    match nr {
        // epoll_pwait pselect6 ppoll accept accept4 io_uring_enter epoll_pwait2
        22 | 72 | 73 | 202 | 242 | 426 | 441 => Wait::Poll,
        // read readv futex nanosleep clock_nanosleep recvfrom recvmsg recvmmsg futex_waitv
        63 | 65 | 98 | 101 | 115 | 207 | 212 | 243 | 449 => Wait::Work,
        _ => Wait::Other,
    }
}

/// Whether system call `nr` is splice, on x86-64: the one receive that `sock_recv_length` does not see.
#[inline(always)]
pub const fn is_splice_x86_64(nr: u64) -> bool {
    nr == 275
}

/// Whether system call `nr` is splice, on arm64.
#[inline(always)]
pub const fn is_splice_aarch64(nr: u64) -> bool {
    nr == 76
}

/// Whether system call `nr` is futex, on x86-64.
#[inline(always)]
pub const fn is_futex_x86_64(nr: u64) -> bool {
    nr == 202
}

/// Whether system call `nr` is futex, on arm64.
#[inline(always)]
pub const fn is_futex_aarch64(nr: u64) -> bool {
    nr == 98
}

/// The machine this was compiled for (user space).
#[cfg(target_arch = "x86_64")]
pub const HOST: Arch = X86_64;
/// The machine this was compiled for (user space).
#[cfg(target_arch = "aarch64")]
pub const HOST: Arch = AARCH64;
