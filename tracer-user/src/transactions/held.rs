//! The request that a thread holds now.

use super::engine::Engine;
use crate::model::{ClassId, Nanos, Side, SpanId};

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
        let live = self.spans.get(self.threads.get(&tid)?.holder()?)?;
        let open = live.side == Side::Server && live.end == 0;
        open.then_some(HeldRequest { span: live.id, class: live.class, start: live.start })
    }
}
