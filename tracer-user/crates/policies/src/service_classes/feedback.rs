//! How far classes with `cpu = "auto"` are lowered, so that more important ones reach their goals. Pure: readings in, levels
//! out.
//!
//! The rule in one sentence: while a class misses its goal because it waits for a CPU, every less important class with
//! `cpu = "auto"` goes one level lower each period; while all more important ones have been well within their goals for
//! `CALM` periods, it comes back by one.
//!
//! What keeps it from swinging:
//! - *A dead band.* Between `RELAXED` and 1 times the goal nothing changes.
//! - *Quick down, slow back.* One period of missing lowers, several of calm bring back.
//! - *It learns.* If a goal is missed soon after a level was given back, that level is kept for `HOLD`, and twice as long
//!   each time it happens again, up to `HOLD_MAX`.
//! - *It gives up.* If a goal is still missed after `PATIENCE` periods at the lowest level, and by as much as in the
//!   beginning, lowering others does not help: all come back, and the class is not listened to for `HOLD_MAX`.
//!
//! Levels are between the class's own priority and `cpu = "low"`, never beyond.

use std::sync::Arc;

use super::ServiceClass;
use super::decision::STEP;

/// Nice levels to add, by level.
pub const NICE: [i8; 4] = [0, 3, 7, STEP];
/// The lowest level.
const LOWEST: usize = NICE.len() - 1;
/// Up to this share of its goal a class has time to give away.
const RELAXED: f64 = 0.8;
/// Periods of calm before a level is given back.
const CALM: u32 = 3;
/// Periods at the lowest level after which it must have helped, and how much of the excess may be left.
const PATIENCE: u32 = 6;
const HELPED: f64 = 0.8;
/// For how many periods a level is kept that turned out to be needed: two minutes, and at most half an hour.
const HOLD: u64 = 12;
const HOLD_MAX: u64 = 180;
/// Requests that a period needs for a reading.
pub const REQUESTS: u64 = 10;

/// What one class reached in one period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GoalReading {
    /// Response time as a share of the goal.
    pub ratio: f64,
    /// Most of it went for waiting for a CPU.
    pub waits_for_cpu: bool,
}

/// What was decided about a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FeedbackAction {
    /// One level lower: a more important class misses its goal.
    Lowered,
    /// One level back: all more important ones are well within theirs.
    Relaxed,
    /// All levels back: it did not help.
    GaveUp,
}

impl FeedbackAction {
    /// Every action.
    pub const ALL: [Self; 3] = [Self::Lowered, Self::Relaxed, Self::GaveUp];

    /// Its name in the API and the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lowered => "lowered",
            Self::Relaxed => "relaxed",
            Self::GaveUp => "gave_up",
        }
    }
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelChange {
    /// Index of the class that is lowered or comes back.
    pub class: usize,
    /// What was decided.
    pub action: FeedbackAction,
    /// Nice levels added from now on.
    pub nice: i8,
    /// Index of the class that it is for; `None` if none is late.
    pub cause: Option<usize>,
    /// What that class reached, as a share of its goal; 0 if none is late.
    pub ratio: f64,
}

/// The last decision about a class.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedbackDecision {
    /// What was decided.
    pub action: FeedbackAction,
    /// When, nanoseconds since the epoch.
    pub at: u64,
    /// The class that it was for.
    pub cause: Option<Arc<str>>,
    /// What that class reached, as a share of its goal.
    pub ratio: f64,
}

/// What was decided about a class since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FeedbackActions {
    /// Nice levels that are added now.
    pub nice: i8,
    /// Decisions, by [`FeedbackAction`].
    pub counts: [u64; FeedbackAction::ALL.len()],
    /// The last one.
    pub last: Option<FeedbackDecision>,
}

#[derive(Clone, Copy, Debug, Default)]
struct FeedbackState {
    importance: u32,
    auto: bool,
    level: usize,
    /// Periods of calm in a row.
    calm: u32,
    /// Period in which a level was last given back, and which one that was.
    relaxed: Option<(u64, usize)>,
    /// No lower than this level until that period; for how long next time.
    hold: usize,
    hold_until: u64,
    next_hold: u64,
    /// As the class that is late: what it reached when others were first lowered for it.
    first_ratio: f64,
    /// Periods in which it was late although all others were at the lowest level.
    in_vain: u32,
    /// Not listened to until that period.
    unheard_until: u64,
}

/// The controller.
#[derive(Debug, Default)]
pub struct Feedback {
    classes: Vec<FeedbackState>,
    period: u64,
    /// Levels are applied: whether they help can be seen.
    acts: bool,
}

impl Feedback {
    /// Begins with every class at its own priority. `acts`: levels are applied.
    pub fn new(classes: &[ServiceClass], acts: bool) -> Self {
        let state = |class: &ServiceClass| FeedbackState {
            importance: class.importance,
            auto: class.auto,
            next_hold: HOLD,
            ..FeedbackState::default()
        };
        Self { classes: classes.iter().map(state).collect(), period: 0, acts }
    }

    /// Nice levels to add, by class.
    pub fn nice(&self) -> Vec<i8> {
        self.classes.iter().map(|class| nice(class.level)).collect()
    }

    /// Whether a class can be lowered at all.
    pub fn is_needed(&self) -> bool {
        self.classes.iter().any(|class| class.auto)
    }

    /// A period ended; `readings` by class, `None` without a goal or with too few requests.
    pub fn period(&mut self, readings: &[Option<GoalReading>]) -> Vec<LevelChange> {
        self.period += 1;
        let now = self.period;
        let mut changes = Vec::new();
        // The most important class that is late for want of a CPU; all below it are the ones to lower.
        let reading = |class: usize| readings.get(class).copied().flatten();
        let late = |(class, state): (usize, &FeedbackState)| {
            let reading = reading(class).filter(|reading| reading.ratio > 1.0 && reading.waits_for_cpu)?;
            (now >= state.unheard_until).then_some((state.importance, class, reading.ratio))
        };
        let cause = self.classes.iter().enumerate().filter_map(late).min_by_key(|(importance, ..)| *importance);
        if let Some((importance, class, ratio)) = cause
            && self.is_in_vain(class, importance, ratio)
        {
            for (index, other) in self.classes.iter_mut().enumerate() {
                if other.importance > importance && other.level > 0 {
                    (other.level, other.calm, other.relaxed, other.hold) = (0, 0, None, 0);
                    let change = LevelChange {
                        class: index,
                        action: FeedbackAction::GaveUp,
                        nice: 0,
                        cause: Some(class),
                        ratio,
                    };
                    changes.push(change);
                }
            }
            if let Some(state) = self.classes.get_mut(class) {
                (state.unheard_until, state.in_vain, state.first_ratio) = (now + HOLD_MAX, 0, 0.0);
            }
            return changes;
        }
        // The importance of the most important class that needs what others gave it.
        let needs = |(class, state): (usize, &FeedbackState)| {
            let reading = reading(class)?;
            (reading.ratio > RELAXED && now >= state.unheard_until).then_some(state.importance)
        };
        let needed = self.classes.iter().enumerate().filter_map(needs).min();
        for (index, state) in self.classes.iter_mut().enumerate().filter(|(_, state)| state.auto) {
            if let Some((importance, class, ratio)) = cause
                && importance < state.importance
            {
                state.calm = 0;
                if state.level < LOWEST {
                    state.lower(now);
                    let nice = nice(state.level);
                    changes.push(LevelChange {
                        class: index,
                        action: FeedbackAction::Lowered,
                        nice,
                        cause: Some(class),
                        ratio,
                    });
                }
                continue;
            }
            if needed.is_some_and(|importance| importance < state.importance) {
                state.calm = 0;
                continue;
            }
            state.calm += 1;
            if state.relax(now) {
                let nice = nice(state.level);
                changes.push(LevelChange {
                    class: index,
                    action: FeedbackAction::Relaxed,
                    nice,
                    cause: None,
                    ratio: 0.0,
                });
            }
        }
        changes
    }

    /// Counts how long `class` has been late with everybody below it at the lowest level; whether that was in vain.
    fn is_in_vain(&mut self, class: usize, importance: u32, ratio: f64) -> bool {
        let mut below = self.classes.iter().filter(|other| other.auto && other.importance > importance).peekable();
        if below.peek().is_none() {
            return false;
        }
        let (untouched, lowest) = below.fold((true, true), |(untouched, lowest), other| {
            (untouched && other.level == 0, lowest && other.level == LOWEST)
        });
        let acts = self.acts;
        let Some(state) = self.classes.get_mut(class) else { return false };
        if untouched {
            (state.first_ratio, state.in_vain) = (ratio, 0);
        }
        state.in_vain = if lowest { state.in_vain + 1 } else { 0 };
        acts && state.in_vain >= PATIENCE && ratio - 1.0 > HELPED * (state.first_ratio - 1.0)
    }
}

impl FeedbackState {
    fn lower(&mut self, now: u64) {
        // It was given back too early.
        if let Some((when, level)) = self.relaxed.take()
            && now - when <= u64::from(CALM)
        {
            (self.hold, self.hold_until) = (level, now + self.next_hold);
            self.next_hold = (2 * self.next_hold).min(HOLD_MAX);
        }
        self.level += 1;
    }

    fn relax(&mut self, now: u64) -> bool {
        if self.relaxed.is_some_and(|(when, _)| now - when > u64::from(CALM)) {
            // Nobody missed it: what is tried next begins anew.
            (self.relaxed, self.next_hold) = (None, HOLD);
        }
        let held = now < self.hold_until && self.level <= self.hold;
        if self.level == 0 || self.calm < CALM || held {
            return false;
        }
        self.relaxed = Some((now, self.level));
        self.level -= 1;
        self.calm = 0;
        true
    }
}

fn nice(level: usize) -> i8 {
    NICE.get(level).copied().unwrap_or(STEP)
}

#[cfg(test)]
mod tests {
    use super::super::limits::RequestLimits;
    use super::super::{Goal, Priority};
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const GOLD: usize = 0;
    const BRONZE: usize = 1;

    fn class(name: &str, importance: u32, auto: bool) -> ServiceClass {
        let goal = if auto { Goal::Discretionary } else { Goal::P95(Duration::from_millis(50)) };
        let (cpu, network) = (Priority::Normal, Priority::Normal);
        ServiceClass {
            name: name.into(),
            importance,
            goal,
            cpu,
            auto,
            network,
            limits: RequestLimits::default(),
            place: "t:1".into(),
        }
    }

    fn two() -> Feedback {
        Feedback::new(&[class("gold", 1, false), class("bronze", 3, true)], true)
    }

    fn waits(ratio: f64) -> GoalReading {
        GoalReading { ratio, waits_for_cpu: true }
    }

    /// A host on which gold reaches `by_level` of its goal; what was decided in so many periods, and in which.
    fn host(feedback: &mut Feedback, by_level: [f64; 4], periods: u64) -> Vec<(u64, FeedbackAction, i8)> {
        let mut all = Vec::new();
        for period in 0..periods {
            let nice = feedback.nice()[BRONZE];
            let level = NICE.iter().position(|known| *known == nice).unwrap();
            let changes = feedback.period(&[Some(waits(by_level[level])), None]);
            all.extend(changes.iter().map(|change| (period, change.action, change.nice)));
        }
        all
    }

    #[test]
    fn a_missed_goal_lowers_the_others_until_it_is_reached() {
        use FeedbackAction::Lowered;
        let mut feedback = two();
        let all = host(&mut feedback, [1.8, 1.3, 0.9, 0.7], 360);
        // From then on nothing moves for an hour.
        assert_eq!(all, [(0, Lowered, 3), (1, Lowered, 7)]);
    }

    #[test]
    fn without_load_everything_comes_back() {
        let mut feedback = two();
        host(&mut feedback, [1.8, 1.3, 1.1, 0.9], 10);
        assert_eq!(feedback.nice(), [0, STEP]);
        let back: Vec<i8> = (0..9).flat_map(|_| feedback.period(&[None, None])).map(|change| change.nice).collect();
        assert_eq!(back, [7, 3, 0]);
        assert!(feedback.period(&[None, None]).is_empty());
    }

    /// One level too few is missed, one more is plenty: it must not swing between the two.
    #[test]
    fn a_level_that_is_needed_is_kept_longer_each_time() {
        let mut feedback = two();
        let all = host(&mut feedback, [1.5, 0.5, 0.4, 0.4], 3600);
        // Ten hours. It tries after 2, 4, 8, 16 and then every 30 minutes.
        let tries: Vec<u64> =
            all.iter().filter(|(_, action, _)| *action == FeedbackAction::Relaxed).map(|one| one.0).collect();
        assert!(tries.len() < 25, "{tries:?}");
        let gaps: Vec<u64> = tries.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(gaps.is_sorted() && gaps[0] >= HOLD && gaps.last() >= Some(&HOLD_MAX), "{gaps:?}");
        // And each time it is missed for one period only.
        let missed = all.iter().filter(|(_, action, _)| *action == FeedbackAction::Lowered).count();
        assert!(missed <= tries.len() + 1, "{all:?}");
    }

    #[test]
    fn what_does_not_help_is_given_up() {
        let mut feedback = two();
        let all = host(&mut feedback, [1.8, 1.8, 1.8, 1.8], HOLD_MAX);
        assert_eq!(all.last(), Some(&(2 + u64::from(PATIENCE), FeedbackAction::GaveUp, 0)), "{all:?}");
        assert_eq!(all.len(), 4);
        // In a dry run nothing can help, so it says what it would do.
        let mut dry = Feedback { acts: false, ..two() };
        assert_eq!(host(&mut dry, [1.8; 4], HOLD_MAX).len(), 3);
        // What helps by half stays.
        assert_eq!(host(&mut two(), [1.8, 1.7, 1.5, 1.4], HOLD_MAX).len(), 3);
    }

    #[test]
    fn only_less_important_ones_go_lower_and_only_for_a_cpu() {
        let classes = [class("gold", 1, false), class("silver", 2, true), class("bronze", 3, true)];
        let mut feedback = Feedback::new(&classes, true);
        let works = Some(GoalReading { ratio: 3.0, waits_for_cpu: false });
        assert!(feedback.period(&[works, None, None]).is_empty());
        // Silver has a goal of its own in this period.
        feedback.period(&[Some(waits(0.5)), Some(waits(1.5)), None]);
        assert_eq!(feedback.nice(), [0, 0, 3]);
        feedback.period(&[Some(waits(1.1)), Some(waits(0.5)), None]);
        assert_eq!(feedback.nice(), [0, 3, 7]);
        // Gold has time to give away, silver has not: only silver comes back.
        for _ in 0..CALM {
            feedback.period(&[Some(waits(0.5)), Some(waits(0.9)), None]);
        }
        assert_eq!(feedback.nice(), [0, 0, 7]);
        let none = Feedback::new(&classes[..1], true);
        assert!(!none.is_needed() && feedback.is_needed());
    }

    proptest! {
        /// Whatever is read: one level a period at most, within bounds, and only of classes that may be lowered.
        #[test]
        fn bounds_hold(readings in proptest::collection::vec((0.0f64..4.0, any::<bool>(), 0u8..4, 0.0f64..4.0), 1..400)) {
            let classes = [class("gold", 1, false), class("silver", 2, true), class("bronze", 3, true)];
            let mut feedback = Feedback::new(&classes, true);
            for (gold, waits_for_cpu, which, silver) in readings {
                let gold = (which & 1 == 0).then_some(GoalReading { ratio: gold, waits_for_cpu });
                let silver = (which & 2 == 0).then_some(GoalReading { ratio: silver, waits_for_cpu });
                let before = feedback.nice();
                let changes = feedback.period(&[gold, silver, None]);
                let after = feedback.nice();
                prop_assert_eq!(after[GOLD], 0);
                for (class, (before, after)) in before.iter().zip(&after).enumerate() {
                    let at = |nice: &i8| NICE.iter().position(|known| known == nice).unwrap();
                    let change = changes.iter().find(|change| change.class == class);
                    prop_assert_eq!(before != after, change.is_some());
                    let gave_up = change.is_some_and(|change| change.action == FeedbackAction::GaveUp);
                    prop_assert!(gave_up || at(before).abs_diff(at(after)) <= 1);
                }
            }
        }
    }
}
