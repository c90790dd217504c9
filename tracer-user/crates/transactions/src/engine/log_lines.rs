//! Lines of logs: the request that each was written for. Certain or nothing: a line that stands beside the wrong request misleads
//! more than one that is missing.

use tracer_common::event::ENTITY_BITS;
use tracer_common::log_write::LogWrite;
use tracer_common::runtime::KIND_NODE;
use tracer_model::{LogLine, Side};

use super::Engine;
use crate::held_request::{HeldRequest, ThreadEvent};
use crate::slot::Slot;
use crate::strategies::after_reply;
use crate::task_identity::{is_named, is_python, is_unique};

impl Engine {
    /// The request that a write to a log belongs to.
    pub fn held_request(&mut self, write: &LogWrite) -> HeldRequest {
        self.owner_of(&write.into())
    }

    /// The request that something belongs to which a thread did.
    pub(super) fn owner_of(&mut self, happened: &ThreadEvent) -> HeldRequest {
        self.world.now = self.world.now.max(happened.header.nanos);
        let (tgid, entity) = (happened.header.tgid, happened.entity);
        if is_unique(entity) {
            return if is_named(entity) { self.by_task(tgid, entity) } else { HeldRequest::NoRequest };
        }
        if entity >> ENTITY_BITS == u64::from(KIND_NODE) || (entity == 0 && self.world.interleaves_requests(tgid)) {
            // Callbacks and tasks that cannot be distinguished.
            return self.of_none_in_particular(happened);
        }
        if is_python(entity) && is_named(entity) {
            return self.by_context(happened);
        }
        self.by_thread(happened)
    }

    /// The line is kept with its request, unless that is reported already.
    pub fn keep_log_line(&mut self, slot: Slot, line: LogLine) -> bool {
        let Some(live) = self.world.spans.get_mut(slot) else { return false };
        live.rare.log_lines.get_or_insert_default().add(line);
        true
    }

    /// A task whose name is its own reads one request at a time, unless its connection carries several at once.
    fn by_task(&self, tgid: u32, entity: u64) -> HeldRequest {
        let Some(slot) = self.declared.read_by(tgid, entity) else { return HeldRequest::NoRequest };
        match self.world.spans.get(slot) {
            Some(live) if live.multiplexed => HeldRequest::Ambiguous,
            Some(live) if live.end == 0 && live.side == Side::Server => HeldRequest::Request(slot),
            _ => HeldRequest::NoRequest,
        }
    }

    /// Python's contexts and greenlets are known by their address, which another can get later, but not while the request is open that
    /// the first one read: until then one address is one context.
    fn by_context(&self, happened: &ThreadEvent) -> HeldRequest {
        let Some(thread) = self.world.threads.get(&happened.header.tid) else { return HeldRequest::NoRequest };
        let of_context = thread.open.iter().filter(|slot| {
            let live = self.world.spans.get(**slot);
            live.is_some_and(|live| live.read_as == happened.entity && live.end == 0 && !live.multiplexed)
        });
        let mut of_context = of_context.copied();
        match (of_context.next(), of_context.next()) {
            (Some(slot), None) => HeldRequest::Request(slot),
            (Some(_), Some(_)) => HeldRequest::Ambiguous,
            _ => self.of_none_in_particular(happened),
        }
    }

    /// A thread that runs one request at a time writes for the one it holds, or for the one it has just answered.
    fn by_thread(&self, happened: &ThreadEvent) -> HeldRequest {
        let (header, counters) = (&happened.header, &happened.counters);
        let Some(thread) = self.world.threads.get(&header.tid) else { return HeldRequest::NoRequest };
        if thread.several() || thread.lap.is_some() {
            return self.of_none_in_particular(happened);
        }
        let Some(slot) = thread.holder() else {
            let after = after_reply::still_worked_for(&self.world, header.tid, header.tid == header.tgid, counters);
            return after.map_or(HeldRequest::NoRequest, HeldRequest::Request);
        };
        let Some(live) = self.world.spans.get(slot).filter(|live| live.end == 0 && live.side == Side::Server) else {
            return HeldRequest::NoRequest;
        };
        // Once an event loop has polled, it may run a timer, which belongs to no request.
        let may_be_a_timer = thread.serving.is_loop() && thread.polls_at_op != counters.polls;
        // Python's loops run callbacks in contexts; the thread itself, before it had any, does not.
        let by_another = is_python(happened.entity) && live.read_as != happened.entity;
        if thread.open.len() == 1 && !live.multiplexed && !may_be_a_timer && !by_another {
            HeldRequest::Request(slot)
        } else {
            HeldRequest::Ambiguous
        }
    }

    /// Whether there are requests that it could be for.
    fn of_none_in_particular(&self, happened: &ThreadEvent) -> HeldRequest {
        let thread = self.world.threads.get(&happened.header.tid);
        if thread.is_some_and(|thread| !thread.open.is_empty()) {
            HeldRequest::Ambiguous
        } else {
            HeldRequest::NoRequest
        }
    }
}
