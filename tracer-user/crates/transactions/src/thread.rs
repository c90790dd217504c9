//! State of a thread: its counters, the requests it holds, its callback group, and the target of its latest work.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;
use tracer_common::event::{Kind, OP_DATAGRAM, OP_EOF, OP_TX, Op, ThreadCounters};
use tracer_model::{ClassId, Cost, Nanos, ServiceId, Wait, WakerStack};

use super::after_reply::{Answered, Serving};
use super::detached_calls::DetachedCalls;
use super::event_loop::EventLoop;
use super::open_span::Slab;
use super::pending_reads::PendingReads;
use super::plaintext::is_further_text;
use super::pools::ThreadKind;
use super::slot::Slot;
use super::thread_affinity::RequestUse;

/// Samples kept per thread until the target of its work is known, while the records of their time are.
pub const PENDING_SAMPLES: usize = 128;
/// Samples kept per thread that runs several requests at once, or whose time's records are yet to be read: two seconds at the
/// highest usual rate.
pub const HELD_SAMPLES: usize = 1024;
/// Requests a thread must answer one at a time after records were missing, before its identity counts again.
const PROBATION: u8 = 16;
/// Charges remembered per thread for late samples: a sample that interrupts a CPU which then stalls (a virtual CPU that
/// is not scheduled) delays the samples of other CPUs behind it.
const HISTORY: usize = 32;

/// What work is charged to. A span that was reported in the meantime is known by its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// No request: overhead of the service.
    Overhead,
    /// A span.
    Span {
        /// Which.
        slot: Slot,
        /// Its class, as of the last look-up.
        class: Option<ClassId>,
        /// Its service.
        service: ServiceId,
    },
}

impl Target {
    /// The target for `slot`'s span as it is now.
    pub(super) fn of(spans: &Slab, slot: Slot) -> Self {
        spans.get(slot).map_or(Self::Overhead, |live| Self::Span { slot, class: live.class, service: live.service })
    }
}

/// The exchange whose bytes a read delivered on a multiplexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalOwner {
    /// A request was read.
    Request(Slot),
    /// The reply of a call was read.
    Call(Slot),
}

/// A callback group: the work from one read to the next read or poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadInterval {
    /// What was read.
    pub entity: Option<IntervalOwner>,
    /// The thread's read count at that read.
    reads: u32,
    /// The thread's poll count at that read.
    polls: u32,
}

impl ReadInterval {
    /// The group that a read begins.
    pub fn begin(entity: Option<IntervalOwner>, counters: &ThreadCounters) -> Self {
        Self { entity, reads: counters.reads, polls: counters.polls }
    }

    /// What was read, unless the thread has read or polled since.
    pub fn current(&self, counters: &ThreadCounters) -> Option<IntervalOwner> {
        if self.reads == counters.reads && self.polls == counters.polls { self.entity } else { None }
    }
}

/// Where a receive ended so far: the kernel side carries a long one in several records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    cookie: u64,
    end: u64,
    nanos: Nanos,
    reads: u32,
}

/// An interval of a thread's work and its target.
#[derive(Clone, Copy, Debug)]
pub struct ChargeInterval {
    /// Its end.
    pub until: Nanos,
    /// The target.
    pub target: Target,
}

/// A sample without a target yet.
#[derive(Clone, Debug)]
pub struct Pending {
    /// When.
    pub nanos: Nanos,
    /// The sampling period, nanoseconds; off the CPU, how long.
    pub weight: u64,
    /// User frames.
    pub user: Vec<u64>,
    /// Kernel frames.
    pub kernel: Vec<u64>,
    /// How the walk over the user frames ended.
    pub outcome: tracer_common::unwind::Outcome,
    /// Interpreted frames.
    pub interpreted: tracer_model::Interpreted,
    /// Why the thread was off the CPU; `None` = it ran.
    pub off_cpu: Option<Wait>,
    /// See [`tracer_model::StackSample::waker`].
    pub waker: Option<Arc<WakerStack>>,
    /// See [`tracer_model::StackSample::ad_hoc`].
    pub ad_hoc: bool,
}

/// One thread.
#[derive(Debug)]
pub struct Thread {
    /// Process id.
    pub tgid: u32,
    /// Counters up to which work has been charged.
    pub counters: ThreadCounters,
    /// Whether `counters` come from a record (rather than the initial zeros).
    pub known: bool,
    /// When it was last charged; 0: never.
    pub charged_at: Nanos,
    /// Time of the last socket operation; 0: never.
    pub last_op: Nanos,
    /// Its poll count at that operation.
    pub polls_at_op: u32,
    /// Unanswered requests it read, oldest first.
    pub open: SmallVec<[Slot; 2]>,
    /// It runs several requests at once.
    pub multiplexer: bool,
    /// Sequence number of its last operation.
    nth: u32,
    /// No operation is missing before the last one.
    pub whole: bool,
    /// When a loss of its records was last noticed; 0: never.
    pub lost_at: Nanos,
    /// The connection of which it received a whole TLS record whose text was not seen yet.
    pub awaits_text: Option<u64>,
    /// Requests it has yet to answer one at a time before its identity counts again.
    doubt: u8,
    /// When it exited; 0 while it runs.
    pub died: Nanos,
    /// Its current callback group.
    pub group: ReadInterval,
    /// What it read and has not sent anything for.
    pub pending_reads: PendingReads,
    /// Its last receive.
    received: Received,
    /// Its callback state, if it runs an event loop with distinguishable callbacks.
    pub lap: Option<Box<EventLoop>>,
    /// Calls it made while it held no request.
    pub detached_calls: DetachedCalls,
    /// It reads requests for tasks of tokio: it runs them.
    pub serves_tasks: bool,
    /// The closure of `spawn_blocking` that it last made a call in; 0: none.
    pub closure: u64,
    /// A thread waited for the result of such a call: this one works for others.
    pub works: bool,
    /// What kind of thread it is, by its past behaviour.
    pub kind: ThreadKind,
    /// What it does with requests that it, or another thread, read.
    pub requests: RequestUse,
    /// The request it answered last, while it still works for it.
    pub after_reply: Option<Answered>,
    /// How it finds its next request.
    pub serving: Serving,
    /// Target of its work since the last operation, unless evidence says otherwise.
    pub last: Target,
    /// Recent charge intervals, newest last.
    history: VecDeque<ChargeInterval>,
    /// Charges up to here are forgotten.
    forgotten: Nanos,
    /// The stack that ended its last wait, if that was seen, and when that wait began.
    pub woken: Option<(Nanos, Arc<WakerStack>)>,
    /// Samples without a target yet.
    pending: Vec<Pending>,
    /// When the first of them was taken.
    pending_from: Nanos,
}

impl Thread {
    /// Whether it represents no single request: it reads several and works for them.
    pub(super) fn shares(&self) -> bool {
        self.multiplexer && self.kind.acts
    }

    /// A thread seen for the first time.
    pub fn new(tgid: u32) -> Self {
        Self {
            tgid,
            counters: ThreadCounters::default(),
            awaits_text: None,
            known: false,
            charged_at: 0,
            last_op: 0,
            polls_at_op: 0,
            open: SmallVec::new(),
            multiplexer: false,
            nth: 0,
            whole: true,
            lost_at: 0,
            doubt: 0,
            died: 0,
            group: ReadInterval::default(),
            pending_reads: PendingReads::default(),
            received: Received::default(),
            lap: None,
            detached_calls: DetachedCalls::default(),
            serves_tasks: false,
            closure: 0,
            works: false,
            kind: ThreadKind::default(),
            requests: RequestUse::default(),
            after_reply: None,
            serving: Serving::default(),
            last: Target::Overhead,
            history: VecDeque::new(),
            forgotten: 0,
            woken: None,
            pending: Vec::new(),
            pending_from: Nanos::MAX,
        }
    }

    /// Takes over `counters` and returns the difference to the previous ones. The counters of a running slice can
    /// exceed what the scheduler reports at its end: nothing is charged twice.
    pub fn advance(&mut self, counters: &ThreadCounters) -> Delta {
        if counters.switches.wrapping_sub(self.counters.switches) > u32::MAX / 2 {
            // Older than the known counters: the record was overtaken.
            return Delta::default();
        }
        let delta = Delta::between(&self.counters, counters);
        let old = &self.counters;
        let (cpu, runq, blocked) =
            (counters.cpu.max(old.cpu), counters.runq.max(old.runq), counters.blocked.max(old.blocked));
        self.counters = ThreadCounters { cpu, runq, blocked, ..*counters };
        delta
    }

    /// Whether the record goes on with the thread's last receive.
    pub fn is_further_piece(&self, op: &Op) -> bool {
        let Op { header, cookie, pos: end, .. } = *op;
        if header.kind == Kind::Text as u8 {
            return is_further_text(op) && header.flags & OP_TX == 0;
        }
        let before = Received { cookie, end, nanos: header.nanos, reads: op.counters.reads };
        header.flags & (OP_TX | OP_EOF | OP_DATAGRAM) == 0 && self.received == before
    }

    /// Notes where a receive ended.
    pub fn note_received(&mut self, op: &Op) {
        if op.header.flags & OP_TX != 0 {
            return;
        }
        let end = op.pos + u64::from(op.bytes);
        self.received = Received { cookie: op.cookie, end, nanos: op.header.nanos, reads: op.counters.reads };
    }

    /// Number of samples without a target.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Keeps a sample until its target is known.
    pub fn put_off(&mut self, sample: Pending) {
        self.pending_from = self.pending_from.min(sample.nanos);
        self.pending.push(sample);
    }

    /// Takes the samples up to `until`, whose target is now known. Most operations find none, or none that old: samples
    /// arrive through a ring of their own, sometimes before the operations they belong to.
    pub fn due(&mut self, until: Nanos) -> Vec<Pending> {
        if self.pending_from > until {
            return Vec::new();
        }
        let pending = std::mem::take(&mut self.pending);
        self.pending_from = Nanos::MAX;
        // Mostly all are due. They are large, so they stay where they are then.
        if pending.iter().all(|sample| sample.nanos <= until) {
            return pending;
        }
        let (due, rest) = pending.into_iter().partition(|sample| sample.nanos <= until);
        self.pending = rest;
        self.pending_from = self.pending.iter().map(|sample| sample.nanos).min().unwrap_or(Nanos::MAX);
        due
    }

    /// Takes an operation's sequence number. If records are missing since the last one, returns the requests that may
    /// no longer be its only ones: a missing record may have answered them or read another.
    pub fn follow(&mut self, nth: u32) -> Option<SmallVec<[Slot; 2]>> {
        let ahead = nth.wrapping_sub(self.nth);
        if ahead <= u32::MAX / 2 {
            self.nth = nth;
        }
        self.whole = ahead == 1;
        (!self.whole).then(|| self.lose())
    }

    /// Records are missing: returns the requests that may no longer be its only ones.
    pub fn lose(&mut self) -> SmallVec<[Slot; 2]> {
        self.doubt = PROBATION;
        self.group = ReadInterval::default();
        self.after_reply = None;
        self.lose_loop();
        std::mem::take(&mut self.open)
    }

    /// A request it read has ended; `answered`: by its answer. Otherwise (client gone, end not seen) the thread may
    /// silently go on with it while it reads others.
    pub fn over(&mut self, slot: Slot, answered: bool) {
        let held = self.open.len();
        self.open.retain(|other| *other != slot);
        if !answered && self.open.len() < held {
            self.doubt = PROBATION;
        } else if held == 1 && self.open.is_empty() {
            self.doubt = self.doubt.saturating_sub(1);
        }
    }

    /// The parents of its calls were decided: returns whether missing records make that doubtful.
    pub fn settled(&mut self) -> bool {
        let doubted = self.doubt > 0;
        self.doubt = self.doubt.saturating_sub(1);
        doubted
    }

    /// Whether its identity proves nothing: it runs several requests at once, or may do so unseen.
    pub fn several(&self) -> bool {
        self.multiplexer || self.doubt > 0
    }

    /// The request this thread holds, if it runs one at a time.
    pub fn holder(&self) -> Option<Slot> {
        if self.several() { None } else { self.open.first().copied() }
    }

    /// Remembers that its work up to `until` was charged to `target`.
    pub fn remember(&mut self, until: Nanos, target: Target) {
        if let Some(last) = self.history.back_mut()
            && last.target == target
        {
            last.until = until;
            return;
        }
        if self.history.len() == HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.forgotten = oldest.until;
        }
        self.history.push_back(ChargeInterval { until, target });
    }

    /// The target of already charged work at `nanos`; `None` if that is forgotten.
    pub fn at(&self, nanos: Nanos) -> Option<Target> {
        if nanos <= self.forgotten {
            return None;
        }
        self.history.iter().find(|stretch| nanos <= stretch.until).map(|stretch| stretch.target)
    }
}

/// Work between two counter readings of a thread, split at the wait for work in between, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Before the wait; everything if there was none.
    pub before: Cost,
    /// After the wait.
    pub after: Cost,
    /// Whether there was a wait.
    pub waited: bool,
    /// When the wait ended.
    pub wait_end: Nanos,
}

impl Delta {
    /// The difference from `old` to `new`.
    pub fn between(old: &ThreadCounters, new: &ThreadCounters) -> Self {
        let cpu = new.cpu.saturating_sub(old.cpu);
        let runq = new.runq.saturating_sub(old.runq);
        let blocked = new.blocked.saturating_sub(old.blocked);
        let switches = u64::from(new.switches.wrapping_sub(old.switches));
        let waited = new.idles != old.idles;
        if !waited {
            return Self { before: Cost { cpu, runq, blocked, switches }, ..Self::default() };
        }
        let before = new.idle_cpu.saturating_sub(old.cpu).min(cpu);
        // Run-queue time mostly follows the wake-up; the wait's own switch is not separated from others.
        Self {
            before: Cost { cpu: before, ..Cost::default() },
            after: Cost { cpu: cpu - before, runq, blocked, switches },
            waited: true,
            wait_end: new.idle_end,
        }
    }

    /// Both parts together.
    pub fn whole(&self) -> Cost {
        let mut sum = self.before;
        sum.add(self.after);
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_splits_cpu() {
        let old = ThreadCounters { cpu: 100, ..ThreadCounters::default() };
        for (new, before, after, waited) in [
            (ThreadCounters { cpu: 150, ..old }, 50, 0, false),
            (ThreadCounters { cpu: 150, idles: 1, idle_cpu: 120, ..old }, 20, 30, true),
            (ThreadCounters { cpu: 150, idles: 1, idle_cpu: 90, ..old }, 0, 50, true),
            (ThreadCounters { cpu: 150, idles: 1, idle_cpu: 900, ..old }, 50, 0, true),
            (ThreadCounters { cpu: 50, ..old }, 0, 0, false),
        ] {
            let delta = Delta::between(&old, &new);
            assert_eq!((delta.before.cpu, delta.after.cpu, delta.waited), (before, after, waited), "{new:?}");
        }
    }

    #[test]
    fn whom_work_was_for_is_not_guessed_once_it_is_forgotten() {
        let mut thread = Thread::new(1);
        let target = |n: u64| Target::Span { slot: Slot::numbered(n as u32), class: None, service: ServiceId(0) };
        for n in 1..=100 {
            thread.remember(10 * n, target(n));
        }
        let kept = HISTORY as u64;
        let first = 100 - kept + 1;
        for n in first..=100 {
            assert_eq!((thread.at(10 * n - 9), thread.at(10 * n)), (Some(target(n)), Some(target(n))), "{n}");
        }
        assert_eq!((thread.at(10 * (first - 1)), thread.at(1), thread.at(1001)), (None, None, None));
    }

    #[test]
    fn samples_are_due_in_their_order_and_once() {
        let mut thread = Thread::new(1);
        let sample = |nanos| Pending {
            nanos,
            weight: 1,
            user: Vec::new(),
            kernel: Vec::new(),
            outcome: tracer_common::unwind::Outcome::default(),
            interpreted: tracer_model::Interpreted::default(),
            off_cpu: None,
            waker: None,
            ad_hoc: false,
        };
        let due = |thread: &mut Thread, until| -> Vec<Nanos> {
            thread.due(until).iter().map(|sample| sample.nanos).collect()
        };
        for nanos in [5, 3, 9, 4] {
            thread.put_off(sample(nanos));
        }
        assert_eq!(due(&mut thread, 2), Vec::<Nanos>::new());
        assert_eq!(due(&mut thread, 5), [5, 3, 4]);
        assert_eq!((due(&mut thread, 8), thread.pending()), (Vec::new(), 1));
        thread.put_off(sample(7));
        assert_eq!(due(&mut thread, 9), [9, 7]);
        assert_eq!((due(&mut thread, Nanos::MAX), thread.pending()), (Vec::new(), 0));
    }

    #[test]
    fn a_group_ends_at_the_next_read_or_poll() {
        let at = ThreadCounters { reads: 4, polls: 2, ..ThreadCounters::default() };
        let slot = super::super::open_span::Slab::default().slots().next();
        assert!(slot.is_none());
        let group = ReadInterval::begin(None, &at);
        assert_eq!(group.current(&at), None);
        assert_eq!(group.current(&ThreadCounters { reads: 5, ..at }), None);
    }
}
