//! Go: a task is a goroutine. At every system call a register holds the current one (`r14`, Go's ABI register for it),
//! and its data has its number; Go never reuses numbers.
//!
//! `Runtime::at`: offsets, sixteen bits each: of the machine in a goroutine, of the goroutine in a machine, of a
//! goroutine's number and of its parent's number. Then of a goroutine's start address and its wait reason, the wait
//! reason (eight bits) of a blocked channel send, and the first of three that mean a wait for a lock. Then the address
//! ranges where goroutines that serve connections begin: no edge is reported for those, because their parent makes them
//! for others, too.

use aya_ebpf::{macros::uprobe, programs::ProbeContext};
use tracer_common::{
    event::{TASK_EDGE_CREATED, TASK_EDGE_WOKE},
    lost::Lost,
    runtime::{AT_UNKNOWN, KIND_GO, Runtime, UserProbe},
};

use super::{hit, named, of, task_edge, uses};
use crate::{
    emit,
    kernel::{
        regs::Regs,
        task::{Task, peek},
    },
    offsets::OFF_SK_COOKIE,
    socket::user,
};

/// In `net/http.persistConn`: the connection (the second word of an interface), and behind it the TLS state, if negotiated.
const CONNECTION: u64 = 88;
/// In `crypto/tls.Conn`: the connection below it.
const BELOW: u64 = 8;
/// In `net.netFD`: the descriptor, and behind it, in words, the family and the type of its socket.
const DESCRIPTOR: u64 = 16;
const FAMILY: usize = 5;
const TYPE: usize = 6;
/// `AF_UNIX`, `AF_INET`, `AF_INET6`; `SOCK_STREAM`.
const FAMILIES: [u64; 3] = [1, 2, 10];
const STREAM: u64 = 1;

/// The goroutine the current thread runs.
#[inline(always)]
pub(super) fn entity(task: Task, runtime: &Runtime) -> u64 {
    goroutine(runtime, Regs::of(task).goroutine())
}

/// The goroutine at `at`, if its thread is running it.
#[inline(always)]
pub(super) fn goroutine(runtime: &Runtime, at: u64) -> u64 {
    let offsets = runtime.at[0];
    let machine: u64 = user(at + (offsets & 0xffff));
    let current: u64 = user(machine + (offsets >> 16 & 0xffff));
    if at == 0 || current != at {
        emit::count(Lost::Runtime);
        return named(runtime, 0);
    }
    named(runtime, user::<u64>(at + (offsets >> 32 & 0xffff)))
}

/// hook: uprobe at the call of `runtime.runqput` in `runtime.newproc.func1`. Emits [`tracer_common::event::TaskEdge`].
#[uprobe]
pub(crate) fn go_created(ctx: ProbeContext) -> u32 {
    hit(&ctx, UserProbe::GoCreated);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    if runtime.kind != KIND_GO || runtime.at[0] == AT_UNKNOWN {
        return 0;
    }
    let (_, made) = words(&ctx);
    let start: u64 = user(made + (runtime.at[1] & 0xffff));
    let within = |from: u64, end: u64| start >= from && start < end;
    if within(runtime.at[2], runtime.at[3])
        || within(runtime.at[4], runtime.at[5])
        || within(runtime.at[6], runtime.at[7])
    {
        return 0;
    }
    let offsets = runtime.at[0];
    let child: u64 = user(made + (offsets >> 32 & 0xffff));
    let parent: u64 = user(made + (offsets >> 48 & 0xffff));
    if child != 0 {
        task_edge(task, tgid, runtime, TASK_EDGE_CREATED, named(runtime, child), named(runtime, parent));
    }
    0
}

/// hook: uprobe where `net/http.(*persistConn).roundTrip` has set up its frame.
#[uprobe]
pub(crate) fn go_round_trip(ctx: ProbeContext) -> u32 {
    hit(&ctx, UserProbe::GoRoundTrip);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    if runtime.kind != KIND_GO || runtime.at[0] == AT_UNKNOWN {
        return 0;
    }
    let (connection, _) = words(&ctx);
    // Each read of the process's memory costs as much as ten other steps.
    let [mut stream, tls] = user::<[u64; 2]>(connection + CONNECTION);
    let encrypted = tls != 0;
    if encrypted {
        stream = user(stream + BELOW);
    }
    let Some(fd) = descriptor(stream) else {
        // The application made a connection of its own kind.
        emit::count(Lost::Runtime);
        return 0;
    };
    // Its plaintext is seen before the send.
    let cookie = if encrypted { peek(task.socket_of(fd), OFF_SK_COOKIE.load()) } else { 0 };
    // This function runs on a goroutine's own stack, so the register names it.
    let number: u64 = user(running(&ctx) + (runtime.at[0] >> 32 & 0xffff));
    uses::note(tgid, fd, named(runtime, number), cookie);
    0
}

/// The descriptor of a `net.TCPConn` or `net.UnixConn` at `stream`; `None` if it does not look like one.
#[inline(always)]
fn descriptor(stream: u64) -> Option<u32> {
    let net: u64 = user(stream);
    let socket: [u64; TYPE + 1] = user(net + DESCRIPTOR);
    (FAMILIES.contains(&socket[FAMILY]) && socket[TYPE] == STREAM).then_some(socket[0] as u32)
}

/// The descriptor below the `crypto/tls.Conn` at `at`.
#[inline(always)]
pub(crate) fn tls_descriptor(at: u64) -> Option<u32> {
    descriptor(user(at + BELOW))
}

/// hook: uprobe where `runtime.ready` has set up its frame. Emits [`tracer_common::event::TaskEdge`].
#[uprobe]
pub(crate) fn go_ready(ctx: ProbeContext) -> u32 {
    hit(&ctx, UserProbe::GoReady);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    if runtime.kind != KIND_GO || runtime.at[0] == AT_UNKNOWN {
        return 0;
    }
    let offsets = runtime.at[0];
    let (woken, _) = words(&ctx);
    // It runs on the thread's own stack; the machine names the goroutine it acts for. None: timers and the like.
    let machine: u64 = user(running(&ctx) + (offsets & 0xffff));
    let waker: u64 = user(machine + (offsets >> 16 & 0xffff));
    if waker == 0 || waker == woken {
        return 0;
    }
    let from: u64 = user(waker + (offsets >> 32 & 0xffff));
    let to: u64 = user(woken + (offsets >> 32 & 0xffff));
    if from == 0 || to == 0 {
        emit::count(Lost::Runtime);
        return 0;
    }
    let waits: u8 = user(woken + (runtime.at[1] >> 16 & 0xffff));
    // A released lock is no work. Three consecutive numbers.
    if (waits as u64).wrapping_sub(runtime.at[1] >> 40 & 0xff) < 3 {
        return 0;
    }
    // A blocked sender gives; its waker takes.
    let gives = waits as u64 == (runtime.at[1] >> 32 & 0xff);
    let (from, to) = if gives { (to, from) } else { (from, to) };
    task_edge(task, tgid, runtime, TASK_EDGE_WOKE, named(runtime, to), named(runtime, from));
    0
}

/// The first two arguments of a Go function.
#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
fn words(ctx: &ProbeContext) -> (u64, u64) {
    // SAFETY: the registers a probe is given.
    unsafe { ((*ctx.regs).rax, (*ctx.regs).rbx) }
}

/// The current goroutine.
#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
fn running(ctx: &ProbeContext) -> u64 {
    // SAFETY: the registers a probe is given.
    unsafe { (*ctx.regs).r14 }
}

/// Unknown on arm64, where these programs are not attached.
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn words(_: &ProbeContext) -> (u64, u64) {
    (0, 0)
}

/// As [`words`].
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn running(_: &ProbeContext) -> u64 {
    0
}
