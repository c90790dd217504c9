//! The request that a thread holds now.

use tracer_model::{ClassId, Nanos, Side, SpanId};

use crate::engine::Engine;
use crate::slot::Slot;
use crate::task_identity::is_python;

/// An open request that a thread holds alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRequest {
    /// Its span.
    pub span: SpanId,
    /// Its class, if it is known before the reply.
    pub class: Option<ClassId>,
    /// First byte read.
    pub start: Nanos,
}

impl Engine {
    /// The request that the thread works for, if it holds one alone and has not answered it.
    pub fn held_by(&self, tid: u32) -> Option<HeldRequest> {
        let live = self.world.spans.get(self.world.threads.get(&tid)?.holder()?)?;
        let open = live.side == Side::Server && live.end == 0;
        open.then_some(HeldRequest { span: live.id, class: live.class, start: live.start })
    }

    /// Thread and process that work for an open request and for no other. Unlike [`Engine::serves_alone`] it takes threads of
    /// Python, whose tasks may interleave, as long as one request is open: tasks there do not change threads.
    pub fn thread_of(&self, slot: Slot) -> Option<(u32, u32)> {
        let live = self.world.spans.get(slot).filter(|live| live.side == Side::Server && live.end == 0)?;
        if live.multiplexed || !(live.read_as == 0 || is_python(live.read_as)) {
            return None;
        }
        let thread = self.world.threads.get(&live.tid).filter(|thread| thread.tgid == live.pid && thread.died == 0)?;
        let alone = thread.lap.is_none() && thread.open.len() == 1 && thread.holder() == Some(slot);
        alone.then_some((live.tid, live.pid))
    }
}
