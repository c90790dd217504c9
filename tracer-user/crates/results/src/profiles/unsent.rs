//! Samples that an exporter has not had yet: sums by process, owner and stack. Each is handed out once.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use tracer_host::guard::tables::TableUse;
use tracer_host::instance::Instance;
use tracer_host::process::ProcessFacts;
use tracer_model::{Names, Nanos, Owner, ProtocolId, StackSample};

use super::snapshot::{Sum, Waker};
use super::{Frame, PROCESSES, ProfileKind, Profiles, ShownLines, Snapshot, stackless_waits};

/// Place of the process in [`Unsent::sampled`], and owner; and stack.
type UnsentKey = ((u32, Owner), u32);

/// Samples since an exporter last took them.
#[derive(Debug)]
pub(super) struct Unsent {
    /// Most sums.
    most: usize,
    since: Nanos,
    /// Processes with samples; one whose id was used again is another.
    sampled: Vec<Arc<Instance>>,
    places: FxHashMap<u32, u32>,
    /// Processes by their ids, until they are gone.
    instances: FxHashMap<u32, Arc<Instance>>,
    sums: FxHashMap<UnsentKey, (u64, u64)>,
    /// Samples that found no room, since last asked and since the start.
    dropped: u64,
    dropped_ever: u64,
}

impl Unsent {
    fn new(most: usize, since: Nanos) -> Self {
        Self {
            most,
            since,
            sampled: Vec::new(),
            places: FxHashMap::default(),
            instances: FxHashMap::default(),
            sums: FxHashMap::default(),
            dropped: 0,
            dropped_ever: 0,
        }
    }

    /// Changes the limit; what is there goes if it is too much.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
        if self.sums.len() > most {
            self.count_dropped(self.sums.values().map(|(count, _)| count).sum());
            self.clear();
        }
    }

    fn clear(&mut self) {
        (self.sampled, self.places, self.sums) = Default::default();
    }

    fn count_dropped(&mut self, samples: u64) {
        self.dropped += samples;
        self.dropped_ever += samples;
    }

    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.sums.len(), self.most, self.dropped_ever)
    }

    /// A sample whose stack is not kept.
    pub(super) fn refused(&mut self, names: &Names, sample: &StackSample) {
        if is_exported(names, sample) {
            self.count_dropped(1);
        }
    }

    /// A sample with its stack's id.
    pub(super) fn add(&mut self, names: &Names, sample: &StackSample, stack: u32) {
        if !is_exported(names, sample) {
            return;
        }
        let place = self.places.get(&sample.pid).copied();
        let known = place.is_some_and(|place| self.sums.contains_key(&((place, sample.owner), stack)));
        if !known && self.sums.len() >= self.most {
            self.count_dropped(1);
            return;
        }
        let place = place.unwrap_or_else(|| {
            let place = self.sampled.len() as u32;
            let unknown = || Arc::new(Instance::unknown(sample.pid));
            self.sampled.push(self.instances.get(&sample.pid).cloned().unwrap_or_else(unknown));
            self.places.insert(sample.pid, place);
            place
        });
        let sum = self.sums.entry(((place, sample.owner), stack)).or_default();
        sum.0 += 1;
        sum.1 += sample.weight;
    }

    /// A process is what these facts say, from now on.
    fn process(&mut self, pid: u32, facts: &ProcessFacts) {
        let instance = Arc::new(Instance::new(pid, facts));
        let place = self.places.get(&pid).and_then(|place| self.sampled.get_mut(*place as usize));
        match place {
            Some(sampled) if **sampled == Instance::unknown(pid) => *sampled = Arc::clone(&instance),
            Some(sampled) if *sampled != instance => {
                self.places.remove(&pid);
            }
            _ => {}
        }
        // Beyond it, profiles have the process's id only.
        if self.instances.len() < PROCESSES || self.instances.contains_key(&pid) {
            self.instances.insert(pid, instance);
        }
    }

    pub(super) fn process_gone(&mut self, pid: u32) {
        self.places.remove(&pid);
        self.instances.remove(&pid);
    }

    /// Stacks that are the same as others, by id.
    pub(super) fn same(&mut self, same: &FxHashMap<u32, u32>) {
        let moved: Vec<UnsentKey> = self.sums.keys().filter(|(_, stack)| same.contains_key(stack)).copied().collect();
        for (from, stack) in moved {
            let (Some((count, nanos)), Some(first)) = (self.sums.remove(&(from, stack)), same.get(&stack)) else {
                continue;
            };
            let sum = self.sums.entry((from, *first)).or_default();
            sum.0 += count;
            sum.1 += nanos;
        }
    }

    /// Adds the stacks that are needed.
    pub(super) fn used(&self, used: &mut FxHashSet<u32>) {
        used.extend(self.sums.keys().map(|(_, stack)| *stack));
    }
}

/// Whether a sample belongs to a service and is its first account: a declared transaction's samples are those of the request or
/// the overhead around it, once more.
fn is_exported(names: &Names, sample: &StackSample) -> bool {
    match sample.owner {
        Owner::Class(class) => names.class(class).is_some_and(|info| info.protocol != ProtocolId::Declared),
        Owner::Overhead(_) => true,
        Owner::Kernel => false,
    }
}

/// Samples of one stack of a process, in one class.
#[derive(Clone, Debug)]
pub struct UnsentSample {
    /// Their process.
    pub instance: Arc<Instance>,
    /// Its service.
    pub service: Arc<str>,
    /// Name and protocol of the request class; `None`: outside any request.
    pub class: Option<(Arc<str>, ProtocolId)>,
    /// Whether the thread was off the CPU.
    pub off_cpu: bool,
    /// Samples.
    pub count: u64,
    /// Time they stand for, nanoseconds.
    pub nanos: u64,
    /// Frames, outermost first.
    pub frames: Vec<Frame>,
}

/// Samples of some time, to be named on another thread.
#[derive(Debug)]
pub struct UnsentSamples {
    /// From when to when they were counted, by the clock of the records.
    pub since: Nanos,
    /// See `since`.
    pub until: Nanos,
    /// How interpreted functions are shown.
    pub lines: ShownLines,
    samples: Vec<UnsentSample>,
    /// Their stacks, in the same order.
    snapshot: Snapshot,
}

impl UnsentSamples {
    /// Samples in it.
    pub fn count(&self) -> u64 {
        self.snapshot.samples()
    }

    /// With names.
    pub fn named(self) -> Vec<UnsentSample> {
        let named = self.snapshot.named().into_iter();
        let with_names = |(sample, (mut frames, ..)): (UnsentSample, (Vec<Frame>, u64, u64))| {
            // The first one is the service's name.
            UnsentSample { frames: frames.split_off(1), ..sample }
        };
        self.samples.into_iter().zip(named).map(with_names).collect()
    }
}

impl Profiles {
    /// Samples are kept for an exporter, too, from `now` on.
    pub fn keep_unsent(&mut self, now: Nanos) {
        self.unsent = Some(Unsent::new(self.bounds.part(self.part).unsent(), now));
    }

    /// What process `pid` is, for an exporter.
    pub fn set_instance(&mut self, pid: u32, facts: &ProcessFacts) {
        if let Some(unsent) = &mut self.unsent {
            unsent.process(pid, facts);
        }
    }

    /// How many sums wait for an exporter.
    pub fn unsent(&self) -> TableUse {
        self.unsent.as_ref().map_or_else(TableUse::default, Unsent::table_use)
    }

    /// Samples for an exporter that found no room since last asked.
    pub fn take_unsent_dropped(&mut self) -> u64 {
        self.unsent.as_mut().map_or(0, |unsent| std::mem::take(&mut unsent.dropped))
    }

    /// Hands out what was sampled since the last time; `None` if that is nothing.
    pub fn take_unsent(&mut self, names: &Names, now: Nanos) -> Option<UnsentSamples> {
        let unsent = self.unsent.as_mut()?;
        let since = std::mem::replace(&mut unsent.since, now);
        let (sampled, mut sums) = (std::mem::take(&mut unsent.sampled), std::mem::take(&mut unsent.sums));
        unsent.clear();
        stackless_waits::divide(&mut sums, |id| self.stacks.get(&id).and_then(|(_, _, wait)| wait.as_ref()));
        let (mut samples, mut stacks) = (Vec::with_capacity(sums.len()), Vec::with_capacity(sums.len()));
        let mut lost = 0;
        for (((place, owner), id), (count, nanos)) in sums {
            let class = match owner {
                Owner::Class(class) => names.class(class),
                _ => None,
            };
            let service = match (owner, class) {
                (_, Some(class)) => Some(Arc::clone(&class.service_name)),
                (Owner::Overhead(service), _) => Some(names.service(service)),
                _ => None,
            };
            let (Some(instance), Some(service), Some((stack, process, wait))) =
                (sampled.get(place as usize), service, self.stacks.get(&id))
            else {
                // Each of them was there when the sample was counted, and stays for as long as it is.
                lost += count;
                continue;
            };
            samples.push(UnsentSample {
                instance: Arc::clone(instance),
                service,
                class: class.map(|class| (Arc::clone(&class.name), class.protocol)),
                off_cpu: wait.is_some(),
                count,
                nanos,
                frames: Vec::new(),
            });
            let process = Arc::clone(process);
            stacks.push(Sum { stack: stack.clone(), process, waker: Waker::NotShown, count, nanos });
        }
        if lost > 0 {
            unsent.count_dropped(lost);
        }
        let snapshot = Snapshot::new(stacks, self.symbols.clone(), ProfileKind::Wall);
        let all = UnsentSamples { since, until: now, lines: self.shown, samples, snapshot };
        (!all.samples.is_empty()).then_some(all)
    }
}
