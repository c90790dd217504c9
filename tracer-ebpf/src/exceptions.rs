//! Exceptions of `CPython`, and with which stacks exceptions of any language are thrown.
//!
//! Python throws all the time: loops end with exceptions, and look-ups fail with them. So the probes are where the interpreter compares
//! an `except` clause with what was thrown, which tells the two kinds apart: a clause for `Exception` is where a framework answers
//! for code that failed, any other is code that expects what it catches. And the exception has its traceback by then: no
//! stack has to be walked.

use aya_ebpf::{
    EbpfContext,
    helpers::generated::bpf_get_attach_cookie,
    macros::{map, uprobe},
    maps::{PerCpuArray, ProgramArray},
    programs::ProbeContext,
};
use tracer_common::{
    event::{DECLARED_REGISTERS, DECLARED_TEXT},
    limits::EXCEPTION_STACKS,
    lost::Lost,
    runtime::{UserProbe, declared},
};

use crate::{
    call_stack,
    declared::{arguments_of_c, count_call, report_exception},
    emit,
    kernel::task::Task,
    own_stack, runtime,
    socket::user,
    stack_rate::{self, StacksTaken},
    storage::THREADS,
};

/// Tail-called where an exception was reported.
#[map]
static EXCEPTION_STACK: ProgramArray = ProgramArray::with_max_entries(1, 0);
/// The same of Python.
#[map]
static PYTHON_TRACEBACK: ProgramArray = ProgramArray::with_max_entries(1, 0);

#[map]
static EXCEPTION_STACKS_TAKEN: PerCpuArray<StacksTaken> = PerCpuArray::with_max_entries(1, 0);

/// In every object: its type. In a type: its name, and its flags.
const TYPE: u64 = 8;
const TYPE_NAME: u64 = 24;
const TYPE_FLAGS: u64 = 168;
/// `Py_TPFLAGS_HEAPTYPE`: made at run time, as those of `class` are.
const HEAP_TYPE: u64 = 1 << 9;
/// `Py_TPFLAGS_TYPE_SUBCLASS`: what is of this type is a type itself.
const TYPE_SUBCLASS: u64 = 1 << 31;
/// Names of clauses that catch whatever fails, as two words.
const EXCEPTION: [u64; 2] = [u64::from_le_bytes(*b"Exceptio"), u64::from_le_bytes(*b"n\0\0\0\0\0\0\0")];
const BASE_EXCEPTION: [u64; 2] = [u64::from_le_bytes(*b"BaseExce"), u64::from_le_bytes(*b"ption\0\0\0")];

/// First version in which clauses are compared with the exception itself; before, with its class.
const COMPARES_EXCEPTIONS: u64 = 11;
/// In an exception: its traceback, since that version.
const TRACEBACK: u64 = 40;
/// Before: what the thread handles, in its state (`exc_info`): its class, and the traceback.
const HANDLED: u64 = 144;
const HANDLED_TRACEBACK: u64 = 16;

/// Whether a clause is for all that fails.
#[inline(always)]
fn is_for_all(clause: u64) -> bool {
    let [first, second]: [u64; 2] = user(user::<u64>(clause.wrapping_add(TYPE_NAME)));
    let six = second & 0xffff_ffff_ffff;
    (first == EXCEPTION[0] && second & 0xffff == EXCEPTION[1])
        || (first == BASE_EXCEPTION[0] && six == BASE_EXCEPTION[1])
}

/// What the thread handles, before [`COMPARES_EXCEPTIONS`]; 0: it is not known.
#[inline(always)]
fn handled(task: Task) -> u64 {
    match runtime::python_state(task) {
        0 => 0,
        state => user(state.wrapping_add(HANDLED)),
    }
}

/// Whether the thread handles an exception of this class, as far as is known.
#[inline(always)]
fn is_handled(task: Task, class: u64) -> bool {
    let handled = handled(task);
    handled == 0 || user::<u64>(handled) == class
}

/// hook: uprobes where the interpreter's loop calls `PyErr_GivenExceptionMatches`(thrown, clause). Emits [`tracer_common::event::DeclaredCall`].
#[uprobe]
pub(crate) fn python_except(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::PythonExcept);
    // SAFETY: the context of this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let minor = cookie >> declared::OPERANDS;
    let [thrown, clause] = arguments_of_c(&ctx);
    let own: u64 = user(thrown.wrapping_add(TYPE));
    let is_class = user::<u64>(own.wrapping_add(TYPE_FLAGS)) & TYPE_SUBCLASS != 0;
    let class = if is_class { thrown } else { own };
    let task = Task::current();
    // The interpreter's own code looks whether what it meets is one that it expects, and there may be none.
    let is_of_c = is_class && (minor >= COMPARES_EXCEPTIONS || !is_handled(task, thrown));
    if thrown == 0 || is_of_c || !is_for_all(clause) {
        count_call(cookie);
        return 0;
    }
    let mut values = [0; DECLARED_REGISTERS];
    values[0] = class;
    values[1] = user(class.wrapping_add(TYPE_NAME));
    values[2] = minor;
    // What follows the part of the name that is read at once.
    values[3] = values[1].wrapping_add(DECLARED_TEXT as u64 - 1);
    values[4] = (user::<u64>(class.wrapping_add(TYPE_FLAGS)) & HEAP_TYPE != 0) as u64;
    report_exception(&ctx, cookie, &values, runtime::writing(task, task.tgid()));
    // SAFETY: the array holds only programs for this hook.
    unsafe { PYTHON_TRACEBACK.tail_call(&ctx, 0) };
    0
}

/// hook: the same uprobes, tail-called by [`python_except`]. Emits [`tracer_common::event::CallStack`].
#[uprobe]
pub(crate) fn python_traceback(ctx: ProbeContext) -> u32 {
    own_stack::keep(&ctx, &PYTHON_TRACEBACK);
    // SAFETY: the context of this program.
    let minor = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } >> declared::OPERANDS;
    let task = Task::current();
    let traceback = if minor >= COMPARES_EXCEPTIONS {
        let [thrown, _] = arguments_of_c(&ctx);
        user(thrown.wrapping_add(TRACEBACK))
    } else {
        user(handled(task).wrapping_add(HANDLED_TRACEBACK))
    };
    if let Some((at, begin)) = chosen(task) {
        call_stack::take_traceback(task, at, begin, traceback, minor);
    }
    0
}

/// Hands an exception to the program that takes its stack; returns if there is none.
#[inline(always)]
pub(crate) fn go_on(ctx: &impl EbpfContext) {
    // SAFETY: the array holds only programs for this hook.
    unsafe { EXCEPTION_STACK.tail_call(ctx, 0) };
}

/// hook: uprobes of functions that throw, tail-called by [`crate::declared::declared_arguments`]. Emits
/// [`tracer_common::event::CallStack`].
#[uprobe]
pub(crate) fn exception_stack(ctx: ProbeContext) -> u32 {
    own_stack::keep(&ctx, &EXCEPTION_STACK);
    let task = Task::current();
    if let Some((at, begin)) = chosen(task) {
        call_stack::take_thrown(&ctx, task, at, begin);
    }
    0
}

/// When the running thread threw, and now, unless this CPU has taken as many stacks as it may.
#[inline(always)]
fn chosen(task: Task) -> Option<(u64, u64)> {
    let thread = THREADS.get(task.0, false);
    if thread.is_null() {
        return None;
    }
    // SAFETY: not null; the current thread's own record.
    let at = unsafe { (*thread).thrown_at };
    // SAFETY: no argument.
    let begin = unsafe { aya_ebpf::helpers::generated::bpf_ktime_get_ns() };
    if at == 0 {
        return None;
    }
    if !stack_rate::is_chosen(&EXCEPTION_STACKS_TAKEN, u32::MAX, EXCEPTION_STACKS, begin) {
        emit::count(Lost::CallStack);
        return None;
    }
    Some((at, begin))
}
