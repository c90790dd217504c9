//! Calls of declared functions: entries and returns paired, with the request they ran in.
//!
//! A call is paired by its stack: a thread's, or a goroutine's. Its depth there is the same at entry and return, so a
//! missing record, a `longjmp`, an exception or a panic leaves calls that are deeper than what comes next: those are
//! given up and counted.
//!
//! USDT probes are marks, and need not be in one function: an end is that of the innermost call of its transaction on the
//! thread, of one that began at the same depth if there is one. A beginning that is no deeper than an open call of its
//! transaction shows that the end of that one will not come.
//!
//! What a call costs is the difference of its thread's counters. It also counts for the request (or the service's
//! overhead) around it: declared transactions are a second view of the same work.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use tracer_common::event::{
    DECLARED_RETURN, DECLARED_SHARED, DeclaredCall, DeclaredValues, SAMPLE_AD_HOC, SAMPLE_KERNEL_THREAD, Sample,
    ThreadCounters,
};
use tracer_host::guard::tables::TableUse;
use tracer_model::{Cost, Interpreted, Nanos, Owner, Side, SpanId, StackSample, TraceId};
use tracer_runtimes::declared::CallPairing;

use crate::finished_call::FinishedCall;
use crate::ids;
use crate::output::Output;
use crate::slot::Slot;
use crate::world::World;

/// Most open calls, over all stacks.
const OPEN: usize = 65_536;
/// Most open calls of one stack.
const DEEP: usize = 1024;
/// Most finished calls that are remembered by thread, for samples that are read later.
const RECENT: usize = 1024;
/// Most samples that wait.
const SAMPLES: usize = 4096;
/// How long a sample waits for the records of its time, nanoseconds.
const WAIT: Nanos = 200_000_000;
/// Most goroutines whose request is remembered.
const READERS: usize = 65_536;
/// Spans of declared calls kept by request; further ones are counted only.
pub(crate) const KEPT: usize = 64;

/// Losses, counted since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeclaredLosses {
    /// Calls that did not return: their function was left another way, or the return was not reported.
    pub unreturned: u64,
    /// Returns of calls that began before tracing, or whose entry was not reported.
    pub unmatched: u64,
    /// Calls not followed because too many were open.
    pub refused: u64,
    /// Calls whose goroutine moved to another thread: their cost is not known.
    pub moved: u64,
    /// Samples that were not examined because too many waited.
    pub samples_dropped: u64,
}

/// A call that has not returned.
#[derive(Debug)]
struct OpenCall {
    declared: usize,
    pairing: CallPairing,
    depth: u64,
    start: Nanos,
    tid: u32,
    counters: ThreadCounters,
    span: SpanId,
    trace: TraceId,
    parent: Option<SpanId>,
    request: Option<Slot>,
    values: Option<Box<DeclaredValues>>,
}

/// A finished call as samples see it.
#[derive(Clone, Copy, Debug)]
struct Interval {
    declared: usize,
    start: Nanos,
    end: Nanos,
    span: SpanId,
}

/// Every stack with open calls: process, and thread or goroutine.
type StackKey = (u32, u64);

/// Open calls.
#[derive(Debug, Default)]
pub(crate) struct DeclaredCalls {
    /// Number of declared transactions; without any, nothing here costs anything.
    count: usize,
    /// Declared transactions by number. Others were removed.
    in_use: Vec<Option<CallPairing>>,
    stacks: FxHashMap<StackKey, Vec<OpenCall>>,
    open: usize,
    recent: FxHashMap<u32, VecDeque<Interval>>,
    samples: VecDeque<StackSample>,
    /// The request that a goroutine read last.
    readers: FxHashMap<StackKey, Slot>,
    /// They are remembered for exceptions and log lines, too.
    for_others: bool,
    calls: u64,
    /// Losses.
    pub(crate) losses: DeclaredLosses,
}

impl DeclaredCalls {
    /// Expects calls of the declared transactions with these numbers. Open calls of others are given up.
    pub(crate) fn expect(&mut self, in_use: Vec<Option<CallPairing>>) {
        self.count = in_use.iter().flatten().count();
        self.in_use = in_use;
        let (in_use, losses, open) = (&self.in_use, &mut self.losses, &mut self.open);
        self.stacks.retain(|_, stack| {
            let before = stack.len();
            stack.retain(|call| in_use.get(call.declared).is_some_and(Option::is_some));
            losses.unreturned += (before - stack.len()) as u64;
            *open = open.saturating_sub(before - stack.len());
            !stack.is_empty()
        });
        if self.count == 0 {
            if !self.for_others {
                self.readers.clear();
            }
            self.recent.clear();
            self.samples.clear();
        }
    }

    /// Remembers who read a request, whether or not something is declared.
    pub(crate) fn remember_readers(&mut self) {
        self.for_others = true;
    }

    /// Whether nothing here is needed.
    fn is_idle(&self) -> bool {
        self.count == 0 && !self.for_others
    }

    /// Table use of open calls.
    pub(crate) fn table_use(&self) -> TableUse {
        TableUse::new(self.open, OPEN, self.losses.refused)
    }

    /// A task read a request.
    pub(crate) fn read(&mut self, tgid: u32, entity: u64, slot: Slot) {
        if self.is_idle() || entity == 0 {
            return;
        }
        if self.readers.len() >= READERS {
            self.readers.clear();
        }
        self.readers.insert((tgid, entity), slot);
    }

    /// The process is gone.
    pub(crate) fn forget(&mut self, tgid: u32) {
        if self.is_idle() {
            return;
        }
        let gone: usize = self.stacks.extract_if(|(of, _), _| *of == tgid).map(|(_, stack)| stack.len()).sum();
        self.open = self.open.saturating_sub(gone);
        self.losses.unreturned += gone as u64;
        self.readers.retain(|(of, _), _| *of != tgid);
    }

    /// The thread is gone.
    pub(crate) fn forget_thread(&mut self, tgid: u32, tid: u32) {
        if self.count == 0 {
            return;
        }
        let gone = self.stacks.remove(&(tgid, u64::from(tid))).map_or(0, |stack| stack.len());
        self.open = self.open.saturating_sub(gone);
        self.losses.unreturned += gone as u64;
    }

    /// Removes the calls of a stack that are deeper than `depth`. USDT probes end at any depth: of those, only the calls
    /// that `restarted` begins again.
    fn give_up_deeper(&mut self, key: StackKey, depth: u64, restarted: Option<(usize, CallPairing)>) {
        let Some(stack) = self.stacks.get(&key) else { return };
        let restarted_at =
            |call: &OpenCall| restarted.is_some_and(|(of, _)| of == call.declared) && call.depth == depth;
        let is_over =
            |call: &OpenCall| call.pairing == CallPairing::Depth && (call.depth > depth || restarted_at(call));
        let stays = |call: &OpenCall| call.pairing == CallPairing::Depth && !is_over(call);
        let from = stack.iter().rposition(stays).map_or(0, |at| at + 1);
        self.give_up(key, from, is_over);
        if let Some((declared, CallPairing::Thread)) = restarted {
            self.give_up(key, 0, |call| call.declared == declared && call.depth >= depth);
        }
    }

    /// Removes the calls of a stack from the one at `from` on that are over.
    fn give_up(&mut self, key: StackKey, from: usize, is_over: impl Fn(&OpenCall) -> bool) {
        let Some(stack) = self.stacks.get_mut(&key) else { return };
        let gone = stack.extract_if(from.min(stack.len()).., |call| is_over(call)).count();
        self.losses.unreturned += gone as u64;
        self.open = self.open.saturating_sub(gone);
    }

    /// Where the call that ends is in its stack.
    fn ending(&self, key: StackKey, declared: usize, pairing: CallPairing, depth: u64) -> Option<usize> {
        let stack = self.stacks.get(&key)?;
        // A function that ends with a call of another one can leave both at one depth.
        let found = stack.iter().rposition(|open| open.depth == depth && open.declared == declared);
        let innermost = || stack.iter().rposition(|open| open.declared == declared);
        if pairing == CallPairing::Thread { found.or_else(innermost) } else { found }
    }
}

fn key(call: &DeclaredCall) -> StackKey {
    (call.header.tgid, if call.task == 0 { u64::from(call.header.tid) } else { call.task })
}

impl DeclaredCalls {
    /// A declared function was entered, or returned.
    pub(crate) fn called(
        &mut self,
        world: &mut World,
        call: &DeclaredCall,
        values: Option<&DeclaredValues>,
        out: &mut Vec<Output>,
    ) {
        world.now = world.now.max(call.header.nanos);
        let declared = call.declared as usize;
        let pairing = match self.in_use.get(declared) {
            Some(Some(pairing)) => *pairing,
            // The last calls before its probes were detached.
            Some(None) => return,
            None => {
                self.losses.unmatched += 1;
                return;
            }
        };
        let is_begin = call.header.flags & DECLARED_RETURN == 0;
        let is_open = is_begin && self.entered(world, call, (declared, pairing), values);
        if !is_begin || (is_open && pairing == CallPairing::None) {
            self.returned(world, call, (declared, pairing), values, out);
        }
    }

    /// Keeps a sample until the records of its time are read.
    pub(crate) fn sampled(&mut self, sample: &Sample, (user, kernel, interpreted): (&[u64], &[u64], &Interpreted)) {
        let calls = self;
        // Ad hoc samples belong to no class.
        if calls.count == 0 || sample.header.flags & (SAMPLE_KERNEL_THREAD | SAMPLE_AD_HOC) != 0 {
            return;
        }
        if calls.samples.len() >= SAMPLES {
            calls.losses.samples_dropped += 1;
            return;
        }
        calls.samples.push_back(StackSample {
            nanos: sample.header.nanos,
            pid: sample.header.tgid,
            tid: sample.header.tid,
            weight: sample.period,
            user: user.to_vec(),
            kernel: kernel.to_vec(),
            outcome: tracer_common::unwind::Outcome::from_number(u32::from(sample.outcome)).unwrap_or_default(),
            interpreted: interpreted.clone(),
            off_cpu: None,
            waker: None,
            owner: Owner::Kernel,
            span: None,
            dimensions: tracer_model::DimensionValues::default(),
            ad_hoc: false,
        });
    }

    /// Gives out the samples that were taken in declared calls and whose time is over by `now`.
    pub(crate) fn report_samples(&mut self, world: &mut World, now: Nanos, out: &mut Vec<Output>) {
        if self.count == 0 {
            return;
        }
        let due = now.saturating_sub(WAIT);
        while self.samples.front().is_some_and(|sample| sample.nanos <= due)
            && let Some(sample) = self.samples.pop_front()
        {
            let service = world.processes.service(sample.pid);
            let calls = &*self;
            let at = sample.nanos;
            let recent = calls.recent.get(&sample.tid).into_iter().flatten();
            let over = recent.filter(|call| call.start <= at && at < call.end).map(|call| (call.declared, call.span));
            let of_thread = calls.stacks.get(&(sample.pid, u64::from(sample.tid)));
            let others = of_thread.is_none().then_some(&calls.stacks).into_iter().flatten();
            let others = others.filter(|((tgid, _), _)| *tgid == sample.pid).map(|(_, stack)| stack);
            let open = of_thread.into_iter().chain(others).flatten();
            let open = open.filter(|call| call.tid == sample.tid && call.start <= at);
            let mut inside: Vec<(usize, SpanId)> = over.chain(open.map(|call| (call.declared, call.span))).collect();
            // Recursion: once for each transaction.
            inside.sort_unstable_by_key(|(declared, _)| *declared);
            inside.dedup_by_key(|(declared, _)| *declared);
            for (declared, span) in inside {
                let sample = StackSample { span: Some(span), ..sample.clone() };
                out.push(Output::DeclaredSample { declared, service, sample });
            }
        }
        if now != Nanos::MAX {
            // What no waiting sample can be in.
            let keep = due.saturating_sub(WAIT);
            self.recent.retain(|_, calls| {
                while calls.front().is_some_and(|call| call.end < keep) {
                    calls.pop_front();
                }
                !calls.is_empty()
            });
        }
    }
}

impl DeclaredCalls {
    /// Whether the call is followed.
    fn entered(
        &mut self,
        world: &mut World,
        call: &DeclaredCall,
        (declared, pairing): (usize, CallPairing),
        values: Option<&DeclaredValues>,
    ) -> bool {
        let (key, header) = (key(call), &call.header);
        self.give_up_deeper(key, call.depth, Some((declared, pairing)));
        let full = self.open >= OPEN;
        let above = self.stacks.get(&key);
        if full || above.is_some_and(|stack| stack.len() >= DEEP) {
            self.losses.refused += 1;
            return false;
        }
        // USDT probes are nobody's parent: only their end shows whether they were still open.
        let above = above.and_then(|stack| stack.iter().rfind(|open| open.pairing == CallPairing::Depth));
        let around = above.map(|above| (Some(above.span), above.request, Some(above.trace)));
        let (parent, request, trace) = around.unwrap_or_else(|| {
            let request = self.request_around(world, call);
            (request.and_then(|slot| world.spans.get(slot)).map(|live| live.id), request, None)
        });
        self.calls += 1;
        let nth = self.calls;
        let opened = OpenCall {
            declared,
            pairing,
            depth: call.depth,
            start: header.nanos,
            tid: header.tid,
            counters: call.counters,
            span: ids::span(world.seed, u64::from(header.tid), nth, header.nanos, Side::Server),
            trace: trace.unwrap_or_else(|| ids::trace(world.seed, u64::from(header.tid), nth, header.nanos)),
            parent,
            request,
            values: values.copied().map(Box::new),
        };
        self.stacks.entry(key).or_default().push(opened);
        self.open += 1;
        true
    }

    /// The request that a task read last.
    pub(crate) fn read_by(&self, tgid: u32, entity: u64) -> Option<Slot> {
        self.readers.get(&(tgid, entity)).copied()
    }

    /// The request that a call runs in: the one its thread holds, or the one its goroutine read and has not answered.
    pub(crate) fn request_around(&self, world: &World, call: &DeclaredCall) -> Option<Slot> {
        let slot = if call.task == 0 {
            world.threads.get(&call.header.tid)?.holder()?
        } else {
            *self.readers.get(&(call.header.tgid, call.entity))?
        };
        let live = world.spans.get(slot)?;
        (live.end == 0 && live.side == Side::Server).then_some(slot)
    }

    fn returned(
        &mut self,
        world: &mut World,
        call: &DeclaredCall,
        (declared, pairing): (usize, CallPairing),
        values: Option<&DeclaredValues>,
        out: &mut Vec<Output>,
    ) {
        let (key, header) = (key(call), &call.header);
        self.give_up_deeper(key, call.depth, None);
        let found = self.ending(key, declared, pairing, call.depth);
        if pairing == CallPairing::Thread
            && let Some(at) = found
        {
            // Those that began within it have not ended.
            self.give_up(key, at + 1, |open| open.declared == declared);
        }
        let unmatched = u64::from(header.flags & DECLARED_SHARED == 0);
        let Some(stack) = self.stacks.get_mut(&key) else {
            self.losses.unmatched += unmatched;
            return;
        };
        let Some(open) = found.filter(|at| *at < stack.len()).map(|at| stack.remove(at)) else {
            self.losses.unmatched += unmatched;
            return;
        };
        if stack.is_empty() {
            self.stacks.remove(&key);
        }
        self.open = self.open.saturating_sub(1);
        let moved = open.tid != header.tid;
        self.losses.moved += u64::from(moved);
        let recent = self.recent.entry(open.tid).or_default();
        if recent.len() >= RECENT {
            recent.pop_front();
        }
        recent.push_back(Interval { declared, start: open.start, end: header.nanos, span: open.span });
        out.push(Output::Declared(Box::new(FinishedCall {
            declared,
            span: open.span,
            trace: open.trace,
            parent: open.parent,
            request: open.request,
            service: world.processes.service(header.tgid),
            pid: header.tgid,
            tid: header.tid,
            start: open.start,
            end: header.nanos.max(open.start),
            cost: (!moved).then(|| used(&open.counters, &call.counters)),
            value: call.value,
            go: call.task != 0,
            pairing,
            entry: open.values,
            exit: values.filter(|_| pairing != CallPairing::None).copied().map(Box::new),
        })));
    }
}

/// What a thread used between two records.
fn used(from: &ThreadCounters, to: &ThreadCounters) -> Cost {
    Cost {
        cpu: to.cpu.saturating_sub(from.cpu),
        runq: to.runq.saturating_sub(from.runq),
        blocked: to.blocked.saturating_sub(from.blocked),
        switches: u64::from(to.switches.wrapping_sub(from.switches)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::limits::Limits;
    use tracer_common::event::Header;
    use tracer_protocols::Settings;

    /// Of the transactions by number.
    const PAIRINGS: [CallPairing; 4] = [CallPairing::Depth, CallPairing::Depth, CallPairing::Thread, CallPairing::None];

    fn call(nanos: u64, flags: u8, (declared, depth): (u64, u64), cpu: u64) -> DeclaredCall {
        DeclaredCall {
            header: Header { flags, nanos, tgid: 7, tid: 8, ..Header::default() },
            declared,
            depth,
            counters: ThreadCounters { cpu, ..ThreadCounters::default() },
            ..DeclaredCall::default()
        }
    }

    fn run(calls: &[(u64, u8, (u64, u64))]) -> (Vec<FinishedCall>, DeclaredLosses) {
        let mut engine = Engine::new(Settings::default(), Limits::default(), 1);
        engine.expect_declared(PAIRINGS.map(Some).to_vec());
        let mut out = Vec::new();
        for (nanos, flags, what) in calls {
            engine.declared.called(&mut engine.world, &call(*nanos, *flags, *what, nanos / 2), None, &mut out);
        }
        let finished = out.into_iter().filter_map(|output| match output {
            Output::Declared(call) => Some(*call),
            _ => None,
        });
        (finished.collect(), engine.declared.losses)
    }

    const RETURN: u8 = DECLARED_RETURN;

    #[test]
    fn recursion_is_counted_and_nested() {
        let (calls, losses) = run(&[
            (10, 0, (0, 100)),
            (20, 0, (0, 150)),
            (30, 0, (1, 200)),
            (40, RETURN, (1, 200)),
            (50, RETURN, (0, 150)),
            (60, RETURN, (0, 100)),
        ]);
        let times: Vec<(u64, u64)> = calls.iter().map(|call| (call.start, call.end)).collect();
        assert_eq!(times, [(30, 40), (20, 50), (10, 60)]);
        assert_eq!(calls[0].parent, Some(calls[1].span));
        assert_eq!(calls[1].parent, Some(calls[2].span));
        assert_eq!(calls[2].parent, None);
        assert!(calls.iter().all(|call| call.trace == calls[0].trace));
        assert_eq!(calls[2].cost, Some(Cost { cpu: 25, ..Cost::default() }));
        assert_eq!((losses.unreturned, losses.unmatched), (0, 0));
    }

    #[test]
    fn what_is_not_declared_any_more_is_given_up() {
        let mut engine = Engine::new(Settings::default(), Limits::default(), 1);
        engine.expect_declared(vec![Some(CallPairing::Depth); 2]);
        let mut out = Vec::new();
        for (nanos, flags, what) in [(10, 0, (0, 100)), (20, 0, (1, 200))] {
            engine.declared.called(&mut engine.world, &call(nanos, flags, what, 0), None, &mut out);
        }
        engine.expect_declared(vec![None, Some(CallPairing::Depth), Some(CallPairing::Depth)]);
        assert_eq!((engine.declared.losses.unreturned, engine.declared.open), (1, 1));
        // The inner call goes on; records of the removed one that are still on the way are no losses; 7 never was.
        for (nanos, flags, what) in [
            (30, RETURN, (1, 200)),
            (40, RETURN, (0, 100)),
            (50, 0, (0, 100)),
            (60, 0, (2, 90)),
            (70, RETURN, (2, 90)),
            (80, 0, (7, 90)),
        ] {
            engine.declared.called(&mut engine.world, &call(nanos, flags, what, 0), None, &mut out);
        }
        assert_eq!(out.len(), 2);
        let DeclaredLosses { unreturned, unmatched, .. } = engine.declared.losses;
        assert_eq!((unreturned, unmatched, engine.declared.open), (1, 1, 0));
    }

    #[test]
    fn what_does_not_return_is_given_up() {
        // The inner call is left by `longjmp`; the next call is at its caller's depth.
        let (calls, losses) = run(&[
            (10, 0, (0, 100)),
            (20, 0, (1, 200)),
            (30, 0, (1, 150)),
            (40, RETURN, (1, 150)),
            (50, RETURN, (0, 100)),
        ]);
        assert_eq!(calls.len(), 2);
        assert_eq!((losses.unreturned, losses.unmatched), (1, 0));
        // Go starts a function again when its stack grew; a return without an entry.
        let (calls, losses) =
            run(&[(5, RETURN, (0, 90)), (10, 0, (0, 100)), (20, 0, (0, 100)), (30, RETURN, (0, 100))]);
        assert_eq!((calls.len(), calls[0].start), (1, 20));
        assert_eq!((losses.unreturned, losses.unmatched), (1, 1));
        // A place that is also reached in other ways, where no call is open.
        let (calls, losses) = run(&[(5, RETURN | DECLARED_SHARED, (0, 90)), (6, RETURN | DECLARED_SHARED, (1, 80))]);
        assert_eq!((calls.len(), losses.unmatched), (0, 0));
        // Two functions at one depth: the first ended with a call of the second.
        let (calls, losses) =
            run(&[(10, 0, (0, 100)), (20, 0, (1, 100)), (30, RETURN, (1, 100)), (31, RETURN, (0, 100))]);
        assert_eq!(calls.iter().map(|call| call.start).collect::<Vec<_>>(), [20, 10]);
        assert_eq!((losses.unreturned, losses.unmatched), (0, 0));
    }

    #[test]
    fn ends_of_probes_are_found_on_the_thread() {
        let times = |calls: &[FinishedCall]| calls.iter().map(|call| (call.start, call.end)).collect::<Vec<_>>();
        // Begun in one function and ended in another; a call of a function at a depth in between, and one around them.
        let (calls, losses) = run(&[
            (5, 0, (0, 80)),
            (10, 0, (2, 150)),
            (20, 0, (0, 120)),
            (30, RETURN, (0, 120)),
            (40, RETURN, (2, 90)),
            (50, RETURN, (0, 80)),
        ]);
        assert_eq!(times(&calls), [(20, 30), (10, 40), (5, 50)]);
        // Their parents are functions.
        assert_eq!([0, 1, 2].map(|n| calls[n].parent), [Some(calls[2].span), Some(calls[2].span), None]);
        assert_eq!((losses.unreturned, losses.unmatched), (0, 0));
        // Nested ones; an end that does not come, which the next beginning at that depth shows.
        let (calls, losses) = run(&[
            (10, 0, (2, 100)),
            (20, 0, (2, 200)),
            (30, RETURN, (2, 190)),
            (40, RETURN, (2, 100)),
            (50, 0, (2, 100)),
            (60, 0, (2, 100)),
            (70, RETURN, (2, 100)),
            (80, RETURN, (2, 100)),
        ]);
        assert_eq!(times(&calls), [(20, 30), (10, 40), (60, 70)]);
        assert_eq!((losses.unreturned, losses.unmatched), (1, 1));
        // The inner end does not come: the outer one's is at its own depth.
        let (calls, losses) = run(&[
            (10, 0, (2, 100)),
            (20, 0, (2, 200)),
            (30, RETURN, (2, 100)),
            (40, 0, (1, 90)),
            (50, RETURN, (1, 90)),
        ]);
        assert_eq!(times(&calls), [(10, 30), (40, 50)]);
        assert_eq!((losses.unreturned, losses.unmatched), (1, 0));
        // Without an end they are counted at once, within what is open.
        let (calls, losses) = run(&[(10, 0, (2, 100)), (20, 0, (3, 150)), (21, 0, (3, 150)), (30, RETURN, (2, 100))]);
        assert_eq!(times(&calls), [(20, 20), (21, 21), (10, 30)]);
        assert!(calls[..2].iter().all(|call| call.parent.is_none() && call.cost == Some(Cost::default())));
        assert_eq!((losses.unreturned, losses.unmatched), (0, 0));
    }
}
