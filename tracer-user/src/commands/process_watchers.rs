//! What is found out about processes, and the probes that are attached in them: each on a thread of its own, which the
//! pipeline's asks and takes answers from.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use tracer_host::guard::tables::TableUse;
use tracer_host::process_cpu;
use tracer_kernel::loader::{Kernel, monotonic};
use tracer_model::Nanos;
use tracer_results::log_lines::LogSettings;
use tracer_runtimes::status_view::{self, RuntimeStatus};
use tracer_runtimes::{DetectionState, Finder, Place};

use super::Failure;
use super::database_figures::DatabaseFigures;
use super::declaring::Declaring;
use super::decrypting::Decrypting;
use super::exception_probes::ExceptionProbes;
use super::instrumenting::Instrumenting;
use super::log_files;
use super::older_processes::OlderProcesses;
use super::process_looks::look_at_processes;
use super::profiling::Profiling;
use super::sweep::Sweep;
use crate::config::Config;
use crate::pipeline::Pipeline;

/// The watchers; `None`: not configured, or without a thread.
pub(super) struct ProcessWatchers {
    /// Processes whose service is known, where only those of some services are traced.
    pub(super) asked: HashSet<u32>,
    /// Those that ran before the agent.
    pub(super) older: OlderProcesses,
    /// Finds those that ended without a record of it.
    pub(super) sweep: Sweep,
    /// What database servers say of themselves.
    databases: Option<DatabaseFigures>,
    /// Looks at what runs in processes.
    pub(super) finder: Option<Finder>,
    /// Attaches the probes of declared transactions.
    pub(super) declaring: Option<Declaring>,
    /// Has hotspots traced as functions.
    pub(super) instrumenting: Option<Instrumenting>,
    /// Attaches the probes of TLS libraries.
    decrypting: Option<Decrypting>,
    /// Attaches those of functions that throw exceptions.
    exceptions: Option<ExceptionProbes>,
    /// Services whose log lines are looked at.
    logs: LogSettings,
}

impl ProcessWatchers {
    /// Starts the threads, and waits until declared transactions and TLS libraries have their probes in what runs: before the
    /// kernel side reports anything. `databases` was started with the helpers, whose priority its thread has.
    pub(super) fn start(
        config: &Config,
        kernel: &Kernel,
        pipeline: &Pipeline,
        databases: Option<DatabaseFigures>,
        is_recorded: bool,
    ) -> Result<Self, Failure> {
        let declaring = Declaring::start(pipeline.declared(), kernel, true)
            .map_err(|error| Failure::Running(format!("no thread for declared transactions: {error}")))?;
        let instrumenting = instrumenting(config, kernel, is_recorded);
        let decrypting = Decrypting::start(&config.tls, kernel.prober())
            .map_err(|error| Failure::Running(format!("no thread for TLS libraries: {error}")))?;
        let exceptions = ExceptionProbes::start(config.exceptions, kernel)
            .map_err(|error| Failure::Running(format!("no thread for exceptions: {error}")))?;
        let mut prober = kernel.prober();
        let attach = move |look, place: &Place| prober.attach(place.probe, look, &place.file, place.offset);
        let finder = Finder::start(config.runtimes, attach)
            .inspect_err(|error| log::warn!("runtimes are not looked at: {error}"))
            .ok();
        let (asked, older, sweep) = (HashSet::new(), OlderProcesses::read(), Sweep::new());
        Ok(Self {
            asked,
            older,
            sweep,
            databases,
            finder,
            declaring,
            instrumenting,
            decrypting,
            exceptions,
            logs: config.logs.clone(),
        })
    }

    /// Finds out what runs in processes that began to serve, and tells the kernel; whether there are processes that run another
    /// program than before.
    pub(super) fn follow(&mut self, kernel: &mut Kernel, profiling: &mut Profiling, pipeline: &mut Pipeline) -> bool {
        let mut replaced = false;
        for pid in pipeline.take_replaced().collect::<Vec<_>>() {
            replaced = true;
            kernel.policy.forget_runtime(pid);
            if let Some(logs) = &mut kernel.log_lines {
                logs.remove(pid);
            }
            self.leave(pid, kernel, profiling, pipeline);
            if let Some(declaring) = &self.declaring {
                declaring.look_at(pid);
            }
            if let Some(decrypting) = &self.decrypting {
                decrypting.look_at(pid);
            }
        }
        for pid in pipeline.take_encrypted() {
            if let Some(decrypting) = &self.decrypting {
                decrypting.look_at(pid);
            }
        }
        for pid in pipeline.take_serving() {
            if let Some(exceptions) = &self.exceptions {
                exceptions.look_at(pid);
            }
            if let Some(finder) = &mut self.finder {
                finder.ask(pid);
            }
        }
        let mut logging = Vec::new();
        let Some(finder) = &mut self.finder else { return replaced };
        while let Some(((pid, look), found, there)) = finder.found() {
            if !there {
                kernel.detach_user(pid, Some(look));
                continue;
            }
            // Only now: until it is known what it runs, a thread of its could be taken for one with a request of its own.
            logging.push(pid);
            let Some(found) = found else { continue };
            if found.state == DetectionState::NoProbe {
                kernel.detach_user(pid, Some(look));
            }
            log::debug!("process {pid} runs {} {}: {}", found.name, found.version, found.state.name());
            // Probes first: from the first reported task on, none is made unseen.
            let is_watching = finder.is_watching((pid, look));
            if is_watching {
                pipeline.wakes_are_watched(pid, monotonic());
            }
            let is_new = found.runtime.kind != 0 && !is_watching;
            if is_new && let Err(error) = kernel.policy.runtime(pid, found.runtime) {
                log::warn!("{error}");
            }
            if finder.note(pid, &found) {
                pipeline.wake_demand.follow(pid, process_cpu::read(pid).map_or(0, |cpu| cpu.own));
            }
        }
        pipeline.metrics.set_looks(finder.waiting(), finder.looked());
        for pid in logging {
            self.log_of(pid, kernel, pipeline);
        }
        replaced
    }

    /// Has the log lines of a process looked at, if its service's are wanted.
    fn log_of(&self, pid: u32, kernel: &mut Kernel, pipeline: &Pipeline) {
        let Some(logs) = &mut kernel.log_lines else { return };
        let Some(service) = pipeline.service_of(pid) else { return };
        let name = pipeline.names().service(service);
        if self.logs.services.iter().any(|wanted| **wanted == *name)
            && logs.add(pid, self.logs.max_rate, log_files::journal_of(pid))
        {
            log::info!("lines that process {pid} of {name} writes to logs are looked at");
        }
    }

    /// A process is gone, or runs another program.
    pub(super) fn leave(&mut self, pid: u32, kernel: &mut Kernel, profiling: &mut Profiling, pipeline: &mut Pipeline) {
        pipeline.wake_demand.forget(pid);
        kernel.detach_user(pid, None);
        if let Some(finder) = &mut self.finder {
            finder.forget(pid);
        }
        profiling.forget(pid);
    }

    /// What the books of workloads and databases need to know of processes; `ticks` counts the calls.
    pub(super) fn look(&self, pipeline: &mut Pipeline, now: Nanos, ticks: u64) {
        look_at_processes(pipeline, now, ticks, self.databases.as_ref());
    }

    /// Counts what the threads did; gives what is known of runtimes.
    pub(super) fn count(&self, pipeline: &mut Pipeline) -> Option<Vec<RuntimeStatus>> {
        if let Some(counts) = self.decrypting.as_ref().map(Decrypting::counts) {
            let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
            pipeline.metrics.set_tls_files(read(&counts.files), read(&counts.refused));
            pipeline.metrics.set_lost("tls_processes_skipped", read(&counts.skipped));
        }
        if let Some(counts) = self.exceptions.as_ref().map(ExceptionProbes::counts) {
            pipeline.metrics.set_exception_probes_withdrawn(counts.withdrawn.load(Ordering::Relaxed));
            pipeline.metrics.set_lost("exception_processes_skipped", counts.skipped.load(Ordering::Relaxed));
        }
        let finder = self.finder.as_ref()?;
        pipeline.metrics.set_runtimes(&finder.counts());
        pipeline.metrics.set_wakes(&finder.wakes());
        let service = |(pid, known)| Some((pipeline.service_of(pid)?, known));
        Some(status_view::statuses(finder.known().filter_map(service)))
    }

    /// Processes whose runtimes are known.
    pub(super) fn runtimes(&self) -> TableUse {
        self.finder.as_ref().map_or_else(TableUse::default, Finder::table_use)
    }

    /// Functions that may be traced without being declared.
    pub(super) fn hotspots(&self) -> TableUse {
        self.instrumenting.as_ref().map_or_else(TableUse::default, Instrumenting::table_use)
    }
}

/// Has hotspots traced as functions, if that is wanted.
fn instrumenting(config: &Config, kernel: &Kernel, is_recorded: bool) -> Option<Instrumenting> {
    if config.instrument.auto && is_recorded {
        log::warn!("[instrument] auto: a recording has one configuration, so no hotspot is instrumented");
        return None;
    }
    let started = Instrumenting::start(config, kernel);
    started.inspect_err(|error| log::error!("no thread for instrumentation, none is done: {error}")).ok().flatten()
}
