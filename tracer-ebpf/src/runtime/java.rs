//! Java: a task is a virtual thread, mounted on the thread that runs it. `HotSpot` keeps its description of the current thread
//! (`JavaThread`) in a register, which the code between Java and a system call leaves alone; the description has the number of the
//! mounted virtual thread, which is never used again, or refers to the object that has it.
//!
//! `Runtime::at[0]`: offsets, sixteen bits each: of what the system knows of a thread (`Thread::_osthread`), in that of its POSIX id, by
//! which the register is checked; of the number: in the description (`JavaThread::_monitor_owner_id`), or in the object
//! (`java.lang.Thread.tid`). `Runtime::at[1]`: of the handles of the thread's own object and of the one it runs as (`_threadObj`,
//! `_vthread`): the same unless a virtual thread is mounted. `Runtime::at[2]`: where the number is in the object, the address of the counter
//! that is odd while all threads stand still and objects may be moved; else 0.

use tracer_common::runtime::Runtime;

use super::named;
use crate::{
    kernel::{regs::Regs, task::Task},
    socket::user,
};

/// The virtual thread the current thread runs; 0: none, or no thread of Java, or a library has used the register for itself. A name
/// without a number: that cannot be known now.
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
    let counter = runtime.at[2];
    let before: u64 = if counter == 0 { 0 } else { user(counter) };
    let objects = runtime.at[1];
    let own_object: u64 = user(user(thread.wrapping_add(objects & 0xffff)));
    let object: u64 = user(user(thread.wrapping_add(objects >> 16 & 0xffff)));
    if own_object == object {
        return 0;
    }
    let holder = if counter == 0 { thread } else { object };
    let number: u64 = user(holder.wrapping_add(offsets >> 32 & 0xffff));
    if counter != 0 && (before & 1 != 0 || user::<u64>(counter) != before) {
        return named(runtime, 0);
    }
    named(runtime, number)
}
