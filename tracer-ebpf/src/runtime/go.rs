//! Go: a task is a goroutine. A register holds the one that runs wherever a system call is made (`r14`, its own ABI's
//! register for that), and its data say how it is numbered; numbers are never used again.
//!
//! `Runtime::at`: offsets, sixteen bits each: of a goroutine its machine, of a machine its goroutine, of a goroutine its
//! number and its maker's; then of a goroutine where it began, and what it waits for, and the number (eight bits) that says it waits for a
//! channel to take what it sends, and the first of three that say that it waits for a lock. Then from where to where goroutines begin that serve
//! connections: who makes one of them makes it for others, too.

use aya_ebpf::{macros::uprobe, programs::ProbeContext};
use tracer_common::{
    event::{KIN_CREATED, KIN_WOKE},
    lost::Lost,
    runtime::{AT_UNKNOWN, KIND_GO, Runtime, UserProbe},
};

use super::{hit, kin, named, of, uses};
use crate::{
    emit,
    kernel::{regs::Regs, task::Task},
    socket::user,
};

/// Of `net/http.persistConn`: the connection (the second word of an interface), and what TLS has agreed on, if it has.
const CONNECTION: u64 = 88;
const TLS: u64 = 96;
/// Of `crypto/tls.Conn`: the connection below it.
const BELOW: u64 = 8;
/// Of `net.netFD`: the descriptor, the family and the kind of its socket.
const DESCRIPTOR: u64 = 16;
const FAMILY: u64 = 56;
const TYPE: u64 = 64;
/// `AF_UNIX`, `AF_INET`, `AF_INET6`; `SOCK_STREAM`.
const FAMILIES: [u64; 3] = [1, 2, 10];
const STREAM: u64 = 1;

/// The goroutine the current thread runs.
#[inline(always)]
pub(super) fn entity(task: Task, runtime: &Runtime) -> u64 {
    goroutine(runtime, Regs::of(task).goroutine())
}

/// The goroutine at `at`, if its thread runs it.
#[inline(always)]
fn goroutine(runtime: &Runtime, at: u64) -> u64 {
    let offsets = runtime.at[0];
    let machine: u64 = user(at + (offsets & 0xffff));
    let current: u64 = user(machine + (offsets >> 16 & 0xffff));
    if at == 0 || current != at {
        emit::count(Lost::Runtime);
        return named(runtime, 0);
    }
    named(runtime, user::<u64>(at + (offsets >> 32 & 0xffff)))
}

/// hook: uprobe at the call of `runtime.runqput` in `runtime.newproc.func1`. Emits [`tracer_common::event::Kin`].
#[uprobe]
pub(crate) fn go_created(ctx: ProbeContext) -> u32 {
    hit(UserProbe::GoCreated);
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
        kin(task, tgid, KIN_CREATED, named(runtime, child), named(runtime, parent));
    }
    0
}

/// hook: uprobe where `net/http.(*persistConn).roundTrip` has its frame.
#[uprobe]
pub(crate) fn go_round_trip(ctx: ProbeContext) -> u32 {
    hit(UserProbe::GoRoundTrip);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    if runtime.kind != KIND_GO || runtime.at[0] == AT_UNKNOWN {
        return 0;
    }
    let (connection, _) = words(&ctx);
    let mut stream: u64 = user(connection + CONNECTION);
    if user::<u64>(connection + TLS) != 0 {
        stream = user(stream + BELOW);
    }
    let net: u64 = user(stream);
    let (family, kind): (u64, u64) = (user(net + FAMILY), user(net + TYPE));
    if !FAMILIES.contains(&family) || kind != STREAM {
        // A connection of the application's own making.
        emit::count(Lost::Runtime);
        return 0;
    }
    uses::note(tgid, user::<u64>(net + DESCRIPTOR) as u32, goroutine(runtime, running(&ctx)));
    0
}

/// hook: uprobe where `runtime.ready` has its frame. Emits [`tracer_common::event::Kin`].
#[uprobe]
pub(crate) fn go_ready(ctx: ProbeContext) -> u32 {
    hit(UserProbe::GoReady);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    if runtime.kind != KIND_GO || runtime.at[0] == AT_UNKNOWN {
        return 0;
    }
    let offsets = runtime.at[0];
    let (woken, _) = words(&ctx);
    // It runs on the thread's own stack; whose sake that is for its machine says. Nobody's: timers and the like.
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
    // For a lock that was let go: no work. Three numbers in a row.
    if (waits as u64).wrapping_sub(runtime.at[1] >> 40 & 0xff) < 3 {
        return 0;
    }
    // Who waits to send gives; the waker takes.
    let gives = waits as u64 == (runtime.at[1] >> 32 & 0xff);
    let (from, to) = if gives { (to, from) } else { (from, to) };
    kin(task, tgid, KIN_WOKE, named(runtime, to), named(runtime, from));
    0
}

/// The first two arguments of a Go function.
#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
fn words(ctx: &ProbeContext) -> (u64, u64) {
    // SAFETY: the registers a probe is given.
    unsafe { ((*ctx.regs).rax, (*ctx.regs).rbx) }
}

/// The goroutine that runs.
#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
fn running(ctx: &ProbeContext) -> u64 {
    // SAFETY: the registers a probe is given.
    unsafe { (*ctx.regs).r14 }
}

/// Not known there, and the programs are not attached.
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
