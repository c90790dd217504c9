//! Graded instrumentation: between the profiler, the decisions and the probes of declared transactions.
//!
//! A thread of its own names what the profiler saw, and finds out whether a function can carry probes and what they cost.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::agent::Agent;
use super::declaring::Declaring;
use crate::config::Config;
use crate::guard::self_process;
use crate::guard::shed::Level;
use crate::guard::tables::TableUse;
use crate::host::stat;
use crate::instrumentation::{CallCounts, Decision, FunctionId, Hotspot, Instrumentation, Reason};
use crate::kernel::loader::{Kernel, monotonic};
use crate::kernel::probe_cost::{self, ProbeCost};
use crate::kernel::uprobes::Prober;
use crate::model::Nanos;
use crate::pipeline::Pipeline;
use crate::profiles::hotspots::{CodeOrigin, CodeOwners, hotspots};
use crate::profiles::{Filter, Snapshot};
use crate::runtimes::declared::{Binary, Declared, Refusal, Site, Target};

/// Functions that are looked at.
const HOTSPOTS: usize = 50;
/// Intervals of samples that are looked at.
const INTERVALS: u32 = 3;
/// Most services whose profiles are looked at one by one, where the configuration names some.
const SERVICES: usize = 16;
/// Longest name of a function that becomes a request class.
const NAME: usize = 115;
/// Nice value of the thread that looks at hotspots.
const NICE: i32 = 10;
/// CPU of the agent for the two records of a call, nanoseconds (`cargo xtask bench --declared`).
const AGENT: Nanos = 1_000;
/// Most functions whose cost is remembered.
const CHECKED: usize = 1024;
/// Stands for the file of declarations that are in none.
const PLACE: &str = "[instrument]";

/// What the profiler saw.
struct Look {
    profiles: Vec<Snapshot>,
    owners: Arc<CodeOwners>,
    /// CPU that the host had in this time, nanoseconds.
    host: f64,
}

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

/// What a function's probes cost, or why it cannot have any; and of which file that is true.
struct Checked {
    file: Option<(u64, u64, i64)>,
    cost: Result<Nanos, Refusal>,
}

/// Names what the profiler saw, and finds out what can be traced of it.
fn find_hotspots(mut prober: Prober, looks: &Receiver<Look>, answer: &SyncSender<Vec<Hotspot>>) {
    if let Err(error) = self_process::set_nice(NICE) {
        log::debug!("{error}: hotspots are looked at with the agent's own priority");
    }
    let cost = match probe_cost::measure(&mut prober, u64::MAX) {
        Ok(cost) => cost,
        Err(why) => {
            log::error!("what a probe costs cannot be measured, so no function is instrumented: {why}");
            return;
        }
    };
    let ProbeCost { emulated, stepped, returned } = cost;
    log::info!(
        "instrumentation: a probe costs {emulated} ns where the kernel emulates the instruction, {stepped} ns elsewhere, \
         and {returned} ns at the return"
    );
    let mut checked: BTreeMap<FunctionId, Checked> = BTreeMap::new();
    for look in looks {
        if checked.len() > CHECKED {
            checked.clear();
        }
        let mut hot: BTreeMap<FunctionId, f64> = BTreeMap::new();
        for profile in &look.profiles {
            for (id, nanos) in functions(profile, &look.owners) {
                *hot.entry(id).or_default() += nanos;
            }
        }
        let hotspot = |(id, nanos): (FunctionId, f64)| {
            let call_cost = match check(&mut checked, &id, cost) {
                Ok(cost) => Ok(cost),
                // Interpreted code: no function of a program.
                Err(Refusal::NotProgram | Refusal::Unreadable(_)) => return None,
                Err(why) => Err(why.to_string()),
            };
            Some(Hotspot { id, cpu: nanos / look.host, call_cost })
        };
        if answer.send(hot.into_iter().filter_map(hotspot).collect()).is_err() {
            return;
        }
    }
}

/// The application's functions by time: their own, and that of others' functions which they called.
fn functions(profile: &Snapshot, owners: &CodeOwners) -> Vec<(FunctionId, f64)> {
    let mut found = Vec::new();
    let mut add = |function: &str, file: Option<&str>, seconds: f64| {
        if let Some(program) = file.filter(|file| file.starts_with('/') && !file.contains('*'))
            && function.len() <= NAME
        {
            found
                .push((FunctionId { program: program.into(), function: without_line(function).into() }, seconds * 1e9));
        }
    };
    for one in hotspots(&profile.stacks(), owners, HOTSPOTS) {
        if one.code == CodeOrigin::Application {
            add(&one.function, one.file.as_deref(), one.self_s);
        }
        for caller in &one.called_by {
            add(&caller.function, caller.file.as_deref(), caller.self_s);
        }
    }
    found
}

/// `parse` of `parse (src/json.c:112)`.
fn without_line(function: &str) -> &str {
    let place = function.strip_suffix(')').and_then(|rest| rest.rsplit_once(" ("));
    let is_line = |(_, place): &(&str, &str)| {
        place
            .rsplit_once(':')
            .is_some_and(|(_, line)| !line.is_empty() && line.bytes().all(|digit| digit.is_ascii_digit()))
    };
    place.filter(is_line).map_or(function, |(name, _)| name)
}

fn check(checked: &mut BTreeMap<FunctionId, Checked>, id: &FunctionId, cost: ProbeCost) -> Result<Nanos, Refusal> {
    let open = path_of(&id.program);
    let file =
        open.as_deref().and_then(|path| fs::metadata(path).ok()).map(|meta| (meta.dev(), meta.ino(), meta.mtime()));
    if let Some(known) = checked.get(id).filter(|known| known.file == file) {
        return known.cost.clone();
    }
    let gone = || Refusal::Unreadable("no process runs it".into());
    let cost = open.ok_or_else(gone).and_then(|path| {
        let site = Binary::open(&path)?.site(&id.function)?;
        Ok(cost_of(&path, &site, cost))
    });
    checked.insert(id.clone(), Checked { file, cost: cost.clone() });
    cost
}

/// A path by which the agent can open a program: it may be one of a container.
fn path_of(program: &str) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.is_file() {
        return Some(path.into());
    }
    let exes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path().join("exe"));
    exes.into_iter().find(|exe| fs::read_link(exe).is_ok_and(|target| target == path))
}

/// CPU that the probes of a call take, the agent's included, nanoseconds.
fn cost_of(file: &Path, site: &Site, cost: ProbeCost) -> Nanos {
    let mut code = [0u8; 2];
    let read = fs::File::open(file).and_then(|file| file.read_exact_at(&mut code, site.entry));
    let entry = if read.is_ok() && is_emulated(code) { cost.emulated } else { cost.stepped };
    // At a return of Go is another probe.
    let back = if site.ends.is_empty() { cost.returned } else { cost.stepped };
    entry + back + AGENT
}

/// Whether the kernel emulates the instruction, a push or a `nop`, that these bytes begin. x86-64; elsewhere it may think so of
/// few others, which cost less than it thinks.
fn is_emulated(code: [u8; 2]) -> bool {
    matches!(code, [0x50..=0x57 | 0x90, _] | [0x41, 0x50..=0x57])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_no_part_of_a_name() {
        for (shown, name) in [
            ("parse (src/json.c:112)", "parse"),
            ("parse", "parse"),
            ("shop::add(int, char const*)", "shop::add(int, char const*)"),
            ("shop::add(int) (shop.cc:7)", "shop::add(int)"),
            ("f (a:b)", "f (a:b)"),
            ("f (:)", "f (:)"),
        ] {
            assert_eq!(without_line(shown), name);
        }
    }

    #[test]
    fn functions_of_this_program_have_a_cost() {
        let cost = ProbeCost { emulated: 10, stepped: 100, returned: 20 };
        let own = std::env::current_exe().unwrap();
        let id = |function: &str| FunctionId { program: own.to_str().unwrap().into(), function: function.into() };
        let mut checked = BTreeMap::new();
        let found = check(&mut checked, &id("main"), cost).unwrap();
        assert!([10 + 20 + AGENT, 100 + 20 + AGENT].contains(&found), "{found}");
        assert!(matches!(check(&mut checked, &id("no such function"), cost), Err(Refusal::NoSymbol { .. })));
        let nowhere = FunctionId { program: "/nowhere".into(), function: "f".into() };
        assert!(matches!(check(&mut checked, &nowhere, cost), Err(Refusal::Unreadable(_))));
        assert_eq!(checked.len(), 3);
        assert!(is_emulated([0x55, 0]) && is_emulated([0x41, 0x57]) && !is_emulated([0x49, 0x3b]));
    }
}
