//! What is asked of the stacks that are kept.

use std::cmp::Reverse;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tracer_model::{ClassId, DimensionValues, Names, Nanos, Owner, ProtocolId, SpanId};

use super::snapshot::{Sum, Waker};
use super::{
    Filter, OffCpuWait, Period, ProfileKind, Profiles, RequestSamples, Snapshot, StoredStack, Sums, TimedSample,
    ad_hoc, stackless_waits, wakers,
};

/// Count and nanoseconds of waits with a known waker: by owner and stack of the wait, and stack of the waker.
type WakersSeen<O> = FxHashMap<((O, u32), u32), (u64, u64)>;

impl Profiles {
    /// From when to when there are samples that are wholly within a range; `None`: there are none.
    pub fn covered(&self, (from, until): (Nanos, Nanos)) -> Option<(Nanos, Nanos)> {
        let mut within = self.periods.iter().filter(|period| period.start >= from && period.end <= until);
        let first = within.next()?;
        Some((first.start, within.next_back().unwrap_or(first).end))
    }

    /// The samples of one slow request by time; `None` if it is not kept.
    pub fn timed(&self, span: SpanId) -> Option<RequestSamples> {
        let slow = self.ad_hoc.get(span)?;
        let sample = |one: &ad_hoc::Taken| {
            let (stack, process, _) = self.stacks.get(&one.stack)?.clone();
            let sample = TimedSample {
                after: one.nanos.saturating_sub(slow.start),
                weight: one.weight,
                count: one.count,
                kind: one.kind.name(),
                tid: one.tid,
                frames: Vec::new(),
            };
            Some((sample, Sum { stack, process, waker: Waker::NotShown, count: one.count, nanos: one.weight }))
        };
        let (samples, entries) = slow.taken().iter().filter_map(sample).unzip();
        Some(RequestSamples { samples, snapshot: Snapshot::new(entries, self.symbols.clone(), ProfileKind::Wall) })
    }

    /// The stacks of one slow request; `None` if it is not kept.
    pub fn snapshot_of(&self, span: SpanId, view: ProfileKind) -> Option<Snapshot> {
        let taken = self.ad_hoc.get(span)?.taken();
        let entry = |one: &ad_hoc::Taken| {
            let (stack, process, wait) = self.stacks.get(&one.stack)?.clone();
            let waker = if view == ProfileKind::Wakers { self.waker(one.waker) } else { Waker::NotShown };
            view.shows(wait.as_ref()).then_some(Sum { stack, process, waker, count: one.count, nanos: one.weight })
        };
        Some(Snapshot::new(taken.iter().filter_map(entry).collect(), self.symbols.clone(), view))
    }

    /// Calls of the classes that fit by the stack that made them, in the time of `filter`.
    pub fn call_stacks(&self, filter: &Filter, fits: impl Fn(ClassId) -> bool) -> Snapshot {
        let mut sums: FxHashMap<u32, u64> = FxHashMap::default();
        for ((of, id), count) in self.periods_of(filter).flat_map(|period| &period.calls) {
            if fits(*of) {
                *sums.entry(*id).or_default() += count;
            }
        }
        let entry = |(id, count): (u32, u64)| {
            let (stack, process, _) = self.stacks.get(&id)?.clone();
            Some(Sum { stack, process, waker: Waker::NotShown, count, nanos: 0 })
        };
        Snapshot::new(sums.into_iter().filter_map(entry).collect(), self.symbols.clone(), ProfileKind::Cpu)
    }

    /// What fits `filter`, whose service is given and whose class is not looked at, by class: those with most time, at most
    /// `classes` of them, and `first` in any case. One pass: there may be half a million counts.
    pub fn snapshots_by_class(
        &self,
        names: &Names,
        filter: &Filter,
        first: Option<ClassId>,
        classes: usize,
    ) -> Vec<(ClassId, Snapshot)> {
        let fits = |class: ClassId| {
            let info = names.class(class).filter(|info| info.protocol != ProtocolId::Declared);
            let service = filter.service.as_deref();
            info.is_some_and(|info| service.is_none_or(|name| *info.service_name == *name))
        };
        let mut sums: FxHashMap<ClassId, (u64, Sums<ClassId>)> = FxHashMap::default();
        let wakers = self.wakers(filter, |owner, values| match owner {
            Owner::Class(class) => filter.has(values).then_some(class),
            _ => None,
        });
        for (((owner, values), id), (count, nanos)) in self.periods_of(filter).flat_map(|period| &period.counts) {
            let Owner::Class(class) = owner else { continue };
            if !filter.has(*values) {
                continue;
            }
            let shown = |(_, _, wait): &(StoredStack, Arc<str>, Option<OffCpuWait>)| filter.view.shows(wait.as_ref());
            if (Some(*class) != first && !fits(*class)) || !self.stacks.get(id).is_some_and(shown) {
                continue;
            }
            let (all, stacks) = sums.entry(*class).or_default();
            *all += nanos;
            let sum = stacks.entry((*class, *id)).or_default();
            sum.0 += count;
            sum.1 += nanos;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(class, (all, _))| (Some(*class) != first, Reverse(*all), *class));
        sums.truncate(classes);
        let snapshot = |(class, (_, sums))| (class, self.snapshot_from(sums, &wakers, filter.view));
        sums.into_iter().map(snapshot).collect()
    }

    /// For how long the periods of the last `since` have been counted: they begin a while before that.
    pub fn counted_for(&self, since: Duration) -> Duration {
        let filter = Filter { since: Some(since), ..Filter::default() };
        let begin = self.periods_of(&filter).next().map_or(self.now, |period| period.start);
        Duration::from_nanos(self.now.saturating_sub(begin))
    }

    /// The periods that a filter is about.
    fn periods_of(&self, filter: &Filter) -> impl Iterator<Item = &Period> {
        let from = filter.since.map_or(0, |since| self.now.saturating_sub(since.as_nanos() as u64));
        let range = filter.range;
        // Of a range, what is wholly in it: before and after a change must not mix.
        let within = move |period: &&Period| {
            period.end > from && range.is_none_or(|(from, until)| period.start >= from && period.end <= until)
        };
        self.periods.iter().filter(within)
    }

    /// What a stack's wait was; `None`: its thread ran.
    fn wait(&self, id: u32) -> Option<&OffCpuWait> {
        self.stacks.get(&id).and_then(|(_, _, wait)| wait.as_ref())
    }

    /// The waits with a known waker that `filter` shows, of the owners that `owner` gives.
    fn wakers<O: Copy + Eq + Hash>(
        &self,
        filter: &Filter,
        owner: impl Fn(Owner, DimensionValues) -> Option<O>,
    ) -> WakersSeen<O> {
        let mut seen = WakersSeen::default();
        if filter.view != ProfileKind::Wakers {
            return seen;
        }
        for ((((of, values), wait), waker), (count, nanos)) in self.periods_of(filter).flat_map(|period| &period.wakers)
        {
            if let Some(owner) = owner(*of, *values) {
                let sum = seen.entry(((owner, *wait), *waker)).or_default();
                *sum = (sum.0 + count, sum.1 + nanos);
            }
        }
        seen
    }

    /// The stack of the waker of a wait; `None`: it was not seen.
    fn waker(&self, id: Option<u32>) -> Waker {
        let found = id.and_then(|id| self.stacks.get(&id));
        found.map_or(Waker::NotSeen, |(stack, process, _)| Waker::Seen(stack.clone(), Arc::clone(process)))
    }

    fn snapshot_from<O: Copy + Eq + Hash>(
        &self,
        mut sums: Sums<O>,
        seen: &WakersSeen<O>,
        view: ProfileKind,
    ) -> Snapshot {
        sums.retain(|(_, id), _| self.stacks.get(id).is_some_and(|(_, _, wait)| view.shows(wait.as_ref())));
        let before = if view == ProfileKind::Wakers { sums.clone() } else { Sums::default() };
        if view != ProfileKind::Cpu {
            stackless_waits::divide(&mut sums, |id| self.wait(id));
        }
        let entry = |(id, waker, (count, nanos)): (u32, Waker, (u64, u64))| {
            let (stack, process, _) = self.stacks.get(&id)?.clone();
            Some(Sum { stack, process, waker, count, nanos })
        };
        let entries = if view == ProfileKind::Wakers {
            let divided = wakers::divide(&sums, &before, seen).into_iter();
            divided.filter_map(|((id, waker), sum)| entry((id, self.waker(waker), sum))).collect()
        } else {
            let mut by_stack: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
            for ((_, id), (count, nanos)) in sums {
                let sum = by_stack.entry(id).or_default();
                *sum = (sum.0 + count, sum.1 + nanos);
            }
            by_stack.into_iter().filter_map(|(id, sum)| entry((id, Waker::NotShown, sum))).collect()
        };
        Snapshot::new(entries, self.symbols.clone(), view)
    }

    /// Copies out what fits `filter`.
    pub fn snapshot(&self, names: &Names, filter: &Filter) -> Snapshot {
        let fits = |owner: Owner| match (owner, &filter.service, &filter.class) {
            (Owner::Class(class), service, wanted) => names.class(class).is_some_and(|info| {
                // A declared transaction's samples are those of the request or the overhead around it, once more.
                (wanted.is_some() || info.protocol != ProtocolId::Declared)
                    && service.as_ref().is_none_or(|service| *info.service_name == **service)
                    && wanted.as_ref().is_none_or(|wanted| *info.name == **wanted)
            }),
            (Owner::Overhead(id), Some(service), None) => *names.service(id) == **service,
            (Owner::Overhead(_) | Owner::Kernel, None, None) => true,
            _ => false,
        };
        let mut sums: Sums<Owner> = Sums::default();
        for period in self.periods_of(filter) {
            let counts = period.counts.iter().filter(|(((owner, values), _), _)| fits(*owner) && filter.has(*values));
            for (((owner, _), id), (count, nanos)) in counts {
                let sum = sums.entry((*owner, *id)).or_default();
                sum.0 += count;
                sum.1 += nanos;
            }
        }
        let wakers = self.wakers(filter, |owner, values| (fits(owner) && filter.has(values)).then_some(owner));
        self.snapshot_from(sums, &wakers, filter.view)
    }
}
