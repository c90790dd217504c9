//! Why a service class is late: what its response time went for, and which classes took the CPU meanwhile. Pure.
//!
//! Both are of the same last minute. That a class took the CPU while another waited for it is no proof that it was the
//! same CPU: threads can be bound to some. It is what the host had to give, and who got it.

use std::cmp::Ordering;

use tracer_model::{Cost, Nanos};
use tracer_policies::service_classes::Goal;

use super::quantile::Quantiles;

/// Change of the response time from which on it is a trend, as a ratio, and requests that each half minute needs for it.
const CHANGE: f64 = 0.1;
const REQUESTS: u64 = 20;

/// Sums over requests, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// Response times.
    pub(super) time: Nanos,
    /// In the socket before they were read.
    pub(super) queue: Nanos,
    /// What their threads used and waited for.
    pub(super) cost: Cost,
}

impl Parts {
    pub(super) fn add(&mut self, other: &Self) {
        self.time = self.time.saturating_add(other.time);
        self.queue = self.queue.saturating_add(other.queue);
        let (own, cost) = (&mut self.cost, &other.cost);
        own.cpu = own.cpu.saturating_add(cost.cpu);
        own.runq = own.runq.saturating_add(cost.runq);
        own.blocked = own.blocked.saturating_add(cost.blocked);
    }

    /// Shares of the response time. They add up to 1 at most, except where threads work on after the reply.
    pub(super) fn shares(&self) -> TimeShares {
        let share = |part: Nanos| if self.time == 0 { 0.0 } else { (part as f64 / self.time as f64).min(1.0) };
        let Cost { cpu, runq, blocked, .. } = self.cost;
        TimeShares { queue: share(self.queue), runqueue: share(runq), cpu: share(cpu), blocked: share(blocked) }
    }
}

/// What the response time of a class goes for, as shares of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeShares {
    /// In the socket, before a thread read the request.
    pub queue: f64,
    /// Its thread was ready and had no CPU.
    pub runqueue: f64,
    /// Its thread ran.
    pub cpu: f64,
    /// Its thread waited: for a call, a lock, a disk.
    pub blocked: f64,
}

/// What most of a response time goes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// A CPU, before it was read or after.
    Cpu,
    /// Nothing: it takes that much CPU.
    Work,
    /// Calls, locks, disks.
    Others,
}

impl WaitsFor {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Work => "work",
            Self::Others => "others",
        }
    }
}

impl TimeShares {
    /// What most of it goes for.
    pub fn waits_for(&self) -> WaitsFor {
        let waiting = self.queue + self.runqueue;
        if waiting >= self.cpu.max(self.blocked) {
            WaitsFor::Cpu
        } else if self.cpu >= self.blocked {
            WaitsFor::Work
        } else {
            WaitsFor::Others
        }
    }
}

/// Whether a class gets slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trend {
    /// It takes longer than in the half minute before.
    Rising,
    /// As long.
    Steady,
    /// Less long.
    Falling,
}

impl Trend {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rising => "rising",
            Self::Steady => "steady",
            Self::Falling => "falling",
        }
    }
}

/// Response times of some slices together.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) times: Quantiles,
    pub(super) sum: Nanos,
    pub(super) count: u64,
}

impl Times {
    /// What the goal is about, seconds.
    pub(super) fn actual(&self, goal: Goal) -> f64 {
        match goal {
            Goal::P99(_) => self.times.at(0.99).unwrap_or(0.0),
            Goal::P95(_) => self.times.at(0.95).unwrap_or(0.0),
            Goal::Mean(_) | Goal::Discretionary if self.count == 0 => 0.0,
            Goal::Mean(_) | Goal::Discretionary => self.sum as f64 / 1e9 / self.count as f64,
        }
    }

    /// How this half minute compares with the one before; `None` with too few requests.
    pub(super) fn trend(&self, before: &Self, goal: Goal) -> Option<Trend> {
        if self.count < REQUESTS || before.count < REQUESTS {
            return None;
        }
        let (now, before) = (self.actual(goal), before.actual(goal));
        Some(if now > before * (1.0 + CHANGE) {
            Trend::Rising
        } else if now < before * (1.0 - CHANGE) {
            Trend::Falling
        } else {
            Trend::Steady
        })
    }
}

/// CPU that a class took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taker {
    /// Index of the service class; `None`: all requests without one.
    pub class: Option<usize>,
    /// CPU over the last minute, seconds.
    pub cpu_s: f64,
    /// Of what requests took together.
    pub share: f64,
}

/// Who took how much of the CPU that requests took, most first; who took none is left out.
pub(super) fn takers(cpu: impl IntoIterator<Item = (Option<usize>, Nanos)>) -> Vec<Taker> {
    let cpu: Vec<(Option<usize>, Nanos)> = cpu.into_iter().filter(|(_, cpu)| *cpu > 0).collect();
    let all: f64 = cpu.iter().map(|(_, cpu)| *cpu as f64).sum();
    let taker =
        |(class, cpu): (Option<usize>, Nanos)| Taker { class, cpu_s: cpu as f64 / 1e9, share: cpu as f64 / all };
    let mut takers: Vec<Taker> = cpu.into_iter().map(taker).collect();
    takers.sort_by(|one, other| other.cpu_s.partial_cmp(&one.cpu_s).unwrap_or(Ordering::Equal));
    takers
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_most_of_the_time_goes_for() {
        for ([queue, runq, cpu, blocked], expected) in [
            ([30, 30, 35, 5], WaitsFor::Cpu),
            ([0, 10, 80, 10], WaitsFor::Work),
            ([0, 10, 20, 70], WaitsFor::Others),
            // Nothing is known of its thread.
            ([0, 0, 0, 0], WaitsFor::Cpu),
        ] {
            let parts = Parts { time: 100, queue, cost: Cost { cpu, runq, blocked, ..Cost::default() } };
            assert_eq!(parts.shares().waits_for(), expected, "{parts:?}");
        }
        // Its thread works on after the reply; no request at all.
        let long = Parts { time: 10, cost: Cost { cpu: 50, ..Cost::default() }, ..Parts::default() };
        assert_eq!((long.shares().cpu, Parts::default().shares()), (1.0, TimeShares::default()));
    }

    #[test]
    fn trends_need_requests_and_a_change() {
        let times = |count: u64, milli: u64| {
            let mut all = Times { count, sum: count * milli * 1_000_000, ..Times::default() };
            for _ in 0..count {
                all.times.add(milli * 1_000_000, 1);
            }
            all
        };
        let limit = Duration::from_millis(50);
        for (before, now, expected) in [
            (times(20, 20), times(20, 30), Some(Trend::Rising)),
            (times(20, 30), times(20, 20), Some(Trend::Falling)),
            (times(20, 20), times(50, 21), Some(Trend::Steady)),
            (times(19, 20), times(20, 90), None),
            (times(20, 20), times(0, 0), None),
        ] {
            for goal in [Goal::P99(limit), Goal::P95(limit), Goal::Mean(limit), Goal::Discretionary] {
                assert_eq!(now.trend(&before, goal), expected, "{goal:?}");
            }
        }
    }

    #[test]
    fn who_took_most_is_first() {
        let all = takers([(Some(0), 1_000_000_000), (None, 3_000_000_000), (Some(1), 0)]);
        let [first, second] = all[..] else { panic!("{all:?}") };
        assert_eq!((first.class, first.cpu_s, first.share), (None, 3.0, 0.75));
        assert_eq!((second.class, second.share), (Some(0), 0.25));
        assert!(takers([]).is_empty());
    }
}
