//! Metrics of workloads and of subsystems: CPU of groups of processes, and of the parts of databases.

use std::collections::HashSet;

use prometheus::{CounterVec, GaugeVec, Opts};

use super::export::Metrics;
use super::families::{Families, vec};
use super::totals::raise;
use crate::subsystems::Subsystems;
use crate::workloads::{GroupBy, Workloads};

/// Users of an instance with series of their own, besides the rest.
const USERS: usize = 20;
/// Name of the rest.
const OTHER: &str = "_other";

/// The families.
#[derive(Debug)]
pub(super) struct WorkloadFamilies {
    groups: CounterVec,
    /// The series of `groups`, by grouping.
    shown: [HashSet<String>; GroupBy::ALL.len()],
    components: CounterVec,
    users: CounterVec,
    ratio: GaugeVec,
    /// Series of `components` and `users` by system and instance.
    labels: Vec<(&'static str, String, HashSet<Vec<String>>)>,
}

impl WorkloadFamilies {
    pub(super) fn new(r: &Families) -> Self {
        let groups = "CPU seconds of processes by group; by is command, user, cgroup or unit, and each of the four has the \
                      same sum. At most 20 groups of each have a series, each from when it began to use CPU; the rest is in \
                      _other.";
        let components = "CPU seconds of a database's processes by what they do: requests, connection handling (sessions \
                          outside requests), parallel workers, and the server's own processes by name.";
        let users = "CPU seconds of the sessions of a database's users, if [subsystems] user_metrics asks for it; the first 20 \
                     users of an instance have a series, the rest is in _other.";
        let ratio = "CPU in the books of a database divided by what /proc says its processes used.";
        let of = ["system", "instance"];
        let component = &[of[0], of[1], "component"];
        let user = &[of[0], of[1], "user", "database"];
        Self {
            groups: vec(
                r,
                CounterVec::new(Opts::new("tracer_workload_cpu_seconds_total", groups), &["by", "workload"]),
            ),
            shown: Default::default(),
            components: vec(r, CounterVec::new(Opts::new("tracer_subsystem_cpu_seconds_total", components), component)),
            users: vec(r, CounterVec::new(Opts::new("tracer_subsystem_user_cpu_seconds_total", users), user)),
            ratio: vec(r, GaugeVec::new(Opts::new("tracer_subsystem_capture_ratio", ratio), &of)),
            labels: Vec::new(),
        }
    }

    fn set_groups(&mut self, workloads: &Workloads) {
        for (by, known) in GroupBy::ALL.into_iter().zip(&mut self.shown) {
            let rows = workloads.shown(by);
            for gone in known.iter().filter(|name| !rows.iter().any(|(shown, _)| shown == name)) {
                let _ = self.groups.remove_label_values(&[by.name(), gone]);
            }
            known.clear();
            for (name, cpu) in rows {
                raise(&self.groups.with_label_values(&[by.name(), name]), cpu);
                known.insert(name.to_owned());
            }
        }
    }

    /// Sets a counter of an instance, and remembers that there is one.
    fn set(&mut self, (system, instance): (&'static str, &str), rest: &[&str], cpu: f64) {
        let values: Vec<&str> = [system, instance].into_iter().chain(rest.iter().copied()).collect();
        let family = if rest.len() == 1 { &self.components } else { &self.users };
        raise(&family.with_label_values(&values), cpu);
        let found = self.labels.iter().position(|(known, name, _)| *known == system && name == instance);
        let index = found.unwrap_or_else(|| {
            self.labels.push((system, instance.to_owned(), HashSet::new()));
            self.labels.len() - 1
        });
        if let Some((.., labels)) = self.labels.get_mut(index) {
            labels.insert(values.into_iter().map(str::to_owned).collect());
        }
    }

    /// An instance made room for another one.
    fn remove(&mut self, system: &str, instance: &str) {
        let Some(index) = self.labels.iter().position(|(known, name, _)| *known == system && name == instance) else {
            return;
        };
        let (.., labels) = self.labels.swap_remove(index);
        for values in labels {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            let family = if values.len() == 3 { &self.components } else { &self.users };
            let _ = family.remove_label_values(&values);
        }
        let _ = self.ratio.remove_label_values(&[system, instance]);
    }

    fn set_subsystems(&mut self, subsystems: &mut Subsystems) {
        for (system, instance) in subsystems.take_removed() {
            self.remove(system, &instance);
        }
        for book in subsystems.views() {
            // Its place, which names it, is not known yet.
            if book.instance.is_empty() {
                continue;
            }
            let of = (book.system, book.instance.as_str());
            for component in &book.components {
                self.set(of, &[component.name], component.cpu_s - component.open_s);
            }
            if let Some(ratio) = book.capture_ratio {
                self.ratio.with_label_values(&[of.0, of.1]).set(ratio);
            }
            if !subsystems.settings().user_metrics {
                continue;
            }
            let mut rest = 0.0;
            for (at, user) in book.users.iter().enumerate() {
                if at > 1 && at < USERS + 2 {
                    self.set(of, &[&user.user, &user.database], user.cpu_s);
                } else {
                    rest += user.cpu_s;
                }
            }
            self.set(of, &[OTHER, OTHER], rest);
        }
    }
}

impl Metrics {
    /// CPU of groups of processes.
    pub fn set_workloads(&mut self, workloads: &Workloads) {
        self.workloads.set_groups(workloads);
    }

    /// CPU of databases.
    pub fn set_subsystems(&mut self, subsystems: &mut Subsystems) {
        self.workloads.set_subsystems(subsystems);
    }
}
