//! Which threads run at another CPU priority, and for how long. Pure: time and facts in, orders out.
//!
//! The rule in one sentence: a thread that certainly serves one request of a class with `cpu = "high"` or `"low"` runs
//! [`STEP`] nice levels above or below its own value from [`YOUNG`] after the request was read until [`LINGER`] after
//! its end.
//!
//! - *Only what lasts.* A change takes effect some milliseconds after the request was read. Requests that are over by
//!   then are left alone.
//! - *No flapping.* A busy worker takes its next request within a millisecond; for [`LINGER`] after a request its thread
//!   keeps the priority, so that a worker whose requests are all of one class is changed once and not twice a request.
//! - *Nobody starves.* A request that is still open after [`PATIENCE`] moves half way back, after twice that all the
//!   way: the kernel then treats its thread as if there were no service classes. That holds for both directions, so a
//!   request of high priority that never ends does not hold the host either. It never moves away again.
//!
//! The values are relative to the thread's own nice value, so that the order an application gave its threads remains.

use std::collections::HashMap;

use tracer_host::guard::tables::TableUse;
use tracer_model::Nanos;

use super::Priority;

/// Nice levels of a full change. A step of one is a quarter of the CPU among equals: 11 up and 11 down make a share of
/// 137 to 1. An odd number, because applications choose 5, 10, 15 and 19 themselves: a thread that inherited a changed
/// value can be told from one that was given it.
pub const STEP: i8 = 11;
/// Half of it, for requests that are open for long.
const HALF: i8 = 6;
/// Age from which on a request's thread is changed, nanoseconds.
pub const YOUNG: Nanos = 1_000_000;
/// How long a thread keeps a changed priority after its request, nanoseconds.
pub const LINGER: Nanos = 10_000_000;
/// After this time a request's thread moves half way back, after twice this all the way, nanoseconds.
pub const PATIENCE: Nanos = 1_000_000_000;
/// Most threads with a changed priority.
pub const THREADS_MAX: usize = 4096;

/// A request and the thread that certainly serves it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Thread.
    pub tid: u32,
    /// Its process.
    pub tgid: u32,
    /// Index of the request's service class.
    pub class: usize,
    /// When the request was read.
    pub since: Nanos,
}

/// What is to be done with a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Set its nice value to its own plus `delta`.
    Change {
        /// Thread.
        tid: u32,
        /// Its process.
        tgid: u32,
        /// Index of the service class that this is for.
        class: usize,
        /// Nice levels; positive is lower priority.
        delta: i8,
    },
    /// Set its own value again.
    Restore {
        /// Thread.
        tid: u32,
        /// Index of the service class that it was changed for.
        class: usize,
    },
    /// A thread with a changed priority made another one, which inherited it.
    Inherited {
        /// The thread that made it.
        parent: u32,
        /// The new thread.
        tid: u32,
        /// The new thread's process.
        tgid: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Changed {
    class: usize,
    tgid: u32,
    delta: i8,
    /// When it was last seen serving.
    served: Nanos,
}

/// The decisions.
#[derive(Debug)]
pub struct Decision {
    /// By service class.
    priorities: Vec<Priority>,
    /// Nice levels that are added, by service class.
    lowered: Vec<i8>,
    threads: HashMap<u32, Changed>,
    refused: u64,
}

impl Decision {
    /// Decides for classes of these priorities.
    pub fn new(priorities: Vec<Priority>) -> Self {
        Self { priorities, lowered: Vec::new(), threads: HashMap::new(), refused: 0 }
    }

    /// Adds these nice levels from now on, by service class.
    pub fn lower(&mut self, lowered: Vec<i8>) {
        self.lowered = lowered;
    }

    /// Threads whose priority is to be another than their own.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.threads.len(), THREADS_MAX, self.refused)
    }

    /// Every thread has its own priority again, whoever did that.
    pub fn forget(&mut self) {
        self.threads.clear();
    }

    /// Forgets every thread, and orders that restore them.
    pub fn restore_orders(&mut self) -> Vec<Order> {
        self.threads.drain().map(|(tid, known)| Order::Restore { tid, class: known.class }).collect()
    }

    /// Nice levels for a request of this priority and age.
    fn delta(&self, class: usize, age: Nanos) -> i8 {
        let lowered = self.lowered.get(class).copied().unwrap_or_default();
        let full = match self.priorities.get(class).copied().unwrap_or_default() {
            Priority::High => -STEP,
            Priority::Normal => lowered,
            Priority::Low => STEP,
        };
        match age {
            _ if age < PATIENCE => full,
            // In this order: whole levels only.
            _ if age < 2 * PATIENCE => full * HALF / STEP,
            _ => 0,
        }
    }

    /// Decides at `now`: `serving` has every request of a service class that a thread certainly serves alone.
    pub fn decide(&mut self, now: Nanos, serving: &[Serving], orders: &mut Vec<Order>) {
        for one in serving {
            let age = now.saturating_sub(one.since);
            let delta = self.delta(one.class, age);
            let full = self.threads.len() >= THREADS_MAX;
            let known = self.threads.get_mut(&one.tid).filter(|known| known.tgid == one.tgid);
            match known {
                // What the thread has is what it needs, or nearly: the request may be over in a moment.
                Some(known) if known.class == one.class && (known.delta == delta || age < YOUNG) => known.served = now,
                _ if age < YOUNG => {}
                Some(known) if delta != 0 => {
                    *known = Changed { class: one.class, tgid: one.tgid, delta, served: now };
                    orders.push(Order::Change { tid: one.tid, tgid: one.tgid, class: one.class, delta });
                }
                // Restored below.
                Some(known) => known.served = 0,
                None if delta == 0 => {}
                None if full => self.refused += 1,
                None => {
                    let changed = Changed { class: one.class, tgid: one.tgid, delta, served: now };
                    self.threads.insert(one.tid, changed);
                    orders.push(Order::Change { tid: one.tid, tgid: one.tgid, class: one.class, delta });
                }
            }
        }
        self.threads.retain(|tid, known| {
            let keep = now.saturating_sub(known.served) < LINGER;
            if !keep {
                orders.push(Order::Restore { tid: *tid, class: known.class });
            }
            keep
        });
    }

    /// `parent` made a thread.
    pub fn forked(&self, parent: u32, tid: u32, tgid: u32, orders: &mut Vec<Order>) {
        if self.threads.contains_key(&parent) {
            orders.push(Order::Inherited { parent, tid, tgid });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLI: Nanos = 1_000_000;
    const GOLD: usize = 0;
    const BRONZE: usize = 1;

    fn decision() -> Decision {
        Decision::new(vec![Priority::High, Priority::Low, Priority::Normal])
    }

    fn serving(tid: u32, class: usize, since: Nanos) -> Serving {
        Serving { tid, tgid: 1, class, since }
    }

    fn at(decision: &mut Decision, now: Nanos, serving: &[Serving]) -> Vec<Order> {
        let mut orders = Vec::new();
        decision.decide(now, serving, &mut orders);
        orders
    }

    fn change(tid: u32, class: usize, delta: i8) -> Order {
        Order::Change { tid, tgid: 1, class, delta }
    }

    #[test]
    fn a_request_is_changed_once_and_restored_once() {
        let mut decision = decision();
        let gold = serving(7, GOLD, 0);
        assert_eq!(at(&mut decision, YOUNG - 1, &[gold]), []);
        assert_eq!(at(&mut decision, 4 * MILLI, &[gold]), [change(7, GOLD, -STEP)]);
        for now in 5..100 {
            assert_eq!(at(&mut decision, now * MILLI, &[gold]), []);
        }
        assert_eq!(at(&mut decision, 100 * MILLI, &[]), []);
        assert_eq!(at(&mut decision, 109 * MILLI, &[]), [Order::Restore { tid: 7, class: GOLD }]);
        assert_eq!(at(&mut decision, 200 * MILLI, &[]), []);
    }

    #[test]
    fn what_is_lowered_meanwhile_is_changed_once_more() {
        let mut decision = decision();
        let plain = serving(7, 2, 0);
        assert_eq!(at(&mut decision, 4 * MILLI, &[plain]), []);
        for (nice, order) in [(3, change(7, 2, 3)), (7, change(7, 2, 7)), (3, change(7, 2, 3))] {
            decision.lower(vec![0, 0, nice]);
            assert_eq!(at(&mut decision, 8 * MILLI, &[plain]), [order]);
        }
        decision.lower(vec![0, 0, 0]);
        assert_eq!(at(&mut decision, 20 * MILLI, &[plain]), [Order::Restore { tid: 7, class: 2 }]);
    }

    #[test]
    fn normal_priority_changes_nothing() {
        let mut decision = decision();
        assert_eq!(at(&mut decision, 500 * MILLI, &[serving(7, 2, 0)]), []);
        assert_eq!(decision.table_use().entries, 0);
    }

    /// Workers under saturation: each takes its next request a millisecond after the one before.
    #[test]
    fn busy_workers_of_one_class_do_not_flap() {
        let mut decision = decision();
        let mut orders = Vec::new();
        for now in (0..10_000).step_by(4) {
            let workers = (1..=8u64).filter_map(|tid| {
                // 25 ms of work, then 1 ms between requests, each worker at its own phase.
                let phase = (now + 3 * tid) % 26;
                (phase < 25).then(|| serving(tid as u32, BRONZE, (now - phase.min(now)) * MILLI))
            });
            decision.decide(now * MILLI, &workers.collect::<Vec<_>>(), &mut orders);
        }
        assert_eq!(orders.len(), 8, "{orders:?}");
    }

    /// A worker whose requests alternate is changed at most once for each of them.
    #[test]
    fn alternating_classes_change_once_a_request() {
        let mut decision = decision();
        let mut orders = Vec::new();
        for now in 0..1000 {
            let request = now / 20;
            let class = if request % 2 == 0 { GOLD } else { BRONZE };
            decision.decide(now * MILLI, &[serving(7, class, request * 20 * MILLI)], &mut orders);
        }
        assert_eq!(orders.len(), 50);
    }

    #[test]
    fn a_long_request_comes_back_step_by_step_and_stays() {
        for (class, sign) in [(BRONZE, 1), (GOLD, -1)] {
            let mut decision = decision();
            let mut orders = Vec::new();
            for now in (0..20_000).step_by(4) {
                decision.decide(now * MILLI, &[serving(7, class, 0)], &mut orders);
            }
            let restored = Order::Restore { tid: 7, class };
            assert_eq!(orders, [change(7, class, sign * STEP), change(7, class, sign * HALF), restored]);
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut decision = decision();
        let all: Vec<Serving> = (0..2 * THREADS_MAX as u32).map(|tid| serving(tid, BRONZE, 0)).collect();
        assert_eq!(at(&mut decision, 5 * MILLI, &all).len(), THREADS_MAX);
        let used = decision.table_use();
        assert_eq!((used.entries, used.reached), (THREADS_MAX as u64, THREADS_MAX as u64));
        assert_eq!(at(&mut decision, 50 * MILLI, &[]).len(), THREADS_MAX);
    }

    #[test]
    fn only_threads_that_are_changed_hand_it_on() {
        let mut decision = decision();
        at(&mut decision, 5 * MILLI, &[serving(7, BRONZE, 0)]);
        let mut orders = Vec::new();
        decision.forked(7, 70, 1, &mut orders);
        decision.forked(8, 80, 1, &mut orders);
        assert_eq!(orders, [Order::Inherited { parent: 7, tid: 70, tgid: 1 }]);
    }

    proptest! {
        /// Whatever comes: values stay within bounds, and without requests everything is restored within the linger.
        #[test]
        fn bounds_hold_and_everything_is_restored(
            turns in proptest::collection::vec((0u64..30, proptest::collection::vec((1u32..6, 0usize..4, 0u64..3000), 0..6)), 1..60)
        ) {
            let mut decision = decision();
            let mut values: HashMap<u32, i8> = HashMap::new();
            let mut now = 5_000;
            let mut apply = |orders: Vec<Order>| {
                for order in orders {
                    match order {
                        Order::Change { tid, delta, .. } => { assert!(delta != 0 && (-STEP..=STEP).contains(&delta)); values.insert(tid, delta); }
                        Order::Restore { tid, .. } => assert!(values.remove(&tid).is_some(), "restored twice"),
                        Order::Inherited { .. } => {}
                    }
                }
                values.len()
            };
            for (step, requests) in turns {
                now += step;
                let requests: Vec<Serving> = requests.into_iter().map(|(tid, class, age)| serving(tid, class, (now - age) * MILLI)).collect();
                let left = apply(at(&mut decision, now * MILLI, &requests));
                prop_assert_eq!(left, decision.threads.len());
            }
            prop_assert_eq!(apply(at(&mut decision, (now + 11) * MILLI, &[])), 0);
        }
    }
}
