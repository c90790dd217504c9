//! The registers a thread entered the kernel with.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_task_pt_regs;

use tracer_common::members::ABSENT;

use super::{load, task::Task};
use crate::offsets::{
    OFF_REG_ARG0, OFF_REG_ARG1, OFF_REG_ARG2, OFF_REG_ARG4, OFF_REG_CS, OFF_REG_FP, OFF_REG_NR, OFF_REG_PC, OFF_REG_SP,
    OFF_REG_TASK, OFF_REG_THREAD,
};

/// Saved `pt_regs`.
#[derive(Clone, Copy)]
pub(crate) struct Regs(*const c_void);

impl Regs {
    /// The registers of `task`. During a system call they hold its number and arguments.
    #[inline(always)]
    pub(crate) fn of(task: Task) -> Self {
        // SAFETY: `task` is trusted.
        Self(unsafe { bpf_task_pt_regs(task.0.cast()) } as *const c_void)
    }

    /// System call number.
    #[inline(always)]
    pub(crate) fn nr(self) -> u64 {
        let at = OFF_REG_NR.load();
        if cfg!(bpf_target_arch = "aarch64") {
            // SAFETY: offset from BTF; the member is an int there, and the verifier allows no more to be read.
            unsafe { load::<u32>(self.0, at) as u64 }
        } else {
            // SAFETY: offset from BTF.
            unsafe { load::<u64>(self.0, at) }
        }
    }

    /// First argument.
    #[inline(always)]
    pub(crate) fn arg0(self) -> u64 {
        // SAFETY: offset from BTF.
        unsafe { load(self.0, OFF_REG_ARG0.load()) }
    }

    /// Second argument.
    #[inline(always)]
    pub(crate) fn arg1(self) -> u64 {
        // SAFETY: offset from BTF.
        unsafe { load(self.0, OFF_REG_ARG1.load()) }
    }

    /// Third argument.
    #[inline(always)]
    pub(crate) fn arg2(self) -> u64 {
        // SAFETY: offset from BTF.
        unsafe { load(self.0, OFF_REG_ARG2.load()) }
    }

    /// Fifth argument.
    #[inline(always)]
    pub(crate) fn arg4(self) -> u64 {
        // SAFETY: offset from BTF.
        unsafe { load(self.0, OFF_REG_ARG4.load()) }
    }

    /// The register in which Java's machine keeps its description of the current thread, while it runs its own code and until a
    /// library that it calls uses it otherwise; 0 on processors where it is unknown.
    #[inline(always)]
    pub(crate) fn java_thread(self) -> u64 {
        let at = OFF_REG_THREAD.load();
        if at == ABSENT {
            return 0;
        }
        // SAFETY: offset from BTF.
        unsafe { load(self.0, at) }
    }

    /// The register in which Go keeps its current goroutine; 0 on processors where it is unknown.
    #[inline(always)]
    pub(crate) fn goroutine(self) -> u64 {
        let at = OFF_REG_TASK.load();
        if at == ABSENT {
            return 0;
        }
        // SAFETY: offset from BTF.
        unsafe { load(self.0, at) }
    }

    /// Program counter, stack pointer and frame pointer.
    #[inline(always)]
    pub(crate) fn stack(self) -> (u64, u64, u64) {
        // SAFETY: offsets from BTF.
        unsafe { (load(self.0, OFF_REG_PC.load()), load(self.0, OFF_REG_SP.load()), load(self.0, OFF_REG_FP.load())) }
    }

    /// Whether it runs 32-bit code (`__USER32_CS`, `arch/x86/include/asm/segment.h`).
    #[inline(always)]
    pub(crate) fn is_compat(self) -> bool {
        // SAFETY: offset from BTF; of the member, the low 16 bits are the selector.
        unsafe { load::<u16>(self.0, OFF_REG_CS.load()) == 0x23 }
    }
}
