//! Load shedding as a pure state machine: memory and CPU usage in, level of detail out.
//!
//! Fast to shed, slow to restore: the machine enters a level as soon as usage passes [`SHED_AT`] of a ceiling, and the
//! next one after this one had time to take effect (at once while memory exceeds its ceiling itself). It leaves a level
//! when usage has stayed below [`RESTORE_BELOW`] for the configured calm. If it must enter a level again soon after
//! leaving it, the calm doubles, to prevent oscillation.

use std::collections::VecDeque;

use tracer_model::Nanos;

/// Share of a ceiling at which the next level is entered.
pub const SHED_AT: f64 = 0.85;
/// Share of the ceilings below which a level is left, after the calm.
pub const RESTORE_BELOW: f64 = 0.75;
/// Time for a level to take effect before the next one is entered, nanoseconds: memory reacts at once, CPU is an
/// average.
const SETTLE_MEMORY: Nanos = SECOND;
/// See [`SETTLE_MEMORY`].
const SETTLE_CPU: Nanos = 3 * SECOND;
/// CPU is averaged over this time, nanoseconds: a burst of a second is normal for an agent.
const WINDOW: Nanos = 5 * SECOND;
/// Maximum number of measurements in the average.
const WINDOW_LEN: usize = 32;
/// How long memory may stay above its ceiling at the last level, nanoseconds.
pub const MEMORY_GRACE: Nanos = 10 * SECOND;
/// How long CPU may stay above its ceiling at the last level, nanoseconds; only usage beyond `CPU_BEYOND` counts,
/// because a rate is measured with noise.
pub const CPU_GRACE: Nanos = 60 * SECOND;
/// See [`CPU_GRACE`].
const CPU_BEYOND: f64 = 1.1;
/// Entering a level within this time after leaving one means that it was left too early, nanoseconds.
const RELAPSE: Nanos = 60 * SECOND;
/// Maximum number of doublings of the calm.
const DOUBLINGS: u32 = 4;
/// After this time without shedding, the configured calm applies again, nanoseconds.
const FORGIVEN: Nanos = 600 * SECOND;
const SECOND: Nanos = 1_000_000_000;

/// Load shedding levels; each includes those before it. No level affects the accounting or the counters of losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Nothing.
    #[default]
    Full = 0,
    /// The kernel captures less payload, and parsers assemble shorter message heads.
    Payload = 1,
    /// Fewer stacks are sampled, and symbolized without debug information.
    Sampling = 2,
    /// Requests that would start a new class count under its parent; fewer transactions and stacks are kept.
    Classes = 3,
    /// No stacks are sampled and no transactions kept.
    History = 4,
}

/// The detail that a level keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetailLimits {
    /// Maximum payload prefix captured per operation, bytes.
    pub head_max: u16,
    /// Longest message head assembled from fragments, bytes.
    pub head_limit: usize,
    /// Maximum stack samples per second and CPU.
    pub hertz_max: u32,
    /// Whether symbolization may read debug information, which takes tens of megabytes.
    pub debug_info: bool,
    /// Whether requests may start new classes.
    pub new_classes: bool,
    /// Divisor of the stores' (transactions, stacks) limits; 0 = they keep nothing.
    pub store_part: usize,
}

impl Level {
    /// Every level, in the order they are entered.
    pub const ALL: [Self; 5] = [Self::Full, Self::Payload, Self::Sampling, Self::Classes, Self::History];
    /// The last one.
    pub const LAST: Self = Self::History;

    /// The level with this number; the last one for higher numbers.
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::LAST)
    }

    /// Label value of `tracer_load_shedding_total{level}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "nothing",
            Self::Payload => "payload",
            Self::Sampling => "sampling",
            Self::Classes => "classes",
            Self::History => "history",
        }
    }

    /// Description of what the level gives up.
    pub fn what(self) -> &'static str {
        match self {
            Self::Full => "everything is kept",
            Self::Payload => "heads of messages are carried up to 1 KiB only",
            Self::Sampling => "stacks are sampled at 19 Hz at most and named without debug information",
            Self::Classes => {
                "new request classes are counted under their parents, a quarter of the transactions and stacks is kept"
            }
            Self::History => "no stacks are taken and no transactions kept",
        }
    }

    /// The detail it keeps.
    pub fn detail_limits(self) -> DetailLimits {
        let full = DetailLimits {
            head_max: tracer_common::limits::HEAD_MAX as u16,
            head_limit: tracer_common::limits::HEAD_COLLECTED,
            hertz_max: u32::MAX,
            debug_info: true,
            new_classes: true,
            store_part: 1,
        };
        let payload = DetailLimits { head_max: 1024, head_limit: 8 * 1024, ..full };
        let sampling = DetailLimits { hertz_max: 19, debug_info: false, ..payload };
        let classes = DetailLimits { new_classes: false, store_part: 4, ..sampling };
        match self {
            Self::Full => full,
            Self::Payload => payload,
            Self::Sampling => sampling,
            Self::Classes => classes,
            Self::History => DetailLimits { hertz_max: 0, store_part: 0, ..classes },
        }
    }

    fn next(self) -> Self {
        Self::from_number(self as u8 + 1)
    }

    fn before(self) -> Self {
        Self::from_number((self as u8).saturating_sub(1))
    }
}

/// Limits of the agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Memory of its own, bytes.
    pub memory: u64,
    /// CPU, cores.
    pub cpu: f64,
    /// How long usage must be low before a level is left, nanoseconds.
    pub calm: Nanos,
}

/// A measurement of the agent's usage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Time of the measurement, `CLOCK_MONOTONIC`, nanoseconds.
    pub now: Nanos,
    /// Memory of its own, bytes.
    pub memory: u64,
    /// CPU since the start, nanoseconds.
    pub cpu: u64,
}

/// A limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// Memory of its own.
    Memory,
    /// CPU.
    Cpu,
}

impl Ceiling {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Shedder {
    ceilings: Ceilings,
    level: Level,
    window: VecDeque<(Nanos, u64)>,
    /// First measurement.
    since: Option<Nanos>,
    /// When a level was last entered, and last left.
    taken: Option<Nanos>,
    restored: Option<Nanos>,
    calm_since: Option<Nanos>,
    doublings: u32,
    /// Since when memory and CPU exceed their ceilings at the last level.
    beyond: [Option<Nanos>; 2],
}

impl Shedder {
    /// Starts with full detail.
    pub fn new(ceilings: Ceilings) -> Self {
        Self {
            ceilings,
            level: Level::Full,
            window: VecDeque::new(),
            since: None,
            taken: None,
            restored: None,
            calm_since: None,
            doublings: 0,
            beyond: [None, None],
        }
    }

    /// The level in force.
    pub fn level(&self) -> Level {
        self.level
    }

    /// CPU over the last seconds, cores; before it is known for that long, as if there had been none.
    pub fn cpu(&self) -> f64 {
        let (Some((first, before)), Some((last, after))) = (self.window.front(), self.window.back()) else {
            return 0.0;
        };
        let is_young = self.since.is_some_and(|since| last.saturating_sub(since) < WINDOW);
        let nanos = if is_young { WINDOW } else { last.saturating_sub(*first) };
        if nanos == 0 { 0.0 } else { after.saturating_sub(*before) as f64 / nanos as f64 }
    }

    /// Takes a measurement (several a second) and returns the level in force from now on.
    pub fn observe(&mut self, usage: Usage) -> Level {
        let now = usage.now;
        self.since.get_or_insert(now);
        self.window.push_back((now, usage.cpu));
        while self.window.len() > 2
            && (self.window.len() > WINDOW_LEN
                || self.window.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= WINDOW))
        {
            self.window.pop_front();
        }
        let memory = usage.memory as f64 / self.ceilings.memory.max(1) as f64;
        let cpu = self.cpu() / self.ceilings.cpu.max(0.001);
        let most = memory.max(cpu);
        if most >= SHED_AT {
            self.calm_since = None;
            let settle = if memory >= SHED_AT { SETTLE_MEMORY } else { SETTLE_CPU };
            let settled = self.taken.is_none_or(|taken| now.saturating_sub(taken) >= settle);
            if self.level < Level::LAST && (settled || memory >= 1.0) {
                self.level = self.level.next();
                self.taken = Some(now);
                // Entering a level soon after leaving one doubles the calm, once per level left.
                if self.restored.take().is_some_and(|restored| now.saturating_sub(restored) < RELAPSE) {
                    self.doublings = (self.doublings + 1).min(DOUBLINGS);
                }
            }
        } else if most >= RESTORE_BELOW {
            self.calm_since = None;
        } else {
            let since = *self.calm_since.get_or_insert(now);
            let calm = self.ceilings.calm << self.doublings;
            if self.level > Level::Full && now.saturating_sub(since) >= calm {
                self.level = self.level.before();
                self.restored = Some(now);
                self.calm_since = Some(now);
            }
            if self.taken.is_some_and(|taken| now.saturating_sub(taken) >= FORGIVEN) {
                self.doublings = 0;
            }
        }
        for (since, passed) in self.beyond.iter_mut().zip([memory > 1.0, cpu > CPU_BEYOND]) {
            *since = (passed && self.level == Level::LAST).then(|| since.unwrap_or(now));
        }
        self.level
    }

    /// The ceiling that usage still exceeds at the last level, after its grace time.
    pub fn beyond(&self) -> Option<Ceiling> {
        let now = self.window.back()?.0;
        let long = |since: Option<Nanos>, grace| since.is_some_and(|since| now.saturating_sub(since) >= grace);
        if long(self.beyond[0], MEMORY_GRACE) {
            Some(Ceiling::Memory)
        } else if long(self.beyond[1], CPU_GRACE) {
            Some(Ceiling::Cpu)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB: u64 = 1 << 20;
    const CEILINGS: Ceilings = Ceilings { memory: 100 * MB, cpu: 0.5, calm: 30 * SECOND };

    /// Drives a machine one second at a time.
    struct Drive {
        shedder: Shedder,
        now: Nanos,
        cpu: u64,
    }

    impl Drive {
        fn new() -> Self {
            Self { shedder: Shedder::new(CEILINGS), now: 1000 * SECOND, cpu: 0 }
        }

        /// Runs `seconds` at this memory (MB) and CPU (cores); returns the levels.
        fn run(&mut self, seconds: u64, memory: u64, cores: f64) -> Vec<Level> {
            (0..seconds)
                .map(|_| {
                    self.now += SECOND;
                    self.cpu += (cores * 1e9) as u64;
                    self.shedder.observe(Usage { now: self.now, memory: memory * MB, cpu: self.cpu })
                })
                .collect()
        }
    }

    #[test]
    fn levels_are_taken_in_order_and_given_back_slowly() {
        let mut drive = Drive::new();
        assert!(drive.run(100, 84, 0.1).iter().all(|level| *level == Level::Full));
        let mut seen = drive.run(20, 90, 0.1);
        seen.dedup();
        assert_eq!(seen, [Level::Payload, Level::Sampling, Level::Classes, Level::History]);
        // Between the marks nothing changes, in either direction.
        assert!(drive.run(500, 75, 0.1).iter().all(|level| *level == Level::History));
        assert_eq!(drive.run(30, 60, 0.1).last(), Some(&Level::History));
        let mut seen = drive.run(1 + 3 * 30, 60, 0.1);
        seen.dedup();
        assert_eq!(seen, [Level::Classes, Level::Sampling, Level::Payload, Level::Full]);
    }

    #[test]
    fn each_level_is_given_time_unless_the_ceiling_is_passed() {
        let quarters = |memory: u64| {
            let mut drive = Drive::new();
            (0..6)
                .map(|_| {
                    drive.now += SECOND / 4;
                    drive.shedder.observe(Usage { now: drive.now, memory: memory * MB, cpu: 0 })
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(quarters(90), [[Level::Payload; 4].as_slice(), &[Level::Sampling; 2]].concat());
        assert_eq!(quarters(101), [&Level::ALL[1..], &[Level::History; 2]].concat());
        let mut drive = Drive::new();
        drive.run(6, 10, 0.1);
        // CPU: one level in three seconds.
        let mut seen = drive.run(12, 10, 0.5);
        assert_eq!(seen.iter().filter(|level| **level == Level::Sampling).count(), 3);
        seen.dedup();
        assert_eq!(seen.last(), Some(&Level::Classes));
    }

    #[test]
    fn cpu_counts_by_its_average() {
        let mut drive = Drive::new();
        drive.run(10, 10, 0.1);
        // One second of a whole core averages to 0.28 over five seconds.
        assert_eq!(drive.run(1, 10, 1.0), [Level::Full]);
        drive.run(10, 10, 0.1);
        assert_eq!(drive.shedder.level(), Level::Full);
        assert_eq!(drive.run(10, 10, 0.45).last(), Some(&Level::Sampling));
        assert!((drive.shedder.cpu() - 0.45).abs() < 0.001);
        // A pause of the whole machine is time without CPU, not load.
        drive.now += 3600 * SECOND;
        drive.run(1, 10, 0.1);
        assert!(drive.shedder.cpu() < 0.01);
    }

    #[test]
    fn a_burst_after_the_start_is_no_average() {
        let mut drive = Drive::new();
        assert_eq!(drive.run(1, 10, 0.1), [Level::Full]);
        assert_eq!(drive.run(2, 10, 1.0), [Level::Full; 2]);
        assert!((drive.shedder.cpu() - 0.4).abs() < 0.001);
        assert_eq!(drive.run(1, 10, 1.0), [Level::Payload]);
    }

    #[test]
    fn what_swings_is_given_back_more_slowly() {
        let mut drive = Drive::new();
        drive.run(1, 90, 0.0);
        let until_restored = |drive: &mut Drive| {
            let level = drive.shedder.level();
            (1..10_000).find(|_| drive.run(1, 50, 0.0)[0] < level).unwrap()
        };
        assert_eq!(until_restored(&mut drive), 31);
        for calm in [61, 121, 241, 481, 481] {
            drive.run(1, 90, 0.0);
            assert_eq!(drive.shedder.level(), Level::Payload);
            assert_eq!(until_restored(&mut drive), calm);
        }
        drive.run(600, 50, 0.0);
        drive.run(1, 90, 0.0);
        assert_eq!(until_restored(&mut drive), 31);
    }

    #[test]
    fn beyond_repair_is_the_last_level_for_a_while() {
        let mut drive = Drive::new();
        drive.run(12, 101, 0.0);
        assert_eq!((drive.shedder.level(), drive.shedder.beyond()), (Level::LAST, None));
        drive.run(2, 101, 0.0);
        assert_eq!(drive.shedder.beyond(), Some(Ceiling::Memory));
        // One good measurement restarts the grace time.
        drive.run(1, 99, 0.0);
        assert_eq!(drive.shedder.beyond(), None);
        drive.run(9, 101, 0.0);
        assert_eq!(drive.shedder.beyond(), None);
        let mut drive = Drive::new();
        drive.run(70, 10, 0.52);
        assert_eq!((drive.shedder.level(), drive.shedder.beyond()), (Level::LAST, None));
        drive.run(66, 10, 0.6);
        assert_eq!(drive.shedder.beyond(), Some(Ceiling::Cpu));
    }

    #[test]
    fn each_level_leaves_no_more_than_the_one_before() {
        for pair in Level::ALL.windows(2) {
            let (more, less) = (pair[0].detail_limits(), pair[1].detail_limits());
            assert!(less != more, "{pair:?}");
            assert!(less.head_max <= more.head_max && less.head_limit <= more.head_limit, "{pair:?}");
            assert!(less.hertz_max <= more.hertz_max && less.new_classes <= more.new_classes, "{pair:?}");
            assert!(less.store_part == 0 || less.store_part >= more.store_part && more.store_part > 0, "{pair:?}");
            assert_eq!(pair[0].next(), pair[1]);
        }
        assert_eq!(Level::from_number(200), Level::LAST);
    }

    proptest! {
        #[test]
        fn one_step_at_a_time_whatever_happens(
            steps in proptest::collection::vec((0u64..200, 0.0f64..3.0, 0u64..5_000_000_000), 1..300),
        ) {
            let mut drive = Drive::new();
            for (memory, cores, pause) in steps {
                let before = drive.shedder.level();
                drive.now += pause;
                let after = drive.run(1, memory, cores)[0];
                prop_assert!((after as i32 - before as i32).abs() <= 1);
                prop_assert!(drive.shedder.beyond().is_none() || after == Level::LAST);
                prop_assert!(drive.shedder.window.len() <= WINDOW_LEN);
                // No level is left while usage is high.
                prop_assert!(after >= before || (memory as f64) < 100.0 * RESTORE_BELOW);
            }
        }
    }
}
