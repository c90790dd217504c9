//! What user space wants traced: the kernel's read side of the policy.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap},
};
use tracer_common::{
    event::{ROLE_ACTIVE, ROLE_PASSIVE},
    limits::{ASKS_MAX, PROCESSES_MAX},
    policy::{
        CONTROL_DEFAULT_IGNORE, CONTROL_HANDOVERS, CONTROL_OWN, CONTROL_PORTS, CONTROL_SOCKETS, CONTROL_TABLES_FIRST,
        CONTROL_UNWIND, CapturePolicy, Control, PROCESS_IGNORE, PROCESS_TRACE, TEXT_UNWANTED, VERDICT_IGNORE,
        VERDICT_NONE, VERDICT_ROUND_TRIPS, VERDICT_TRACE,
    },
};

use crate::{
    offsets::AGENT_TGID,
    runtime,
    storage::{SOCK_ACTIVE, SOCK_DECIDED, SOCK_FRAMES, SOCK_IGNORED, SOCK_PASSIVE, SOCK_ROUND_TRIPS, Sock, Thread},
};

#[map]
static CONTROL: Array<Control> = Array::with_max_entries(1, 0);

/// Policies of processes with one of their own, by process id.
#[map]
static PROCESSES: HashMap<u32, u32> = HashMap::with_max_entries(PROCESSES_MAX, 0);

/// Traced ports, if tracing is limited to some.
#[map]
static PORTS: HashMap<u16, u8> = HashMap::with_max_entries(256, 0);

/// Capture policies by socket cookie. The least recently used go first: a policy only saves work.
#[map]
static ASKS: LruHashMap<u64, CapturePolicy> = LruHashMap::with_max_entries(ASKS_MAX, 0);

/// The current switches; `None` while sockets are not reported.
#[inline(always)]
pub(crate) fn control() -> Option<&'static Control> {
    let control = CONTROL.get(0)?;
    (control.flags & CONTROL_SOCKETS != 0).then_some(control)
}

/// Current sampling period, nanoseconds.
#[inline(always)]
pub(crate) fn sample_period() -> u64 {
    CONTROL.get(0).map_or(0, |control| control.sample_period)
}

/// Time off the CPU from which on it is reported, nanoseconds; 0 = not at all.
#[inline(always)]
pub(crate) fn off_cpu() -> u64 {
    CONTROL.get(0).map_or(0, |control| control.off_cpu)
}

/// Stacks of threads that leave the CPU that one CPU may take in a time slice.
#[inline(always)]
pub(crate) fn off_cpu_share() -> u32 {
    CONTROL.get(0).map_or(0, |control| control.off_cpu_share)
}

/// Of 2^32 calls, of how many the stack is taken.
#[inline(always)]
pub(crate) fn call_share() -> u32 {
    CONTROL.get(0).map_or(0, |control| control.call_share)
}

/// Whether stacks are walked by unwind tables.
#[inline(always)]
pub(crate) fn unwind() -> bool {
    CONTROL.get(0).is_some_and(|control| control.flags & CONTROL_UNWIND != 0)
}

/// Whether samples only ask for unwind tables.
#[inline(always)]
pub(crate) fn tables_first() -> bool {
    CONTROL.get(0).is_some_and(|control| control.flags & CONTROL_TABLES_FIRST != 0)
}

/// Whether there are processes whose threads work for each other.
#[inline(always)]
pub(crate) fn handovers() -> bool {
    CONTROL.get(0).is_some_and(|control| control.flags & CONTROL_HANDOVERS != 0)
}

/// Whether sockets of the process `tgid`, to which `thread` belongs, are traced.
#[inline(always)]
pub(crate) fn process_traced(control: &Control, thread: &mut Thread, tgid: u32) -> bool {
    // Generations start at 1, so a fresh record is always looked up.
    if thread.generation != control.generation {
        thread.generation = control.generation;
        thread.policy = if tgid == AGENT_TGID.load() {
            if control.flags & CONTROL_OWN != 0 { PROCESS_TRACE } else { PROCESS_IGNORE }
        } else {
            // SAFETY: the value is copied out at once.
            match unsafe { PROCESSES.get(tgid) } {
                Some(policy) => *policy,
                None if control.flags & CONTROL_DEFAULT_IGNORE != 0 => PROCESS_IGNORE,
                None => PROCESS_TRACE,
            }
        };
        runtime::refresh(thread, tgid);
    }
    thread.policy & 0xff == PROCESS_TRACE
}

/// Whether sockets of the process `tgid` are traced, without a thread's record.
#[inline(always)]
pub(crate) fn traced(control: &Control, tgid: u32) -> bool {
    if tgid == AGENT_TGID.load() {
        return false;
    }
    // SAFETY: the value is copied out at once.
    match unsafe { PROCESSES.get(tgid) } {
        Some(policy) => *policy & 0xff == PROCESS_TRACE,
        None => control.flags & CONTROL_DEFAULT_IGNORE == 0,
    }
}

/// Bytes to carry from the front of a connection's text, 0 = the default; `None`: its text is not wanted.
#[inline(always)]
pub(crate) fn text(cookie: u64) -> Option<u32> {
    // SAFETY: as in [`refresh`].
    match unsafe { ASKS.get(cookie) } {
        Some(ask) if ask.verdict == VERDICT_IGNORE || ask.text == TEXT_UNWANTED => None,
        Some(ask) => Some(ask.text as u32 * 1024),
        None => Some(0),
    }
}

/// Whether a connection between these ports is traced.
#[inline(always)]
pub(crate) fn ports_traced(control: &Control, local: u16, remote: u16) -> bool {
    if control.flags & CONTROL_PORTS == 0 {
        return true;
    }
    // SAFETY: only presence is checked.
    unsafe { PORTS.get(local).is_some() || PORTS.get(remote).is_some() }
}

/// Takes over the socket's capture policy when a look-up is worthwhile: for the first operations and then now and then
/// until there is a verdict; on long runs in one direction after that, and seldom otherwise.
#[inline(always)]
pub(crate) fn refresh(sock: &mut Sock) {
    let due = if sock.flags & SOCK_DECIDED == 0 {
        sock.ops < 8 || sock.ops & 15 == 0
    } else {
        sock.run >= 4 && sock.run & 3 == 0 || sock.ops & 31 == 0
    };
    if !due {
        return;
    }
    // SAFETY: a copy racing with an update mixes two policies of the same connection at worst.
    let Some(ask) = (unsafe { ASKS.get(sock.cookie) }) else { return };
    sock.rx_skip = ask.rx_skip;
    sock.tx_skip = ask.tx_skip;
    sock.head_rx = ask.head_rx;
    sock.head_tx = ask.head_tx;
    if sock.flags & (SOCK_ACTIVE | SOCK_PASSIVE) == 0 {
        sock.flags |= match ask.role {
            ROLE_ACTIVE => SOCK_ACTIVE,
            ROLE_PASSIVE => SOCK_PASSIVE,
            _ => 0,
        };
    }
    if ask.verdict != VERDICT_NONE {
        sock.flags |= SOCK_DECIDED;
    }
    if ask.frames != 0 {
        sock.flags |= SOCK_FRAMES;
    }
    if ask.verdict == VERDICT_ROUND_TRIPS {
        sock.flags |= SOCK_ROUND_TRIPS;
    } else if ask.verdict == VERDICT_TRACE {
        // Text took the place of its encrypted bytes.
        sock.flags &= !SOCK_ROUND_TRIPS;
    }
    if ask.verdict == VERDICT_IGNORE {
        sock.flags |= SOCK_IGNORED;
    }
}
