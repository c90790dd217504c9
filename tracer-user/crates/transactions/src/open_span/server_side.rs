//! What only a request has, beyond what its own thread does until the reply.

use smallvec::SmallVec;
use tracer_model::{Nanos, SpanId};

use super::on_demand::Blank;
use crate::slot::Slot;

/// Most calls of a reported request whose memory the next one gets.
const CALLS_KEPT: usize = 16;

/// How long jobs of a request waited for pool threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolQueue {
    /// Sum of the known waits, nanoseconds.
    known: u64,
    /// Number of jobs, and of jobs with a known wait.
    jobs: u32,
    sure: u32,
}

impl PoolQueue {
    /// Adds a job, and how long it waited if that is certain.
    pub fn job(&mut self, waited: Option<u64>) {
        self.jobs = self.jobs.saturating_add(1);
        if let Some(waited) = waited {
            self.known = self.known.saturating_add(waited);
            self.sure += 1;
        }
    }

    /// Sum of all waits, nanoseconds; `None` without jobs or if any wait is uncertain.
    pub fn sum(&self) -> Option<u64> {
        (self.jobs != 0 && self.jobs == self.sure).then_some(self.known)
    }
}

/// The time a call was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTime {
    /// The call; stale once it is reported.
    pub call: Option<Slot>,
    /// First byte sent.
    pub start: Nanos,
    /// Last byte received.
    pub end: Nanos,
}

/// What a request has to do with calls, other threads and processes. One that its thread answers by itself has none of it.
#[derive(Debug)]
pub struct ServerSide {
    /// The call on this host that is this request's other end.
    pub caller: Option<(Slot, SpanId)>,
    /// Calls it may have caused.
    pub calls: Vec<CallTime>,
    /// Calls of other threads that it may have caused.
    pub candidate_calls: SmallVec<[Slot; 1]>,
    /// The first few calls that match it and no other open request.
    pub forwards: SmallVec<[Slot; 1]>,
    /// A call matched both this and another open request.
    pub looks_shared: bool,
    /// Its thread forked a process.
    pub forks: bool,
    /// The processes that it forked, and these in turn, up to a limit.
    pub children: SmallVec<[u32; 2]>,
    /// How long its jobs waited for pool threads.
    pub pool_queue: PoolQueue,
    /// How often threads of its process that work for others woke its thread, plus the calls it made.
    pub wakeups_or_calls: u32,
    /// `wakeups_or_calls` when its answer began.
    pub(super) answered_after: u32,
    /// The last operation its thread did for it after its reply; 0: none.
    pub after_reply_until: Nanos,
}

impl ServerSide {
    const fn nothing_known() -> Self {
        Self {
            caller: None,
            calls: Vec::new(),
            candidate_calls: SmallVec::new_const(),
            forwards: SmallVec::new_const(),
            looks_shared: false,
            forks: false,
            children: SmallVec::new_const(),
            pool_queue: PoolQueue { known: 0, jobs: 0, sure: 0 },
            wakeups_or_calls: 0,
            answered_after: 0,
            after_reply_until: 0,
        }
    }
}

impl Blank for ServerSide {
    fn new() -> Self {
        Self::nothing_known()
    }

    fn blank() -> &'static Self {
        static BLANK: ServerSide = ServerSide::nothing_known();
        &BLANK
    }

    fn clear(&mut self) {
        let mut calls = std::mem::take(&mut self.calls);
        *self = Self::new();
        if calls.capacity() <= CALLS_KEPT {
            calls.clear();
            self.calls = calls;
        }
    }
}
