//! The cause of a call, as far as it is known by now.

use tracer_model::Nanos;

use super::combine::{Proposal, Vote};
use super::evidence::{Doubt, Evidence, Weight};
use super::pending_reads::OnePendingRead;
use super::slot::{Slot, SpanRef};

/// A request that may have caused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The request; stale once it is reported.
    pub slot: Slot,
    /// What remains of it then.
    pub kept: SpanRef,
}

/// What shows for which request a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownBy {
    /// The thread that sends it.
    Thread,
    /// The task that sends it: tasks of its process share threads.
    Task,
    /// The task; and its callback group until that has decided, since such tasks mostly act right after their wake-up.
    TaskOrGroup,
    /// The process (`child_processes.rs`, `queue_workers.rs`).
    Process,
}

/// What is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallState {
    /// Nothing is waited for; the answer of the request may still confirm it.
    Settled,
    /// A thread that held no request made the call: the thread that waits for its result may still show up.
    AwaitsResult,
    /// The request that its task turns out to serve.
    AwaitsTask,
    /// The end of its process or of the request.
    AwaitsProcess,
    /// Its task has decided.
    DecidedByTask,
}

/// Whether the task that made the call handed its result to another task, which decides then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// No.
    No,
    /// To one.
    ToOne,
    /// To several, as far as is known.
    ToSeveral,
}

/// A thread took the call's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The thread.
    pub by: u32,
    /// The futex at which the thread that holds the request was woken; 0: it was not woken.
    pub futex: u64,
    /// Calls its thread made since the previous result, if only the usual number of calls per job shows that this one
    /// belongs to the same job; 1 if that evidence is not needed.
    pub calls: usize,
}

/// The content of the call names its parent (`forwarding.rs`).
#[derive(Clone, Copy, Debug)]
pub struct Forwarded {
    /// When that request was read.
    pub since: Nanos,
    /// Both sides of its callback groups name that parent, too.
    pub by_group: bool,
}

/// The cause of a call, as far as known.
#[derive(Clone, Copy, Debug)]
pub struct Cause {
    /// The request it is probably made for.
    pub candidate: Option<Candidate>,
    /// What shows that.
    pub evidence: Evidence,
    /// What the request's answer says.
    pub vote: Vote,
    /// What makes all that void.
    pub doubt: Option<Doubt>,
    /// Whose evidence counts.
    pub shown_by: ShownBy,
    /// What is still to come.
    pub state: CallState,
    /// Who took its result, if that names the candidate.
    pub taken: Option<Taken>,
    /// Its content names the candidate.
    pub forwarded: Option<Forwarded>,
    /// Whether another task took its result.
    pub passed: Passed,
    /// The task the call belongs to by now, where wake-ups between tasks are traced; 0: unknown.
    pub task: u64,
    /// Other threads of its process held requests when its thread sent it, and it was not known whether requests stay on
    /// their threads there.
    pub others_open: bool,
    /// Its thread had one pending read when it sent the call, and one when it answered by the call's reply.
    pub one_pending_read: OnePendingRead,
}

impl Cause {
    /// No candidate.
    pub const fn none(evidence: Evidence) -> Self {
        Self {
            candidate: None,
            evidence,
            vote: Vote::None,
            doubt: None,
            shown_by: ShownBy::Thread,
            state: CallState::Settled,
            taken: None,
            forwarded: None,
            passed: Passed::No,
            task: 0,
            others_open: false,
            one_pending_read: OnePendingRead::unknown(),
        }
    }

    /// A candidate that this evidence names.
    pub fn of(slot: Slot, kept: SpanRef, evidence: Evidence) -> Self {
        Self { candidate: Some(Candidate { slot, kept }), ..Self::none(evidence) }
    }

    /// The candidate, which may be reported already.
    pub fn request(&self) -> Option<Slot> {
        self.candidate.map(|candidate| candidate.slot)
    }

    /// Whether its evidence leaves nothing else possible: one request on the thread, or certainly none.
    pub fn is_certain(&self) -> bool {
        self.evidence.weight() == Weight::Certain
    }

    /// Whether evidence that decides the parent is still to come.
    pub fn is_open(&self) -> bool {
        self.awaits_others() || self.state == CallState::AwaitsProcess
    }

    /// Whether another thread or task is still to show the parent.
    pub fn awaits_others(&self) -> bool {
        matches!(self.state, CallState::AwaitsResult | CallState::AwaitsTask)
    }

    /// Whether tasks of its process share threads, so that only tasks show requests.
    pub fn is_tasked(&self) -> bool {
        matches!(self.shown_by, ShownBy::Task | ShownBy::TaskOrGroup)
    }

    /// What it proposes.
    pub fn proposal(&self) -> Proposal {
        Proposal { parent: self.request(), evidence: self.evidence, vote: self.vote, doubt: self.doubt }
    }
}
