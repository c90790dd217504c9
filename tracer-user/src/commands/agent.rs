//! What one turn of the agent's loop does: between the kernel, the pipeline and everything around them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tracer_common::event::{Header, Kind as EventKind};
use tracer_common::limits::{ASKS_MAX, PROCESSES_MAX, SAMPLE_RING_BYTES};
use tracer_common::lost::Lost;
use tracer_common::policy::Statics;

use super::declaring::Declaring;
use super::decrypting::Decrypting;
use super::enforcing::Enforcing;
use super::history_files::HistoryFiles;
use super::netns::OwnNetns;
use super::past_windows::PastWindows;
use super::poll_interval::Found;
use super::process_looks::look_at_processes;
use super::relaying::Relaying;
use super::reloading::Reloading;
use super::sampling::{Sampling, timed};
use super::save::Saver;
use super::sweep::Sweep;
use super::thread_clocks::ThreadClocks;
use super::{Failure, clock};
use crate::config::Config;
use crate::guard::loss_log::LossLog;
use crate::guard::self_process;
use crate::guard::shed::Level;
use crate::guard::status::Status;
use crate::guard::tables::{AgentTables, TableUse};
use crate::host::process::{self, ProcessFacts};
use crate::host::services::{NamingRules, identify};
use crate::host::stat::{self, HostCpuSource};
use crate::host::statics;
use crate::http::{self, Command, Health, Job};
use crate::kernel::header::Headers;
use crate::kernel::loader::{Kernel, monotonic};
use crate::kernel::policy::Scope;
use crate::kernel::probes::Until;
use crate::kernel::ring_occupancy::RingLevel;
use crate::kernel::rings::Rings;
use crate::kernel::skips::Skips;
use crate::model::HostCpu;
use crate::otlp::{Export, FindingExport, MetricExport};
use crate::pipeline::{Introduce, Pipeline};
use crate::record::{Kind, Waiting, Writer};
use crate::runtimes::{Finder, State, status_view};
use crate::transactions::losses;
use crate::unwind::{Figures, Interpreters, Unwinder};
use crate::webhook::Webhook;

/// Records taken from a ring before the other one and everything else (shedding among it) get their turn.
const BATCH: usize = 16_384;

/// Reads who a process is, and writes it down when recording.
struct Introducer<'a> {
    recorder: Option<&'a mut Writer>,
    /// Services that are traced, when only some are; and what was found out.
    only: &'a [String],
    rules: &'a NamingRules,
    allowed: &'a mut Vec<u32>,
    asked: &'a mut HashSet<u32>,
}

impl Introduce for Introducer<'_> {
    fn introduce(&mut self, tgid: u32) -> Option<ProcessFacts> {
        let facts = process::read(tgid)?;
        if let Some(recorder) = &mut self.recorder
            && let Ok(bytes) = serde_json::to_vec(&facts)
        {
            recorder.frame(Kind::Process, &bytes);
        }
        if !self.only.is_empty() && self.asked.insert(tgid) && is_wanted(&facts, self.rules, self.only) {
            self.allowed.push(tgid);
        }
        Some(facts)
    }
}

/// Whether a process is of one of these services.
fn is_wanted(facts: &ProcessFacts, rules: &NamingRules, services: &[String]) -> bool {
    let identity = identify(facts, rules);
    services.iter().any(|wanted| identity.is_called(wanted))
}

/// Introduces no process: those that end need not be known.
struct NoProcess;

impl Introduce for NoProcess {
    fn introduce(&mut self, _: u32) -> Option<ProcessFacts> {
        None
    }
}

/// Everything but the pipeline.
pub(super) struct Agent {
    pub(super) config: Config,
    pub(super) kernel: Kernel,
    pub(super) rings: Rings,
    pub(super) recorder: Option<Writer>,
    pub(super) health: Health,
    pub(super) at_start: Option<HostCpuSource>,
    pub(super) asked: HashSet<u32>,
    pub(super) sweep: Sweep,
    /// Wall clock minus monotonic clock as times are shown, nanoseconds.
    pub(super) wall_offset: i64,
    /// Whether the last drain took all there was.
    pub(super) drained: bool,
    /// Rate of stack samples.
    pub(super) sampling: Sampling,
    /// Threads that work for slow requests.
    pub(super) thread_clocks: ThreadClocks,
    pub(super) status: Arc<Status>,
    /// Gauge of the ring of stacks.
    pub(super) level: Option<RingLevel>,
    pub(super) console: Arc<http::Console>,
    pub(super) jobs: mpsc::Sender<Job>,
    pub(super) skips: Skips,
    /// Losses the pipeline knows of.
    pub(super) losses: Noticed,
    pub(super) loss_log: LossLog,
    pub(super) export: Option<Export>,
    pub(super) metric_export: Option<MetricExport>,
    pub(super) finding_export: Option<FindingExport>,
    /// Posts findings.
    pub(super) webhook: Option<Webhook>,
    pub(super) saver: Option<Saver>,
    /// Writes the windows of cost to files.
    pub(super) history: Option<HistoryFiles>,
    /// Windows of earlier runs that are being read.
    pub(super) past: Option<PastWindows>,
    /// What waits for the files that are written.
    pub(super) files: Vec<Waiting>,
    /// Other hosts' agents.
    pub(super) relaying: Option<Relaying>,
    /// Tells own sockets from others where only those are traced.
    pub(super) netns: Option<OwnNetns>,
    /// Looks at what runs in processes.
    pub(super) finder: Option<Finder>,
    /// Attaches the probes of declared transactions.
    pub(super) declaring: Option<Declaring>,
    /// Reads the configuration again.
    pub(super) reloading: Option<Reloading>,
    /// Enforces service classes.
    pub(super) enforcing: Enforcing,
    /// Attaches the probes of TLS libraries.
    pub(super) decrypting: Option<Decrypting>,
    /// Makes unwind tables, where stacks are walked by them.
    pub(super) unwinder: Option<Unwinder>,
    /// Looks for interpreters in processes whose stacks are sampled.
    pub(super) interpreters: Option<Interpreters>,
    /// Ticks so far, and wishes in the kernel as counted last: counting them takes milliseconds.
    pub(super) ticks: u64,
    pub(super) asks_waiting: usize,
}

/// Records between two heartbeats: a full ring takes a while where CPU is short.
const BEAT_EVERY: u32 = 1024;
/// Ticks between two counts of what is in the kernel's maps.
const COUNT_EVERY: u64 = 16;
/// Between two looks whether operations were lost: much less than records wait, nanoseconds.
const LOSSES_EVERY: u64 = 50_000_000;
/// How long before it is known that operations were lost they can have been: skipped programs are counted by the second,
/// nanoseconds.
const KNOWN_LATE: u64 = 2_000_000_000;

/// Operations known to be lost, and when that was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noticed {
    seen: u64,
    /// Of those, the ones a program was skipped for, which is only known by the second.
    skipped: u64,
    at: u64,
}

/// Services that were asked for and that no process is of.
fn unmatched<'a>(wanted: &'a [String], found: &HashSet<String>) -> Vec<&'a str> {
    wanted.iter().filter(|name| !found.contains(*name)).map(String::as_str).collect()
}

/// The process of a stack of user space, if the record is one.
fn sampled(bytes: &[u8]) -> Option<u32> {
    let header = Header::decode(bytes)?;
    let stack = header.kind == EventKind::Sample as u8 || header.kind == EventKind::OffCpu as u8;
    // Kernel threads have no memory to look at.
    (stack && header.flags & 1 == 0).then_some(header.tgid)
}

impl Agent {
    /// Lets the kernel report what the configuration asks for.
    pub(super) fn open_up(&mut self) -> Result<(), Failure> {
        let policy = &mut self.kernel.policy;
        policy.only_ports(&self.config.only_ports)?;
        policy.names(&self.config.dns_ports)?;
        self.start_sampling()?;
        let policy = &mut self.kernel.policy;
        for pid in &self.config.only_pids {
            policy.process(*pid, true)?;
        }
        if !self.config.only_services.is_empty() {
            // Those that run now; later ones when they are first heard of.
            let mut found = HashSet::new();
            for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
                let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                let Some(facts) = process::read(pid) else { continue };
                let identity = identify(&facts, &self.config.services);
                let wanted = self.config.only_services.iter().filter(|wanted| identity.is_called(wanted));
                let mut is_wanted = false;
                for name in wanted {
                    is_wanted = true;
                    found.insert(name.clone());
                }
                if is_wanted {
                    policy.process(pid, true)?;
                }
            }
            for name in unmatched(&self.config.only_services, &found) {
                log::warn!(
                    "no process is of service '{name}' so far: nothing of it is traced until one is (the console shows \
                     the names of services when all are traced)"
                );
            }
        }
        let listed = !self.config.only_pids.is_empty() || !self.config.only_services.is_empty();
        policy.scope(if listed { Scope::Listed } else { Scope::Everything })?;
        Ok(())
    }

    /// Looks whether operations were lost, now and then.
    fn notice_losses(&mut self, pipeline: &mut Pipeline) {
        let now = monotonic();
        if now.saturating_sub(self.losses.at) < LOSSES_EVERY {
            return;
        }
        let seen = self.kernel.lost_operations() + self.losses.skipped;
        if seen != self.losses.seen {
            // 0 stands for the beginning of tracing.
            let since = self.losses.at.saturating_sub(KNOWN_LATE).max(1);
            self.lost(pipeline, since, now.saturating_add(losses::SUSPECT));
        }
        if self.losses.at == 0 {
            // What was read before tracing began is as good as lost.
            self.lost(pipeline, 0, now.saturating_add(losses::BEGINNING));
        }
        self.losses = Noticed { seen, at: now, ..self.losses };
    }

    /// Tells the pipeline, and the recording, that operations were lost.
    fn lost(&mut self, pipeline: &mut Pipeline, since: u64, until: u64) {
        if let Some(recorder) = &mut self.recorder {
            let times: Vec<u8> = [since, until].iter().flat_map(|time| time.to_ne_bytes()).collect();
            recorder.frame(Kind::Lost, &times);
        }
        pipeline.lost(since, until);
    }

    /// Empties the rings into the pipeline.
    pub(super) fn drain(&mut self, pipeline: &mut Pipeline) -> Found {
        self.notice_losses(pipeline);
        let samples_filled = self.level.as_mut().map_or(0.0, |level| level.look() as f64 / SAMPLE_RING_BYTES as f64);
        let mut allowed = Vec::new();
        let mut recorder = self.recorder.as_mut();
        let (only, rules, asked) = (&self.config.only_services, &self.config.services, &mut self.asked);
        let (status, mut records) = (&self.status, 0u32);
        let (netns, interpreters, clock) = (&mut self.netns, &mut self.interpreters, Instant::now());
        let mut take = |bytes: &[u8]| {
            records += 1;
            if records.is_multiple_of(BEAT_EVERY) {
                status.beat();
            }
            if netns.as_mut().is_some_and(|netns| netns.is_foreign(bytes)) {
                return;
            }
            if let Some(interpreters) = interpreters
                && let Some(pid) = sampled(bytes)
            {
                interpreters.sampled(pid, clock);
            }
            let mut who = Introducer {
                recorder: recorder.as_deref_mut(),
                only,
                rules,
                allowed: &mut allowed,
                asked: &mut *asked,
            };
            // Facts of a process come before its first record, in the file too.
            pipeline.record(bytes, &mut who);
            if let Some(recorder) = recorder.as_deref_mut() {
                recorder.frame(Kind::Record, bytes);
            }
        };
        // Samples first, and events only of the time before that: what a sample was taken in is in the other ring by then, or
        // is known from before, and nothing that followed it is.
        let now = monotonic();
        let samples = timed(&mut self.sampling.agent_nanos, || self.rings.samples(BATCH, &mut take));
        let events = self.rings.events(now, BATCH, &mut take);
        self.drained = events < BATCH;
        if self.drained {
            pipeline.catch_up(now);
        }
        self.enforcing.decide(pipeline, monotonic());
        // Each is as late as the next drain.
        let mut stirred = !allowed.is_empty() || pipeline.expects_service_classes();
        for pid in allowed {
            if let Err(error) = self.kernel.policy.process(pid, true) {
                log::warn!("{error}");
            }
        }
        for pid in pipeline.take_gone() {
            // Its id may come back as another's.
            self.kernel.policy.forget_process(pid);
            self.leave(pid);
            self.asked.remove(&pid);
        }
        stirred |= self.follow_runtimes(pipeline);
        if pipeline.take_unseen() {
            self.kernel.attach_deferred(Until::Spliced);
        }
        for pid in pipeline.take_wanted() {
            // One that is gone needs nothing.
            let Some([first, second, third]) = statics::read(pid) else { continue };
            let statics = Statics {
                first: first.0,
                first_end: first.1,
                second: second.0,
                second_end: second.1,
                third: third.0,
                third_end: third.1,
            };
            self.kernel.policy.handover(pid, statics);
            self.kernel.attach_deferred(Until::HandedOver);
        }
        let others = self.netns.as_mut().map(OwnNetns::take_policies);
        for (cookie, ask) in pipeline.take_policies().chain(others.into_iter().flatten()) {
            self.kernel.policy.ask(cookie, ask);
            // Until its policy is set, its messages are cut.
            stirred |= ask.head_rx > 0 || ask.head_tx > 0;
        }
        let filled = self.rings.events_filled().max(samples_filled);
        Found { at: now, records: samples + events, filled, drained: self.drained, stirred }
    }

    /// Finds out what runs in processes that began to serve, and tells the kernel; whether there are processes that run another
    /// program than before.
    fn follow_runtimes(&mut self, pipeline: &mut Pipeline) -> bool {
        let mut replaced = false;
        for pid in pipeline.take_replaced() {
            replaced = true;
            self.kernel.policy.forget_runtime(pid);
            self.leave(pid);
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
        let Some(finder) = &mut self.finder else {
            pipeline.take_serving();
            return replaced;
        };
        for pid in pipeline.take_serving() {
            finder.ask(pid);
        }
        while let Some(((pid, look), found, there)) = finder.found() {
            if !there {
                self.kernel.detach_user(pid, Some(look));
                continue;
            }
            let Some(found) = found else { continue };
            if found.state == State::NoProbe {
                self.kernel.detach_user(pid, Some(look));
            }
            log::debug!("process {pid} runs {} {}: {}", found.name, found.version, found.state.name());
            // Probes first: from the first reported task on, none is made unseen.
            if let Err(error) = self.kernel.policy.runtime(pid, found.runtime) {
                log::warn!("{error}");
            }
            finder.note(pid, &found);
        }
        pipeline.metrics.set_looks(finder.waiting(), finder.looked());
        replaced
    }

    /// A process is gone, or runs another program.
    fn leave(&mut self, pid: u32) {
        self.kernel.detach_user(pid, None);
        if let Some(finder) = &mut self.finder {
            finder.forget(pid);
        }
        if let Some(interpreters) = &mut self.interpreters {
            interpreters.forget(pid);
        }
    }

    pub(super) fn apply_limits(&mut self, command: Command) {
        match command {
            Command::Hertz(hertz, answer) => {
                // Whoever asked may be gone.
                let _ = answer.send(self.ask_for_hertz(hertz));
            }
        }
    }

    /// Times follow the wall clock when somebody sets it.
    fn follow_clock(&mut self, pipeline: &mut Pipeline) {
        let Some(offset) = clock::moved(self.wall_offset) else { return };
        self.wall_offset = offset;
        if let Some(recorder) = &mut self.recorder {
            recorder.frame(Kind::Clock, &offset.to_ne_bytes());
        }
        pipeline.clock(offset);
    }

    /// Ends the threads and processes whose own report of it was lost.
    fn expire_exited(&mut self, pipeline: &mut Pipeline) {
        if !self.drained {
            // Their report may yet come.
            return;
        }
        for record in self.sweep.tick(pipeline) {
            if let Some(recorder) = &mut self.recorder {
                recorder.frame(Kind::Record, &record);
            }
            pipeline.record(&record, &mut NoProcess);
        }
        pipeline.metrics.set_lost("thread_ends_unreported", self.sweep.found);
    }

    /// Gives up as much detail as the watchdog found necessary, or takes it back.
    pub(super) fn shed(&mut self, pipeline: &mut Pipeline) {
        let (before, level) = (self.health.level, self.status.level());
        if level == before {
            return;
        }
        let (memory, cpu) = self.status.usage();
        let usage = format!("memory {} MB, CPU {:.0} % of a core", memory >> 20, cpu * 100.0);
        // Each level once, in order: one may have come and stayed between two ticks with the next.
        for taken in Level::ALL.into_iter().filter(|taken| *taken > before && *taken <= level) {
            log::warn!("load is shed ({usage}): {}", taken.what());
        }
        if level < before {
            log::warn!("load is shed less ({usage}): {}", level.what());
        }
        self.health.level = level;
        if let Some(recorder) = &mut self.recorder {
            recorder.frame(Kind::Shed, &[level as u8]);
        }
        pipeline.shed(level);
        let diet = level.diet();
        if let Err(error) = self.kernel.policy.head_max(diet.head_max) {
            log::warn!("{error}");
        }
        if let Err(error) = self.limit_sampling() {
            log::warn!("{error}");
        }
        self_process::release_memory();
    }

    /// How full everything around the pipeline is.
    fn table_use(&mut self) -> AgentTables {
        let samples = self.level.as_mut().map_or(0, RingLevel::take_most);
        let (events, event_bytes) = self.rings.event_level();
        if self.ticks % COUNT_EVERY == 1 {
            self.asks_waiting = self.kernel.policy.asks_waiting();
        }
        let lost = self.kernel.lost();
        let of = |reasons: &[Lost]| reasons.iter().filter_map(|reason| lost.get(*reason as usize)).sum();
        let unwind = self.unwinder.as_ref().map(Unwinder::figures);
        let ring = |entries, bytes, reached| TableUse { entries, limit: bytes as u64, reached };
        AgentTables {
            ring_event_bytes: ring(
                events,
                event_bytes as usize,
                of(&[Lost::RingOp, Lost::RingConnection, Lost::RingThread]),
            ),
            ring_sample_bytes: ring(samples, SAMPLE_RING_BYTES, of(&[Lost::RingSample])),
            kernel_asks: TableUse::new(self.asks_waiting, ASKS_MAX as usize, self.kernel.policy.asks_refused),
            kernel_processes: TableUse::new(
                self.kernel.policy.listed(),
                PROCESSES_MAX as usize,
                self.kernel.policy.processes_refused,
            ),
            runtimes: self.finder.as_ref().map_or_else(TableUse::default, Finder::table_use),
            user_probes: self.kernel.user_fill(),
            header_connections: self.kernel.headers.as_ref().map_or_else(TableUse::default, Headers::table_use),
            unwind_table_bytes: unwind.map_or_else(TableUse::default, Figures::bytes),
            unwind_files: unwind.map_or_else(TableUse::default, Figures::files),
            unwind_rules: unwind.map_or_else(TableUse::default, Figures::rules),
            python_processes: self.interpreters.as_ref().map_or_else(TableUse::default, Interpreters::table_use),
            file_bytes: self.files(),
            otlp_queue: self.export.as_ref().map_or_else(TableUse::default, Export::table_use),
            http_jobs: self.console.jobs(&self.jobs),
            http_connections: self.console.connections(),
            priority_threads: self.enforcing.table_use(),
        }
    }

    /// Bytes that wait for disks.
    fn files(&self) -> TableUse {
        let sum = |sum: TableUse, waiting: &Waiting| {
            let TableUse { entries, limit, reached } = waiting.table_use();
            TableUse { entries: sum.entries + entries, limit: sum.limit + limit, reached: sum.reached + reached }
        };
        self.files.iter().fold(TableUse::default(), sum)
    }

    /// Once a second: expiry, the host's host_cpu, losses, own cost.
    pub(super) fn tick(&mut self, pipeline: &mut Pipeline) {
        let now = monotonic();
        self.ticks += 1;
        if self.health.level > Level::Full {
            // What was freed counts until it is given back.
            self_process::release_memory();
        }
        self.kernel.forward_log();
        self.follow_clock(pipeline);
        self.expire_exited(pipeline);
        if let Some(recorder) = &mut self.recorder {
            recorder.frame(Kind::ThreadStats, &now.to_ne_bytes());
            recorder.flush();
            pipeline.metrics.set_lost("records_not_written", recorder.dropped());
        }
        pipeline.tick(now);
        look_at_processes(pipeline, now, self.ticks);
        for row in self.past.as_ref().and_then(PastWindows::take).into_iter().flatten() {
            pipeline.learn_past_activity(&row);
        }
        self.count_relayed(pipeline);
        let lost = self.kernel.lost();
        for (reason, count) in tracer_common::lost::Lost::ALL.into_iter().zip(&lost) {
            pipeline.metrics.set_lost(reason.name(), *count);
        }
        pipeline.metrics.set_lost("handovers_refused", self.kernel.policy.handovers_refused);
        pipeline.metrics.set_lost("runtimes_refused", self.kernel.policy.runtimes_refused);
        if let Some(headers) = &self.kernel.headers {
            pipeline.metrics.set_headers(headers.counts());
        }
        pipeline.metrics.set_probes(&self.kernel.hits(), self.kernel.attempts());
        if let Some(counts) = self.decrypting.as_ref().map(Decrypting::counts) {
            let read = |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
            pipeline.metrics.set_tls_files(read(&counts.files), read(&counts.refused));
            pipeline.metrics.set_lost("tls_processes_skipped", read(&counts.skipped));
        }
        if let Some(finder) = &self.finder {
            pipeline.metrics.set_runtimes(&finder.counts());
            let service = |(pid, known)| Some((pipeline.service_of(pid)?, known));
            self.health.runtimes = status_view::statuses(finder.known().filter_map(service));
        }
        pipeline.metrics.set_lost("asks_refused", self.kernel.policy.asks_refused);
        pipeline.metrics.set_lost("profile_stacks_refused", pipeline.profiles.refused);
        pipeline.metrics.set_lost("symbols_stuck", pipeline.profiles.stuck());
        pipeline.metrics.set_lost("store_units_dropped", pipeline.store.spans_dropped);
        let usage = self.kernel.usage();
        let bpf = usage.values().map(|usage| usage.nanos).sum();
        let skipped = self.skips.lost(&usage, self.kernel.has(Until::Skipped));
        if skipped > 0 {
            self.kernel.attach_deferred(Until::Skipped);
        }
        for (program, usage) in &usage {
            pipeline.metrics.set_bpf(program, *usage);
        }
        pipeline.metrics.set_lost("hook_skipped", skipped);
        self.losses.skipped = skipped;
        pipeline.metrics.set_walks(self.kernel.walks.counts().map(|(outcome, count)| (outcome.name(), count)));
        self.show_sampling(pipeline);
        let python = self.kernel.python_walks.counts().map(|(outcome, count)| (outcome.name(), count));
        pipeline.metrics.set_python(python, pipeline.profiles.python_functions());
        self.account_losses(pipeline);
        self.health.host_cpu = self.host_cpu(pipeline);
        let lost = self.health.lost.iter().filter(|(why, _)| why == Lost::RingOp.name()).map(|(_, count)| count).sum();
        pipeline.host_books(&self.health.host_cpu, lost);
        self.status.set_bpf(bpf);
        let (cpu, self_process::Memory { resident: rss, own: memory }) =
            (self_process::cpu() as f64 / 1e9, self_process::memory());
        self.health.own_cpu_s = cpu;
        self.health.own_rss = rss;
        self.health.own_memory = memory;
        pipeline.metrics.set_own(cpu, rss);
        let (_, cores) = self.status.usage();
        self.health.own_cores = cores;
        pipeline.metrics.set_usage(&self.config.ceilings, memory, cores);
        if let Some(saver) = &mut self.saver {
            saver.tick(pipeline);
            pipeline.metrics.set_saved(&saver.counts().by_outcome());
        }
        if let Some(history) = &self.history {
            if let Some(window) = pipeline.history.take_rows() {
                history.window(window);
            }
            history.publish(&pipeline.metrics);
            if let Some(past) = history.past_findings() {
                pipeline.detector.remember(past);
            }
        }
        if let Some(export) = &mut self.export {
            pipeline.metrics.set_export(&export.counts.by_outcome(), export.counts.retries());
            self.health.spans_dropped = export.counts.dropped();
            if let Some(message) = export.drops(Instant::now()) {
                log::warn!("{message}");
            }
        }
        if let Some(export) = &self.metric_export {
            pipeline.metrics.set_metric_export(&export.counts.points());
        }
        if let Some(export) = &mut self.finding_export {
            export.notify(pipeline.detector.own_findings());
            pipeline.metrics.set_finding_export(&export.counts.by_outcome(), export.counts.retries());
        }
        if let Some(webhook) = &mut self.webhook {
            webhook.notify(pipeline.detector.own_findings());
            pipeline.metrics.set_notifications(&webhook.counts().by_outcome());
        }
        self.health.enforcement = self.enforcing.view(pipeline);
        let actions = &self.health.enforcement.actions;
        pipeline.metrics.set_service_classes(pipeline.names(), &pipeline.attainment, actions);
        let table_use = self.table_use();
        pipeline.metrics.set_table_use(&table_use.all());
    }

    /// Takes the account of losses, which everything shows, and says on stderr that something is lost.
    fn account_losses(&mut self, pipeline: &Pipeline) {
        self.health.lost = pipeline.metrics.events_lost();
        let total = self.health.events_lost();
        if let Some(more) = self.loss_log.due(Instant::now(), total) {
            let reasons: Vec<String> = self.health.lost.iter().map(|(why, count)| format!("{why} {count}")).collect();
            log::warn!("{more} events were lost; since the start: {}", reasons.join(", "));
        }
    }

    fn host_cpu(&self, pipeline: &Pipeline) -> HostCpu {
        let cpus = self.kernel.cpu_books();
        let charged = pipeline.charged();
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let (system, steal, steal_is_busy, online) = match (stat::read(), self.at_start) {
            (Some(now), Some(start)) => (now.busy_s - start.busy_s, now.steal_s - start.steal_s, !now.exact, now.cpus),
            _ => (0.0, 0.0, false, 0),
        };
        HostCpu {
            requests: seconds(charged.requests),
            overhead: seconds(charged.overhead),
            kernel: seconds(cpus.kernel),
            unreported: seconds(cpus.user.saturating_sub(charged.requests + charged.overhead)),
            idle: seconds(cpus.idle.max(0) as u64),
            system_busy: system,
            steal,
            steal_is_busy,
            cpus: online,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_that_match_nothing_are_named() {
        let wanted = ["shop".to_owned(), "shpo".to_owned()];
        assert_eq!(unmatched(&wanted, &HashSet::from(["shop".to_owned()])), ["shpo"]);
        assert!(unmatched(&wanted, &HashSet::from(wanted.clone())).is_empty());
    }
}
