//! What service classes reached within one window of the history, by service: how many requests took no longer than the
//! goal, and how many longer.

use std::collections::HashMap;
use std::sync::Arc;

use tracer_model::{Outcome, ServiceId, Span};
use tracer_policies::service_classes::{Goal, ServiceClass};

/// Most rows of a window. Attainment has fewer; only classes that are declared anew within it add some.
const ROWS: usize = 2048;

/// A service class with its goal, and the service that serves it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GoalKey {
    /// The service class.
    pub class: Arc<str>,
    /// 1 is the most important.
    pub importance: u32,
    /// What it should reach.
    pub goal: Goal,
    /// The service.
    pub service: ServiceId,
}

/// Sums over requests. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoalSums {
    /// Requests.
    pub count: u64,
    /// Failed ones.
    pub errors: u64,
    /// Those whose end was not seen.
    pub unfinished: u64,
    /// Those that took no longer than the goal.
    pub attained: u64,
    /// Those that took longer.
    pub missed: u64,
    /// Response times of both; without a goal, of all whose end was seen.
    pub response: u64,
    /// CPU charged when they were reported.
    pub cpu: u64,
}

impl GoalSums {
    /// Whether they reach `goal` together; `None` without a goal, or without requests whose end was seen.
    pub fn reached(&self, goal: Goal) -> Option<bool> {
        let judged = u128::from(self.attained) + u128::from(self.missed);
        let share = |percent: u128| u128::from(self.attained) * 100 >= judged * percent;
        (judged > 0).then_some(())?;
        match goal {
            Goal::P99(_) => Some(share(99)),
            Goal::P95(_) => Some(share(95)),
            Goal::Mean(time) => Some(u128::from(self.response) <= time.as_nanos() * judged),
            Goal::Discretionary => None,
        }
    }
}

/// The window that is open.
#[derive(Debug, Default)]
pub(super) struct GoalWindow {
    rows: HashMap<GoalKey, GoalSums>,
    /// Requests that found no room since the start.
    pub(super) refused: u64,
}

impl GoalWindow {
    /// A request of a class; `time`: what its caller waited for it.
    pub(super) fn add(&mut self, class: &ServiceClass, span: &Span, time: u64) {
        let ServiceClass { name, importance, goal, .. } = class;
        let key = GoalKey { class: Arc::clone(name), importance: *importance, goal: *goal, service: span.service };
        if self.rows.len() >= ROWS && !self.rows.contains_key(&key) {
            self.refused += 1;
            return;
        }
        let sums = self.rows.entry(key).or_default();
        sums.count += 1;
        sums.errors += u64::from(span.error);
        sums.cpu += span.cost.cpu;
        if span.outcome == Outcome::Unfinished {
            sums.unfinished += 1;
            return;
        }
        sums.response += time;
        if let Some(goal) = goal.time() {
            let attained = u128::from(time) <= goal.as_nanos();
            sums.attained += u64::from(attained);
            sums.missed += u64::from(!attained);
        }
    }

    /// Ends it: its rows by class and service.
    pub(super) fn take(&mut self) -> Vec<(GoalKey, GoalSums)> {
        let mut rows: Vec<(GoalKey, GoalSums)> = self.rows.drain().collect();
        rows.sort_unstable_by(|(a, _), (b, _)| {
            let order = |key: &GoalKey| (key.importance, Arc::clone(&key.class), key.service, key.goal.time());
            order(a).cmp(&order(b))
        });
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_window_reaches_its_goal_by_the_share_or_the_mean() {
        let time = Duration::from_millis(40);
        let sums = |attained, missed, mean_ms: u64| GoalSums {
            attained,
            missed,
            response: (attained + missed) * mean_ms * 1_000_000,
            ..GoalSums::default()
        };
        for (goal, sums, reached) in [
            (Goal::P99(time), sums(99, 1, 90), Some(true)),
            (Goal::P99(time), sums(989, 11, 1), Some(false)),
            (Goal::P95(time), sums(95, 5, 90), Some(true)),
            (Goal::P95(time), sums(94, 6, 1), Some(false)),
            (Goal::Mean(time), sums(1, 99, 40), Some(true)),
            (Goal::Mean(time), sums(99, 1, 41), Some(false)),
            (Goal::P99(time), sums(0, 0, 0), None),
            (Goal::Discretionary, sums(5, 0, 1), None),
        ] {
            assert_eq!(sums.reached(goal), reached, "{goal:?} {sums:?}");
        }
    }
}
