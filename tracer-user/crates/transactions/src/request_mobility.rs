//! Whether requests of a process move between threads, as far as that is known: what other strategies ask
//! `strategies/thread_affinity.rs`, which finds it out.

use super::evidence::Evidence;
use super::losses::SUSPECT;
use super::open_span::OpenSpan;
use super::world::World;

/// Times the report of a call is deferred until it is known: two seconds.
pub(super) const PATIENCE: u8 = 8;

pub(super) fn is_unknown(world: &World, tgid: u32) -> bool {
    world.processes.affinity.processes.get(&tgid).is_none_or(|process| !process.is_known())
}

/// Whether requests of the call's process seemed to move while records were missing, so that it is not known.
pub(super) fn seems_moved(world: &World, call: &OpenSpan) -> bool {
    let process = world.processes.affinity.processes.get(&call.pid).filter(|process| !process.is_known());
    process.is_some_and(|process| process.unjudged != 0 && call.start <= process.unjudged.saturating_add(SUSPECT))
}

/// Whether what is missing may have shown that requests of the call's process move between threads.
pub(super) fn may_move_unseen(world: &World, call: &OpenSpan) -> bool {
    world.losses.cover(call.start) == Some(Evidence::EventsLost)
        && world
            .processes
            .affinity
            .processes
            .get(&call.pid)
            .is_none_or(|process| process.several && !process.is_known())
}

/// Whether a fork that may have been for another thread's request was one for that thread's: `None` until it is known.
pub(super) fn fork_is_of_thread(world: &World, tgid: u32, deferred: u8) -> Option<bool> {
    if world.processes.affinity.moves(tgid) {
        return Some(false);
    }
    if !is_unknown(world, tgid) {
        return Some(true);
    }
    (deferred >= PATIENCE).then(|| !world.processes.affinity.processes.get(&tgid).is_none_or(|process| process.crossed))
}
