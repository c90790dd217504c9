//! Keeps programs off private stacks.
//!
//! Since Linux 6.13 compilers of BPF give a tracing program with 64 bytes of stack or more a stack per CPU instead of the
//! thread's own, because such a program cannot run twice on one CPU. That is not so of programs at uprobes, which the
//! kernel can preempt and then run for another thread of that CPU, nor of programs that several others tail-call: there
//! the second run overwrites the stack of the first, and the kernel panics. A program with a tail call in it never gets a
//! private stack, on any kernel. `tracer-user/crates/kernel/src/private_stack.rs` checks that in the machine code of programs at uprobes, and
//! of the one that those tail-call: one with a private stack is not attached. Programs that hooks of sockets tail-call are not
//! refused for it; a test of the object sees that each has a tail call in it.

use aya_ebpf::{EbpfContext, maps::ProgramArray};

/// An index that is behind the end of every array of programs here: the call does nothing.
const NO_PROGRAM: u32 = 1;

/// Keeps the program that calls this on its thread's own stack. `array` is any that holds only programs of the same hook.
#[inline(always)]
pub(crate) fn keep(ctx: &impl EbpfContext, array: &ProgramArray) {
    // SAFETY: the array holds only programs of this hook; there is none at this index.
    unsafe { array.tail_call(ctx, NO_PROGRAM) };
}
