//! Bounded store of recent transactions: the newest, and for every class the slowest, the failed ones and a fair
//! sample.
//!
//! Spans of a transaction finish at different times, and only the last may show that it is worth keeping. So the store
//! keeps every transaction for a while (the newest [`RECENT`]) and those that a class selects for longer. Spans that
//! finished more than that many transactions before their transaction's first noteworthy span are lost.

mod attributes;
mod class;
pub mod critical_path;
mod edges;
pub mod failed_at;
mod list;
mod listed;
mod log_lines;
mod settle;
mod view;

use std::cell::RefCell;
use std::collections::VecDeque;

use rustc_hash::FxHashMap;

pub use attributes::{AttributeValue, Attributes};
pub use edges::{Callee, EdgeKey, EdgeSample};
pub use list::{Cursor, Filter, ListOrder, Retention, TransactionList};
pub use listed::LISTED_FOR;
pub use log_lines::LogLineView;
pub use view::{SpanView, Summary, seconds};

use class::{Class, QUOTA, Seen};
use listed::ListedTransactions;
use log_lines::LogTextQueues;
use settle::Settling;
use tracer_host::guard::tables::TableUse;
use tracer_model::{ClassId, Names, Nanos, Outcome, Side, Span, SpanId, TraceId};

/// Most spans kept per transaction.
const UNITS: usize = 256;
/// Most freed span vectors kept for reuse: otherwise the allocator would hand out long-unused memory instead of
/// recently freed memory.
const SPARE: usize = 64;
/// Number of newest transactions that are kept unconditionally.
pub const RECENT: usize = 4096;
/// Approximate memory of a kept span, bytes: its path and other text are its own.
const UNIT_BYTES: u64 = 1024;
/// The store takes at most 1 / this of the agent's memory.
const MEMORY_PART: u64 = 8;
/// Average spans per transaction that the total limit allows. With [`UNITS`] for each, the store would be practically
/// unbounded.
const UNITS_EACH: usize = 8;
/// Interval between sweeps for old entries, nanoseconds.
const SWEEP: Nanos = 60 * 1_000_000_000;

/// A status filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Ended without failing.
    Ok,
    /// Failed.
    Error,
    /// The agent did not see the end, and no status shows a failure.
    Unfinished,
    /// A class of status codes: `5` for 500 to 599.
    Hundred(u16),
    /// One status code.
    Code(u16),
}

impl Status {
    /// Parses `ok`, `error`, `unfinished`, `5xx` or a code.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        match text {
            "ok" => Some(Self::Ok),
            "error" => Some(Self::Error),
            "unfinished" => Some(Self::Unfinished),
            _ => match text.strip_suffix("xx") {
                Some(digit) if digit.len() == 1 => number(digit).map(Self::Hundred),
                None if text.len() == 3 => number(text).map(Self::Code),
                _ => None,
            },
        }
    }

    fn fits(self, span: &Span) -> bool {
        match self {
            Self::Ok => !span.error && span.outcome != Outcome::Unfinished,
            Self::Unfinished => !span.error && span.outcome == Outcome::Unfinished,
            Self::Error => span.error,
            Self::Hundred(hundred) => span.status.is_some_and(|status| status / 100 == hundred),
            Self::Code(code) => span.status == Some(code),
        }
    }
}

/// One transaction.
#[derive(Debug, Default)]
struct StoredTransaction {
    spans: Vec<Span>,
    /// Number of entries in classes' lists that refer to it.
    wanted: u32,
    /// Whether it is among the newest.
    recent: bool,
    /// Whether it waits to be returned by [`Store::settled`].
    settling: bool,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    traces: FxHashMap<TraceId, StoredTransaction>,
    /// The newest transactions, oldest first, each once.
    recent: VecDeque<TraceId>,
    classes: FxHashMap<ClassId, Class>,
    /// Limit of `entries`, and thus of transactions kept besides the newest.
    keep: usize,
    /// Most spans that fit into the agent's memory.
    fits: usize,
    /// Keep 1 / this of the normal limits; 0 keeps nothing.
    part: usize,
    /// Number of entries in the lists of all classes.
    entries: usize,
    /// Number of spans in `traces`.
    spans: usize,
    /// Span vectors of dropped transactions, for reuse.
    spare: Vec<Vec<Span>>,
    wall_offset: i64,
    host: String,
    /// State of the sampler's generator (xorshift), which needs to be fair, not secret.
    random: u64,
    now: Nanos,
    swept: Nanos,
    settling: Settling,
    /// Whoever lists transactions only reads them; that they were listed has to be noted nevertheless.
    listed: RefCell<ListedTransactions>,
    /// Transactions with texts of log lines.
    texts: LogTextQueues,
    /// Spans dropped because their transaction, or the store, had too many.
    pub spans_dropped: u64,
    /// Spans that their class selected while the lists were full.
    pub refused: u64,
    /// Transactions dropped to make room: in the end, every one.
    pub evicted: u64,
}

impl Store {
    /// Sets wall clock minus monotonic clock, nanoseconds, after the wall clock was set. Applies to earlier spans too,
    /// because the new clock is the better one.
    pub fn clock(&mut self, wall_offset: i64) {
        self.wall_offset = wall_offset;
    }

    /// An empty store for `keep` noteworthy transactions besides the newest [`RECENT`]; `wall_offset` is wall clock
    /// minus monotonic clock, nanoseconds.
    pub fn new(wall_offset: i64, host: &str, keep: usize) -> Self {
        Self {
            traces: FxHashMap::default(),
            recent: VecDeque::new(),
            classes: FxHashMap::default(),
            keep,
            fits: usize::MAX,
            part: 1,
            entries: 0,
            spans: 0,
            spare: Vec::new(),
            wall_offset,
            host: host.into(),
            random: 0x9e37_79b9_7f4a_7c15,
            now: 0,
            swept: 0,
            settling: Settling::default(),
            listed: RefCell::default(),
            texts: LogTextQueues::default(),
            spans_dropped: 0,
            refused: 0,
            evicted: 0,
        }
    }

    /// Limits the store for an agent that may use `memory` bytes.
    #[must_use]
    pub fn for_memory(self, memory: u64) -> Self {
        Self { fits: (memory / MEMORY_PART / UNIT_BYTES) as usize, ..self }
    }

    /// Number of transactions kept.
    pub fn len(&self) -> usize {
        self.traces.len()
    }

    /// Whether the store is empty.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }

    /// Number of spans kept, of all transactions.
    pub fn spans(&self) -> usize {
        self.spans
    }

    fn spans_most(&self) -> usize {
        let fits = self.fits.checked_div(self.part).unwrap_or(0);
        (UNITS_EACH * (self.keep_most() + self.recent_most())).min(fits)
    }

    fn keep_most(&self) -> usize {
        self.keep.checked_div(self.part).unwrap_or(0)
    }

    fn recent_most(&self) -> usize {
        RECENT.checked_div(self.part).unwrap_or(0)
    }

    /// Table use of the spans, of the entries in classes' lists, and of the transactions that lists showed.
    pub fn table_use(&self) -> [TableUse; 3] {
        let spans = TableUse::new(self.spans, self.spans_most(), self.spans_dropped);
        let wanted = TableUse::new(self.entries, self.keep_most(), self.refused);
        [spans, wanted, self.listed.borrow().table_use()]
    }

    /// Keeps 1 / `part` of the normal limits from now on; 0 keeps nothing. Drops what exceeds them at once, oldest
    /// first.
    pub fn keep_part(&mut self, part: usize) {
        if self.part == part {
            return;
        }
        self.part = part;
        self.unlist(Nanos::MAX);
        if self.entries > self.keep_most() {
            let (quota, now) = (self.quota(), self.now);
            let released: Vec<TraceId> = self.classes.values_mut().flat_map(|class| class.age(now, quota)).collect();
            self.release(released);
        }
        if self.entries > self.keep_most() {
            // There are more classes than entries allowed.
            let released: Vec<TraceId> = self.classes.values_mut().flat_map(|class| class.age(Nanos::MAX, 0)).collect();
            self.release(released);
            self.classes.clear();
        }
        while (self.recent.len() > self.recent_most() || self.spans > self.spans_most()) && self.evict() {}
        self.traces.shrink_to_fit();
        self.recent.shrink_to_fit();
    }

    /// Drops a transaction that neither a class nor the newest list holds, and that no list showed a moment ago.
    fn forget_unheld(&mut self, trace: TraceId) {
        if self.traces.get(&trace).is_some_and(|kept| !kept.recent && kept.wanted == 0)
            && !self.listed.get_mut().holds(trace)
            && let Some(mut kept) = self.traces.remove(&trace)
        {
            self.spans -= kept.spans.len();
            self.evicted += 1;
            if self.spare.len() < SPARE && kept.spans.capacity() <= 2 {
                kept.spans.clear();
                self.spare.push(kept.spans);
            }
        }
    }

    /// Lets go of what lists showed, if that is over at `now`.
    fn unlist(&mut self, now: Nanos) {
        while let Some(trace) = self.listed.get_mut().expired(now) {
            self.forget_unheld(trace);
        }
    }

    fn release(&mut self, released: impl IntoIterator<Item = TraceId>) {
        for trace in released {
            self.entries -= 1;
            if let Some(kept) = self.traces.get_mut(&trace) {
                kept.wanted = kept.wanted.saturating_sub(1);
            }
            self.forget_unheld(trace);
        }
    }

    /// Evicts the oldest of the newest transactions, which stays if a class holds it; `false` if there are none.
    fn evict(&mut self) -> bool {
        let Some(oldest) = self.recent.pop_front() else { return false };
        if let Some(kept) = self.traces.get_mut(&oldest) {
            kept.recent = false;
        }
        self.forget_unheld(oldest);
        true
    }

    /// Length of each list of a class, so that all lists together fit.
    fn quota(&self) -> usize {
        (self.keep_most() / (3 * self.classes.len().max(1))).clamp(1, QUOTA)
    }

    fn rank(&mut self, span: &Seen) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let (quota, room) = (self.quota(), self.keep_most().saturating_sub(self.entries));
        let change = self.classes.entry(span.class).or_default().consider(span, quota, room, self.random);
        self.refused += u64::from(change.refused > 0);
        self.entries += change.taken as usize;
        if let Some(kept) = self.traces.get_mut(&span.trace) {
            kept.wanted += change.taken;
        }
        self.release(change.released);
    }

    /// The spans of a transaction by start time; `None` if it is not kept.
    pub fn transaction(&self, names: &Names, trace: TraceId) -> Option<Vec<SpanView<'static>>> {
        let kept = self.traces.get(&self.listed.borrow().current(trace))?;
        let mut spans: Vec<&Span> = kept.spans.iter().collect();
        spans.sort_by_key(|span| (span.start, span.side == Side::Client));
        let view = |span| SpanView::of(names, span, self.wall_offset, &self.host).into_owned();
        Some(spans.into_iter().map(view).collect())
    }
}

/// Merging of transactions that turn out to belong together.
impl Store {
    /// `span` was reported in transaction `was` without a parent; moves that transaction's spans to `trace`.
    pub fn adopt(&mut self, span: SpanId, was: TraceId, parent: SpanId, trace: TraceId) {
        let Some(kept) = self.traces.get_mut(&was) else { return };
        if let Some(span) = kept.spans.iter_mut().find(|known| known.id == span && known.side == Side::Server) {
            span.parent.get_or_insert(parent);
            span.carrier = "relay";
        }
        self.rename(was, trace);
    }

    /// Moves the spans of transaction `was` to `trace`.
    pub fn rename(&mut self, was: TraceId, trace: TraceId) {
        if was == trace {
            return;
        }
        let Some(kept) = self.traces.get_mut(&was) else { return };
        let moved = std::mem::take(&mut kept.spans);
        // The classes' entries for the old id are dropped with it.
        self.spans -= moved.len();
        self.listed.get_mut().rename(was, trace);
        for mut span in moved {
            span.trace = trace;
            self.keep(span);
        }
    }

    fn keep(&mut self, span: Span) {
        let seen = Seen::of(&span);
        let kept = self.traces.entry(span.trace).or_default();
        if !kept.recent && kept.wanted == 0 {
            kept.recent = true;
            self.recent.push_back(span.trace);
        }
        if kept.spans.len() < UNITS {
            if kept.spans.capacity() == 0
                && let Some(spare) = self.spare.pop()
            {
                kept.spans = spare;
            }
            if kept.spans.len() == kept.spans.capacity() {
                // A span is large and most transactions have few, so reserve exactly; plus one for the causing span,
                // which finishes later.
                let more =
                    if kept.spans.is_empty() { 1 + usize::from(span.parent.is_some()) } else { kept.spans.len() };
                kept.spans.reserve_exact(more);
            }
            kept.spans.push(span);
            self.spans += 1;
            self.rank(&seen);
            self.settle(seen.trace);
        } else {
            self.spans_dropped += 1;
        }
    }
}

impl Store {
    /// Adds a finished span.
    pub fn take(&mut self, span: Span) {
        self.now = self.now.max(span.end);
        if self.part == 0 {
            self.spans_dropped += 1;
            return;
        }
        if self.spans >= self.spans_most() {
            self.unlist(self.now);
        }
        while self.spans >= self.spans_most() && self.evict() {}
        if self.spans >= self.spans_most() {
            self.spans_dropped += 1;
            return;
        }
        self.hold_texts(&span);
        self.keep(span);
        self.make_room_for_texts();
        while self.recent.len() > self.recent_most() && self.evict() {}
    }

    /// Called about once a second; drops old entries.
    pub fn tick(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        self.unlist(self.now);
        if self.now.saturating_sub(self.swept) < SWEEP {
            return;
        }
        self.swept = self.now;
        let (quota, now) = (self.quota(), self.now);
        let released: Vec<TraceId> = self.classes.values_mut().flat_map(|class| class.age(now, quota)).collect();
        self.release(released);
        self.classes.retain(|_, class| class.len() > 0);
    }
}

/// Hands out noteworthy transactions once they have settled.
impl Store {
    /// From now on [`Self::settled`] returns noteworthy transactions.
    pub fn hand_out(&mut self) {
        self.settling.on = true;
    }

    /// Number of noteworthy transactions that were dropped, or found the queue full, before they settled.
    pub fn unsettled(&self) -> u64 {
        self.settling.missed
    }

    fn settle(&mut self, trace: TraceId) {
        let most = self.keep_most();
        if let Some(kept) = self.traces.get_mut(&trace)
            && kept.wanted > 0
            && !kept.settling
        {
            kept.settling = self.settling.push(self.now, trace, most);
        }
    }

    /// The spans of the next transaction that its class keeps and of which nothing was reported for a while; `None` if
    /// none is due. A transaction comes again if more of it is reported later. With `over`, none has to wait.
    pub fn settled(&mut self, names: &Names, over: bool) -> Option<Vec<SpanView<'static>>> {
        while let Some(trace) = self.settling.due(self.now, over) {
            let Some(kept) = self.traces.get_mut(&trace) else {
                self.settling.missed += 1;
                continue;
            };
            kept.settling = false;
            if kept.wanted > 0 {
                return self.transaction(names, trace);
            }
            self.settling.missed += 1;
        }
        None
    }
}

#[cfg(test)]
pub(crate) mod tests;
