//! What is known of one function.

use std::collections::VecDeque;

use tracer_model::Nanos;

use super::{CALLS, CallCounts, GUESS, PERIODS, Reason, SAME, SECOND};

/// Ticks over which calls a second are counted.
const TICKS: usize = 6;

/// A function.
#[derive(Clone, Debug)]
pub(super) struct KnownFunction {
    /// Share of the host's CPU in it, when the profiler was last looked at.
    pub(super) cpu: f64,
    /// When it was last a hotspot.
    pub(super) seen: Nanos,
    /// What the probes of a call cost.
    pub(super) call_cost: Nanos,
    /// Calls a second, as last measured.
    pub(super) rate: Option<f64>,
    pub(super) state: FunctionState,
    pub(super) removals: u32,
    /// What was counted when it was traced last.
    pub(super) last: Option<CallCounts>,
}

/// What is done with it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FunctionState {
    Waiting,
    Traced(TracedFunction),
    Resting { until: Nanos, reason: Reason },
    Refused(Reason),
}

impl FunctionState {
    /// Of one that is traced.
    pub(super) const TRACED: &'static str = "traced";

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Traced(_) => Self::TRACED,
            Self::Resting { .. } => "resting",
            Self::Refused(_) => "refused",
        }
    }

    pub(super) fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Waiting | Self::Traced(_) => None,
            Self::Resting { reason, .. } | Self::Refused(reason) => Some(reason),
        }
    }
}

impl KnownFunction {
    pub(super) fn new() -> Self {
        Self { cpu: 0.0, seen: 0, call_cost: 1, rate: None, state: FunctionState::Waiting, removals: 0, last: None }
    }

    /// Share of the host's CPU that its probes take, or are expected to take.
    pub(super) fn cost(&self, cpus: f64) -> f64 {
        self.rate.unwrap_or(GUESS) * self.call_cost as f64 / SECOND / cpus
    }

    /// Its CPU for what it costs.
    pub(super) fn worth(&self, cpus: f64) -> f64 {
        // One that is never called costs nothing; it is not worth more than any other for that.
        self.cpu / self.cost(cpus).max(1e-9)
    }
}

/// A function that is traced.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TracedFunction {
    pub(super) since: Nanos,
    pub(super) max_rate: u32,
    pub(super) last: CallCounts,
    /// Calls at the latest ticks.
    calls: VecDeque<(Nanos, u64)>,
    /// When the current period began, and what had been counted.
    period: (Nanos, CallCounts),
    /// Mean response times of the latest periods.
    means: VecDeque<f64>,
}

impl TracedFunction {
    pub(super) fn new(since: Nanos, max_rate: u32) -> Self {
        let calls = VecDeque::from([(since, 0)]);
        let means = VecDeque::new();
        Self { since, max_rate, last: CallCounts::default(), calls, period: (since, CallCounts::default()), means }
    }

    /// What has been counted by `now`.
    pub(super) fn observe(&mut self, now: Nanos, reading: CallCounts, period: Nanos) {
        self.last = reading;
        if self.calls.len() >= TICKS {
            self.calls.pop_front();
        }
        self.calls.push_back((now, reading.calls));
        let (begin, before) = self.period;
        if now.saturating_sub(begin) < period {
            return;
        }
        let finished = reading.finished.saturating_sub(before.finished);
        if finished >= CALLS {
            if self.means.len() >= PERIODS {
                self.means.pop_front();
            }
            self.means.push_back(reading.time.saturating_sub(before.time) as f64 / finished as f64);
        }
        self.period = (now, reading);
    }

    /// Calls a second, over the last seconds.
    pub(super) fn rate(&self) -> Option<f64> {
        let ((from, before), (to, after)) = (self.calls.front()?, self.calls.back()?);
        let seconds = to.saturating_sub(*from) as f64 / SECOND;
        (seconds > 0.0).then(|| after.saturating_sub(*before) as f64 / seconds)
    }

    /// Whether its response time does not change any more.
    pub(super) fn is_settled(&self) -> bool {
        let mean = self.means.iter().sum::<f64>() / self.means.len().max(1) as f64;
        self.means.len() >= PERIODS && self.means.iter().all(|one| (one - mean).abs() <= SAME * mean)
    }
}
