//! Calls that a thread made while it held no request, and whom it woke since.

use smallvec::SmallVec;
use tracer_model::Nanos;

use super::slot::{Slot, SpanRef};

/// A thread that held a request and was woken by a thread that had made a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResultWakeup {
    /// Its request.
    pub(super) request: Slot,
    /// When that request was read.
    pub(super) since: Nanos,
    pub(super) kept: SpanRef,
    /// The woken thread.
    pub(super) by: u32,
    /// Whether it slept before the reply came; a thread that waits for a lock taken after the reply did not.
    pub(super) waited: bool,
    /// Whether it had woken the calling thread before.
    pub(super) paired: bool,
    /// When it fell asleep to wait; and when it last woke the calling thread, if no other thread did so later.
    pub(super) slept_at: Nanos,
    pub(super) given_at: Nanos,
    /// How often its request's thread had been woken or had called.
    pub(super) wakeups_or_calls: u32,
    /// The futex it waited at; 0: it was not woken.
    pub(super) futex: u64,
}

/// The start of a job: its thread's counters at the first call.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobStart {
    /// Number of waits for work so far, and when the last of them ended.
    pub(super) idles: u32,
    pub(super) idle_end: Nanos,
}

/// Undecided calls of a thread.
#[derive(Clone, Debug, Default)]
pub struct DetachedCalls {
    pub(super) calls: SmallVec<[Slot; 2]>,
    pub(super) wakeups: SmallVec<[ResultWakeup; 1]>,
    /// When the last thread was woken.
    pub(super) back_at: Nanos,
    /// There were more calls or wake-ups than are remembered.
    pub(super) more: bool,
    /// The latest time the previous job can have ended: its result was handed back then.
    pub(super) settled: Nanos,
    /// The thread's number of waits for work at that hand-back, if the hand-back is certain.
    pub(super) settled_idles: Option<u32>,
    /// The same at the last wake-up.
    pub(super) back_idles: u32,
    /// State at the first of `calls`.
    pub(super) began: Option<JobStart>,
}

impl DetachedCalls {
    /// How long a job that `began` so waited for its thread. Its requester gave it at `given_at` (0: not seen) and fell
    /// asleep at `slept_at` to wait for it. `None` if the job's start is uncertain. The job started when the previous
    /// one was handed back, if the thread has not waited since; or at the end of its only wait since then, if the
    /// requester ended that wait.
    pub(super) fn pool_queue(&self, began: Option<JobStart>, given_at: Nanos, slept_at: Nanos) -> Option<u64> {
        let JobStart { idles, idle_end } = began?;
        let at = match idles.checked_sub(self.settled_idles?)? {
            0 => self.settled,
            1 if given_at > self.settled && given_at <= idle_end => idle_end,
            _ => return None,
        };
        (slept_at != 0).then(|| at.saturating_sub(slept_at))
    }

    /// Whether no call is undecided.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}
