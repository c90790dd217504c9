//! Stacks of single requests: kept while a request is open, and longer where it turned out slow. Pure.
//!
//! Every sample names the request it was taken in, so nothing has to be decided when it is taken: a request that ends in
//! time takes its samples with it, and one that does not has them from its beginning.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::TableUse;
use tracer_model::{ClassId, Nanos, Span, SpanId, StackSample, TraceId};

/// Most samples of one request. When it has as many, those of one stack become one.
const REQUEST: usize = 1024;
/// Of these, how many may have different stacks; where there are more, samples of others are dropped until the request ends.
const STACKS: usize = REQUEST * 3 / 4;
/// Slow requests that are kept, and those of one class: a class that is slow all the time leaves room for the others.
const KEPT: usize = 256;
const KEPT_OF_CLASS: usize = 32;
/// An open request without a sample for so long is forgotten, nanoseconds: it may have ended unseen.
const IDLE: Nanos = 600_000_000_000;
/// Threads of one request with clocks of their own that are distinguished.
const THREADS: usize = 8;

/// A class with fewer recent requests has no tail that means something.
const REQUESTS_LEAST: u64 = 100;
/// A shorter request is never slow: it has a sample or two, if any. Nanoseconds.
const SLOW_LEAST: Nanos = 20_000_000;

/// When a request counts as slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowRequests {
    /// It takes more than this many times the 99th percentile of its class; 0 = no request is slow.
    pub factor: f64,
    /// It takes longer than this, whatever its class; `None` = the factor decides.
    pub after: Option<std::time::Duration>,
}

impl Default for SlowRequests {
    fn default() -> Self {
        Self { factor: 2.0, after: None }
    }
}

impl SlowRequests {
    /// Whether no request is slow.
    pub fn is_off(&self) -> bool {
        self.after.is_none() && self.factor <= 0.0
    }

    /// From what duration on a request is slow, nanoseconds, by how many recent ones of its class there are and their 99th
    /// percentile; `None`: that cannot be said.
    pub fn threshold(&self, recent: u64, p99: Nanos) -> Option<Nanos> {
        match self.after {
            Some(after) => Some(after.as_nanos() as u64),
            None if self.factor <= 0.0 || recent < REQUESTS_LEAST => None,
            // `as` saturates.
            None => Some(((p99 as f64 * self.factor) as u64).max(SLOW_LEAST)),
        }
    }
}

/// One sample of a request, or several of the same stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// When the first of them was taken.
    pub(super) nanos: Nanos,
    /// The stack's id.
    pub(super) stack: u32,
    /// That of the stack that ended the wait.
    pub(super) waker: Option<u32>,
    pub(super) tid: u32,
    pub(super) count: u64,
    /// Time they stand for, nanoseconds.
    pub(super) weight: u64,
    pub(super) kind: SampleKind,
}

impl Taken {
    /// What samples that are counted together have in common.
    fn same(&self) -> (u32, Option<u32>, u32, SampleKind) {
        (self.stack, self.waker, self.tid, self.kind)
    }
}

/// How a sample was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SampleKind {
    /// By the clock of a CPU.
    Clock,
    /// By the clock of its thread.
    Thread,
    /// The thread was off the CPU.
    OffCpu,
}

impl SampleKind {
    fn of(sample: &StackSample) -> Self {
        match (&sample.off_cpu, sample.ad_hoc) {
            (Some(_), _) => Self::OffCpu,
            (None, true) => Self::Thread,
            (None, false) => Self::Clock,
        }
    }

    /// Label value of `tracer_ad_hoc_samples_total{kind}`, and the API's word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Thread => "thread_clock",
            Self::OffCpu => "off_cpu",
        }
    }
}

/// A request that is open, or about to be judged.
#[derive(Debug, Default)]
struct Open {
    taken: Vec<Taken>,
    /// Threads with clocks of their own: thread, and from when to when.
    clocked: Vec<(u32, Nanos, Nanos)>,
    /// It has too many different stacks: others are dropped.
    full: bool,
    dropped: u64,
    last: Nanos,
}

impl Open {
    /// Leaves out what the clocks of CPUs took while the thread had its own: both stand for the same time.
    fn settle(&mut self) {
        let clocked = &self.clocked;
        let doubled = |one: &Taken| {
            let by_own = |(tid, from, until): &(u32, Nanos, Nanos)| {
                *tid == one.tid && (*from..=*until).contains(&one.nanos) && one.kind == SampleKind::Clock
            };
            clocked.iter().any(by_own)
        };
        self.taken.retain(|one| !doubled(one));
    }

    /// Makes samples of one stack one; the time of each but the first is lost, and no weight.
    fn fold(&mut self) {
        self.settle();
        let mut first: FxHashMap<_, usize> = FxHashMap::default();
        let mut folded: Vec<Taken> = Vec::new();
        for one in &self.taken {
            let at = *first.entry(one.same()).or_insert(folded.len());
            match folded.get_mut(at) {
                Some(sum) => {
                    sum.count += one.count;
                    sum.weight += one.weight;
                }
                None => folded.push(*one),
            }
        }
        self.taken = folded;
    }
}

/// A slow request and its samples.
#[derive(Clone, Debug)]
pub struct SlowRequest {
    /// Its span.
    pub span: SpanId,
    /// Its transaction.
    pub trace: TraceId,
    /// Its class.
    pub class: ClassId,
    /// First byte read, and last byte of the reply.
    pub start: Nanos,
    /// See `start`.
    pub end: Nanos,
    /// From what duration on it counts as slow, nanoseconds.
    pub threshold: Nanos,
    /// Samples that found no room.
    dropped: u64,
    taken: Vec<Taken>,
}

impl SlowRequest {
    /// A request that took longer than `threshold`, without its samples yet.
    pub fn new(span: &Span, threshold: Nanos) -> Self {
        Self {
            span: span.id,
            trace: span.trace,
            class: span.class,
            start: span.start,
            end: span.end,
            threshold,
            dropped: 0,
            taken: Vec::new(),
        }
    }

    /// Samples that found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn taken(&self) -> &[Taken] {
        &self.taken
    }

    /// Samples on and off the CPU.
    pub fn samples(&self) -> (u64, u64) {
        let count = |off| {
            let of = self.taken.iter().filter(|one| (one.kind == SampleKind::OffCpu) == off);
            of.map(|one| one.count).sum()
        };
        (count(false), count(true))
    }
}

/// What was kept and what was not, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdHocCounts {
    /// Slow requests kept.
    pub requests: u64,
    /// Their samples by the clocks of CPUs, by those of threads, and off the CPU.
    pub samples: [u64; 3],
    /// Samples of a request with too many different stacks.
    pub request_full: u64,
    /// Samples without room among those of all open requests.
    pub open_full: u64,
    /// Samples of slow requests that made room for later ones.
    pub replaced: u64,
    /// Samples of requests whose end was not seen.
    pub unfinished: u64,
}

impl AdHocCounts {
    /// Samples of slow requests by label value.
    pub fn by_kind(&self) -> [(&'static str, u64); 3] {
        let [clock, thread, off_cpu] = self.samples;
        [(SampleKind::Clock.name(), clock), (SampleKind::Thread.name(), thread), (SampleKind::OffCpu.name(), off_cpu)]
    }

    /// Samples that were not kept, by label value.
    pub fn by_reason(&self) -> [(&'static str, u64); 4] {
        let Self { request_full, open_full, replaced, unfinished, .. } = *self;
        [("request_full", request_full), ("open_full", open_full), ("replaced", replaced), ("unfinished", unfinished)]
    }
}

/// Open requests with samples, and slow ones.
#[derive(Debug, Default)]
pub struct AdHoc {
    open: FxHashMap<SpanId, Open>,
    /// Samples of open requests, of kept ones, and the limit of each.
    open_samples: usize,
    kept_samples: usize,
    most: usize,
    kept: VecDeque<SlowRequest>,
    counts: AdHocCounts,
}

impl AdHoc {
    /// With at most so many samples of open requests, and as many of slow ones.
    pub(super) fn within(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Changes the limits; what is too much goes.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
        if self.open_samples > most {
            self.counts.open_full += self.open_samples as u64;
            self.open = FxHashMap::default();
            self.open_samples = 0;
        }
        self.make_room(0);
    }

    /// Counts since the start.
    pub fn counts(&self) -> AdHocCounts {
        self.counts
    }

    /// Use of both tables.
    pub(super) fn table_use(&self) -> [TableUse; 2] {
        let AdHocCounts { request_full, open_full, replaced, .. } = self.counts;
        [
            TableUse::new(self.open_samples, self.most, request_full + open_full),
            TableUse::new(self.kept_samples, self.most, replaced),
        ]
    }

    /// Slow requests, oldest first.
    pub fn slow(&self) -> impl DoubleEndedIterator<Item = &SlowRequest> {
        self.kept.iter()
    }

    /// The slow request with this span.
    pub fn get(&self, span: SpanId) -> Option<&SlowRequest> {
        self.kept.iter().find(|slow| slow.span == span)
    }

    /// A sample taken in a request, with the ids of its stack and of its waker's.
    pub(super) fn add(&mut self, span: SpanId, (stack, waker): (u32, Option<u32>), sample: &StackSample) {
        if self.open_samples >= self.most {
            self.counts.open_full += 1;
            return;
        }
        let open = self.open.entry(span).or_default();
        let before = open.taken.len();
        open.last = open.last.max(sample.nanos);
        let (nanos, tid, kind) = (sample.nanos, sample.tid, SampleKind::of(sample));
        if kind == SampleKind::Thread {
            // The sample stands for the time before it.
            let from = nanos.saturating_sub(sample.weight);
            if let Some((_, first, last)) = open.clocked.iter_mut().find(|(of, ..)| *of == tid) {
                (*first, *last) = ((*first).min(from), (*last).max(nanos));
            } else if open.clocked.len() < THREADS {
                open.clocked.push((tid, from, nanos));
            } else {
                open.dropped += 1;
                self.counts.request_full += 1;
                return;
            }
        }
        if before >= REQUEST && !open.full {
            open.fold();
            open.full = open.taken.len() > STACKS;
        }
        let taken = Taken { nanos, stack, waker, tid, count: 1, weight: sample.weight, kind };
        if !open.full {
            open.taken.push(taken);
        } else if let Some(sum) = open.taken.iter_mut().find(|one| one.same() == taken.same()) {
            sum.count += 1;
            sum.weight += sample.weight;
        } else {
            open.dropped += 1;
            self.counts.request_full += 1;
        }
        self.open_samples = (self.open_samples + open.taken.len()).saturating_sub(before);
    }

    /// A request ended: `slow` is asked what else is known of it, if it was slow and has samples.
    pub(super) fn end(&mut self, span: SpanId, slow: impl FnOnce() -> Option<SlowRequest>) {
        let Some(mut open) = self.open.remove(&span) else { return };
        self.open_samples = self.open_samples.saturating_sub(open.taken.len());
        let Some(slow) = slow() else { return };
        open.settle();
        open.taken.sort_by_key(|one| one.nanos);
        open.taken.shrink_to_fit();
        if open.taken.is_empty() || open.taken.len() > self.most {
            return;
        }
        let of_class = |kept: &SlowRequest| kept.class == slow.class;
        if self.kept.iter().filter(|kept| of_class(kept)).count() >= KEPT_OF_CLASS
            && let Some(at) = self.kept.iter().position(of_class)
        {
            self.replace(at);
        }
        self.make_room(open.taken.len());
        self.counts.requests += 1;
        for one in &open.taken {
            let [clock, thread, off_cpu] = &mut self.counts.samples;
            *match one.kind {
                SampleKind::Clock => clock,
                SampleKind::Thread => thread,
                SampleKind::OffCpu => off_cpu,
            } += one.count;
        }
        self.kept_samples += open.taken.len();
        self.kept.push_back(SlowRequest { taken: open.taken, dropped: open.dropped, ..slow });
    }

    /// Lets the oldest go until there is room for one more with so many samples.
    fn make_room(&mut self, samples: usize) {
        while !self.kept.is_empty() && (self.kept.len() >= KEPT || self.kept_samples + samples > self.most) {
            self.replace(0);
        }
    }

    fn replace(&mut self, at: usize) {
        if let Some(old) = self.kept.remove(at) {
            self.kept_samples = self.kept_samples.saturating_sub(old.taken.len());
            self.counts.replaced += old.taken.iter().map(|one| one.count).sum::<u64>();
        }
    }

    /// A transaction is known by another id.
    pub(super) fn rename(&mut self, was: TraceId, trace: TraceId) {
        for slow in self.kept.iter_mut().filter(|slow| slow.trace == was) {
            slow.trace = trace;
        }
    }

    /// Forgets open requests that were not heard of for long.
    pub(super) fn tick(&mut self, now: Nanos) {
        let (mut samples, mut lost) = (0, 0);
        self.open.retain(|_, open| {
            let keep = open.last.saturating_add(IDLE) > now;
            *(if keep { &mut samples } else { &mut lost }) += open.taken.len();
            keep
        });
        self.open_samples = samples;
        self.counts.unfinished += lost as u64;
        self.open.shrink_excess();
    }

    /// Adds the ids of all stacks that are needed.
    pub(super) fn used(&self, ids: &mut FxHashSet<u32>) {
        let open = self.open.values().flat_map(|open| &open.taken);
        let all = open.chain(self.kept.iter().flat_map(|slow| &slow.taken));
        ids.extend(all.flat_map(|one| [Some(one.stack), one.waker]).flatten());
    }

    /// Stacks turned out to be others: the id of each, and that of the other.
    pub(super) fn same(&mut self, ids: &FxHashMap<u32, u32>) {
        let open = self.open.values_mut().flat_map(|open| &mut open.taken);
        for one in open.chain(self.kept.iter_mut().flat_map(|slow| &mut slow.taken)) {
            one.stack = ids.get(&one.stack).copied().unwrap_or(one.stack);
            one.waker = one.waker.map(|waker| ids.get(&waker).copied().unwrap_or(waker));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tracer_model::{Interpreted, Owner};

    fn sample(nanos: Nanos, tid: u32, ad_hoc: bool) -> StackSample {
        StackSample {
            nanos,
            pid: 1,
            tid,
            weight: if ad_hoc { 1 } else { 10 },
            user: Vec::new(),
            kernel: Vec::new(),
            outcome: tracer_common::unwind::Outcome::Complete,
            interpreted: Interpreted::default(),
            off_cpu: None,
            waker: None,
            owner: Owner::Kernel,
            span: None,
            dimensions: tracer_model::DimensionValues::default(),
            ad_hoc,
        }
    }

    pub(in super::super) fn slow(span: u64, class: u32) -> SlowRequest {
        SlowRequest {
            span: SpanId(span),
            trace: TraceId(u128::from(span)),
            class: ClassId(class),
            start: 0,
            end: 1000,
            threshold: 10,
            dropped: 0,
            taken: Vec::new(),
        }
    }

    #[test]
    fn what_is_slow_is_what_the_class_seldom_is() {
        let (milli, own) = (1_000_000, SlowRequests::default());
        assert_eq!(own.threshold(99, 50 * milli), None, "too few requests");
        assert_eq!(own.threshold(100, 50 * milli), Some(100 * milli));
        assert_eq!(own.threshold(100, milli), Some(SLOW_LEAST));
        assert_eq!(own.threshold(100, u64::MAX), Some(u64::MAX));
        let fixed = SlowRequests { after: Some(std::time::Duration::from_millis(5)), factor: 0.0 };
        assert_eq!((fixed.threshold(0, 0), fixed.is_off()), (Some(5 * milli), false));
        let off = SlowRequests { after: None, factor: 0.0 };
        assert_eq!((off.threshold(1000, 0), off.is_off()), (None, true));
    }

    #[test]
    fn a_slow_request_keeps_its_beginning_and_a_quick_one_nothing() {
        let mut all = AdHoc::within(10_000);
        for at in 1..=10 {
            all.add(SpanId(1), (7, None), &sample(at * 10, 5, false));
            all.add(SpanId(2), (8, None), &sample(at * 10, 6, false));
        }
        all.end(SpanId(1), || Some(slow(1, 0)));
        all.end(SpanId(2), || None);
        let kept = all.get(SpanId(1)).unwrap();
        assert_eq!((kept.samples(), kept.taken[0].nanos, kept.taken[0].stack), ((10, 0), 10, 7));
        assert!(all.get(SpanId(2)).is_none() && all.open.is_empty() && all.open_samples == 0);
        assert_eq!((all.counts().requests, all.counts().samples), (1, [10, 0, 0]));
    }

    #[test]
    fn time_that_a_threads_own_clock_samples_counts_once() {
        let mut all = AdHoc::within(10_000);
        // Every 10, and from 100 to 200 every 1; another thread goes on.
        for at in 1..=30 {
            all.add(SpanId(1), (7, None), &sample(at * 10, 5, false));
        }
        for at in 101..=200 {
            all.add(SpanId(1), (7, None), &sample(at, 5, true));
        }
        all.add(SpanId(1), (7, None), &sample(150, 6, false));
        all.end(SpanId(1), || Some(slow(1, 0)));
        let taken = &all.get(SpanId(1)).unwrap().taken;
        let weight = |tid| taken.iter().filter(|one| one.tid == tid).map(|one| one.weight).sum::<u64>();
        // The clock's sample at 100 stands for the time before it, and that at the first moment of the other goes.
        assert_eq!((weight(5), weight(6)), (90 + 100 + 100, 10));
    }

    #[test]
    fn many_samples_fold_and_lose_no_weight() {
        let mut all = AdHoc::within(100_000);
        for at in 0..10_000u64 {
            all.add(SpanId(1), ((at % 50) as u32, None), &sample(at, 5, false));
            assert!(all.open_samples <= REQUEST, "{}", all.open_samples);
        }
        for stack in 0..2000 {
            all.add(SpanId(2), (stack, None), &sample(u64::from(stack), 5, false));
        }
        let dropped = all.counts().request_full;
        assert!((900..1300).contains(&dropped), "{dropped}");
        all.end(SpanId(1), || Some(slow(1, 0)));
        all.end(SpanId(2), || Some(slow(2, 0)));
        let kept = all.get(SpanId(1)).unwrap();
        let weight: u64 = kept.taken.iter().map(|one| one.weight).sum();
        assert_eq!((kept.samples().0, weight, kept.taken[0].nanos), (10_000, 100_000, 0));
        assert_eq!(all.get(SpanId(2)).unwrap().dropped, dropped);
    }

    #[test]
    fn everything_is_bounded_and_counted() {
        let mut all = AdHoc::within(100);
        for span in 0..150 {
            all.add(SpanId(span), (1, None), &sample(1, 5, false));
        }
        assert_eq!((all.open_samples, all.counts().open_full), (100, 50));
        all.tick(IDLE + 1);
        assert_eq!((all.open_samples, all.counts().unfinished), (0, 100));
        // A class that is always slow leaves the others' alone.
        for span in 0..200 {
            all.add(SpanId(span), (1, None), &sample(IDLE, 5, false));
            all.end(SpanId(span), || Some(slow(span, u32::from(span > 0))));
        }
        assert!(all.get(SpanId(0)).is_some() && all.get(SpanId(1)).is_none());
        assert_eq!((all.kept.len(), all.kept_samples, all.counts().replaced), (KEPT_OF_CLASS + 1, 33, 167));
        all.rename(TraceId(199), TraceId(7));
        assert_eq!(all.get(SpanId(199)).unwrap().trace, TraceId(7));
        let mut used = FxHashSet::default();
        all.same(&FxHashMap::from_iter([(1, 3)]));
        all.used(&mut used);
        assert_eq!(used.into_iter().collect::<Vec<_>>(), [3]);
        all.limit(10);
        assert_eq!((all.kept.len(), all.kept_samples), (10, 10));
        all.limit(0);
        assert_eq!(all.table_use().map(|table| table.entries), [0, 0]);
    }
}
