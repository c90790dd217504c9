//! What all strategies of attribution share: open spans, threads, connections, processes, the clock, settings, limits and
//! counters. It decides nothing.

use std::sync::Arc;

use tracer_common::event::Op;
use tracer_model::Nanos;
use tracer_protocols::Settings;

use super::connection::Connection;
use super::counters::Counters;
use super::last_hit_map::LastHitMap;
use super::limits::Limits;
use super::losses::Losses;
use super::open_span::Slab;
use super::processes::Processes;
use super::slot::Slot;
use super::task_identity::{is_python, is_unique};
use super::thread::{IntervalOwner, Thread};

/// The state that strategies share.
#[derive(Debug)]
pub(super) struct World {
    /// What parsers keep of requests.
    pub(super) settings: Settings,
    /// Limits and time-outs.
    pub(super) limits: Limits,
    /// Where ids come from.
    pub(super) seed: u64,
    /// Connections by the cookie of their socket.
    pub(super) connections: LastHitMap<u64, Box<Connection>>,
    /// Threads by their id.
    pub(super) threads: LastHitMap<u32, Thread>,
    /// Processes.
    pub(super) processes: Processes,
    /// Spans that are not reported yet.
    pub(super) spans: Slab,
    /// When records were lost.
    pub(super) losses: Losses,
    /// Time of the newest record.
    pub(super) now: Nanos,
    /// All records of sockets and threads up to this time were processed. Samples may be ahead of it: they come through a
    /// ring of their own, which is read first.
    pub(super) caught_up: Nanos,
    /// Final reporting is under way: no evidence can come any more.
    pub(super) finishing: bool,
    /// Losses and limits.
    pub(super) counters: Counters,
    /// Bytes left a socket by a path that no attached hook covers; the consumer clears it.
    pub(super) unseen: bool,
    /// The empty text, shared.
    pub(super) empty: Arc<str>,
}

impl World {
    /// An empty world.
    pub(super) fn new(settings: Settings, limits: Limits, seed: u64) -> Self {
        Self {
            settings,
            limits,
            seed,
            connections: LastHitMap::default(),
            threads: LastHitMap::default(),
            processes: Processes::default(),
            spans: Slab::default(),
            losses: Losses::default(),
            now: 0,
            caught_up: 0,
            finishing: false,
            counters: Counters::default(),
            unseen: false,
            empty: Arc::from(""),
        }
    }

    /// The clock never goes back, though records of different CPUs may be out of order.
    pub(super) fn advance(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    /// The thread, followed from now on unless there are too many.
    pub(super) fn thread(&mut self, tid: u32, tgid: u32, nanos: Nanos) -> Option<&mut Thread> {
        if !self.threads.contains_key(&tid) && self.threads.len() >= self.limits.threads {
            self.counters.threads_refused += 1;
            return None;
        }
        let thread = self.threads.or_insert_with(tid, || Thread::new(tgid));
        if thread.tgid != tgid || (thread.died != 0 && nanos > thread.died) {
            // The id was reused by another thread.
            *thread = Thread::new(tgid);
        }
        Some(thread)
    }

    /// The request that owns a callback group.
    pub(super) fn request_of(&self, entity: IntervalOwner) -> Option<Slot> {
        match entity {
            IntervalOwner::Request(slot) => Some(slot),
            IntervalOwner::Call(slot) => self.spans.get(slot).and_then(|live| live.client.cause.request()),
        }
    }

    /// Links the two ends of a request on this host.
    pub(super) fn link(&mut self, call: Slot, request: Slot) {
        let Some(caller) = self.spans.get_mut(call) else { return };
        caller.client.callee = Some(request);
        let id = caller.id;
        let Some(live) = self.spans.get_mut(request) else { return };
        live.server.caller = Some((call, id));
        let service = live.service;
        if let Some(caller) = self.spans.get_mut(call) {
            caller.client.callee_service = Some(service);
        }
    }

    /// The process read a request at `nanos`.
    pub(super) fn serves(&mut self, tgid: u32, nanos: Nanos) {
        if self.processes.serving.len() < self.limits.processes || self.processes.serving.contains_key(&tgid) {
            let first = !self.processes.serving.contains_key(&tgid);
            let since = self.processes.serving.entry(tgid).or_insert(nanos);
            // Records of different CPUs can arrive out of order.
            *since = nanos.min(*since);
            if first && self.processes.served.len() < self.limits.processes {
                self.processes.served.push(tgid);
            }
        } else {
            self.processes.serving_all = true;
        }
    }

    /// Whether only the task shows which request an operation belongs to.
    pub(super) fn is_tasked(&self, op: &Op) -> bool {
        is_unique(op.entity)
            || is_python(op.entity)
            || (op.entity == 0 && self.processes.interleaving.contains(&op.header.tgid))
    }

    /// Whether the process is known to run tasks that interleave requests.
    pub(super) fn interleaves_requests(&self, tgid: u32) -> bool {
        self.processes.interleaving.contains(&tgid)
    }

    /// The process runs tasks or event loops that interleave requests.
    pub(super) fn interleaves(&mut self, tgid: u32) {
        if self.processes.interleaving.len() < self.limits.processes {
            self.processes.interleaving.insert(tgid);
        }
    }
}
