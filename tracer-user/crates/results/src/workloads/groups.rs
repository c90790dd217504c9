//! The groups of one grouping: a bounded table of names and sums.
//!
//! A full table gives the place of a group without processes to a new one; what the old one had used stays in the sum of the group
//! `_other`, so sums over all groups never change. `/metrics` shows few groups, each with what it used since it is shown; the rest is
//! in `_other`, too, which therefore never falls.

use std::collections::HashMap;

use tracer_host::guard::tables::TableUse;
use tracer_model::Nanos;
use tracer_model::text;

/// A group: its place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadGroup(u32);

/// Processes of which nothing is known.
pub(super) const UNKNOWN: WorkloadGroup = WorkloadGroup(0);
/// What finds no room.
const OTHER: WorkloadGroup = WorkloadGroup(1);
/// Longest name, in characters; the end of a longer one says more.
pub const NAME: usize = 160;
/// Number of groups of one grouping in `/metrics`, besides the rest.
const SHOWN: usize = 20;
/// CPU that a group must have used to be shown, nanoseconds.
const WORTH_SHOWING: u64 = 500_000_000;
/// Parts of the last minute, and their length.
const PARTS: usize = 6;
const PART: Nanos = 10_000_000_000;

/// A group as the API shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupView {
    /// Its name.
    pub name: String,
    /// CPU since tracing began, seconds.
    pub cpu_s: f64,
    /// Part of it for requests that its processes serve.
    pub requests_s: f64,
    /// CPUs used over the last minute.
    pub cores: f64,
    /// Processes now.
    pub processes: u64,
    /// Processes so far.
    pub started: u64,
}

#[derive(Debug, Default)]
struct Sums {
    name: Box<str>,
    cpu: u64,
    requests: u64,
    processes: u64,
    started: u64,
    /// CPU of the parts of the last minute, the current one first.
    recent: [u64; PARTS],
    /// What it had used when it began to be shown; `None` = it is not.
    shown_from: Option<u64>,
}

impl Sums {
    fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    fn recent(&self) -> u64 {
        self.recent.iter().sum()
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Groups {
    sums: Vec<Sums>,
    names: HashMap<Box<str>, u32>,
    limit: usize,
    /// Groups that lost their place, or found none.
    reached: u64,
    /// When the current part of the last minute began, and how long the parts before it lasted together.
    part_since: Nanos,
    parts: Nanos,
    now: Nanos,
}

impl Groups {
    pub(super) fn new(limit: usize) -> Self {
        let sums = vec![Sums::new("unknown"), Sums::new("_other")];
        let names = HashMap::from([("unknown".into(), UNKNOWN.0), ("_other".into(), OTHER.0)]);
        Self { sums, names, limit: limit.max(4), reached: 0, part_since: 0, parts: 0, now: 0 }
    }

    /// Whether that is the name of a group.
    pub(super) fn is_called(&self, group: WorkloadGroup, name: &str) -> bool {
        self.sums.get(group.0 as usize).is_some_and(|sums| *sums.name == *name)
    }

    /// The group of a name, made at first sight.
    pub(super) fn find(&mut self, name: &str) -> WorkloadGroup {
        let name = shortened(name);
        if let Some(known) = self.names.get(&*name) {
            return WorkloadGroup(*known);
        }
        let free = if self.sums.len() < self.limit {
            self.sums.push(Sums::default());
            Some(self.sums.len() - 1)
        } else {
            self.reached += 1;
            self.give_up()
        };
        let Some((index, sums)) = free.and_then(|index| Some((index, self.sums.get_mut(index)?))) else { return OTHER };
        *sums = Sums::new(&name);
        self.names.insert(name.into(), index as u32);
        WorkloadGroup(index as u32)
    }

    /// A process came.
    pub(super) fn enter(&mut self, group: WorkloadGroup) {
        if let Some(sums) = self.sums.get_mut(group.0 as usize) {
            sums.processes += 1;
            sums.started += 1;
        }
    }

    /// A process went.
    pub(super) fn leave(&mut self, group: WorkloadGroup) {
        if let Some(sums) = self.sums.get_mut(group.0 as usize) {
            sums.processes = sums.processes.saturating_sub(1);
        }
    }

    /// CPU was used.
    pub(super) fn spend(&mut self, group: WorkloadGroup, for_request: bool, cpu: u64) {
        let Some(sums) = self.sums.get_mut(group.0 as usize) else { return };
        sums.cpu += cpu;
        sums.requests += if for_request { cpu } else { 0 };
        if let Some(part) = sums.recent.first_mut() {
            *part += cpu;
        }
    }

    /// About once a second.
    pub(super) fn tick(&mut self, now: Nanos) {
        if self.part_since == 0 {
            self.part_since = now;
        }
        self.now = now;
        let passed = now.saturating_sub(self.part_since);
        if passed >= PART {
            self.part_since = now;
            self.parts = (self.parts + passed).min(PART * (PARTS as Nanos - 1));
            for sums in &mut self.sums {
                sums.recent.rotate_right(1);
                if let Some(part) = sums.recent.first_mut() {
                    *part = 0;
                }
            }
        }
        self.choose_shown();
    }

    /// Every group that has used CPU or has processes.
    pub(super) fn views(&self) -> Vec<GroupView> {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let measured = seconds(self.parts + self.now.saturating_sub(self.part_since)).max(1.0);
        let used = self.sums.iter().filter(|sums| sums.cpu > 0 || sums.processes > 0);
        let view = |sums: &Sums| GroupView {
            name: sums.name.to_string(),
            cpu_s: seconds(sums.cpu),
            requests_s: seconds(sums.requests),
            cores: seconds(sums.recent()) / measured,
            processes: sums.processes,
            started: sums.started,
        };
        used.map(view).collect()
    }

    /// What is shown in metrics: the rest, then name and CPU seconds of each group.
    pub(super) fn shown(&self) -> Vec<(&str, f64)> {
        let mut rest = self.sums.iter().map(|sums| sums.cpu).sum::<u64>();
        let mut rows = Vec::new();
        for sums in &self.sums {
            let Some(from) = sums.shown_from else { continue };
            let cpu = sums.cpu.saturating_sub(from);
            rest = rest.saturating_sub(cpu);
            rows.push((&*sums.name, cpu as f64 / 1e9));
        }
        rows.insert(0, ("_other", rest as f64 / 1e9));
        rows
    }

    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.sums.len(), self.limit, self.reached)
    }

    /// The place of the group without processes that used least of late, whose sums go to `_other`.
    fn give_up(&mut self) -> Option<usize> {
        let apart = [UNKNOWN.0 as usize, OTHER.0 as usize];
        let idle = self.sums.iter().enumerate().filter(|(index, sums)| sums.processes == 0 && !apart.contains(index));
        let (index, _) = idle.min_by_key(|(_, sums)| (sums.recent(), sums.cpu))?;
        let old = std::mem::take(self.sums.get_mut(index)?);
        self.names.remove(&old.name);
        let other = self.sums.get_mut(OTHER.0 as usize)?;
        other.cpu += old.cpu;
        other.requests += old.requests;
        other.started += old.started;
        for (sum, part) in other.recent.iter_mut().zip(old.recent) {
            *sum += part;
        }
        Some(index)
    }

    /// Groups that use CPU are shown, as many as there is room for; those that have not used any for a minute make room.
    fn choose_shown(&mut self) {
        let mut shown = self.sums.iter().filter(|sums| sums.shown_from.is_some()).count();
        let mut wanting: Vec<(u64, usize)> = self
            .sums
            .iter()
            .enumerate()
            .filter(|(index, sums)| {
                *index != OTHER.0 as usize
                    && sums.shown_from.is_none()
                    && sums.cpu >= WORTH_SHOWING
                    && sums.recent() > 0
            })
            .map(|(index, sums)| (sums.recent(), index))
            .collect();
        wanting.sort_unstable_by(|a, b| b.cmp(a));
        for (_, index) in wanting {
            if shown >= SHOWN {
                let idle = self.sums.iter_mut().find(|sums| sums.shown_from.is_some() && sums.recent() == 0);
                let Some(idle) = idle else { break };
                idle.shown_from = None;
                shown -= 1;
            }
            if let Some(sums) = self.sums.get_mut(index) {
                sums.shown_from = Some(sums.cpu);
                shown += 1;
            }
        }
    }
}

/// A name that fits, without invisible characters.
fn shortened(name: &str) -> String {
    let name = text::printable(name);
    let long = name.chars().count().saturating_sub(NAME);
    if long == 0 {
        return name.into_owned();
    }
    let end: String = name.chars().skip(long + 1).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_full_table_loses_no_cpu() {
        let mut groups = Groups::new(4);
        let (a, b) = (groups.find("a"), groups.find("b"));
        groups.enter(a);
        groups.spend(a, true, SECOND);
        groups.spend(b, false, 2 * SECOND);
        // b has no process: it makes room.
        let c = groups.find("c");
        assert_eq!((c, groups.is_called(c, "c"), groups.find("a")), (b, true, a));
        groups.enter(c);
        groups.spend(c, false, SECOND);
        // Nothing makes room.
        assert_eq!(groups.find("d"), OTHER);
        let sums: Vec<(String, f64)> = groups.views().into_iter().map(|view| (view.name, view.cpu_s)).collect();
        assert_eq!(sums, [("_other".into(), 2.0), ("a".into(), 1.0), ("c".into(), 1.0)]);
        assert_eq!(groups.table_use().reached, 2);
        groups.leave(a);
        groups.leave(a);
        assert_eq!(shortened(&"x".repeat(500)).chars().count(), NAME);
    }

    #[test]
    fn what_metrics_show_never_falls() {
        let mut groups = Groups::new(200);
        let of: Vec<WorkloadGroup> = (0..SHOWN + 10).map(|n| groups.find(&format!("g{n}"))).collect();
        let mut before: HashMap<String, f64> = HashMap::new();
        for second in 1..400u64 {
            // First the first twenty are busy, then the others.
            for (n, group) in of.iter().enumerate() {
                if (n < SHOWN) == (second < 150) {
                    groups.spend(*group, false, SECOND);
                }
            }
            groups.tick(second * SECOND);
            let rows = groups.shown();
            assert!(rows.len() <= SHOWN + 1);
            let sum: f64 = rows.iter().map(|(_, cpu)| cpu).sum();
            let all: f64 = groups.views().iter().map(|view| view.cpu_s).sum();
            assert!((sum - all).abs() < 1e-6, "{sum} {all}");
            for (name, cpu) in &rows {
                let known = before.get(*name).copied().unwrap_or_default();
                assert!(*cpu >= known - 1e-9, "{name} {known} {cpu}");
            }
            before = rows.into_iter().map(|(name, cpu)| (name.to_owned(), cpu)).collect();
        }
        // The second ones are shown, and those that were are not.
        assert!(before.contains_key("g25") && before.len() <= SHOWN + 1, "{before:?}");
        let view = groups.views().into_iter().find(|view| view.name == "g25").unwrap();
        assert!((view.cores - 1.0).abs() < 0.05, "{view:?}");
    }
}
