//! Processes that take jobs from a queue: Sidekiq, RQ, Celery, BullMQ over Redis, consumers of Kafka.
//!
//! Such a process serves no requests, yet its calls do not certainly begin transactions: the cause of a job is whatever
//! put it into the queue. Where the job itself is seen (`jobs.rs`), its calls are below it; of other calls it is not known
//! which job they belong to. Messages that a broker delivers are spans of their own and need no such rule.

use rustc_hash::FxHashSet;
use tracer_host::guard::tables::TableUse;
use tracer_model::ProtocolId;
use tracer_protocols::Conventions;
use tracer_protocols::messaging;

use super::cause::{Cause, ShownBy};
use super::evidence::Evidence;
use super::open_span::OpenSpan;

/// Commands of Redis that wait for an element of a list or a stream: they wait for work.
const BLOCKING: &[&str] =
    &["BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN", "XREADGROUP"];

/// Processes that take jobs from queues.
#[derive(Debug, Default)]
pub struct QueueWorkers {
    processes: FxHashSet<u32>,
    refused: u64,
}

impl QueueWorkers {
    /// Whether the process takes jobs from a queue.
    pub(super) fn contains(&self, tgid: u32) -> bool {
        self.processes.contains(&tgid)
    }

    /// The process has exited or runs another program.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.processes.remove(&tgid);
    }

    /// Use of the table.
    pub(super) fn table_use(&self, limit: usize) -> TableUse {
        TableUse::new(self.processes.len(), limit, self.refused)
    }
}

/// Whether a call asks a queue for a job.
fn takes_job(call: &OpenSpan) -> bool {
    let method = &*call.request.method;
    match call.protocol {
        ProtocolId::Redis => BLOCKING.contains(&method),
        protocol => protocol.conventions() == Conventions::Messaging && messaging::operation_type(method) == "receive",
    }
}

impl QueueWorkers {
    /// The process takes jobs from queues; at most `limit` are remembered. Returns whether there was room to note that.
    pub(super) fn add(&mut self, tgid: u32, limit: usize) -> bool {
        let QueueWorkers { processes, refused } = self;
        let known = processes.contains(&tgid);
        if !known && processes.len() >= limit {
            *refused += 1;
            return false;
        }
        if !known {
            processes.insert(tgid);
        }
        true
    }

    /// A call is about to be sent of which only its process is known.
    pub(super) fn note(&mut self, call: &mut OpenSpan, limit: usize) {
        if call.client.cause.evidence != Evidence::Begins {
            return;
        }
        if takes_job(call) {
            self.add(call.pid, limit);
            call.client.cause = Cause::none(Evidence::AsksForJob);
        } else if self.contains(call.pid) {
            call.client.cause = Cause { shown_by: ShownBy::Process, ..Cause::none(Evidence::OfJob) };
        }
    }
}
