//! Exceptions that programs throw: the request that each was thrown for, as far as its thread or goroutine shows. Whether it is why
//! the request failed shows when that ends: one that was handled is no failure.

use tracer_common::event::DeclaredCall;

use super::Engine;
use crate::model::Side;
use crate::runtimes::exceptions::RawTypeName;
use crate::transactions::slot::Slot;
use crate::transactions::thread::IntervalOwner;

impl Engine {
    /// Exceptions or log lines are traced: remembers which task read which request.
    pub(crate) fn remember_readers(&mut self) {
        self.declared.remember_readers();
    }

    /// An exception was thrown; whether that was for a request.
    pub(crate) fn thrown(&mut self, call: &DeclaredCall, exception: Option<RawTypeName>) -> bool {
        self.world.now = self.world.now.max(call.header.nanos);
        let slot = self.declared.request_around(&self.world, call).or_else(|| self.in_callback(call));
        let Some(live) = slot.and_then(|slot| self.world.spans.get_mut(slot)) else { return false };
        match &mut live.rare.exception {
            Some(before) => **before = exception,
            none => *none = Some(Box::new(exception)),
        }
        true
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
