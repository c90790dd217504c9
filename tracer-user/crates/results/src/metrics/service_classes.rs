//! Metrics of service classes: goals, attainment, and what was done for them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use prometheus::{Counter, CounterVec, Gauge, GaugeVec, IntCounterVec, Opts};
use tracer_model::Names;
use tracer_policies::service_classes::feedback::FeedbackAction;
use tracer_policies::service_classes::lever::{Actions, Refusal};
use tracer_policies::service_classes::limits::EndReason;
use tracer_policies::service_classes::network::NetworkActions;
use tracer_policies::service_classes::reset::{EndActions, ResetRefusal};
use tracer_policies::service_classes::{Enforcement, ServiceClasses};

use super::attainment::{Attainment, AttainmentRow};
use super::export::Metrics;
use super::families::{Families, vec};
use super::totals::raise;

/// Most pairs of service class and service with series of their own, about eight each; those that come later share [`OTHER`].
const ROWS: usize = 100;
/// Name of the services that share series.
const OTHER: &str = "_other";

/// The families.
#[derive(Debug)]
pub(super) struct ServiceClassFamilies {
    /// Service classes and services, and whether they have series of their own: what once shared goes on sharing.
    pairs: HashMap<(Arc<str>, Arc<str>), bool>,
    goal: GaugeVec,
    requests: IntCounterVec,
    cpu: CounterVec,
    response: GaugeVec,
    attained: GaugeVec,
    actions: IntCounterVec,
    refused: IntCounterVec,
    network: IntCounterVec,
    ends: IntCounterVec,
    lowered: GaugeVec,
    feedback: IntCounterVec,
}

impl ServiceClassFamilies {
    pub(super) fn new(r: &Families) -> Self {
        let both = &["service_class", "service_name"];
        let requests = "Requests of a service class since the start; status is ok or error.";
        let cpu = "CPU charged to the requests of a service class when they were reported.";
        let goal = "Goal of a service class: the response time to reach; kind is p99, p95 or mean.";
        let response = "Response time of a service class over the last minute, from the arrival of a request in the \
                        socket to the last byte of its reply; kind is p50, p95, p99 or mean.";
        let attained = "1 while a service class reaches its goal over the last minute, 0 while it does not; absent \
                        without a goal or without requests.";
        let actions = "Changes of thread priority for a service class by action: applied, would_apply (a dry run), \
                       restored.";
        let refused = "Changes of thread priority that were not made, by reason: brief (the request was over before), \
                       shared_thread (its thread may serve others), ended, policy (a real-time thread), \
                       changed_by_others, permission, limit, state_file.";
        let network = "Changes of the packet priority of connections for a service class by action: applied, would_apply (a \
                       dry run), restored, refused (the kernel did not take it).";
        let ends = "Requests of a service class beyond its limits by action: ended (their connection was reset), would_end (a \
                    dry run), refused; and reason: too_long, too_many; if refused shared_connection, not_tcp, gone, \
                    permission, limit.";
        let lowered = "Nice levels by which the threads of a service class with cpu = auto are lowered now for the goals of \
                       more important ones.";
        let feedback = "Decisions about a service class with cpu = auto: lowered, relaxed, gave_up (it did not help).";
        Self {
            pairs: HashMap::new(),
            lowered: vec(r, GaugeVec::new(Opts::new("tracer_service_class_lowered_nice", lowered), &["service_class"])),
            feedback: vec(
                r,
                IntCounterVec::new(
                    Opts::new("tracer_service_class_feedback_total", feedback),
                    &["service_class", "decision"],
                ),
            ),
            ends: vec(
                r,
                IntCounterVec::new(
                    Opts::new("tracer_service_class_ends_total", ends),
                    &["service_class", "action", "reason"],
                ),
            ),
            network: vec(
                r,
                IntCounterVec::new(
                    Opts::new("tracer_service_class_network_actions_total", network),
                    &["service_class", "action"],
                ),
            ),
            goal: vec(
                r,
                GaugeVec::new(Opts::new("tracer_service_class_goal_seconds", goal), &["service_class", "kind"]),
            ),
            requests: vec(
                r,
                IntCounterVec::new(
                    Opts::new("tracer_service_class_requests_total", requests),
                    &[both[0], both[1], "status"],
                ),
            ),
            cpu: vec(r, CounterVec::new(Opts::new("tracer_service_class_cpu_seconds_total", cpu), both)),
            response: vec(
                r,
                GaugeVec::new(
                    Opts::new("tracer_service_class_response_seconds", response),
                    &[both[0], both[1], "kind"],
                ),
            ),
            attained: vec(r, GaugeVec::new(Opts::new("tracer_service_class_attained", attained), both)),
            actions: vec(
                r,
                IntCounterVec::new(
                    Opts::new("tracer_service_class_actions_total", actions),
                    &["service_class", "action"],
                ),
            ),
            refused: vec(
                r,
                IntCounterVec::new(
                    Opts::new("tracer_service_class_refused_total", refused),
                    &["service_class", "reason"],
                ),
            ),
        }
    }

    /// Rows in the order of their importance: of a class, a service, and what is known of both.
    fn set_rows(&mut self, rows: impl Iterator<Item = (Arc<str>, Arc<str>, AttainmentRow)>) {
        let mut others: BTreeMap<Arc<str>, Totals> = BTreeMap::new();
        for (class, service, row) in rows {
            let totals = Totals { count: row.count, errors: row.errors, cpu_s: row.cpu_s };
            if self.has_series(&class, &service) {
                self.totals(&class, &service, totals);
                self.recent(&class, &service, &row);
            } else {
                let sum = others.entry(class).or_default();
                sum.count += totals.count;
                sum.errors += totals.errors;
                sum.cpu_s += totals.cpu_s;
            }
        }
        // Rows neither leave nor change sides while their class is declared, so these sums never fall.
        for (class, totals) in others {
            self.totals(&class, OTHER, totals);
        }
    }

    /// Whether a pair has series of its own; takes room for it if there is. Services without a name of their own share.
    fn has_series(&mut self, class: &Arc<str>, service: &Arc<str>) -> bool {
        let pair = (Arc::clone(class), Arc::clone(service));
        if let Some(own) = self.pairs.get(&pair) {
            return *own;
        }
        let room = self.pairs.values().filter(|own| **own).count() < ROWS && **service != *OTHER;
        self.pairs.insert(pair, room);
        room
    }

    fn totals(&self, class: &str, service: &str, totals: Totals) {
        let rise = |status: &str, total: u64| {
            let counter = self.requests.with_label_values(&[class, service, status]);
            counter.inc_by(total.saturating_sub(counter.get()));
        };
        rise("error", totals.errors);
        rise("ok", totals.count.saturating_sub(totals.errors));
        let cpu: Counter = self.cpu.with_label_values(&[class, service]);
        raise(&cpu, totals.cpu_s);
    }

    /// What is true of the last minute.
    fn recent(&self, class: &str, service: &str, row: &AttainmentRow) {
        let times = [("p50", row.p50_s), ("p95", row.p95_s), ("p99", row.p99_s), ("mean", row.mean_s)];
        for (kind, time) in times {
            if row.recent > 0 {
                self.response.with_label_values(&[class, service, kind]).set(time);
            } else {
                // What was true a minute ago is not shown.
                let _ = self.response.remove_label_values(&[class, service, kind]);
            }
        }
        match row.attained {
            Some(attained) => {
                let gauge: Gauge = self.attained.with_label_values(&[class, service]);
                gauge.set(f64::from(u8::from(attained)));
            }
            None => {
                let _ = self.attained.remove_label_values(&[class, service]);
            }
        }
    }
}

/// Every action and reason of [`ServiceClassFamilies::ends`].
fn all_ends() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of = |action| EndReason::ALL.map(|reason| (action, reason.name()));
    let refused = ResetRefusal::ALL.map(|reason| ("refused", reason.name()));
    of("ended").into_iter().chain(of("would_end")).chain(refused)
}

/// What was counted of them.
fn counted_ends(actions: &EndActions) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    let counts = actions.ended.iter().chain(&actions.would_end).copied();
    let refused = ResetRefusal::ALL.map(|reason| actions.refused.get(reason.name()).copied().unwrap_or_default());
    all_ends()
        .zip(counts.chain(refused))
        .filter(|(_, count)| *count > 0)
        .map(|((action, reason), n)| (action, reason, n))
}

/// What only grows.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    count: u64,
    errors: u64,
    cpu_s: f64,
}

/// Reasons that the lever does not know: the request was never its thread's only one.
const UNSERVED: [&str; 3] = ["brief", "shared_thread", "limit"];

impl Metrics {
    /// Other classes are declared: removes what is exported of those that are gone, and goals of another kind. `services`:
    /// every class with every service that has series.
    pub fn forget_service_classes(
        &mut self,
        old: &ServiceClasses,
        new: &ServiceClasses,
        services: &[(&str, Arc<str>)],
    ) {
        let families = &mut self.service_classes;
        families.pairs.retain(|(class, _), _| new.classes.iter().any(|one| *one.name == **class));
        for class in &old.classes {
            let stays = new.classes.iter().find(|one| one.name == class.name);
            // Labels without a series are no error here.
            if stays.is_none_or(|one| one.goal.name() != class.goal.name()) {
                let _ = families.goal.remove_label_values(&[&class.name, class.goal.name()]);
            }
            if stays.is_none_or(|one| !one.auto) {
                let _ = families.lowered.remove_label_values(&[&class.name]);
                for action in FeedbackAction::ALL {
                    let _ = families.feedback.remove_label_values(&[&class.name, action.name()]);
                }
            }
            if stays.is_some() {
                continue;
            }
            for action in ["applied", "would_apply", "restored"] {
                let _ = families.actions.remove_label_values(&[&class.name, action]);
            }
            for action in ["applied", "would_apply", "restored", "refused"] {
                let _ = families.network.remove_label_values(&[&class.name, action]);
            }
            for (action, reason) in all_ends() {
                let _ = families.ends.remove_label_values(&[&class.name, action, reason]);
            }
            for reason in Refusal::ALL.map(Refusal::name).into_iter().chain(UNSERVED) {
                let _ = families.refused.remove_label_values(&[&class.name, reason]);
            }
            let own = services.iter().filter(|(name, _)| *name == &*class.name).map(|(_, service)| &**service);
            for service in own.chain([OTHER]) {
                for kind in ["p50", "p95", "p99", "mean"] {
                    let _ = families.response.remove_label_values(&[&class.name, service, kind]);
                }
                for status in ["ok", "error"] {
                    let _ = families.requests.remove_label_values(&[&class.name, service, status]);
                }
                let _ = families.cpu.remove_label_values(&[&class.name, service]);
                let _ = families.attained.remove_label_values(&[&class.name, service]);
            }
        }
    }

    /// Sets what is known of the service classes; `actions` by class.
    pub fn set_service_classes(&mut self, names: &Names, attainment: &Attainment, done: &Enforcement) {
        let Enforcement { actions, network, feedback, ends, .. } = done;
        let families = &self.service_classes;
        let classes = &attainment.classes().classes;
        for (index, class) in classes.iter().enumerate() {
            if let Some(time) = class.goal.time() {
                let goal = families.goal.with_label_values(&[&class.name, class.goal.name()]);
                goal.set(time.as_secs_f64());
            }
            let Some(actions) = actions.get(index) else { continue };
            let rise = |vec: &IntCounterVec, label: &str, total: u64| {
                let counter = vec.with_label_values(&[&class.name, label]);
                counter.inc_by(total.saturating_sub(counter.get()));
            };
            let Actions { applied, would_apply, restored, refused } = actions;
            for (action, total) in [("applied", applied), ("would_apply", would_apply), ("restored", restored)] {
                rise(&families.actions, action, *total);
            }
            for (reason, total) in refused {
                rise(&families.refused, reason, *total);
            }
            if let Some(feedback) = feedback.get(index).filter(|_| class.auto) {
                families.lowered.with_label_values(&[&class.name]).set(f64::from(feedback.nice));
                for (action, total) in FeedbackAction::ALL.iter().zip(feedback.counts) {
                    rise(&families.feedback, action.name(), total);
                }
            }
            for (action, reason, total) in ends.get(index).into_iter().flat_map(counted_ends) {
                let counter = families.ends.with_label_values(&[&class.name, action, reason]);
                counter.inc_by(total.saturating_sub(counter.get()));
            }
            // Only of classes that have one.
            if let Some(network) = network.get(index).filter(|network| **network != NetworkActions::default()) {
                let NetworkActions { applied, would_apply, restored, refused } = *network;
                for (action, total) in
                    [("applied", applied), ("would_apply", would_apply), ("restored", restored), ("refused", refused)]
                {
                    rise(&families.network, action, total);
                }
            }
        }
        let named =
            |row: AttainmentRow| Some((Arc::clone(&classes.get(row.class)?.name), names.service(row.service), row));
        self.service_classes.set_rows(attainment.rows().into_iter().filter_map(named));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::lateness::TimeShares;
    use tracer_model::ServiceId;

    fn row(service: u32, count: u64) -> AttainmentRow {
        AttainmentRow {
            class: 0,
            service: ServiceId(service),
            count,
            errors: 1,
            cpu_s: 0.5,
            recent: count,
            p50_s: 0.1,
            p95_s: 0.2,
            p99_s: 0.3,
            mean_s: 0.1,
            actual_s: 0.2,
            trend: None,
            shares: TimeShares::default(),
            attained: Some(true),
        }
    }

    #[test]
    fn services_beyond_the_bound_share_series_and_sums_stay_exact() {
        let mut metrics = Metrics::new();
        let set = |metrics: &mut Metrics, services: u32, count| {
            let rows = (0..services).map(|number| ("gold".into(), format!("s{number}").into(), row(number, count)));
            metrics.service_classes.set_rows(rows);
        };
        let sum = |metrics: &Metrics, status: &str| {
            let of =
                |service: &str| metrics.service_classes.requests.with_label_values(&["gold", service, status]).get();
            (0..ROWS as u32 + 50).map(|number| of(&format!("s{number}"))).sum::<u64>() + of(OTHER)
        };
        set(&mut metrics, 30, 4);
        set(&mut metrics, ROWS as u32 + 50, 5);
        set(&mut metrics, ROWS as u32 + 50, 7);
        let other = metrics.service_classes.requests.with_label_values(&["gold", OTHER, "ok"]).get();
        let own = metrics.service_classes.pairs.values().filter(|own| **own).count();
        assert_eq!((own, other), (ROWS, 50 * 6));
        assert_eq!((sum(&metrics, "ok"), sum(&metrics, "error")), ((ROWS as u64 + 50) * 6, ROWS as u64 + 50));
        // Nothing of the last minute is claimed of what is many services.
        assert!(metrics.service_classes.attained.remove_label_values(&["gold", OTHER]).is_err());
        // One that came by itself under that name is part of it.
        let name: Arc<str> = OTHER.into();
        assert!(!metrics.service_classes.has_series(&name, &name));
    }
}
