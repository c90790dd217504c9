//! Graded instrumentation: between the profiler, the decisions and the probes of declared transactions.
//!
//! A thread of its own names what the profiler saw, and finds out whether a function can carry probes and what they cost.

mod hotspot_finder;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracer_host::guard::shed::Level;
use tracer_host::guard::tables::TableUse;
use tracer_host::stat;
use tracer_kernel::loader::{Kernel, monotonic};
use tracer_model::Nanos;
use tracer_policies::instrumentation::{CallCounts, Decision, FunctionId, Hotspot, Instrumentation, Reason};
use tracer_results::profiles::Filter;
use tracer_runtimes::declared::{Declared, Target};

use self::hotspot_finder::{Look, find_hotspots};
use super::agent::Agent;
use super::declaring::Declaring;
use crate::config::Config;
use crate::pipeline::Pipeline;

/// Intervals of samples that are looked at.
const INTERVALS: u32 = 3;
/// Most services whose profiles are looked at one by one, where the configuration names some.
const SERVICES: usize = 16;
/// Stands for the file of declarations that are in none.
const PLACE: &str = "[instrument]";

/// A function that is traced.
struct Counted {
    number: usize,
    /// Calls of that number before.
    before: u64,
}

/// Decides once a second, and has it carried out.
pub(super) struct Instrumenting {
    decided: Instrumentation,
    look: SyncSender<Look>,
    found: Receiver<Vec<Hotspot>>,
    /// The thread has not answered yet.
    waiting: bool,
    next_look: Nanos,
    counted: BTreeMap<FunctionId, Counted>,
    /// The functions to trace are not those that are declared.
    changed: bool,
}

impl Instrumenting {
    /// Starts the thread; `None` unless the configuration wants it.
    pub(super) fn start(config: &Config, kernel: &Kernel) -> std::io::Result<Option<Self>> {
        if !config.instrument.auto {
            return Ok(None);
        }
        let (look, looks) = sync_channel(1);
        let (answer, found) = sync_channel(1);
        let prober = kernel.prober();
        std::thread::Builder::new()
            .name("tracer-instrument".into())
            .spawn(move || find_hotspots(prober, &looks, &answer))?;
        let cpus = stat::read().map_or(1, |host| host.cpus as usize);
        Ok(Some(Self {
            decided: Instrumentation::new(config.instrument.clone(), cpus),
            look,
            found,
            waiting: false,
            next_look: monotonic() + config.instrument.interval.as_nanos() as Nanos,
            counted: BTreeMap::new(),
            changed: false,
        }))
    }

    /// These declarations, and those of the functions that are traced without one.
    pub(super) fn with_hotspots(&self, configured: &[Declared]) -> Vec<Declared> {
        let is_configured = |id: &FunctionId| {
            configured.iter().any(|one| {
                *one.program == *id.program && matches!(&one.target, Target::Function(name) if **name == *id.function)
            })
        };
        let hotspots = self.decided.traced().filter(|one| !is_configured(&one.id)).map(|one| Declared {
            name: class_name(&one.id),
            program: Box::from(&*one.id.program),
            target: Target::Function(Box::from(&*one.id.function)),
            fail: None,
            user: None,
            metrics: Vec::new(),
            max_rate: Some(one.max_rate),
            place: PLACE.into(),
        });
        configured.iter().cloned().chain(hotspots).collect()
    }

    /// Hotspots that are remembered.
    pub(super) fn table_use(&self) -> TableUse {
        self.decided.table_use()
    }

    /// Has the thread look at what the profiler saw, when it is time.
    fn ask(&mut self, pipeline: &Pipeline, config: &Config, now: Nanos) {
        if self.waiting || now < self.next_look {
            return;
        }
        let settings = &config.instrument;
        self.next_look = now + settings.interval.as_nanos() as Nanos;
        let since = settings.interval * INTERVALS;
        let filter = |service| Filter { service, since: Some(since), ..Filter::default() };
        let (profiles, names) = (&pipeline.profiles, pipeline.names());
        let services = names.services.iter().filter(|name| settings.services.iter().any(|glob| glob.fits(name)));
        let of = |name: &Arc<str>| profiles.snapshot(names, &filter(Some(name.to_string())));
        let snapshots = if settings.services.is_empty() {
            vec![profiles.snapshot(names, &filter(None))]
        } else {
            services.take(SERVICES).map(of).collect()
        };
        let cpus = stat::read().map_or(1.0, |host| f64::from(host.cpus.max(1)));
        let host = cpus * profiles.counted_for(since).max(Duration::from_secs(1)).as_nanos() as f64;
        self.waiting = self.look.try_send(Look { profiles: snapshots, owners: profiles.owners(), host }).is_ok();
    }

    /// Remembers under which numbers the functions are counted.
    fn count(&mut self, pipeline: &Pipeline, kernel: &Kernel) {
        let mut counted = BTreeMap::new();
        for one in self.decided.traced() {
            let is_it = |declared: &Declared| {
                *declared.program == *one.id.program
                    && matches!(&declared.target, Target::Function(name) if **name == *one.id.function)
            };
            let Some((number, _)) = pipeline.declared().iter().find(|(_, declared)| is_it(declared)) else { continue };
            let known = self.counted.remove(&one.id).filter(|known| known.number == number);
            let new = || Counted { number, before: kernel.declared_calls.of(number) };
            counted.insert(one.id, known.unwrap_or_else(new));
        }
        self.counted = counted;
    }

    fn readings(&self, pipeline: &Pipeline, kernel: &Kernel) -> BTreeMap<FunctionId, CallCounts> {
        let reading = |(id, counted): (&FunctionId, &Counted)| {
            let sums = pipeline.declared_sums(counted.number);
            let calls = kernel.declared_calls.of(counted.number).saturating_sub(counted.before);
            (id.clone(), CallCounts { calls, finished: sums.count, time: sums.time, cpu: sums.cpu })
        };
        self.counted.iter().map(reading).collect()
    }
}

/// The request class of a function that is traced without a declaration.
pub(crate) fn class_name(id: &FunctionId) -> Arc<str> {
    format!("auto:{}", id.function).into()
}

impl Agent {
    /// The declarations of the configuration, and those of hotspots.
    pub(super) fn with_hotspots(&self, configured: &Arc<[Declared]>) -> Arc<[Declared]> {
        match &self.processes.instrumenting {
            Some(instrumenting) => instrumenting.with_hotspots(configured).into(),
            None => Arc::clone(configured),
        }
    }

    /// Once a second: what was called too often is given up, and hotspots are instrumented or not any more.
    pub(super) fn instrument(&mut self, pipeline: &mut Pipeline, now: Nanos) {
        let withdrawn = self.processes.declaring.as_ref().map(Declaring::take_withdrawn).unwrap_or_default();
        for (number, _) in &withdrawn {
            let Some(one) = pipeline.declared().get(*number).filter(|one| *one.place != *PLACE) else { continue };
            self.health.degraded.push(format!(
                "{}: transaction '{}' is not traced any more: it was called more than {} times a second",
                one.place,
                one.name,
                one.max_rate.unwrap_or_default()
            ));
        }
        let Some(instrumenting) = &mut self.processes.instrumenting else { return };
        for (number, rate) in withdrawn {
            let of = |(id, counted): (&FunctionId, &Counted)| (counted.number == number).then(|| id.clone());
            if let Some(id) = instrumenting.counted.iter().find_map(of) {
                instrumenting.decided.withdrawn(now, &id, rate);
                instrumenting.changed = true;
            }
        }
        while let Ok(hotspots) = instrumenting.found.try_recv() {
            instrumenting.waiting = false;
            instrumenting.decided.look(now, hotspots);
        }
        instrumenting.ask(pipeline, &self.config, now);
        let is_busy = self.processes.declaring.as_ref().is_some_and(Declaring::is_busy);
        // One change at a time: what is decided next counts with the probes of the last.
        if !is_busy {
            let readings = instrumenting.readings(pipeline, &self.kernel);
            let shed = self.health.level > Level::Full;
            instrumenting.changed |= instrumenting.decided.tick(now, &readings, shed);
        }
        for decision in instrumenting.decided.take_fresh() {
            log_decision(&decision);
        }
        if instrumenting.changed && !is_busy {
            instrumenting.changed = false;
            pipeline.declare(&instrumenting.with_hotspots(&self.config.declared));
            instrumenting.count(pipeline, &self.kernel);
            self.attach_declared(pipeline);
        }
        let Some(instrumenting) = &self.processes.instrumenting else { return };
        let view = instrumenting.decided.view();
        pipeline.metrics.set_instrumentation(&view);
        self.health.instrumentation = view;
    }
}

fn log_decision(decision: &Decision) {
    let Decision { id, action, reason, cpu, cost, rate, .. } = decision;
    let why = match reason {
        Reason::Refused(why) => why,
        reason => reason.name(),
    };
    let rate = rate.map(|rate| format!(", {rate:.0} calls a second")).unwrap_or_default();
    log::info!(
        "instrumentation: {} of {} is {}: {why}; {:.2} % of the host's CPU in it, {:.3} % for its probes{rate}",
        id.function,
        id.program,
        action.name(),
        100.0 * cpu,
        100.0 * cost,
    );
}
