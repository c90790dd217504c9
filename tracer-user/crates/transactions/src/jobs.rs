//! Jobs of queues: who works on which, and which elements wait to be taken.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::{TableUse, scaled};
use tracer_model::{Cost, Nanos, SpanId, TraceId};

use super::slot::Slot;

/// Numbers of jobs among the exchanges of the connection that they were read from.
pub(super) const EXCHANGES: u64 = 1 << 63;
/// Most elements that wait to be taken, and whose request is remembered.
pub(super) const PUSHED: usize = 32_768;
/// Most of these that are remembered of lists that nobody has asked for jobs yet: the worker may come later.
pub(super) const UNASKED: usize = 1024;
/// Most queues known to be asked for jobs.
pub(super) const QUEUES: usize = 4096;

/// A thread (its id and 0) or a task (its process and its name).
pub(super) type WorkerId = (u32, u64);

/// Queue of one server, and element.
pub(super) type JobKey = (u64, u64);

/// What takes jobs.
#[derive(Debug, Default)]
pub(super) struct Worker {
    pub(super) tgid: u32,
    /// The queues that it asks for its next job.
    pub(super) asks: SmallVec<[AskedQueue; 4]>,
    pub(super) job: Option<HeldJob>,
}

/// A queue that a worker asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedQueue {
    pub(super) queue: u64,
    /// It asked twice or more.
    pub(super) again: bool,
}

impl Worker {
    pub(super) fn asked(&self, queue: u64) -> Option<AskedQueue> {
        self.asks.iter().copied().find(|asked| asked.queue == queue)
    }
}

/// The job that a worker works for.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldJob {
    pub(super) slot: Slot,
    pub(super) queue: u64,
    pub(super) element: u64,
    /// The connection that it was read from.
    pub(super) cookie: u64,
    /// What it had cost when it was last looked at, and when that had last changed.
    pub(super) cost: Cost,
    pub(super) seen: Nanos,
}

/// The request that put an element into a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedElement {
    /// `None`: several put an equal one in.
    pub(super) by: Option<Producer>,
    /// How many equal ones wait.
    pub(super) waiting: u32,
}

/// The call that put an element into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Producer {
    pub(super) slot: Slot,
    pub(super) id: SpanId,
    /// As it was reported; `None`: it was not yet.
    pub(super) trace: Option<TraceId>,
}

/// What a span has to do with jobs.
#[derive(Debug, Default)]
pub struct JobTies {
    /// It asks for a job, and is itself part of none.
    pub(super) asks: bool,
    /// It put these into queues.
    pub(super) pushes: SmallVec<[JobKey; 1]>,
    /// A job: who put it into its queue.
    pub(super) pushed_by: Option<Producer>,
    /// A job: its worker had not asked the queue again before.
    pub(super) once: bool,
}

/// Workers and the elements of queues.
#[derive(Debug)]
pub struct Jobs {
    pub(super) workers: FxHashMap<WorkerId, Worker>,
    pub(super) refused: u64,
    /// Elements in two generations: when the younger one is full, the older one is dropped.
    pub(super) young: FxHashMap<JobKey, QueuedElement>,
    pub(super) old: FxHashMap<JobKey, QueuedElement>,
    pub(super) limit: usize,
    pub(super) dropped: u64,
    /// Queues that workers ask.
    pub(super) queues: FxHashSet<u64>,
    /// The request, of a connection, that asks for a job and begins next.
    pub(super) asking: Option<(u64, u64)>,
    /// The job that the current operation began, or ended.
    pub(super) begun: Option<Slot>,
    pub(super) ended: Option<Slot>,
}

impl Jobs {
    pub(super) fn new(memory: u64) -> Self {
        Self {
            workers: FxHashMap::default(),
            refused: 0,
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            limit: scaled(PUSHED, memory),
            dropped: 0,
            queues: FxHashSet::default(),
            asking: None,
            begun: None,
            ended: None,
        }
    }

    /// Use of the tables of workers and of elements.
    pub(super) fn table_use(&self, threads: usize) -> [TableUse; 2] {
        let elements = self.young.len() + self.old.len();
        [TableUse::new(self.workers.len(), threads, self.refused), TableUse::new(elements, self.limit, self.dropped)]
    }

    pub(super) fn shrink(&mut self) {
        self.workers.shrink_excess();
        self.young.shrink_excess();
        self.old.shrink_excess();
    }

    /// The job that the current operation began or ended, and whether it ended it.
    pub(super) fn take_touched(&mut self) -> (Option<Slot>, bool) {
        let ended = self.ended.take();
        (self.begun.take().or(ended), ended.is_some())
    }

    /// Whether this exchange of a connection, which begins, asks for a job outside of one.
    pub(super) fn take_asking(&mut self, cookie: u64, exchange: u64) -> bool {
        self.asking.take() == Some((cookie, exchange))
    }

    /// Workers that hold a job.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.workers.values().filter(|worker| worker.job.is_some()).count()
    }

    /// Whether what is put into this queue is worth remembering: most lists are no queues of jobs.
    pub(super) fn may_be_asked(&self, queue: u64) -> bool {
        self.young.len() < UNASKED || self.queues.contains(&queue)
    }

    pub(super) fn push(&mut self, key: JobKey, by: Producer) {
        if let Some(known) = self.young.get_mut(&key).or_else(|| self.old.get_mut(&key)) {
            known.waiting = known.waiting.saturating_add(1);
            known.by = None;
            return;
        }
        if self.young.len() >= self.limit / 2 {
            let old = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            // Lists that no worker asks are none of ours.
            self.dropped += old.keys().filter(|(queue, _)| self.queues.contains(queue)).count() as u64;
        }
        self.young.insert(key, QueuedElement { by: Some(by), waiting: 1 });
    }

    /// An element was taken: who put it in, if that is known.
    pub(super) fn pop(&mut self, key: JobKey) -> Option<Producer> {
        for map in [&mut self.young, &mut self.old] {
            let Some(push) = map.get_mut(&key) else { continue };
            let by = push.by;
            push.waiting = push.waiting.saturating_sub(1);
            if push.waiting == 0 {
                map.remove(&key);
            }
            return by;
        }
        None
    }
}
