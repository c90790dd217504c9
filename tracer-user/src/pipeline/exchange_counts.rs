//! Exchanges that the kernel side counts itself (`tracer_common::exchange_counts`): in which processes it may, which requests it
//! knows, and what it counted.
//!
//! A process qualifies by what is seen of it while everything is reported: it only serves or only calls, in one protocol
//! whose exchanges follow each other, and no call of it is for a request. What else it may do later ends that at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tracer_common::exchange_counts::{ClassCosts, ClassLimits, CountingRule, ExchangeSums, RequestPrefix, SumsKey};
use tracer_common::limits::COUNTED_CLASSES_MAX;
use tracer_host::guard::tables::TableUse;
use tracer_model::{ClassId, Cost, Nanos, Outcome, Owner, Side, Sink, Span, SpanId};
use tracer_transactions::process_costs::ProcessWork;
use tracer_transactions::request_prefixes::{Beginning, RequestPrefixes, rule};

use self::counted_spans::{mean_costs, since, spans};
use self::noteworthy::LastSecondDurations;
use self::qualification::{ExchangeRate, ProcessState, Refusal, SEEN_BEFORE, STATES, refusal};
use super::Pipeline;

mod counted_spans;
mod noteworthy;
mod qualification;

/// Most processes that are looked at.
const PROCESSES: usize = 4096;

/// What the kernel side is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountingOrder {
    /// Exchanges of this process may be counted by this rule, or not any more.
    Process(u32, Option<CountingRule>),
    /// Requests that begin so are of this class of its numbering.
    Learn(Box<RequestPrefix>, u32),
    /// It does not know this beginning any more.
    Forget(Box<RequestPrefix>),
    /// Which exchanges of this class are reported one by one as well.
    Limit(u32, ClassLimits),
    /// The number of this class may become another's.
    Clear(u32),
}

/// Which requests share a class of the kernel's numbering.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ClassKey {
    pid: u32,
    class: ClassId,
    method: Arc<str>,
    version: &'static str,
    peer_port: u16,
}

#[derive(Debug)]
struct CountedClass {
    key: ClassKey,
    /// A request that was seen whole.
    example: Span,
    /// What was read last, by outcome.
    sums: HashMap<u64, ExchangeSums>,
    costs: ClassCosts,
}

/// What the kernel side counts, as this side knows it.
#[derive(Debug, Default)]
pub struct ExchangeCounts {
    on: bool,
    /// Of a process with many exchanges only some are seen whole, though there is room for all.
    adapts: bool,
    processes: HashMap<u32, ProcessState>,
    /// By the kernel's number; 0 is none.
    classes: Vec<Option<CountedClass>>,
    numbers: HashMap<ClassKey, u32>,
    free: Vec<u32>,
    orders: Vec<CountingOrder>,
    /// Exchanges that were seen whole since the last reading, and the share of these then.
    reported: u64,
    ratio: f64,
    /// Exchanges that were only counted.
    counted: u64,
    refused: u64,
    crowded: u64,
    /// What was used for exchanges that had not ended at the last reading, by process and class.
    waiting: HashMap<(u32, ClassId), Cost>,
}

impl ExchangeCounts {
    /// Begins to look for processes that qualify.
    pub fn start(&mut self, adapts: bool) {
        (self.on, self.adapts) = (true, adapts);
        self.ratio = 1.0;
        self.classes.push(None);
    }

    /// Every request is to be seen whole from now on.
    fn stop(&mut self, prefixes: &mut RequestPrefixes) {
        self.on = false;
        let qualified = self.processes.drain().filter(|(_, process)| matches!(process, ProcessState::Qualified(..)));
        self.orders.extend(qualified.map(|(pid, _)| CountingOrder::Process(pid, None)));
        forget(prefixes, &mut self.orders, |_, _| true);
    }

    /// What the kernel side is to do, since last taken.
    pub fn take_orders(&mut self) -> std::vec::Drain<'_, CountingOrder> {
        self.orders.drain(..)
    }

    /// Of the exchanges between the last two readings, the share that was seen whole (1 if there were none), and how many were
    /// not since the start.
    pub fn detail(&self) -> (f64, u64) {
        (self.ratio, self.counted)
    }

    /// A span ended that was seen whole.
    fn seen(&mut self, prefixes: &mut RequestPrefixes, span: &Span, beginning: Option<Beginning>) {
        self.reported += 1;
        if self.processes.len() >= PROCESSES && !self.processes.contains_key(&span.pid) {
            self.crowded += 1;
            return;
        }
        let now = ProcessState::Seen(span.side, span.protocol, 0);
        let process = self.processes.entry(span.pid).or_insert(now);
        let (side, protocol) = match process {
            ProcessState::Seen(side, protocol, _) => (*side, *protocol),
            ProcessState::Qualified(side, protocol, load) => {
                load.seen += 1;
                load.joined |= span.parent.is_some() || span.callee.is_some();
                (*side, *protocol)
            }
            ProcessState::Refused(_) => return,
        };
        if let Some(why) = refusal(side, protocol, span) {
            self.refuse(prefixes, span.pid, why);
            return;
        }
        if let ProcessState::Seen(_, _, seen) = process {
            *seen += 1;
            if *seen < SEEN_BEFORE {
                return;
            }
            *process = ProcessState::Qualified(side, protocol, ExchangeRate::default());
            self.orders.push(CountingOrder::Process(span.pid, rule(protocol)));
        }
        match beginning {
            Some(Beginning::Known(class)) => {
                // Classes merge as more paths are seen.
                let known = self.classes.get(class as usize).and_then(Option::as_ref);
                if known.is_none_or(|known| known.key.class != span.class) {
                    forget(prefixes, &mut self.orders, |_, other| other == class);
                }
            }
            Some(Beginning::New(prefix)) if is_alone(span, &prefix) => {
                let Some(class) = self.class_of(prefixes, span) else { return };
                let dropped = prefixes.learn(*prefix, class);
                self.orders.extend(dropped.into_iter().map(|prefix| CountingOrder::Forget(Box::new(prefix))));
                self.orders.push(CountingOrder::Learn(prefix, class));
            }
            _ => {}
        }
    }

    /// Requests of a process are to be seen whole from now on.
    fn refuse(&mut self, prefixes: &mut RequestPrefixes, pid: u32, why: Refusal) {
        if let Some(ProcessState::Qualified(..)) = self.processes.insert(pid, ProcessState::Refused(why)) {
            self.orders.push(CountingOrder::Process(pid, None));
            forget(prefixes, &mut self.orders, |tgid, _| tgid == pid);
        }
    }

    /// The kernel's number of a span's class; `None` if there are too many.
    fn class_of(&mut self, prefixes: &mut RequestPrefixes, span: &Span) -> Option<u32> {
        let peer_port = if span.side == Side::Client { span.peer_port } else { 0 };
        let (class, method, version) = (span.class, Arc::clone(&span.method), span.version);
        let key = ClassKey { pid: span.pid, class, method, version, peer_port };
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.classes.len() < COUNTED_CLASSES_MAX as usize => {
                self.classes.push(None);
                self.classes.len() as u32 - 1
            }
            None => {
                self.refused += 1;
                return None;
            }
        };
        let example = Span {
            // It stands for many: none of them is a part of a transaction that can be shown.
            id: SpanId(0),
            parent: None,
            linked: None,
            carried: None,
            opening: None,
            process_end: None,
            exception: None,
            thrown_at: None,
            log_lines: None,
            called_from: None,
            kept: None,
            request_id: None,
            pool_queue: None,
            ..span.clone()
        };
        *self.classes.get_mut(number as usize)? =
            Some(CountedClass { key: key.clone(), example, sums: HashMap::new(), costs: ClassCosts::default() });
        prefixes.number(number, span.class);
        self.numbers.insert(key, number);
        Some(number)
    }

    /// A process is gone.
    fn gone(&mut self, prefixes: &mut RequestPrefixes, pid: u32) {
        if !matches!(self.processes.remove(&pid), Some(ProcessState::Qualified(..) | ProcessState::Refused(_))) {
            return;
        }
        forget(prefixes, &mut self.orders, |tgid, _| tgid == pid);
        for (number, class) in self.classes.iter_mut().enumerate() {
            if class.as_ref().is_some_and(|class| class.key.pid == pid) {
                if let Some(class) = class.take() {
                    self.numbers.remove(&class.key);
                }
                prefixes.free(number as u32);
                self.orders.push(CountingOrder::Clear(number as u32));
                self.free.push(number as u32);
            }
        }
    }

    /// What was counted since the last reading: spans to be counted so many times, and costs.
    fn read(&mut self, now: Nanos, sums: &[(SumsKey, ExchangeSums)], costs: &[(u32, ClassCosts)]) -> Counted {
        let mut counted = Counted::default();
        let before_this = self.counted;
        let mut last = LastSecondDurations::default();
        for (key, sums) in sums {
            let Some(class) = self.classes.get_mut(key.class as usize).and_then(Option::as_mut) else { continue };
            let before = class.sums.insert(key.outcome, *sums);
            let more = since(sums, before.as_ref());
            let count = more.count();
            if count == 0 {
                continue;
            }
            self.counted += count;
            last.add(key.class, &more);
            if let Some(ProcessState::Qualified(_, _, load)) = self.processes.get_mut(&class.key.pid) {
                load.seen += count;
            }
            spans(&class.example, key.outcome, &more, now, &mut counted.spans);
        }
        for (number, used) in costs {
            let Some(class) = self.classes.get_mut(*number as usize).and_then(Option::as_mut) else { continue };
            let before = std::mem::replace(&mut class.costs, *used);
            let cost = Cost {
                cpu: used.cpu.saturating_sub(before.cpu),
                runq: used.runq.saturating_sub(before.runq),
                blocked: used.blocked.saturating_sub(before.blocked),
                switches: 0,
            };
            if cost != Cost::default() {
                counted.costs.push((class.key.pid, class.key.class, cost));
            }
        }
        let all = self.reported + self.counted - before_this;
        self.ratio = if all == 0 { 1.0 } else { self.reported as f64 / all as f64 };
        self.reported = 0;
        self.adapt();
        self.limit(&last);
        counted
    }

    /// A second has passed: decides how many exchanges of each process are seen whole.
    fn adapt(&mut self) {
        for (pid, process) in &mut self.processes {
            let ProcessState::Qualified(_, protocol, load) = process else { continue };
            let second = std::mem::take(&mut load.seen);
            let reported = load.reported_of(second);
            load.joined = false;
            if self.adapts && reported != load.reported {
                load.reported = reported;
                let rule = rule(*protocol).map(|rule| CountingRule { reported, ..rule });
                self.orders.push(CountingOrder::Process(*pid, rule));
            }
        }
    }

    /// Processes by whether their exchanges may be counted unseen, or why not.
    pub fn states(&self) -> BTreeMap<&'static str, u64> {
        let mut states: BTreeMap<_, _> = STATES.map(|state| (state, 0)).into();
        for process in self.processes.values() {
            *states.entry(process.state()).or_default() += 1;
        }
        states
    }

    /// Numbers in use, for which costs are read.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.numbers.values().copied()
    }

    /// Whether anything can have been counted.
    pub fn is_in_use(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// Processes looked at, and classes.
    pub(super) fn table_use(&self) -> [TableUse; 2] {
        [
            TableUse::new(self.processes.len(), PROCESSES, self.crowded),
            TableUse::new(self.numbers.len(), COUNTED_CLASSES_MAX as usize, self.refused),
        ]
    }
}

/// Whether the operation that begins so carried this request and nothing else, and it was answered.
fn is_alone(span: &Span, prefix: &RequestPrefix) -> bool {
    span.outcome == Outcome::Complete && span.request_bytes == u64::from(prefix.bytes) && span.reply_bytes > 0
}

/// What the kernel side counted: spans, each with how many exchanges it stands for, and costs by process and class.
#[derive(Debug, Default)]
struct Counted {
    spans: Vec<(Span, u64)>,
    costs: Vec<(u32, ClassId, Cost)>,
}

fn forget(prefixes: &mut RequestPrefixes, orders: &mut Vec<CountingOrder>, is_over: impl Fn(u32, u32) -> bool) {
    orders.extend(prefixes.forget(is_over).into_iter().map(|prefix| CountingOrder::Forget(Box::new(prefix))));
}

impl Pipeline {
    /// Has exchanges counted in the kernel where user space cannot keep up.
    /// `adapts`: also where it can, of processes with many exchanges.
    pub fn count_in_kernel(&mut self, adapts: bool) {
        self.exchange_counts.start(adapts);
        self.engine.prefixes().start();
    }

    /// Has every request seen whole from now on: a new configuration looks at more than its beginning.
    pub fn see_all_whole(&mut self) {
        self.exchange_counts.stop(self.engine.prefixes());
    }

    /// A span ended that was seen whole.
    pub(super) fn seen_whole(&mut self, span: &Span, beginning: Option<Beginning>) {
        if self.exchange_counts.on {
            for pid in self.engine.prefixes().take_pipelining() {
                self.exchange_counts.refuse(self.engine.prefixes(), pid, Refusal::Pipelines);
            }
            self.exchange_counts.seen(self.engine.prefixes(), span, beginning);
        }
    }

    /// A process is gone.
    pub(super) fn uncounted(&mut self, pid: u32) {
        self.exchange_counts.gone(self.engine.prefixes(), pid);
    }

    /// Takes what the kernel side has counted by `now`.
    pub fn counted(&mut self, now: Nanos, sums: &[(SumsKey, ExchangeSums)], costs: &[(u32, ClassCosts)]) {
        let Counted { spans, costs } = self.exchange_counts.read(now, sums, costs);
        let means = mean_costs(&spans, &costs, &mut self.exchange_counts.waiting);
        for (mut span, count) in spans {
            self.metrics.spans(&self.names, &span, count);
            self.roots.counted(&span, count);
            self.stats.spans(&self.names, &span, count);
            // The others hear of costs by class.
            span.cost = means.get(&(span.pid, span.class)).copied().unwrap_or_default();
            self.history.spans(&self.names, &span, count);
        }
        for (pid, class, cost) in costs {
            self.charged.0 += cost.cpu;
            self.spend(Owner::Class(class), cost);
            self.roots.counted_cost(class, cost);
            self.workloads.spend(pid, ProcessWork::Request(Some(class)), cost.cpu);
            self.subsystems.spend(pid, ProcessWork::Request(Some(class)), cost.cpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::{ProtocolId, sample_span};

    fn exchange(pid: u32, calls: u32) -> Span {
        Span {
            pid,
            calls,
            protocol: ProtocolId::Http,
            outcome: Outcome::Complete,
            ..sample_span::span(1, 5, 10, false)
        }
    }

    fn qualified(prefixes: &mut RequestPrefixes) -> ExchangeCounts {
        let mut counts = ExchangeCounts::default();
        counts.start(false);
        let span = exchange(7, 0);
        let prefix = RequestPrefix { tgid: 7, bytes: span.request_bytes as u32, ..RequestPrefix::default() };
        for _ in 0..SEEN_BEFORE {
            assert!(counts.orders.is_empty());
            counts.seen(prefixes, &span, Some(Beginning::New(Box::new(prefix))));
        }
        counts
    }

    #[test]
    fn a_process_that_only_serves_qualifies_and_one_that_calls_does_not_any_more() {
        let mut prefixes = RequestPrefixes::default();
        let mut counts = qualified(&mut prefixes);
        let orders: Vec<_> = counts.take_orders().collect();
        assert!(matches!(&orders[..], [CountingOrder::Process(7, Some(_)), CountingOrder::Learn(_, 1)]), "{orders:?}");
        counts.seen(&mut prefixes, &exchange(7, 1), None);
        let orders: Vec<_> = counts.take_orders().collect();
        assert!(matches!(&orders[..], [CountingOrder::Process(7, None), CountingOrder::Forget(_)]), "{orders:?}");
        assert_eq!(counts.states().get("makes_calls"), Some(&1));
        // For good.
        for _ in 0..SEEN_BEFORE * 2 {
            counts.seen(&mut prefixes, &exchange(7, 0), None);
        }
        assert!(counts.orders.is_empty());
        counts.gone(&mut prefixes, 7);
        assert_eq!(counts.take_orders().collect::<Vec<_>>(), [CountingOrder::Clear(1)]);
    }

    #[test]
    fn a_class_that_merged_into_another_is_learnt_anew() {
        let mut prefixes = RequestPrefixes::default();
        let mut counts = qualified(&mut prefixes);
        counts.orders.clear();
        let other = ClassId(exchange(7, 0).class.0 + 1);
        counts.seen(&mut prefixes, &Span { class: other, ..exchange(7, 0) }, Some(Beginning::Known(1)));
        assert!(matches!(&counts.orders[..], [CountingOrder::Forget(_)]));
        assert_eq!(prefixes.table_use().entries, 0);
    }

    #[test]
    fn only_what_is_new_is_taken_from_sums() {
        let mut prefixes = RequestPrefixes::default();
        let mut counts = qualified(&mut prefixes);
        let key = SumsKey { class: 1, reserved: 0, outcome: u64::from(u32::from_ne_bytes(*b"200\0")) };
        let mut sums = ExchangeSums { duration: 90_000, queue: 0, request_bytes: 0, reply_bytes: 0, steps: [0; 128] };
        sums.steps[20] = 3;
        let sum = |counted: &Counted| counted.spans.iter().map(|(_, n)| n).sum::<u64>();
        assert_eq!(sum(&counts.read(1 << 40, &[(key, sums)], &[])), 3);
        (sums.duration, sums.steps[20]) = (150_000, 5);
        let costs = ClassCosts { cpu: 700, ..ClassCosts::default() };
        let counted = counts.read(1 << 41, &[(key, sums)], &[(1, costs)]);
        assert_eq!((sum(&counted), counted.costs[0].2.cpu), (2, 700));
        assert!(counts.read(1 << 42, &[(key, sums)], &[(1, costs)]).costs.is_empty());
        assert_eq!(counts.detail(), (1.0, 5));
    }
}
