//! Threads that were woken when a result was handed over.

use smallvec::SmallVec;

use super::slot::Slot;

/// The woken threads, and the state of their requests at that time.
#[derive(Clone, Debug)]
pub struct WakeupCandidates {
    /// How often the first request's thread had been woken or had called, this wake-up included.
    pub own: u32,
    /// The other requests with the same count, until they are seen to go on.
    pub others: SmallVec<[(Slot, u32); 2]>,
}
