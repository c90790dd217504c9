//! Activity profiles: what each resource of a request class usually is at this hour of the week, and what deviates from it.
//!
//! Every window of a class adds one value of each resource to the profile of its shift, an hour of the week in UTC, and to the
//! profile over all hours. A profile knows mean, variance and, from logarithmic buckets, percentiles. Findings do not rest on
//! profiles: those compare cost per request with a reference, whatever the hour. Profiles say what is usual.

mod sketch;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use self::sketch::Sketch;
use tracer_host::guard::tables::{TableUse, scaled};

/// Hours of a week.
pub const SHIFTS: u16 = 168;
/// Values of a class in a window.
pub const RESOURCES: usize = 9;
/// Their names in the API; times are seconds per request.
pub const NAMES: [&str; RESOURCES] = [
    "rate_per_s",
    "error_rate_per_s",
    "mean_s",
    "p95_s",
    "cpu_s",
    "runqueue_s",
    "blocked_s",
    "queue_s",
    "downstream_s",
];
/// Index of the 95th percentile of the response time, for goals of service classes.
const P95: usize = 3;

/// Limit of classes at the default memory limit: 0.5 MB each when all hours were seen.
const CLASSES: usize = 32;
/// Windows that a profile needs to be the basis of a judgement.
const ENOUGH: u64 = 60;
/// Newest windows whose mean is compared with the profile.
const RECENT: usize = 6;
/// Standard deviations beyond which a value deviates, if it is outside the middle 90 % as well.
const DEVIATES: f64 = 3.0;
/// Least standard deviation, as a part of the mean: a value that never changed is not known to the last digit.
const LEAST_SD: f64 = 0.02;

/// One value of each resource, as [`NAMES`].
pub type Values = [f32; RESOURCES];

/// What is known of one shift, or of all.
#[derive(Clone, Debug, Default)]
pub struct ActivityProfile {
    /// By resource.
    pub sketches: [Sketch; RESOURCES],
}

impl ActivityProfile {
    fn add(&mut self, values: &Values) {
        for (sketch, value) in self.sketches.iter_mut().zip(values) {
            sketch.add(f64::from(*value));
        }
    }

    /// Windows in it.
    pub fn windows(&self) -> u64 {
        self.sketches.first().map_or(0, Sketch::count)
    }
}

/// The profiles of a class.
#[derive(Debug, Default)]
pub struct ClassProfiles {
    shifts: BTreeMap<u16, Box<ActivityProfile>>,
    all: Box<ActivityProfile>,
    /// The newest windows, by their start. They are learnt when they are not the newest any more: what is judged is not its own measure.
    recent: VecDeque<(u64, Values)>,
    /// Start of the newest window, nanoseconds since the epoch.
    last_ns: u64,
}

/// How a resource stands, against the profile of this hour.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    /// Mean of the newest windows.
    pub recent: f64,
    /// Its distance from the profile's mean, standard deviations.
    pub distance: f64,
    /// Whether that is unusual: `above` or `below`.
    pub deviates: Option<&'static str>,
    /// A value that is exceeded when something is wrong: three standard deviations above the mean, and above the 99th percentile.
    pub threshold: f64,
}

impl ClassProfiles {
    fn learn(&mut self, start_ns: u64, values: &Values) {
        self.all.add(values);
        self.shifts.entry(shift_of(start_ns)).or_default().add(values);
    }

    /// Shifts that were seen, from Monday 0:00 on, with their profiles.
    pub fn shifts(&self) -> impl Iterator<Item = (u16, &ActivityProfile)> {
        self.shifts.iter().map(|(shift, profile)| (*shift, &**profile))
    }

    /// The profile that judges the present: of this hour, if it has enough windows, else of all; and whether it is of this hour.
    pub fn basis(&self) -> (&ActivityProfile, bool) {
        match self.shifts.get(&shift_of(self.last_ns)).filter(|profile| profile.windows() >= ENOUGH) {
            Some(profile) => (profile, true),
            None => (&self.all, false),
        }
    }

    /// Where resource `index` stands; `None` before there are enough windows.
    pub fn standing(&self, index: usize) -> Option<Standing> {
        let (profile, _) = self.basis();
        let sketch = profile.sketches.get(index)?;
        if sketch.count() < ENOUGH || self.recent.is_empty() {
            return None;
        }
        let values = self.recent.iter().filter_map(|(_, values)| values.get(index)).map(|value| f64::from(*value));
        let recent = values.sum::<f64>() / self.recent.len() as f64;
        let (mean, sd) = (sketch.mean(), sketch.variance().sqrt());
        // A mean of several windows varies less than one, but windows after each other are alike: no credit for that.
        let distance = (recent - mean) / sd.max(LEAST_SD * mean.abs()).max(f64::MIN_POSITIVE);
        let deviates = if distance > DEVIATES && recent > sketch.quantile(0.95) {
            Some("above")
        } else if distance < -DEVIATES && recent < sketch.quantile(0.05) {
            Some("below")
        } else {
            None
        };
        let threshold = sketch.quantile(0.99).max(mean + DEVIATES * sd.max(LEAST_SD * mean.abs()));
        Some(Standing { recent, distance, deviates, threshold: two_digits(threshold) })
    }

    /// A goal that a service class of these requests can be held to: seconds for the 95th percentile.
    pub fn goal_p95_s(&self) -> Option<f64> {
        self.standing(P95).map(|standing| standing.threshold)
    }
}

/// A class by its service's name and its own.
pub type ClassKey = (Arc<str>, Arc<str>);

/// Profiles of all classes.
#[derive(Debug)]
pub struct Activity {
    classes: BTreeMap<ClassKey, ClassProfiles>,
    limit: usize,
    refused: u64,
}

impl Activity {
    /// None yet; the limit is for an agent with `memory` bytes.
    pub fn for_memory(memory: u64) -> Self {
        Self { classes: BTreeMap::new(), limit: scaled(CLASSES, memory), refused: 0 }
    }

    /// A window of a class ended. Windows come in order; one that was there already, or is older, counts nothing.
    pub fn push(&mut self, class: &ClassKey, start_ns: u64, values: &Values) {
        let Some(profiles) = self.profiles(class) else { return };
        if start_ns <= profiles.last_ns {
            return;
        }
        profiles.last_ns = start_ns;
        if profiles.recent.len() >= RECENT
            && let Some((start_ns, values)) = profiles.recent.pop_front()
        {
            profiles.learn(start_ns, &values);
        }
        profiles.recent.push_back((start_ns, *values));
    }

    /// A window of a class, from the files of an earlier run.
    pub fn push_past(&mut self, class: &ClassKey, start_ns: u64, values: &Values) {
        if let Some(profiles) = self.profiles(class) {
            profiles.learn(start_ns, values);
        }
    }

    fn profiles(&mut self, class: &ClassKey) -> Option<&mut ClassProfiles> {
        if !self.classes.contains_key(class) && self.classes.len() >= self.limit {
            self.refused += 1;
            return None;
        }
        Some(self.classes.entry(class.clone()).or_default())
    }

    /// Classes with their profiles, by name.
    pub fn classes(&self) -> impl Iterator<Item = (&ClassKey, &ClassProfiles)> {
        self.classes.iter()
    }

    /// Classes that have profiles.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.classes.len(), self.limit, self.refused)
    }
}

/// The hour of the week, 0 to 167 from Monday 0:00 UTC on, of a time in nanoseconds since the epoch.
pub fn shift_of(start_ns: u64) -> u16 {
    // The epoch was a Thursday.
    ((start_ns / 3_600_000_000_000 + 3 * 24) % u64::from(SHIFTS)) as u16
}

/// A shift as people write it: `Tue 07:00`.
pub fn shift_name(shift: u16) -> String {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    format!("{} {:02}:00", DAYS.get(usize::from(shift / 24)).unwrap_or(&"–"), shift % 24)
}

/// Rounded up to two digits.
fn two_digits(value: f64) -> f64 {
    if !(value > 0.0 && value.is_finite()) {
        return 0.0;
    }
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    (value / unit - 1e-9).ceil() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;
    const WINDOW: u64 = 10_000_000_000;
    /// Monday, 23 November 2026, 0:00 UTC.
    const MONDAY: u64 = 1_795_392_000_000_000_000;

    fn key(class: u32) -> ClassKey {
        ("shop".into(), format!("GET /{class:04}").into())
    }

    /// All values `cpu`, varied by 5 % from window to window.
    fn values(cpu: f64, n: u64) -> Values {
        [(cpu * (1.0 + 0.05 * ((n % 7) as f64 / 3.0 - 1.0))) as f32; RESOURCES]
    }

    #[test]
    fn hours_of_the_week() {
        assert_eq!((shift_of(MONDAY), shift_of(MONDAY + 31 * HOUR), shift_of(0)), (0, 31, 72));
        assert_eq!((shift_name(31).as_str(), shift_name(167).as_str()), ("Tue 07:00", "Sun 23:00"));
        for (value, expected) in [(0.0123, 0.013), (1.2, 1.2), (99.1, 100.0), (0.0, 0.0), (f64::NAN, 0.0)] {
            assert!((two_digits(value) - expected).abs() < 1e-9, "{value}");
        }
    }

    #[test]
    fn a_value_is_unusual_for_its_hour() {
        let mut activity = Activity::for_memory(512 << 20);
        let class = key(7);
        // Two weeks: cheap at night, dear from 8 to 18.
        for n in 0..14 * 24 * 360u64 {
            let at = MONDAY + n * WINDOW;
            let day = (8..18).contains(&(shift_of(at) % 24));
            activity.push(&class, at, &values(if day { 10e-3 } else { 1e-3 }, n));
        }
        let of =
            |activity: &Activity| activity.classes().next().map(|(_, one)| (one.standing(4), one.basis().1)).unwrap();
        let (standing, own) = of(&activity);
        let night = standing.unwrap();
        assert!(own && night.deviates.is_none() && (night.recent - 1e-3).abs() < 5e-5, "{night:?}");
        assert!((1.0e-3..1.3e-3).contains(&night.threshold), "{night:?}");
        // What is usual by day is not at night.
        let end = MONDAY + 14 * 24 * HOUR;
        for n in 0..6 {
            activity.push(&class, end + n * WINDOW, &values(5e-3, n));
        }
        let standing = of(&activity).0.unwrap();
        assert_eq!(standing.deviates, Some("above"), "{standing:?}");
        assert!(standing.distance > DEVIATES);
        // An older window, and the same one again, count nothing.
        let before = activity.classes().next().unwrap().1.all.windows();
        activity.push(&class, end, &values(1.0, 0));
        activity.push(&class, end + 5 * WINDOW, &values(1.0, 0));
        assert_eq!(activity.classes().next().unwrap().1.all.windows(), before);
        let (_, profiles) = activity.classes().next().unwrap();
        assert_eq!(profiles.shifts().count(), usize::from(SHIFTS));
        let (_, noon) = profiles.shifts().find(|(shift, _)| *shift == 12).unwrap();
        assert!((noon.sketches[4].mean() - 10e-3).abs() < 1e-4 && noon.windows() == 720);
        assert!(profiles.goal_p95_s().is_some());
    }

    #[test]
    fn nothing_is_judged_early_and_classes_are_bounded() {
        let mut activity = Activity::for_memory(512 << 20);
        for n in 0..ENOUGH - 1 {
            activity.push(&key(1), MONDAY + n * WINDOW, &values(1.0, n));
        }
        assert_eq!(activity.classes().next().unwrap().1.standing(0), None);
        for class in 0..1000 {
            activity.push(&key(class), MONDAY, &values(1.0, 0));
        }
        let used = activity.table_use();
        assert_eq!((used.entries, used.reached), (CLASSES as u64, 1000 - CLASSES as u64));
        // Another hour without enough windows: all hours judge.
        for n in 0..ENOUGH {
            activity.push(&key(1), MONDAY + 5 * HOUR - ENOUGH / 2 * WINDOW + n * WINDOW, &values(1.0, n));
        }
        let (_, profiles) = activity.classes().find(|(class, _)| **class == key(1)).unwrap();
        assert!(!profiles.basis().1 && profiles.standing(0).is_some());
        // What earlier runs saw counts for its hour, and is not the present.
        for n in 0..ENOUGH {
            activity.push_past(&key(1), MONDAY - 7 * 24 * HOUR + 5 * HOUR + n * WINDOW, &values(0.1, n));
        }
        let (_, profiles) = activity.classes().find(|(class, _)| **class == key(1)).unwrap();
        assert!(profiles.basis().1, "{profiles:?}");
        let standing = profiles.standing(0).unwrap();
        assert!((standing.recent - 1.0).abs() < 0.1, "{standing:?}");
    }
}
