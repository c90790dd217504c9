//! The registers a thread entered the kernel with.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_task_pt_regs;

use tracer_common::members::ABSENT;

use super::{load, task::Task};
use crate::offsets::{OFF_REG_ARG0, OFF_REG_ARG1, OFF_REG_ARG2, OFF_REG_ARG4, OFF_REG_NR, OFF_REG_TASK};

/// Saved `pt_regs`.
#[derive(Clone, Copy)]
pub(crate) struct Regs(*const c_void);

impl Regs {
    /// Of `task`. During a system call they hold its number and arguments.
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

    /// The register in which Go keeps which goroutine it runs; 0 on processors where that is not known.
    #[inline(always)]
    pub(crate) fn goroutine(self) -> u64 {
        let at = OFF_REG_TASK.load();
        if at == ABSENT {
            return 0;
        }
        // SAFETY: offset from BTF.
        unsafe { load(self.0, at) }
    }
}
