//! Exceptions that programs throw: the request that each was thrown for, as far as its thread or task shows. Whether it is why
//! the request failed shows when that ends: one that was handled is no failure.

use tracer_common::event::{DeclaredCall, Op};
use tracer_model::Side;
use tracer_runtimes::exceptions::ThrowingRuntime;

use super::Engine;
use crate::held_request::{HeldRequest, ThreadEvent};
use crate::open_span::OpenSpan;
use crate::slot::Slot;
use crate::task_identity::{is_named, is_python};
use crate::thread::IntervalOwner;
use crate::thrown::ThrownException;

/// The exception was thrown for this request.
fn keep(live: &mut OpenSpan, thrown: ThrownException) {
    match &mut live.rare.exception {
        Some(before) => **before = thrown,
        none => *none = Some(Box::new(thrown)),
    }
}

impl Engine {
    /// Exceptions or log lines are traced: remembers which task read which request.
    pub fn remember_readers(&mut self) {
        self.declared.remember_readers();
    }

    /// An exception was thrown; whether that was for a request.
    pub fn thrown(&mut self, runtime: ThrowingRuntime, call: &DeclaredCall, thrown: ThrownException) -> bool {
        self.world.now = self.world.now.max(call.header.nanos);
        let slot = if runtime == ThrowingRuntime::Python {
            let slot = self.by_task_of_python(call);
            if slot.is_none() && is_python(call.entity) && is_named(call.entity) {
                self.task_exceptions.add((call.header.tgid, call.entity), thrown);
                return true;
            }
            slot
        } else {
            self.declared.request_around(&self.world, call).or_else(|| self.in_callback(call))
        };
        let Some(live) = slot.and_then(|slot| self.world.spans.get_mut(slot)) else { return false };
        keep(live, thrown);
        true
    }

    /// A task begins to answer a request: what it threw since that began was for it.
    pub(super) fn task_answers(&mut self, slot: Slot, op: &Op) {
        if self.task_exceptions.is_empty() {
            return;
        }
        let Some(live) = self.world.spans.get_mut(slot).filter(|live| live.side == Side::Server) else { return };
        if let Some(thrown) = self.task_exceptions.take((op.header.tgid, op.entity), live.start) {
            keep(live, thrown);
        }
    }

    /// The request that the running task of Python holds, as for log lines, unless it is answered.
    fn by_task_of_python(&mut self, call: &DeclaredCall) -> Option<Slot> {
        let happened = ThreadEvent { header: call.header, entity: call.entity, counters: call.counters };
        let HeldRequest::Request(slot) = self.owner_of(&happened) else { return None };
        let live = self.world.spans.get(slot)?;
        (live.end == 0 && live.side == Side::Server).then_some(slot)
    }

    /// The request that a thread with several at once has just read.
    fn in_callback(&self, call: &DeclaredCall) -> Option<Slot> {
        let thread = self.world.threads.get(&call.header.tid).filter(|_| call.task == 0)?;
        if !thread.multiplexer || thread.lap.is_some() {
            return None;
        }
        let Some(IntervalOwner::Request(slot)) = thread.group.current(&call.counters) else { return None };
        let live = self.world.spans.get(slot)?;
        (live.end == 0 && live.side == Side::Server).then_some(slot)
    }
}
