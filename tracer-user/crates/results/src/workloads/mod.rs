//! Workloads: the CPU of this host by command, user, cgroup and systemd unit. In each of the four groupings every process is in
//! one group, so their sums are equal, and together with the kernel's threads they are the CPU that the system reports as used.
//!
//! A process counts for the groups it is in when its CPU is read, about once a second. Those that come and go in between are
//! accounted, too: the kernel side reports their last counters, they are in the groups of the process that forked them, and their
//! command is that of their last program.

mod groups;

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

pub use self::groups::{GroupView, NAME, WorkloadGroup};
use tracer_host::guard::tables::{TableUse, scaled};
use tracer_host::process::{ProcessFacts, is_thread_name};
use tracer_model::Nanos;
use tracer_transactions::process_costs::ProcessWork;

use self::groups::{Groups, UNKNOWN};

/// What groups are formed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// The name of the main thread, as `ps -o comm` shows it; of the program's file where it is only a thread's name.
    Command,
    /// The effective user.
    User,
    /// The path in the cgroup hierarchy.
    Cgroup,
    /// The systemd service or scope in that path.
    Unit,
}

impl GroupBy {
    /// Every grouping.
    pub const ALL: [Self; 4] = [Self::Command, Self::User, Self::Cgroup, Self::Unit];

    /// The word in the API, in metrics and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::User => "user",
            Self::Cgroup => "cgroup",
            Self::Unit => "unit",
        }
    }

    /// The grouping of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.name() == name)
    }
}

/// Name of the group of processes that are in no unit.
const NO_UNIT: &str = "none";
/// Limit of groups of each kind at the default memory limit.
const GROUPS: usize = 512;
/// Limit of processes.
const PROCESSES: usize = 65_536;
/// How long after its introduction a process is read again, and how often from then on: programs that change their user do it soon
/// after they begin. Nanoseconds.
const FIRST_LOOK: Nanos = 2_000_000_000;
const LOOK_EVERY: Nanos = 60_000_000_000;
/// Most processes read again at once.
const LOOKS: usize = 64;

/// The groups of a process, by [`GroupBy`].
type Places = [WorkloadGroup; GroupBy::ALL.len()];

/// The books of workloads.
#[derive(Debug)]
pub struct Workloads {
    groups: [Groups; GroupBy::ALL.len()],
    processes: FxHashMap<u32, Places>,
    /// Processes to be read again, by time.
    looks: VecDeque<(Nanos, u32)>,
    refused: u64,
    /// All CPU so far, nanoseconds.
    total: u64,
}

/// Sums of a grouping.
#[derive(Clone, Debug, Default)]
pub struct Grouping {
    /// Groups with CPU or processes, the one with the most CPU first.
    pub groups: Vec<GroupView>,
    /// All CPU of processes that their threads reported, seconds: the sum over the groups.
    pub cpu_s: f64,
}

impl Workloads {
    /// Empty books; the limits are for an agent with `memory` bytes.
    pub fn for_memory(memory: u64) -> Self {
        let groups = || Groups::new(scaled(GROUPS, memory));
        Self {
            groups: [groups(), groups(), groups(), groups()],
            processes: FxHashMap::default(),
            looks: VecDeque::new(),
            refused: 0,
            total: 0,
        }
    }

    /// A process is what these facts say.
    pub fn process(&mut self, tgid: u32, facts: &ProcessFacts, now: Nanos) {
        let names = [facts.command(), facts.user.as_str(), root(&facts.cgroup), unit(&facts.cgroup)];
        let is_new = !self.processes.contains_key(&tgid);
        self.put(tgid, names.map(Some));
        if is_new && self.looks.len() < PROCESSES {
            self.looks.push_back((now.saturating_add(FIRST_LOOK), tgid));
        }
    }

    /// A process of which nothing but its command is known runs: it keeps the groups of the one that forked it.
    pub fn runs(&mut self, tgid: u32, command: &str) {
        self.put(tgid, [Some(command).filter(|command| !is_thread_name(command)), None, None, None]);
    }

    /// `child` was forked: it is in the groups of its parent until more is known.
    pub fn forked(&mut self, parent: u32, child: u32) {
        let Some(places) = self.processes.get(&parent).copied() else { return };
        self.gone(child);
        self.enter(child, places);
    }

    /// A process ended.
    pub fn gone(&mut self, tgid: u32) {
        let Some(places) = self.processes.remove(&tgid) else { return };
        for (groups, group) in self.groups.iter_mut().zip(places) {
            groups.leave(group);
        }
    }

    /// A process used `cpu` nanoseconds.
    pub fn spend(&mut self, tgid: u32, work: ProcessWork, cpu: u64) {
        let places = self.processes.get(&tgid).copied().unwrap_or([UNKNOWN; GroupBy::ALL.len()]);
        self.total = self.total.saturating_add(cpu);
        for (groups, group) in self.groups.iter_mut().zip(places) {
            groups.spend(group, work != ProcessWork::Other, cpu);
        }
    }

    /// Processes whose user and cgroup should be read again.
    pub fn take_looks(&mut self, now: Nanos) -> Vec<u32> {
        let mut found = Vec::new();
        while let Some((due, tgid)) = self.looks.front().copied()
            && due <= now
            && found.len() < LOOKS
        {
            self.looks.pop_front();
            if self.processes.contains_key(&tgid) {
                found.push(tgid);
                self.looks.push_back((now + LOOK_EVERY, tgid));
            }
        }
        found
    }

    /// What was read again: user and cgroup of a process.
    pub fn placed(&mut self, tgid: u32, user: &str, cgroup: &str) {
        if self.processes.contains_key(&tgid) {
            self.put(tgid, [None, Some(user), Some(root(cgroup)), Some(unit(cgroup))]);
        }
    }

    /// About once a second.
    pub fn tick(&mut self, now: Nanos) {
        for groups in &mut self.groups {
            groups.tick(now);
        }
    }

    /// The sums by `by`.
    pub fn grouping(&self, by: GroupBy) -> Grouping {
        let mut groups = self.of(by).views();
        groups.sort_by(|a, b| b.cpu_s.total_cmp(&a.cpu_s).then_with(|| a.name.cmp(&b.name)));
        Grouping { groups, cpu_s: self.total as f64 / 1e9 }
    }

    /// What `/metrics` shows by `by`: name and CPU seconds since the group is shown. The rest is in the first.
    pub fn shown(&self, by: GroupBy) -> Vec<(&str, f64)> {
        self.of(by).shown()
    }

    fn of(&self, by: GroupBy) -> &Groups {
        // `By` has as many values as there are groupings.
        let [command, user, cgroup, unit] = &self.groups;
        match by {
            GroupBy::Command => command,
            GroupBy::User => user,
            GroupBy::Cgroup => cgroup,
            GroupBy::Unit => unit,
        }
    }

    /// Processes, and groups of the fullest grouping.
    pub fn table_use(&self) -> [TableUse; 2] {
        let fullest = self.groups.iter().map(Groups::table_use).max_by_key(|used| used.entries).unwrap_or_default();
        let reached = self.groups.iter().map(|groups| groups.table_use().reached).sum();
        [TableUse::new(self.processes.len(), PROCESSES, self.refused), TableUse { reached, ..fullest }]
    }

    /// Puts a process into the groups of these names; without a name it stays where it is.
    fn put(&mut self, tgid: u32, names: [Option<&str>; GroupBy::ALL.len()]) {
        let old = self.processes.get(&tgid).copied();
        let mut places = old.unwrap_or([UNKNOWN; GroupBy::ALL.len()]);
        for ((groups, place), name) in self.groups.iter_mut().zip(&mut places).zip(names) {
            let Some(name) = name.filter(|name| !name.is_empty()) else { continue };
            if !groups.is_called(*place, name) {
                *place = groups.find(name);
            }
        }
        if old == Some(places) {
            return;
        }
        self.gone(tgid);
        self.enter(tgid, places);
    }

    fn enter(&mut self, tgid: u32, places: Places) {
        if self.processes.len() >= PROCESSES {
            self.refused += 1;
            return;
        }
        self.processes.insert(tgid, places);
        for (groups, group) in self.groups.iter_mut().zip(places) {
            groups.enter(group);
        }
    }
}

/// The root of the hierarchy has a name.
fn root(cgroup: &str) -> &str {
    if cgroup.is_empty() { "/" } else { cgroup }
}

/// The innermost systemd service or scope in a cgroup path; what is below a user's manager keeps that manager's name, because two
/// users may have equally named units.
fn unit(cgroup: &str) -> &str {
    let ends = |part: &str, kind: &str| part.strip_suffix(kind).is_some_and(|name| !name.is_empty());
    let is_unit = |part: &&str| ends(part, ".service") || ends(part, ".scope");
    let Some(unit) = cgroup.rsplit('/').find(is_unit) else { return NO_UNIT };
    let manager = cgroup.split('/').find(|part| part.starts_with("user@") && ends(part, ".service"));
    match manager.filter(|manager| *manager != unit) {
        // The path from the manager to the unit.
        Some(manager) => match (cgroup.find(manager), cgroup.rfind(unit)) {
            (Some(from), Some(to)) => cgroup.get(from..to + unit.len()).unwrap_or(unit),
            _ => unit,
        },
        None => unit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(comm: &str, user: &str, cgroup: &str) -> ProcessFacts {
        ProcessFacts { comm: comm.into(), user: user.into(), cgroup: cgroup.into(), ..ProcessFacts::default() }
    }

    fn sums(books: &Workloads, by: GroupBy) -> Vec<(String, f64)> {
        let groups = books.grouping(by).groups;
        groups.into_iter().filter(|group| group.cpu_s > 0.0).map(|group| (group.name, group.cpu_s)).collect()
    }

    fn owned(rows: &[(&str, f64)]) -> Vec<(String, f64)> {
        rows.iter().map(|(name, cpu)| ((*name).to_owned(), *cpu)).collect()
    }

    #[test]
    fn a_main_thread_is_not_a_command() {
        let mut books = Workloads::for_memory(512 << 20);
        let commands = |books: &Workloads| -> Vec<String> {
            books.grouping(GroupBy::Command).groups.into_iter().map(|group| String::from(&*group.name)).collect()
        };
        for (pid, comm) in [(1, "node"), (2, "MainThread"), (3, "node-MainThread")] {
            books.process(pid, &ProcessFacts { exe: "/usr/bin/node".into(), ..facts(comm, "u", "/") }, 0);
        }
        assert_eq!(commands(&books), ["node"]);
        // One that lived for a moment has the name of its execution.
        books.runs(4, "npm");
        books.runs(4, "node-MainThread");
        assert_eq!(commands(&books), ["node", "npm"]);
    }

    #[test]
    fn every_grouping_has_the_same_sum() {
        let mut books = Workloads::for_memory(512 << 20);
        books.process(1, &facts("nginx", "www", "/system.slice/nginx.service"), 0);
        books.process(2, &facts("sh", "root", ""), 0);
        // A short-lived child of the shell, which ran another program: only the exit was seen.
        books.forked(2, 3);
        books.runs(3, "gzip");
        books.spend(1, ProcessWork::Request(None), 2_000_000_000);
        books.spend(1, ProcessWork::Other, 1_000_000_000);
        books.spend(3, ProcessWork::Other, 4_000_000_000);
        books.spend(99, ProcessWork::Other, 500_000_000);
        assert_eq!(sums(&books, GroupBy::Command), owned(&[("gzip", 4.0), ("nginx", 3.0), ("unknown", 0.5)]));
        assert_eq!(sums(&books, GroupBy::User), owned(&[("root", 4.0), ("www", 3.0), ("unknown", 0.5)]));
        assert_eq!(
            sums(&books, GroupBy::Cgroup),
            owned(&[("/", 4.0), ("/system.slice/nginx.service", 3.0), ("unknown", 0.5)])
        );
        assert_eq!(sums(&books, GroupBy::Unit), owned(&[("none", 4.0), ("nginx.service", 3.0), ("unknown", 0.5)]));
        for by in GroupBy::ALL {
            let grouping = books.grouping(by);
            let requests: f64 = grouping.groups.iter().map(|group| group.requests_s).sum();
            assert!((grouping.cpu_s - 7.5).abs() < 1e-9 && (requests - 2.0).abs() < 1e-9);
        }
        books.gone(3);
        let gzip = books.grouping(GroupBy::Command).groups.into_iter().find(|group| group.name == "gzip").unwrap();
        assert_eq!((gzip.processes, gzip.started), (0, 1));
    }

    #[test]
    fn a_process_that_changes_its_user_moves() {
        let mut books = Workloads::for_memory(512 << 20);
        books.process(7, &facts("worker", "root", "/a"), 0);
        assert_eq!(books.take_looks(FIRST_LOOK - 1), Vec::<u32>::new());
        assert_eq!(books.take_looks(FIRST_LOOK), vec![7]);
        books.placed(7, "www", "/a");
        books.placed(8, "www", "/a");
        books.spend(7, ProcessWork::Other, 1_000_000_000);
        assert_eq!(sums(&books, GroupBy::User), owned(&[("www", 1.0)]));
        books.gone(7);
        assert_eq!(books.take_looks(10 * LOOK_EVERY), Vec::<u32>::new());
        assert_eq!(books.table_use()[0].entries, 0);
    }

    #[test]
    fn units_of_paths() {
        for (path, expected) in [
            ("/system.slice/nginx.service", "nginx.service"),
            ("/system.slice/docker-0123.scope", "docker-0123.scope"),
            ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service",
                "user@1000.service/app.slice/x.service",
            ),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", "user@1000.service/init.scope"),
            ("/user.slice/user-1000.slice/user@1000.service", "user@1000.service"),
            ("/a/b", NO_UNIT),
            ("", NO_UNIT),
        ] {
            assert_eq!(unit(path), expected, "{path}");
        }
    }

    proptest! {
        #[test]
        fn sums_survive_any_order_of_events(events in proptest::collection::vec((0u8..5, 0u32..40, 0u64..1_000_000), 0..400)) {
            let mut books = Workloads::for_memory(0);
            let mut sum = 0;
            for (at, (what, tgid, cpu)) in events.into_iter().enumerate() {
                match what {
                    0 => books.process(tgid, &facts(&format!("c{cpu}"), &format!("u{}", cpu % 50), &format!("/{cpu}.service")), 0),
                    1 => books.forked(tgid, tgid + 1),
                    2 => books.gone(tgid),
                    3 => books.runs(tgid, "x"),
                    _ => {
                        books.spend(tgid, ProcessWork::Other, cpu);
                        sum += cpu;
                    }
                }
                books.tick(at as u64 * 1_000_000_000);
            }
            for by in GroupBy::ALL {
                let groups: f64 = books.grouping(by).groups.iter().map(|group| group.cpu_s).sum();
                let shown: f64 = books.shown(by).iter().map(|(_, cpu)| cpu).sum();
                prop_assert!((groups - sum as f64 / 1e9).abs() < 1e-6, "{groups} {sum}");
                prop_assert!((shown - sum as f64 / 1e9).abs() < 1e-6, "{shown} {sum}");
            }
        }
    }
}
