//! Java: a task is a virtual thread, mounted on the thread that runs it. `HotSpot` keeps its description of the current thread
//! (`JavaThread`) in a register, which the code between Java and a system call leaves alone; the description has the number of the
//! mounted virtual thread, which is never used again.
//!
//! `Runtime::at[0]`: offsets, sixteen bits each: of what the system knows of a thread (`Thread::_osthread`), in that of its POSIX id, by
//! which the register is checked; of the number (`JavaThread::_monitor_owner_id`). `Runtime::at[1]`: of the handles of the thread's own
//! object and of the one it runs as (`_threadObj`, `_vthread`): the same unless a virtual thread is mounted.

use tracer_common::runtime::Runtime;

use super::named;
use crate::{
    kernel::{regs::Regs, task::Task},
    socket::user,
};

/// The virtual thread the current thread runs; 0: none, or no thread of Java, or a library has used the register for itself.
#[inline(always)]
pub(super) fn entity(task: Task, runtime: &Runtime) -> u64 {
    let offsets = runtime.at[0];
    let own = task.fsbase();
    let thread = Regs::of(task).java_thread();
    if own == 0 || thread == 0 {
        return 0;
    }
    let system: u64 = user(thread.wrapping_add(offsets & 0xffff));
    let id: u64 = user(system.wrapping_add(offsets >> 16 & 0xffff));
    if id != own {
        return 0;
    }
    let objects = runtime.at[1];
    let own_object: u64 = user(user(thread.wrapping_add(objects & 0xffff)));
    let object: u64 = user(user(thread.wrapping_add(objects >> 16 & 0xffff)));
    if own_object == object {
        return 0;
    }
    named(runtime, user::<u64>(thread.wrapping_add(offsets >> 32 & 0xffff)))
}
