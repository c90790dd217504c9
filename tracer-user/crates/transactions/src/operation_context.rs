//! An operation, as the events that it brings see it.

use tracer_common::event::Op;

use super::slot::Slot;
use super::thread::IntervalOwner;

/// The operation that produced an exchange event, and the state of its thread before it.
#[derive(Clone, Copy)]
pub(super) struct OperationContext<'a> {
    /// The operation.
    pub(super) op: &'a Op,
    /// Owner of the thread's current callback group.
    pub(super) group: Option<IntervalOwner>,
    /// The only request the thread holds.
    pub(super) holder: Option<Slot>,
    /// On a send of an event loop: the span whose callback sent it.
    pub(super) own: Option<Slot>,
    /// The request the thread has answered but still works for.
    pub(super) after: Option<Slot>,
    /// On a send that begins one message: the thread had exactly one pending read.
    pub(super) one_pending_read: bool,
}
