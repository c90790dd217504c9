//! Who closed a connection.

use tracer_common::event::{STATE_EXITING, STATE_OWN, State};
use tracer_model::ProcessEnd;

/// Which process closed a connection, and how it ended if it closed it by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClosedBy {
    /// The process.
    pub(super) tgid: u32,
    /// `None`: it lives on, as far as is known.
    pub(super) end: Option<ProcessEnd>,
}

impl ClosedBy {
    /// The process that closed the connection; `None`: a packet did, or it is not known.
    pub(super) fn of(state: &State) -> Option<Self> {
        let end = (state.header.flags & STATE_EXITING != 0).then(|| ProcessEnd::from_status(state.exit_status));
        (state.header.flags & (STATE_OWN | STATE_EXITING) != 0).then_some(Self { tgid: state.header.tgid, end })
    }

    /// Whether a signal killed the process.
    pub(super) fn is_killed(self) -> bool {
        matches!(self.end, Some(ProcessEnd::Signal(_)))
    }
}
