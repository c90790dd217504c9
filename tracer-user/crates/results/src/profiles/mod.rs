//! Stacks per request class: kept as addresses and counts on the pipeline's thread, named on a thread of their own,
//! rendered on the caller's.

mod ad_hoc;
mod bounds;
pub mod call_sites;
mod debug_info;
mod debug_requests;
mod fault;
mod frame;
pub mod hotspots;
mod interpreted;
pub mod jit;
mod mapped;
mod naming;
mod period;
mod pprof;
mod process_names;
mod queries;
mod separate_debug;
mod shared_names;
mod snapshot;
pub mod speedscope;
mod stackless_waits;
mod symbolize;
mod unsent;
mod view;
mod wakers;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use ad_hoc::AdHoc;
pub use ad_hoc::{AdHocCounts, SlowRequest, SlowRequests};
pub use bounds::{Bounds, ProfileTables};
use call_sites::CallSites;
pub use debug_info::{by_build_id, debug_file_id};
pub use debug_requests::DebugRequests;
pub use frame::{Frame, FrameOrigin, FrameParts};
use hotspots::CodeOwners;
pub use interpreted::{Lines, ShownLines};
pub use naming::name_in_file;
use naming::{Frames, Stack};
use period::{Period, put_together};
use rustc_hash::{FxHashMap, FxHashSet};
pub use snapshot::{RequestSamples, Snapshot, TimedSample};
use stackless_waits::OffCpuWait;
use symbolize::{Means, Symbols};
use tracer_common::interpreter::{InterpretedFrame, Language};
use tracer_common::unwind::Outcome;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::TableUse;
use tracer_model::{Interpreted, Names, Nanos, Sink, SpanId, StackSample, TraceId, Wait, WakerStack};
use unsent::Unsent;
pub use unsent::{UnsentSample, UnsentSamples};
pub use view::{Filter, ProfileKind};

/// Length of a period counts can be asked for by, nanoseconds. Those older than [`FINE`] are put together by [`COARSE`], and
/// those older than [`KEPT`] go.
const PERIOD: Nanos = 10_000_000_000;
const FINE: Nanos = 900_000_000_000;
const COARSE: Nanos = 60_000_000_000;
const KEPT: Nanos = 3_600_000_000_000;
/// Most pairs of owner and stack in one period.
const PAIRS: usize = 100_000;
/// Most process ids whose programs are distinguished.
const PROCESSES: usize = 65_536;

/// A stack that is kept: by its addresses until it has names, and from then on by those.
#[derive(Clone, Debug)]
enum StoredStack {
    /// And when it was first seen.
    Seen(Arc<Stack>, Nanos),
    Named(Frames),
}

/// A named stack and the name at its root. Equal where the names are: they are shared.
#[derive(Clone, Debug)]
struct Shape(Arc<str>, Frames);

impl Shape {
    fn names(&self) -> impl Iterator<Item = *const u8> {
        self.1.iter().map(frame::Frame::address)
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 && self.1.len() == other.1.len() && self.names().eq(other.names())
    }
}

impl Eq for Shape {}

impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
        self.names().for_each(|name| name.hash(state));
    }
}

/// What a stack is of, beyond its frames in user space.
#[derive(Default)]
struct StackOf<'a> {
    kernel: &'a [u64],
    off_cpu: Option<Wait>,
    lines: bool,
}

/// Samples and nanoseconds by owner and stack.
type Sums<O> = FxHashMap<(O, u32), (u64, u64)>;

/// Stacks and counts.
#[derive(Debug)]
pub struct Profiles {
    bounds: Bounds,
    /// One part of this many of the bounds is in force; 0 = nothing is kept.
    part: usize,
    ids: HashMap<Arc<Stack>, u32>,
    /// With the name at their root, and what the wait was if the thread was off the CPU. Ids are never used twice: names arrive
    /// late.
    stacks: FxHashMap<u32, (StoredStack, Arc<str>, Option<OffCpuWait>)>,
    /// Those that have names: stacks of one function differ in addresses by the dozen, and are one to whoever looks.
    shapes: FxHashMap<Shape, u32>,
    next: u32,
    /// Pairs in all periods.
    pairs: usize,
    /// When unused stacks were looked for last.
    swept: Nanos,
    /// How many programs a process id has been; `base` for those not in it.
    generations: FxHashMap<u32, u32>,
    base: u32,
    names: FxHashMap<u32, Arc<str>>,
    periods: VecDeque<Period>,
    now: Nanos,
    symbols: Symbols,
    /// How interpreted functions are shown.
    shown: ShownLines,
    /// Whose code functions are.
    owners: Arc<CodeOwners>,
    /// Samples of single requests.
    ad_hoc: AdHoc,
    /// Stacks of calls.
    calls: CallSites,
    /// The same of exceptions that were thrown.
    thrown: CallSites,
    /// Samples for an exporter, if there is one.
    unsent: Option<Unsent>,
    /// Samples whose stack was not kept because there were too many.
    pub refused: u64,
    /// Periods let go before their time because there were too many pairs.
    periods_dropped: u64,
}

impl Profiles {
    /// Empty; starts the thread that names addresses.
    pub fn new() -> Self {
        Self::with_debug_files(&[], None)
    }

    /// The same with separate debug files in these directories; empty: where distributions install them. Those that are
    /// not there are asked for.
    pub fn with_debug_files(directories: &[PathBuf], requests: Option<DebugRequests>) -> Self {
        Self {
            bounds: Bounds::default(),
            part: 1,
            ids: HashMap::new(),
            stacks: FxHashMap::default(),
            shapes: FxHashMap::default(),
            next: 0,
            pairs: 0,
            swept: 0,
            generations: FxHashMap::default(),
            base: 0,
            names: FxHashMap::default(),
            periods: VecDeque::new(),
            now: 0,
            symbols: Symbols::start(directories, requests),
            shown: ShownLines::default(),
            owners: Arc::default(),
            ad_hoc: AdHoc::within(Bounds::default().ad_hoc()),
            calls: CallSites::within(Bounds::default().open_calls()),
            thrown: CallSites::within(Bounds::default().open_exceptions()),
            unsent: None,
            refused: 0,
            periods_dropped: 0,
        }
    }

    /// The same with these bounds.
    #[must_use]
    pub fn within(self, bounds: Bounds) -> Self {
        self.symbols.set_debug_most(bounds.debug as u64);
        self.symbols.set_maps_most(bounds.maps);
        let calls = CallSites::within(bounds.open_calls());
        let thrown = CallSites::within(bounds.open_exceptions());
        Self { bounds, ad_hoc: AdHoc::within(bounds.ad_hoc()), calls, thrown, ..self }
    }

    /// The same with interpreted functions shown like this.
    #[must_use]
    pub fn with_lines(self, shown: ShownLines) -> Self {
        self.symbols.set_lines(shown);
        Self { shown, ..self }
    }

    /// The same with functions of compiled programs shown with the line that runs, or without.
    #[must_use]
    pub fn with_native_lines(self, shown: bool) -> Self {
        self.symbols.set_native_lines(shown);
        self
    }

    /// The same with methods of Java read from the processes that run them, or not.
    #[must_use]
    pub fn with_java(self, read: bool) -> Self {
        self.symbols.set_java(read);
        self
    }

    /// The same with functions distinguished by these.
    #[must_use]
    pub fn with_owners(self, owners: CodeOwners) -> Self {
        Self { owners: Arc::new(owners), ..self }
    }

    /// Whose code functions are.
    pub fn owners(&self) -> Arc<CodeOwners> {
        Arc::clone(&self.owners)
    }

    /// Functions of a language that were read so far, and those that could not be.
    pub fn functions(&self, language: Language) -> (u64, u64) {
        self.symbols.functions(language)
    }

    /// How full everything is.
    pub fn table_use(&self) -> ProfileTables {
        let Bounds { stacks, pairs, debug: _, maps: _ } = self.bounds.part(self.part);
        let [queue, names, processes, addresses, maps] = self.symbols.table_use();
        ProfileTables {
            stacks: TableUse::new(self.stacks.len(), stacks, self.refused),
            pairs: TableUse::new(self.pairs, pairs, self.periods_dropped),
            ad_hoc: self.ad_hoc.table_use(),
            open_calls: self.calls.table_use(),
            open_exceptions: self.thrown.table_use(),
            unsent: self.unsent(),
            queue,
            names,
            processes,
            addresses,
            maps,
        }
    }

    /// Keeps one part of this many of what it may from now on; 0 keeps nothing. What is too much goes at once, the
    /// oldest first.
    pub fn keep_part(&mut self, part: usize) {
        if self.part == part {
            return;
        }
        self.part = part;
        let most = self.bounds.part(part);
        self.ad_hoc.limit(most.ad_hoc());
        self.calls.limit(most.open_calls());
        self.thrown.limit(most.open_exceptions());
        if let Some(unsent) = &mut self.unsent {
            unsent.limit(most.unsent());
        }
        while self.pairs > most.pairs && self.drop_period() {}
        self.sweep();
        while self.stacks.len() > most.stacks && self.drop_period() {
            self.sweep();
        }
    }

    /// Whether names may be read from debug information; without, few programs are read at a time. Where nothing is
    /// kept, none are.
    pub fn allow_debug_info(&self, allowed: bool) {
        self.symbols.set_means(match (self.part, allowed) {
            (0, _) => Means::None,
            (_, false) => Means::Little,
            (_, true) => Means::Ample,
        });
    }

    /// Lets the oldest period go; `false` when there is none.
    fn drop_period(&mut self) -> bool {
        let Some(period) = self.periods.pop_front() else { return false };
        self.pairs -= period.rows();
        true
    }

    /// Puts old periods together, and lets those go that are too old.
    fn age(&mut self) {
        while self.periods.front().is_some_and(|first| first.end + KEPT <= self.now) {
            self.drop_period();
        }
        self.pairs -= put_together(&mut self.periods, self.now.saturating_sub(FINE), COARSE);
    }

    /// Lets go of stacks that no period, no request and no exporter needs.
    fn sweep(&mut self) {
        self.swept = self.now;
        let mut used = FxHashSet::default();
        self.periods.iter().for_each(|period| period.used(&mut used));
        self.ad_hoc.used(&mut used);
        self.calls.used(&mut used);
        self.thrown.used(&mut used);
        if let Some(unsent) = &self.unsent {
            unsent.used(&mut used);
        }
        self.stacks.retain(|id, _| used.contains(id));
        self.ids.retain(|_, id| used.contains(id));
        self.shapes.retain(|_, id| used.contains(id));
        self.calls.forget_unused(&used);
        self.thrown.forget_unused(&used);
        self.stacks.shrink_excess();
        self.ids.shrink_excess();
        self.shapes.shrink_excess();
    }

    /// Puts names in the place of addresses, and stacks that have the same ones together.
    fn settle(&mut self) {
        let (mut same, mut from): (FxHashMap<u32, u32>, Nanos) = (FxHashMap::default(), Nanos::MAX);
        for (id, frames) in self.symbols.take_named() {
            self.calls.named(id, &frames, &self.owners, false);
            self.thrown.named(id, &frames, &self.owners, true);
            let Some((kept, process, _)) = self.stacks.get_mut(&id) else { continue };
            let StoredStack::Seen(stack, since) = kept else { continue };
            let since = *since;
            let of_call = stack.lines.then(|| Arc::clone(stack));
            self.ids.remove(stack);
            let mut first_id = id;
            let shape = Shape(Arc::clone(process), Arc::clone(&frames));
            match self.shapes.entry(shape) {
                Entry::Vacant(place) => {
                    place.insert(id);
                    *kept = StoredStack::Named(frames);
                }
                Entry::Occupied(first) => {
                    first_id = *first.get();
                    same.insert(id, first_id);
                    from = from.min(since);
                    self.stacks.remove(&id);
                }
            }
            if let Some(stack) = of_call {
                // Later calls know their place at once.
                self.calls.remember(Arc::clone(&stack), self.now);
                self.ids.insert(stack, first_id);
            }
        }
        if same.is_empty() {
            return;
        }
        self.ad_hoc.same(&same);
        self.calls.same(&same);
        self.thrown.same(&same);
        if let Some(unsent) = &mut self.unsent {
            unsent.same(&same);
        }
        for period in self.periods.iter_mut().filter(|period| period.end > from) {
            self.pairs -= period.rows();
            period.same(&same);
            self.pairs += period.rows();
        }
    }

    /// Name shown at the root of the stacks of a process.
    pub fn set_process(&mut self, pid: u32, name: &str) {
        if self.names.get(&pid).is_none_or(|known| **known != *name) {
            self.names.insert(pid, Arc::from(name));
        }
    }

    /// The process ended or replaced its program: its addresses mean something else from now on.
    pub fn process_gone(&mut self, pid: u32) {
        if self.generations.len() >= PROCESSES {
            // Start over: stacks of processes that still run are counted apart from here on, under the same names.
            self.base = self.base.wrapping_add(1 << 16);
            self.generations.clear();
        }
        *self.generations.entry(pid).or_insert(self.base) += 1;
        self.names.remove(&pid);
        if let Some(unsent) = &mut self.unsent {
            unsent.process_gone(pid);
        }
        self.symbols.forget(pid);
    }

    /// Times the thread that names stacks did not come back, and another took its place.
    pub fn stuck(&self) -> u64 {
        self.symbols.stuck()
    }

    /// Stacks kept.
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// The frame without its position, unless that is shown: stacks are told apart by what they are.
    fn shown(&self, frame: InterpretedFrame) -> InterpretedFrame {
        if self.shown.of(&frame) == Lines::Running { frame } else { InterpretedFrame { at: 0, ..frame } }
    }

    /// The id of a sample's stack; `None`: there are too many.
    fn intern(&mut self, sample: &StackSample) -> Option<u32> {
        let user = (&*sample.user, sample.outcome);
        let of = StackOf { kernel: &sample.kernel, off_cpu: sample.off_cpu.clone(), lines: false };
        self.keep(self.stack(sample.pid, user, &sample.interpreted, of))
    }

    /// The same of the thread that ended a wait.
    fn intern_waker(&mut self, WakerStack { pid, user, outcome, interpreted }: &WakerStack) -> Option<u32> {
        self.keep(self.stack(*pid, (user, *outcome), interpreted, StackOf::default()))
    }

    fn stack(
        &self,
        pid: u32,
        (user, outcome): (&[u64], Outcome),
        interpreted: &Interpreted,
        StackOf { kernel, off_cpu, lines }: StackOf<'_>,
    ) -> Stack {
        let shown = |frame: &InterpretedFrame| if lines { *frame } else { self.shown(*frame) };
        Stack {
            process: (pid, self.generations.get(&pid).copied().unwrap_or(self.base)),
            user: user.into(),
            kernel: kernel.into(),
            outcome,
            interpreted: interpreted.frames.iter().map(shown).collect(),
            interpreter_outcome: interpreted.outcome,
            language: interpreted.language,
            off_cpu,
            lines,
        }
    }

    fn keep(&mut self, stack: Stack) -> Option<u32> {
        if let Some(id) = self.ids.get(&stack) {
            return Some(*id);
        }
        let most = self.bounds.part(self.part).stacks;
        if self.stacks.len() >= most && self.now.saturating_sub(self.swept) >= PERIOD {
            // What is new counts for more than what is old: a tenth is made free, once in a period at most.
            self.sweep();
            let current = self.now / PERIOD * PERIOD;
            while self.stacks.len() > most - most / 10
                && self.periods.front().is_some_and(|period| period.start < current)
                && self.drop_period()
            {
                self.periods_dropped += 1;
                self.sweep();
            }
        }
        if self.stacks.len() >= most {
            return None;
        }
        let wait = stack.off_cpu.clone().map(|wait| OffCpuWait { wait, has_stack: !stack.user.is_empty() });
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let stack = Arc::new(stack);
        // At once: a process of a second must be read while it lives.
        self.symbols.want(id, &stack);
        let name = self.names.get(&stack.process.0).cloned().unwrap_or_else(|| Arc::from("kernel"));
        self.stacks.insert(id, (StoredStack::Seen(Arc::clone(&stack), self.now), name, wait));
        self.ids.insert(stack, id);
        Some(id)
    }

    /// The period that counts now, and most rows of it.
    fn current_period(&mut self) -> Option<(&mut Period, usize)> {
        let start = self.now / PERIOD * PERIOD;
        if self.periods.back().is_none_or(|last| last.start < start) {
            self.age();
            self.periods.push_back(Period { start, end: start + PERIOD, ..Period::default() });
        }
        // The newest stays, whatever its size: it has a bound of its own.
        while self.pairs >= self.bounds.part(self.part).pairs && self.periods.len() > 1 && self.drop_period() {
            self.periods_dropped += 1;
        }
        let most = PAIRS.min(self.bounds.part(self.part).pairs);
        Some((self.periods.back_mut()?, most))
    }

    /// A request ended; its samples are kept if `slow` says so, which is asked if there are any.
    pub fn request_ended(&mut self, span: SpanId, slow: impl FnOnce() -> Option<SlowRequest>) {
        self.ad_hoc.end(span, slow);
    }

    /// A transaction is known by another id.
    pub fn rename(&mut self, was: TraceId, trace: TraceId) {
        self.ad_hoc.rename(was, trace);
    }

    /// Slow requests that have samples of their own.
    pub fn slow_requests(&self) -> &AdHoc {
        &self.ad_hoc
    }
}

impl Default for Profiles {
    fn default() -> Self {
        Self::new()
    }
}

impl Sink for Profiles {
    fn tick(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        self.settle();
        self.ad_hoc.tick(self.now);
        self.thrown.tick(self.now);
        for stack in self.calls.tick(self.now) {
            let id = self.ids.get(&stack).and_then(|id| self.stacks.get(id));
            if matches!(id, Some((StoredStack::Named(_), ..)) | None) {
                self.ids.remove(&stack);
            }
        }
        for period in &mut self.periods {
            period.shrink();
        }
        self.names.shrink_excess();
        self.generations.shrink_excess();
    }

    fn sample(&mut self, names: &Names, sample: &StackSample) {
        self.now = self.now.max(sample.nanos);
        let id = if self.part == 0 { None } else { self.intern(sample) };
        let Some(id) = id else {
            self.refused += 1;
            if let Some(unsent) = self.unsent.as_mut().filter(|_| !sample.ad_hoc) {
                unsent.refused(names, sample);
            }
            return;
        };
        let waker = sample.waker.as_ref().and_then(|waker| self.intern_waker(waker));
        if let Some(span) = sample.span {
            self.ad_hoc.add(span, (id, waker), sample);
        }
        if sample.ad_hoc {
            // The clocks of the CPUs sample the same time for its class.
            return;
        }
        if let Some(unsent) = &mut self.unsent {
            unsent.add(names, sample, id);
        }
        let Some((period, most)) = self.current_period() else { return };
        let (before, key) = (period.rows(), ((sample.owner, sample.dimensions), id));
        let counted = period.add(key, sample.weight, most)
            && waker.is_none_or(|waker| period.add_waker(key, waker, sample.weight, most));
        let more = period.rows() - before;
        self.refused += u64::from(!counted);
        self.pairs += more;
    }
}

#[cfg(test)]
mod tests;
