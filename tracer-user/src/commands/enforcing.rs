//! Enforcement of service classes: between the pipeline, the decision and the lever.

mod ending;
mod feedback_loop;
mod network;

use std::io;
use std::sync::Arc;

use self::ending::Ending;
use self::feedback_loop::FeedbackLoop;
use self::network::{Network, network_priorities};
pub(super) use self::network::{check_network, send_priority_mode};
use tracer_host::files;
use tracer_host::guard::tables::TableUse;
use tracer_kernel::send_priority::{SendPriorities, SendPriorityMode};
use tracer_policies::service_classes::decision::{Decision, Order};
use tracer_policies::service_classes::feedback::{self, Feedback, FeedbackActions};
use tracer_policies::service_classes::lever::{self, Actions, Lever, Recovered, Refusal};
use tracer_policies::service_classes::network::NetworkDecision;
use tracer_policies::service_classes::{Enforcement, Mode, ServiceClass, thread_priority};

use super::Failure;
use crate::config::Config;
use crate::pipeline::Pipeline;

/// Most orders that wait for the lever's thread.
const ORDERS: usize = 16_384;

/// Most names of service classes since the start, which the configuration can change. The lever counts by name.
const NAMES: usize = 256;

/// Numbers of service classes, which stay with their names when the configuration is read again.
#[derive(Debug, Default)]
struct Numbers {
    /// By number.
    names: Vec<Arc<str>>,
    /// By index of the class.
    of: Vec<usize>,
}

impl Numbers {
    /// Whether there are numbers for all of these.
    fn have_room(&self, classes: &[ServiceClass]) -> bool {
        let new = classes.iter().filter(|class| !self.names.contains(&class.name));
        self.names.len() + new.count() <= NAMES
    }

    fn set(&mut self, classes: &[ServiceClass]) {
        self.of.clear();
        for class in classes {
            let number = self.names.iter().position(|name| *name == class.name).unwrap_or_else(|| {
                self.names.push(Arc::clone(&class.name));
                self.names.len() - 1
            });
            self.of.push(number);
        }
    }

    /// Puts numbers in the place of indices.
    fn number(&self, orders: &mut [Order]) {
        for order in orders {
            let (Order::Change { class, .. } | Order::Restore { class, .. }) = order else { continue };
            // No index is beyond; a number beyond is counted nowhere.
            *class = self.number_of(*class);
        }
    }

    fn number_of(&self, class: usize) -> usize {
        self.of.get(class).copied().unwrap_or(NAMES)
    }
}

/// Decides with every drain, and has it carried out or counted.
pub(super) struct Enforcing {
    mode: Mode,
    decision: Decision,
    /// Changes priorities; `None` unless the mode is `on`.
    lever: Option<Lever>,
    numbers: Numbers,
    /// Orders that the lever's thread has not taken yet; their classes by number.
    waiting: Vec<Order>,
    serving: Vec<tracer_policies::service_classes::decision::Serving>,
    /// Of a dry run, by number of the class.
    dry: Vec<Actions>,
    network: Network,
    feedback: FeedbackLoop,
    ending: Ending,
}

/// Checks that enforcement is allowed: by root, in a file that only root can change, with the privilege to undo it.
pub(super) fn allow(config: &Config, file: Option<&std::path::Path>) -> Result<(), Failure> {
    if config.enforcement.mode != Mode::On {
        return Ok(());
    }
    let Some(file) = file else {
        return Err(Failure::Usage(
            "--enforce on needs --config FILE: service classes of a file that only root can change".into(),
        ));
    };
    files::check_roots(file).map_err(|error| {
        Failure::Usage(format!(
            "--enforce on needs a configuration that only root can change: {}: {error}",
            file.display()
        ))
    })?;
    match thread_priority::obstacle() {
        Some(why) => Err(Failure::SelfTest(format!("--enforce on: {why}; see docs/service-classes.md"))),
        None => Ok(()),
    }
}

/// Why enforcement needs `CAP_SYS_ADMIN`; `None`: it does not.
pub(super) fn why_admin_capability(config: &Config) -> Option<&'static str> {
    (config.enforcement.mode == Mode::On)
        .then_some("--enforce on may end requests of services in network namespaces of their own")
}

impl Enforcing {
    /// Restores what an earlier agent left, whatever the mode, and starts the lever if priorities are enforced.
    pub(super) fn start(config: &Config) -> Result<Self, Failure> {
        let classes = &config.service_classes.classes;
        let lever = if config.enforcement.mode == Mode::On {
            let failed = |error: io::Error| {
                let why = if error.kind() == io::ErrorKind::WouldBlock {
                    "another agent enforces service classes with it".to_owned()
                } else {
                    error.to_string()
                };
                Failure::Running(format!(
                    "--enforce on: state directory {}: {why}",
                    config.enforcement.state_dir.display()
                ))
            };
            let (lever, recovered) = Lever::start(&config.enforcement.state_dir, NAMES).map_err(failed)?;
            report(&recovered);
            Some(lever)
        } else {
            match lever::recover_left(&config.enforcement.state_dir) {
                Ok(Some(recovered)) => report(&recovered),
                Ok(None) => {}
                // Another agent works with it: what it says is no leftover.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => log::warn!(
                    "{}: {error}: priorities that a killed agent may have left are not restored",
                    config.enforcement.state_dir.display()
                ),
            }
            None
        };
        let mut numbers = Numbers::default();
        numbers.set(classes);
        Ok(Self {
            mode: config.enforcement.mode,
            numbers,
            decision: Decision::new(classes.iter().map(|class| class.cpu).collect()),
            lever,
            waiting: Vec::new(),
            serving: Vec::new(),
            dry: vec![Actions::default(); NAMES],
            network: Network::new(config),
            feedback: FeedbackLoop::new(config),
            ending: Ending::start(config)?,
        })
    }

    /// Why the service classes of `config` cannot be taken up while the agent runs, if they cannot.
    pub(super) fn obstacle_to_reload(&self, config: &Config) -> Option<String> {
        if send_priority_mode(config) == SendPriorityMode::On && !self.network.attached {
            let what = "a service class has a network priority, and none had one when the agent started: the program for \
                        it is only loaded then; restart the agent";
            return Some(what.into());
        }
        if self.mode == Mode::On && config.service_classes.ends_requests() && self.ending.resetter.is_none() {
            let what = "a service class ends requests, and none did when the agent started: restart the agent";
            return Some(what.into());
        }
        (!self.numbers.have_room(&config.service_classes.classes)).then(|| {
            format!(
                "more than {NAMES} names of service classes were used since the start; restart the agent to use others"
            )
        })
    }

    /// Other classes are declared: every thread gets its own priority back, and new requests are decided by them.
    pub(super) fn reload(&mut self, config: &Config, kernel: Option<&mut SendPriorities>) {
        let orders = self.network.decision.restore_orders();
        self.network.carry_out(orders, &self.numbers, kernel);
        self.network.decision = NetworkDecision::new(network_priorities(config));
        let classes = &config.service_classes.classes;
        let mut orders = self.decision.restore_orders();
        self.numbers.number(&mut orders);
        self.waiting.append(&mut orders);
        self.numbers.set(classes);
        self.decision = Decision::new(classes.iter().map(|class| class.cpu).collect());
        self.feedback.controller = Feedback::new(classes, self.mode == Mode::On);
        self.ending.decision = Ending::decision(config);
    }

    /// Restores every thread, from whichever thread it is called.
    pub(super) fn restorer(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let lever = self.lever.clone();
        Arc::new(move || lever.as_ref().is_none_or(Lever::restore_all))
    }

    /// Looks, once a second, whether a period has ended, and lowers classes for others' goals. `now`: wall clock.
    pub(super) fn follow_goals(&mut self, pipeline: &Pipeline, now: u64) {
        let ended = pipeline.attainment.ended();
        if self.mode == Mode::Off || !self.feedback.controller.is_needed() || ended <= self.feedback.slice {
            return;
        }
        self.feedback.slice = ended;
        let readings = pipeline.attainment.readings(ended, feedback::REQUESTS);
        for change in self.feedback.controller.period(&readings) {
            self.feedback.record(&change, &pipeline.attainment.classes().classes, &self.numbers, now);
        }
        self.decision.lower(self.feedback.controller.nice());
    }

    /// Decides after a drain, at `now` of `CLOCK_MONOTONIC`.
    pub(super) fn decide(&mut self, pipeline: &mut Pipeline, now: u64, kernel: Option<&mut SendPriorities>) {
        if self.mode == Mode::Off {
            return;
        }
        if let Some(lever) = &self.lever {
            lever.heartbeat();
            if lever.take_reset() {
                self.decision.forget();
                self.waiting.clear();
            }
        }
        self.serving.clear();
        self.network.sending.clear();
        self.ending.open.clear();
        pipeline.serving(&mut self.serving, &mut self.network.sending, &mut self.ending.open);
        self.ending.decide(now, &self.numbers);
        let mut orders = Vec::new();
        self.network.decision.decide(now, &self.network.sending, &mut orders);
        self.network.carry_out(orders, &self.numbers, kernel);
        let mut orders = Vec::new();
        self.decision.decide(now, &self.serving, &mut orders);
        for (parent, tid, tgid) in pipeline.take_forks() {
            self.decision.forked(parent, tid, tgid, &mut orders);
        }
        self.numbers.number(&mut orders);
        let mut all = std::mem::take(&mut self.waiting);
        all.append(&mut orders);
        self.pass_on(all);
    }

    fn pass_on(&mut self, orders: Vec<Order>) {
        if orders.is_empty() {
            self.waiting = orders;
            return;
        }
        let Some(lever) = &self.lever else {
            for order in orders {
                let (class, is_change) = match order {
                    Order::Change { class, .. } => (class, true),
                    Order::Restore { class, .. } => (class, false),
                    Order::Inherited { .. } => continue,
                };
                if let Some(actions) = self.dry.get_mut(class).filter(|_| is_change) {
                    actions.would_apply += 1;
                }
            }
            return;
        };
        if let Err(orders) = lever.order(orders) {
            // The next drain tries again; restoring is never given up. A thread that stands still for so long is stuck,
            // and changes nothing any more.
            let full = orders.len() >= ORDERS;
            self.waiting = orders;
            if full {
                for order in self.waiting.drain(..) {
                    if let Order::Change { class, .. } = order {
                        lever.refuse(class, Refusal::Limit);
                    }
                }
                self.waiting = self.decision.restore_orders();
                self.numbers.number(&mut self.waiting);
            }
        }
    }

    /// What was done, for the API and the metrics.
    pub(super) fn view(&self, pipeline: &Pipeline) -> Enforcement {
        let counted = self.lever.as_ref().map_or_else(|| self.dry.clone(), Lever::actions);
        let of = |number: &usize| counted.get(*number).cloned().unwrap_or_default();
        let mut actions: Vec<Actions> = self.numbers.of.iter().map(of).collect();
        for (actions, unserved) in actions.iter_mut().zip(pipeline.unserved()) {
            let reasons =
                [("brief", unserved.brief), ("shared_thread", unserved.shared_thread), ("limit", unserved.limit)];
            for (reason, count) in reasons {
                if count > 0 {
                    *actions.refused.entry(reason).or_default() += count;
                }
            }
        }
        let of = |number: &usize| self.network.counts.get(*number).copied().unwrap_or_default();
        let network = self.numbers.of.iter().map(of).collect();
        let nice = self.feedback.controller.nice();
        let of = |(class, number): (usize, &usize)| FeedbackActions {
            nice: nice.get(class).copied().unwrap_or_default(),
            ..self.feedback.counts.get(*number).cloned().unwrap_or_default()
        };
        let feedback = self.numbers.of.iter().enumerate().map(of).collect();
        let (threads, connections) = (self.decision.table_use().entries, self.connections().entries);
        let ended = self.ending.actions();
        let ends = self.numbers.of.iter().map(|number| ended.get(*number).cloned().unwrap_or_default()).collect();
        Enforcement { mode: self.mode, threads, connections, actions, network, feedback, ends }
    }

    /// Threads whose priority is to be another than their own.
    pub(super) fn table_use(&self) -> TableUse {
        self.decision.table_use()
    }

    /// Open requests that were ended, or would have been.
    pub(super) fn ended(&self) -> TableUse {
        self.ending.decision.table_use()
    }

    /// Connections whose packets are to have another priority than their own.
    pub(super) fn connections(&self) -> TableUse {
        self.network.decision.table_use()
    }
}

impl Enforcing {
    /// Restores every thread; nothing is changed from now on.
    pub(super) fn end(&mut self) {
        self.mode = Mode::Off;
        if let Some(lever) = &self.lever
            && !lever.restore_all()
        {
            log::error!("not every priority could be restored; the next start of the agent tries again");
        }
    }
}

/// However the agent ends: an error on the way out, too.
impl Drop for Enforcing {
    fn drop(&mut self) {
        self.end();
    }
}

fn report(recovered: &Recovered) {
    let Recovered { restored, inherited, gone, failed } = *recovered;
    if (restored, inherited, gone, failed) != (0, 0, 0, 0) {
        log::warn!(
            "an earlier agent was killed: priorities restored: {restored}, of threads made meanwhile: {inherited}; \
             ended or set by others: {gone}; not restored: {failed}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(names: &[&str]) -> Vec<ServiceClass> {
        let text: Vec<String> =
            names.iter().map(|name| format!("[[service_class]]\nname = \"{name}\"\nimportance = 1\n")).collect();
        Config::parse("t", &text.concat()).unwrap().service_classes.classes.clone()
    }

    #[test]
    fn numbers_stay_with_names() {
        let mut numbers = Numbers::default();
        numbers.set(&classes(&["gold", "bronze"]));
        numbers.set(&classes(&["silver", "gold"]));
        assert_eq!(numbers.of, [2, 0]);
        let mut orders = [Order::Restore { tid: 1, class: 1 }, Order::Inherited { parent: 1, tid: 2, tgid: 1 }];
        numbers.number(&mut orders);
        assert_eq!(orders[0], Order::Restore { tid: 1, class: 0 });
        for n in 3..NAMES {
            assert!(numbers.have_room(&classes(&[&format!("c{n}")])));
            numbers.set(&classes(&[&format!("c{n}")]));
        }
        assert!(numbers.have_room(&classes(&["gold", "c7"])) && !numbers.have_room(&classes(&["other"])));
    }
}
