//! Graded instrumentation: which hotspots of the profiler are traced as functions, and for how long. Pure: time, hotspots and
//! counts in, decisions out.
//!
//! The rule in one sentence: one function at a time, the one with most CPU for what its probes are expected to cost, is traced
//! while the probes of all together take no more than the budget, until it has shown what there is to learn of it.
//!
//! - *Expected value*: the share of the host's CPU that the profiler saw in it.
//! - *Cost*: its calls times what the probes of a call cost on this machine. How often it is called is only known once it is
//!   traced, so at first a guess counts (`GUESS`), and the probes go by themselves when there are more calls than the rest
//!   of the budget has room for (`Declared::max_rate`). What was measured is remembered.
//! - *Learnt*: the mean response time of three periods in a row is the same within a tenth.
//! - A function that was removed rests, twice as long each time, and may then be traced again: it may have changed.

mod known;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use known::{FunctionState, KnownFunction, TracedFunction};
use tracer_host::guard::tables::TableUse;
use tracer_model::Nanos;
use tracer_transactions::classes::rules::Glob;

/// Share of the host's CPU that the probes of all functions may take, by default.
pub const BUDGET: f64 = 0.005;
/// Functions traced at once: by default, and at most.
pub const FUNCTIONS: usize = 8;
/// See [`FUNCTIONS`].
pub const FUNCTIONS_MAX: usize = 16;
/// Time between looks at the profiler, and between two additions, by default. Other times are multiples of it.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Longest interval: with the longest rest it is some weeks.
pub const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Least share of the host's CPU for which a function is traced.
const LEAST: f64 = 0.01;
/// What a function is taken to be called, a second, before that was measured.
const GUESS: f64 = 500.0;
/// Part of the budget that must be left for a function that was never measured, and that additions never use.
const RESERVE: f64 = 0.1;
/// Intervals: of a period in which a mean is taken, until a function without calls is removed, in which a hotspot must
/// have been seen, and of the longest trace.
const PERIOD: u32 = 3;
const SILENT: u32 = 3;
const HOT: u32 = 3;
const LONGEST: u32 = 60;
/// Intervals of the first rest, and how often it doubles.
const REST: u32 = 30;
const DOUBLINGS: u32 = 8;
/// Calls that a period needs, and how many periods must agree, within which part of their mean.
const CALLS: u64 = 20;
const PERIODS: usize = 3;
const SAME: f64 = 0.1;
/// Most functions that are remembered, and decisions that are kept.
const KNOWN: usize = 256;
const DECISIONS: usize = 200;
const SECOND: f64 = 1e9;

/// What is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Whether functions are traced without being declared.
    pub auto: bool,
    /// Share of the host's CPU that their probes may take.
    pub budget: f64,
    /// Functions traced at once.
    pub functions: usize,
    /// Services whose functions may be; empty: all.
    pub services: Vec<Glob>,
    /// See [`INTERVAL`].
    pub interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { auto: false, budget: BUDGET, functions: FUNCTIONS, services: Vec::new(), interval: INTERVAL }
    }
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FunctionId {
    /// Path of the program or library, as its processes see it.
    pub program: Arc<str>,
    /// Its name, as declarations have it.
    pub function: Arc<str>,
}

/// A hotspot of the profiler that could be traced.
#[derive(Clone, Debug, PartialEq)]
pub struct Hotspot {
    /// The function.
    pub id: FunctionId,
    /// Share of the host's CPU in it.
    pub cpu: f64,
    /// What the probes of a call cost, nanoseconds; or why it cannot be traced.
    pub call_cost: Result<Nanos, String>,
}

/// What was counted of a function since its probes were attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Calls that began, by the kernel's count.
    pub calls: u64,
    /// Calls that ended.
    pub finished: u64,
    /// Their response times, together.
    pub time: Nanos,
    /// Their CPU, together.
    pub cpu: Nanos,
}

/// What is done with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is traced from now on.
    Added,
    /// It is not traced any more.
    Removed,
    /// It cannot be traced.
    Refused,
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 3] = [Self::Added, Self::Removed, Self::Refused];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Refused => "refused",
        }
    }
}

/// Why something was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It has most CPU for what it is expected to cost.
    Hot,
    /// More calls a second than the rest of the budget has room for; its probes went by themselves.
    TooManyCalls,
    /// All together cost more than the budget, and this one has least CPU for what it costs.
    OverBudget,
    /// Its response time does not change any more.
    Learnt,
    /// It was traced for as long as any function is.
    LongEnough,
    /// It was not called, or does not return.
    NoCalls,
    /// The profiler sees it no more.
    Cold,
    /// The agent gives up detail.
    LoadShedding,
    /// It cannot carry probes.
    Refused(String),
}

impl Reason {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::TooManyCalls => "too_many_calls",
            Self::OverBudget => "over_budget",
            Self::Learnt => "learnt",
            Self::LongEnough => "long_enough",
            Self::NoCalls => "no_calls",
            Self::Cold => "cold",
            Self::LoadShedding => "load_shedding",
            Self::Refused(_) => "refused",
        }
    }
}

/// A decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// When.
    pub at: Nanos,
    /// The function.
    pub id: FunctionId,
    /// What is done.
    pub action: Action,
    /// Why.
    pub reason: Reason,
    /// Share of the host's CPU in it.
    pub cpu: f64,
    /// Share of the host's CPU that its probes take; of one that was never traced, as guessed.
    pub cost: f64,
    /// Calls a second, where they were measured.
    pub rate: Option<f64>,
}

/// A function that is to be traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The function.
    pub id: FunctionId,
    /// Calls a second beyond which its probes go by themselves.
    pub max_rate: u32,
}

/// The decisions.
#[derive(Debug)]
pub struct Instrumentation {
    settings: Settings,
    cpus: f64,
    known: BTreeMap<FunctionId, KnownFunction>,
    decisions: VecDeque<Decision>,
    /// Those of them that were not taken yet.
    fresh: Vec<Decision>,
    counts: [u64; Action::ALL.len()],
    last_added: Option<Nanos>,
    /// Hotspots that were not remembered: too many are known.
    unknown: u64,
}

impl Instrumentation {
    /// On a host with this many CPUs.
    pub fn new(settings: Settings, cpus: usize) -> Self {
        Self {
            settings,
            cpus: cpus.max(1) as f64,
            known: BTreeMap::new(),
            decisions: VecDeque::new(),
            fresh: Vec::new(),
            counts: [0; Action::ALL.len()],
            last_added: None,
            unknown: 0,
        }
    }

    fn intervals(&self, many: u32) -> Nanos {
        self.settings.interval.as_nanos() as Nanos * Nanos::from(many)
    }

    /// What the profiler saw lately.
    pub fn look(&mut self, now: Nanos, hotspots: Vec<Hotspot>) {
        for known in self.known.values_mut() {
            known.cpu = 0.0;
        }
        for Hotspot { id, cpu, call_cost } in hotspots {
            if !self.known.contains_key(&id) && self.known.len() >= KNOWN {
                self.unknown += 1;
                continue;
            }
            let known = self.known.entry(id.clone()).or_insert_with(KnownFunction::new);
            known.cpu += cpu;
            known.seen = now;
            match call_cost {
                Ok(nanos) => known.call_cost = nanos.max(1),
                Err(why) if known.state == FunctionState::Waiting => {
                    let reason = Reason::Refused(why);
                    known.state = FunctionState::Refused(reason.clone());
                    self.decide(now, id, Action::Refused, reason);
                }
                Err(_) => {}
            }
        }
        // What was never traced and is hot no more makes room.
        let stale = now.saturating_sub(self.intervals(HOT));
        self.known.retain(|_, known| {
            known.seen >= stale || !matches!(known.state, FunctionState::Waiting | FunctionState::Refused(_))
        });
    }

    /// Once a second, with what was counted of the functions that are traced. `shed`: the agent gives up detail. Whether the
    /// functions to trace changed.
    pub fn tick(&mut self, now: Nanos, readings: &BTreeMap<FunctionId, CallCounts>, shed: bool) -> bool {
        let period = self.intervals(PERIOD);
        for (id, known) in &mut self.known {
            if let FunctionState::Traced(trace) = &mut known.state {
                trace.observe(now, readings.get(id).copied().unwrap_or_default(), period);
                known.rate = trace.rate().or(known.rate);
            } else if let FunctionState::Resting { until, .. } = &known.state
                && *until <= now
            {
                known.state = FunctionState::Waiting;
            }
        }
        let mut done = Vec::new();
        for (id, known) in &self.known {
            if let FunctionState::Traced(trace) = &known.state
                && let Some(reason) = self.ended(now, known, trace, shed)
            {
                done.push((id.clone(), reason));
            }
        }
        let mut changed = !done.is_empty();
        for (id, reason) in done {
            self.remove(now, id, reason);
        }
        while self.cost() > self.settings.budget
            && let Some(id) = self.least_worth()
        {
            self.remove(now, id, Reason::OverBudget);
            changed = true;
        }
        if !shed && let Some((id, max_rate)) = self.next(now) {
            self.last_added = Some(now);
            if let Some(known) = self.known.get_mut(&id) {
                known.state = FunctionState::Traced(TracedFunction::new(now, max_rate));
            }
            self.decide(now, id, Action::Added, Reason::Hot);
            changed = true;
        }
        changed
    }

    /// The probes of a function went by themselves: it was called more often than its limit, at `rate` calls a second.
    pub fn withdrawn(&mut self, now: Nanos, id: &FunctionId, rate: f64) {
        let Some(known) = self.known.get_mut(id) else { return };
        if matches!(known.state, FunctionState::Traced(_)) {
            known.rate = Some(rate);
            self.remove(now, id.clone(), Reason::TooManyCalls);
        }
    }

    /// The functions to trace.
    pub fn traced(&self) -> impl Iterator<Item = Traced> {
        self.known.iter().filter_map(|(id, known)| match &known.state {
            FunctionState::Traced(trace) => Some(Traced { id: id.clone(), max_rate: trace.max_rate }),
            _ => None,
        })
    }

    /// Share of the host's CPU that the probes of all functions take.
    fn cost(&self) -> f64 {
        let traced = self.known.values().filter(|known| matches!(known.state, FunctionState::Traced(_)));
        // Not a sum, which is -0 of nothing.
        traced.fold(0.0, |sum, known| sum + known.cost(self.cpus))
    }

    /// Why a function is not traced any longer, if so.
    fn ended(&self, now: Nanos, known: &KnownFunction, trace: &TracedFunction, shed: bool) -> Option<Reason> {
        let age = now.saturating_sub(trace.since);
        if shed {
            Some(Reason::LoadShedding)
        } else if trace.is_settled() {
            Some(Reason::Learnt)
        } else if trace.last.finished == 0 && age >= self.intervals(SILENT) {
            Some(Reason::NoCalls)
        } else if age >= self.intervals(LONGEST) {
            Some(Reason::LongEnough)
        } else if now.saturating_sub(known.seen) >= self.intervals(2 * HOT) {
            Some(Reason::Cold)
        } else {
            None
        }
    }

    fn least_worth(&self) -> Option<FunctionId> {
        let traced = self.known.iter().filter(|(_, known)| matches!(known.state, FunctionState::Traced(_)));
        traced.min_by(|(_, a), (_, b)| a.worth(self.cpus).total_cmp(&b.worth(self.cpus))).map(|(id, _)| id.clone())
    }

    /// The function to add now, and how often it may be called.
    fn next(&self, now: Nanos) -> Option<(FunctionId, u32)> {
        let traced = self.traced().count();
        let is_due = self.last_added.is_none_or(|last| now.saturating_sub(last) >= self.intervals(1));
        // What is counted of the last one says what is left.
        let left = self.settings.budget * (1.0 - RESERVE) - self.cost();
        if traced >= self.settings.functions || !is_due || left < self.settings.budget * RESERVE {
            return None;
        }
        let recent = now.saturating_sub(self.intervals(HOT));
        let fits = |known: &KnownFunction| {
            matches!(known.state, FunctionState::Waiting)
                && known.cpu >= LEAST
                && known.seen >= recent
                && known.rate.is_none_or(|_| known.cost(self.cpus) <= left)
        };
        let fitting = self.known.iter().filter(|(_, known)| fits(known));
        let (id, known) = fitting.max_by(|(_, a), (_, b)| a.worth(self.cpus).total_cmp(&b.worth(self.cpus)))?;
        let rate = left * self.cpus * SECOND / known.call_cost as f64;
        Some((id.clone(), rate.clamp(1.0, f64::from(u32::MAX)) as u32))
    }

    fn remove(&mut self, now: Nanos, id: FunctionId, reason: Reason) {
        let Some(known) = self.known.get_mut(&id) else { return };
        let rest = self.settings.interval * REST * 2u32.pow(known.removals.min(DOUBLINGS));
        known.removals += 1;
        let until = now.saturating_add(rest.as_nanos() as Nanos);
        if let FunctionState::Traced(trace) = &known.state {
            known.last = Some(trace.last);
        }
        known.state = FunctionState::Resting { until, reason: reason.clone() };
        self.decide(now, id, Action::Removed, reason);
    }

    fn decide(&mut self, at: Nanos, id: FunctionId, action: Action, reason: Reason) {
        let Some(known) = self.known.get(&id) else { return };
        if let Some(count) = self.counts.get_mut(action as usize) {
            *count += 1;
        }
        if self.decisions.len() >= DECISIONS {
            self.decisions.pop_front();
        }
        let (cpu, cost, rate) = (known.cpu, known.cost(self.cpus), known.rate);
        let decision = Decision { at, id, action, reason, cpu, cost, rate };
        self.fresh.push(decision.clone());
        self.decisions.push_back(decision);
    }

    /// Decisions since this was last asked.
    pub fn take_fresh(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.fresh)
    }

    /// Functions that are remembered.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.known.len(), KNOWN, self.unknown)
    }

    /// Decisions so far, by [`Action::ALL`].
    pub fn counts(&self) -> [u64; Action::ALL.len()] {
        self.counts
    }

    /// What is known, for whoever looks.
    pub fn view(&self) -> View {
        let row = |(id, known): (&FunctionId, &KnownFunction)| FunctionView {
            id: id.clone(),
            cpu: known.cpu,
            cost: known.cost(self.cpus),
            rate: known.rate,
            state: known.state.name(),
            reason: known.state.reason().cloned(),
            reading: match &known.state {
                FunctionState::Traced(trace) => Some(trace.last),
                _ => known.last,
            },
        };
        let mut functions: Vec<FunctionView> = self.known.iter().map(row).collect();
        functions.sort_by(|a, b| b.is_traced().cmp(&a.is_traced()).then(b.cpu.total_cmp(&a.cpu)));
        View {
            auto: self.settings.auto,
            budget: self.settings.budget,
            cost: self.cost(),
            functions,
            decisions: self.decisions.iter().rev().cloned().collect(),
            counts: self.counts,
            unknown: self.unknown,
        }
    }
}

/// What is known, for whoever looks.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Whether functions are traced without being declared.
    pub auto: bool,
    /// Share of the host's CPU that their probes may take, and take.
    pub budget: f64,
    /// See `budget`.
    pub cost: f64,
    /// The functions: those that are traced first, then by CPU.
    pub functions: Vec<FunctionView>,
    /// The latest first.
    pub decisions: Vec<Decision>,
    /// By [`Action::ALL`].
    pub counts: [u64; Action::ALL.len()],
    /// Hotspots that were not remembered: too many are known.
    pub unknown: u64,
}

/// A function.
#[derive(Clone, Debug)]
pub struct FunctionView {
    /// The function.
    pub id: FunctionId,
    /// Share of the host's CPU in it.
    pub cpu: f64,
    /// Share that its probes take, or are expected to take.
    pub cost: f64,
    /// Calls a second, where they were measured.
    pub rate: Option<f64>,
    /// `traced`, `waiting`, `resting` or `refused`.
    pub state: &'static str,
    /// Why it rests, or is refused.
    pub reason: Option<Reason>,
    /// What was counted of it when it was traced last.
    pub reading: Option<CallCounts>,
}

impl FunctionView {
    /// Whether it is traced.
    pub fn is_traced(&self) -> bool {
        self.state == FunctionState::TRACED
    }
}

#[cfg(test)]
mod tests;
