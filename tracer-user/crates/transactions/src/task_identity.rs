//! Names that runtimes give to what runs in them, as an operation carries them: tasks, goroutines, callbacks.

use tracer_common::event::{ENTITY_BITS, Op};
use tracer_common::runtime::{KIND_GO, KIND_GREENLET, KIND_JAVA, KIND_NODE, KIND_PYTHON, KIND_TOKIO};

/// Whether `entity` names a task; for Node.js it holds async ids instead.
pub(super) fn is_named(entity: u64) -> bool {
    entity << (64 - ENTITY_BITS) != 0 && kind(entity) != KIND_NODE
}

/// The runtime kind of an entity; 0: none.
pub(super) fn kind(entity: u64) -> u32 {
    (entity >> ENTITY_BITS) as u32
}

/// Whether the name is never reused within the process.
pub(super) fn is_unique(entity: u64) -> bool {
    matches!(kind(entity), KIND_GO | KIND_TOKIO | KIND_JAVA)
}

/// Whether it is a Python task: a context or a greenlet.
pub(super) fn is_python(entity: u64) -> bool {
    matches!(kind(entity), KIND_PYTHON | KIND_GREENLET)
}

/// Whether an event loop with distinguishable callbacks did the operation.
pub(super) fn is_looped(op: &Op) -> bool {
    op.entity >> ENTITY_BITS == u64::from(KIND_NODE)
}
