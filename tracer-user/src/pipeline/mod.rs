//! Joins the stages; the only file that may see them all. Read this first.
//!
//! ```text
//! record ─► decode ─► transactions (protocols inside) ─► classes ─► metrics · profiles · store · transactions file
//! ```
//!
//! [`Pipeline`] is pure except for its sinks' memory: it takes records and facts of their processes, and returns sums
//! and query results. It has no clock (time comes with records) and no locks; its drivers (`commands/run.rs`,
//! `commands/replay.rs`) do the input and output.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tracer_common::event::{Header, Kind, SAMPLE_KERNEL_THREAD, ThreadCounters};
use tracer_common::policy::CapturePolicy;
use tracer_host::containers::Containers;
use tracer_host::guard::shed::Level;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::scaled;
use tracer_host::process::ProcessFacts;
use tracer_http::{Health, PipelineView};
use tracer_model::decode::{self, Malformed, Record};
use tracer_model::dimensions::Dimensions;
use tracer_model::{ClassId, Cost, LogTextBudget, Names, Nanos, Owner, ServiceId, Sink, Span};
use tracer_policies::tail_sampling::TailSampling;
use tracer_protocols::Settings;
use tracer_relay::Outgoing;
use tracer_results::analysis::activity::Activity;
use tracer_results::analysis::announced::AnnouncedFindings;
use tracer_results::analysis::detector::Detector;
use tracer_results::history::collector::Collector;
use tracer_results::log_lines::TEXT_BYTES;
use tracer_results::metrics::{Attainment, ClassStats, DeclaredReports, Metrics};
use tracer_results::profiles::{self, DebugRequests, Profiles, ShownLines, UnsentSamples};
use tracer_results::store::{SpanView, Store};
use tracer_results::subsystems::Subsystems;
use tracer_results::workloads::Workloads;
use tracer_runtimes::declared::DeclaredTable;
use tracer_runtimes::process_memory::MemoryFile;
use tracer_runtimes::wake_demand::WakeDemand;
use tracer_transactions::classes::{Bounds, Classifier};
use tracer_transactions::engine::Engine;
use tracer_transactions::limits::Limits;
use tracer_transactions::output::Output;
use tracer_transactions::process_costs::ProcessWork;
use tracer_transactions::roots::Roots;
use tracer_transactions::slot::Slot;

use crate::config::Config;

mod activity;
mod classes;
mod declared;
mod dimensions;
mod exceptions;
mod exchange_counts;
mod export;
mod finished;
mod log_lines;
mod relay;
mod reload;
mod roots;
mod service_classes;
mod services;
mod shedding;
mod short_lived;
mod slow_requests;
mod trace_contexts;
mod window_rows;

use self::classes::{classify_early, classify_late, provisional};
pub use self::exchange_counts::{CountingOrder, ExchangeCounts};
use self::service_classes::Policies;
pub use self::service_classes::Unserved;
use self::slow_requests::Slow;
pub use self::slow_requests::SlowThread;
use self::trace_contexts::OpenRequests;

/// Interval between reports of finished spans, in record time.
const REPORT_EVERY: Nanos = 10_000_000;

/// Identifies processes. A live run reads the system; a replay reads the recording.
pub trait Introduce {
    /// Facts of the process, or `None` if it has exited or is unknown.
    fn introduce(&mut self, tgid: u32) -> Option<ProcessFacts>;

    /// The memory of the process, for what the kernel side could not read; `None`: it is gone, or this is a replay.
    fn memory(&mut self, tgid: u32) -> Option<MemoryFile> {
        let _ = tgid;
        None
    }

    /// What the file of the process with this device (as the kernel numbers it) and inode is called; `None`: not known.
    fn file_name(&mut self, tgid: u32, device: u32, inode: u64) -> Option<String> {
        let _ = (tgid, device, inode);
        None
    }

    /// The id is another process's, or its process runs another program: what was read of it before is void.
    fn forget(&mut self, tgid: u32) {
        let _ = tgid;
    }
}

/// Receives finished spans as they are reported (the transactions file).
pub trait SpanWriter {
    /// One finished span.
    fn span(&mut self, names: &Names, span: &Span);
    /// A process serves as what these facts say, from now on.
    fn process(&mut self, tgid: u32, facts: &ProcessFacts) {
        let _ = (tgid, facts);
    }
    /// A process is gone: its id may become another's.
    fn process_gone(&mut self, tgid: u32) {
        let _ = tgid;
    }
    /// Called about once a second: flushes for concurrent readers.
    fn flush(&mut self);
    /// The wall clock was set: `wall_offset` is wall clock minus `CLOCK_MONOTONIC` from now on, nanoseconds.
    fn clock(&mut self, wall_offset: i64);
    /// Number of spans that could not be written.
    fn dropped(&self) -> u64;
    /// No more spans follow: writes the rest and waits for it.
    fn finish(&mut self);
}

/// How long a process is remembered after its first thread exited, nanoseconds.
const FORGET: Nanos = 5_000_000_000;
/// Limit of such processes; beyond it they are forgotten earlier. Also the limit of processes that could not be
/// inspected yet.
const LEAVING: usize = 65_536;

/// Everything between records and query results.
pub struct Pipeline {
    engine: Engine,
    classifier: Classifier,
    names: Names,
    rules: tracer_host::services::NamingRules,
    services: HashMap<Arc<str>, ServiceId>,
    places: services::Places,
    containers: Containers,
    /// Processes whose first thread exited, by the time they are forgotten: their last records are still on the way.
    leaving: VecDeque<(Nanos, u32)>,
    /// Processes forgotten since last taken.
    gone: Vec<u32>,
    /// Processes that executed another program since last taken.
    replaced: Vec<u32>,
    short_lived: short_lived::ShortLived,
    /// Metrics for `/metrics`.
    pub metrics: Metrics,
    /// Rolling statistics per class.
    pub stats: ClassStats,
    /// Recent transactions.
    pub store: Store,
    /// Stack profiles.
    pub profiles: Profiles,
    /// Windows of cost.
    pub history: Collector,
    /// What is usual at which hour.
    pub activity: Activity,
    /// CPU by groups of processes.
    pub workloads: Workloads,
    /// CPU of databases by user, session and component.
    pub subsystems: Subsystems,
    /// In which processes wake-ups between tasks are worth watching.
    pub wake_demand: WakeDemand,
    /// What classes cost by the class of the transaction's first request.
    pub roots: Roots,
    /// What changes between them mean.
    pub detector: Detector,
    /// Findings that have rows in the history.
    findings_kept: AnnouncedFindings,
    writers: Vec<Box<dyn SpanWriter>>,
    /// Chooses what they get; `None`: everything.
    tail: Option<TailSampling>,
    /// Spans that finished writers could not write.
    not_written: u64,
    outputs: Vec<Output>,
    /// Messages for other agents.
    outgoing: Vec<Outgoing>,
    /// Declared transactions, and spans of their calls that were not kept.
    declared: DeclaredTable,
    declared_not_kept: u64,
    /// Sums of declared transactions by service and user.
    declared_reports: DeclaredReports,
    exceptions: exceptions::ExceptionCounts,
    logs: log_lines::Logs,
    policies: Policies,
    /// Declared dimensions, and their values so far.
    pub dimensions: Dimensions,
    slow: Slow,
    open_requests: OpenRequests,
    /// Debug files that are not on this host, if they are to be fetched.
    pub debug_requests: Option<DebugRequests>,
    /// How well service classes reach their goals.
    pub attainment: Attainment,
    /// Exchanges that the kernel side counts.
    pub exchange_counts: ExchangeCounts,
    wall_offset: i64,
    reported: Nanos,
    /// CPU charged so far to requests and to overhead, nanoseconds.
    charged: (u64, u64),
    events: [u64; Kind::ALL.len()],
    malformed: [u64; Malformed::ALL.len()],
    services_refused: u64,
    /// Processes forgotten early because too many had exited.
    left_early: u64,
    /// Current and highest level of load shedding so far.
    level: Level,
    shed_most: Level,
}

/// CPU charged so far, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Charged {
    /// To request classes.
    pub requests: u64,
    /// To services, outside any request: overhead.
    pub overhead: u64,
}

impl Pipeline {
    /// A pipeline for `config`. `wall_offset` is wall clock minus `CLOCK_MONOTONIC`, nanoseconds; ids derive from
    /// `seed`.
    pub fn new(config: &Config, seed: u64, wall_offset: i64, host: &str) -> Self {
        let settings = Settings {
            headers: config.header_names(),
            request_id: config.transactions.request_id,
            timed_ports: config.protocols.timed_ports.clone(),
            baggage: config.transactions.baggage.clone(),
            host: config.wants_host(),
            ..Settings::default()
        };
        let memory = config.limits.ceilings.memory;
        let limits = Limits {
            grace: config.transactions.grace.as_nanos() as u64,
            handover: config.transactions.handover.as_nanos() as u64,
            ..Limits::for_memory(memory)
        };
        let mut engine = Engine::new(settings, limits, seed);
        let debug_requests = config.profiles.debug_info.debuginfod.as_ref().map(|settings| settings.cache.clone());
        let debug_requests = debug_requests.map(DebugRequests::into_directory);
        let declared = DeclaredTable::new(&config.declared);
        let texts = LogTextBudget::new(scaled(TEXT_BYTES, memory) as u64);
        engine.expect_declared(declared.pairings());
        if config.exceptions.enabled || config.logs.is_on() {
            engine.remember_readers();
        }
        Self {
            engine,
            classifier: Classifier::new(&config.classes).within(Bounds::for_memory(memory)),
            names: Names::default(),
            rules: config.services.clone(),
            services: HashMap::new(),
            places: services::Places::default(),
            containers: Containers::default(),
            leaving: VecDeque::new(),
            gone: Vec::new(),
            replaced: Vec::new(),
            short_lived: short_lived::ShortLived::default(),
            metrics: Metrics::new().for_memory(memory).with_series(config.limits.series).at(wall_offset),
            stats: ClassStats::new(),
            store: Store::new(wall_offset, host, config.transactions.keep).for_memory(memory).with_texts(texts.clone()),
            profiles: Profiles::with_debug_files(&config.profiles.debug_info.directories, debug_requests.clone())
                .within(profiles::Bounds::for_memory(memory))
                .with_lines(ShownLines {
                    python: config.sampling.python.unwrap_or_default(),
                    php: config.sampling.php.unwrap_or_default(),
                })
                .with_native_lines(config.profiles.debug_info.lines)
                .with_java(config.sampling.java)
                .with_owners(config.profiles.code_owners.clone()),
            history: Collector::new(config.history.window.as_nanos() as u64, memory),
            activity: Activity::for_memory(memory),
            workloads: Workloads::for_memory(memory),
            subsystems: Subsystems::new(config.subsystems.names),
            wake_demand: WakeDemand::default(),
            roots: Roots::for_memory(memory),
            detector: Detector::new(config.analysis.detector.clone()),
            findings_kept: AnnouncedFindings::default(),
            writers: Vec::new(),
            tail: TailSampling::new(&config.export, memory),
            not_written: 0,
            outputs: Vec::new(),
            outgoing: Vec::new(),
            declared_reports: DeclaredReports::new(&declared).for_memory(memory),
            declared,
            declared_not_kept: 0,
            exceptions: exceptions::ExceptionCounts::default(),
            logs: log_lines::Logs::within(texts),
            policies: Policies::new(&config.service_classes, config.enforcement.mode),
            dimensions: Dimensions::new(&config.dimensions),
            slow: Slow::new(config.sampling.slow_requests),
            open_requests: OpenRequests::default(),
            debug_requests,
            attainment: Attainment::new(&config.service_classes),
            exchange_counts: ExchangeCounts::default(),
            wall_offset,
            reported: 0,
            charged: (0, 0),
            events: [0; Kind::ALL.len()],
            malformed: [0; Malformed::ALL.len()],
            services_refused: 0,
            left_early: 0,
            level: Level::Full,
            shed_most: Level::Full,
        }
    }

    /// Adds a writer for finished spans.
    pub fn write_spans(&mut self, writer: Box<dyn SpanWriter>) {
        self.writers.push(writer);
    }

    /// Whether finished spans are written anywhere.
    pub fn writes_spans(&self) -> bool {
        !self.writers.is_empty()
    }

    /// The wall clock was set: `wall_offset` is wall clock minus `CLOCK_MONOTONIC` from now on, nanoseconds.
    pub fn clock(&mut self, wall_offset: i64) {
        self.wall_offset = wall_offset;
        self.metrics.clock(wall_offset);
        self.store.clock(wall_offset);
        for writer in &mut self.writers {
            writer.clock(wall_offset);
        }
    }

    /// Threads and processes whose exit may have been missed; see [`Engine::silent`].
    pub fn silent(&self, before: Nanos) -> Vec<(u32, u32)> {
        self.engine.silent(before)
    }

    /// The counters of a tracked thread, and the time of its last record.
    pub fn followed(&self, tid: u32, tgid: u32) -> Option<(ThreadCounters, Nanos)> {
        self.engine.followed(tid, tgid)
    }

    /// Whether the process has a service.
    pub fn knows(&self, tgid: u32) -> bool {
        self.engine.knows(tgid)
    }

    /// Samples for an exporter since the last time; see [`Profiles::take_unsent`].
    pub fn take_unsent(&mut self, now: Nanos) -> Option<UnsentSamples> {
        self.profiles.take_unsent(&self.names, now)
    }

    /// Names behind ids.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Time of the newest record.
    pub fn now(&self) -> Nanos {
        self.engine.now()
    }

    /// The next transaction to save; see [`Store::settled`].
    pub fn settled(&mut self, over: bool) -> Option<Vec<SpanView<'static>>> {
        self.store.settled(&self.names, over)
    }

    /// What HTTP handlers may read.
    pub fn view<'a>(&'a self, health: &'a Health) -> PipelineView<'a> {
        PipelineView {
            names: &self.names,
            containers: &self.containers,
            stats: &self.stats,
            attainment: &self.attainment,
            declared: &self.declared_reports,
            store: &self.store,
            profiles: &self.profiles,
            history: &self.history,
            activity: &self.activity,
            workloads: &self.workloads,
            subsystems: &self.subsystems,
            roots: &self.roots,
            detector: &self.detector,
            engine: &self.engine,
            classifier: &self.classifier,
            dimensions: &self.dimensions,
            wall_offset: self.wall_offset,
            health,
        }
    }

    /// CPU charged so far.
    pub fn charged(&self) -> Charged {
        Charged { requests: self.charged.0, overhead: self.charged.1 }
    }

    /// Whether bytes left a socket by a path that no attached hook covers, since last taken.
    pub fn take_unseen(&mut self) -> bool {
        self.engine.take_unseen()
    }

    /// Processes that began to use TLS on a connection, since last taken.
    pub fn take_encrypted(&mut self) -> std::vec::Drain<'_, u32> {
        self.engine.take_encrypted()
    }

    /// Processes whose thread wake-ups should be traced, since last taken.
    pub fn take_wanted(&mut self) -> std::vec::Drain<'_, u32> {
        self.engine.take_wanted()
    }

    /// Processes that began to serve requests since last taken.
    pub fn take_serving(&mut self) -> std::vec::Drain<'_, u32> {
        self.engine.take_serving()
    }

    /// Capture policies for the kernel since last taken.
    pub fn take_policies(&mut self) -> std::vec::Drain<'_, (u64, CapturePolicy)> {
        self.engine.take_policies()
    }

    /// Processes the bytes of one record, in ring order.
    pub fn record(&mut self, bytes: &[u8], who: &mut dyn Introduce) {
        let (kind, header) = match decode::header(bytes) {
            Ok(decoded) => decoded,
            Err(why) => {
                self.malformed[why as usize] += 1;
                return;
            }
        };
        // It is used where it was decoded: a record is large.
        let decoded = decode::content(kind, bytes);
        let record = match &decoded {
            Ok(record) => record,
            Err(why) => {
                self.malformed[*why as usize] += 1;
                return;
            }
        };
        self.identify(kind, &header, record, who);
        match record {
            Record::Sample { sample, .. } => self.notice_slow(sample),
            Record::CallStack { call, user, interpreted } => self.profiles.call_sent(call, user, interpreted),
            Record::NoteworthyExchange(exchange) => self.noteworthy_exchange(exchange),
            Record::DeclaredCall { call, values } => self.thrown(call, values.as_ref(), who),
            Record::LogWrite { write, text } => self.log_written(write, text, who),
            _ => {}
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engine.record(record, &mut outputs);
        self.give(&mut outputs);
        if self.engine.now().saturating_sub(self.reported) >= REPORT_EVERY {
            self.reported = self.engine.now();
            self.engine.report(self.engine.now(), &mut outputs);
            self.give(&mut outputs);
            self.export_due(false);
        }
        self.outputs = outputs;
    }

    /// Records of operations were lost after `since`; the loss affects evidence until `until`.
    pub fn lost(&mut self, since: Nanos, until: Nanos) {
        self.engine.lost(since, until);
    }

    /// Counts the record and makes sure its process has a service.
    fn identify(&mut self, kind: Kind, header: &Header, record: &Record<'_>, who: &mut dyn Introduce) {
        self.events[kind as usize - 1] += 1;
        let tgid = header.tgid;
        match record {
            Record::Exec(exec) => {
                let comm = decode::comm(&exec.comm);
                self.workloads.runs(tgid, &comm);
                self.subsystems.executed(tgid);
                // Another program: the old identity is void.
                self.engine.forget_process(tgid);
                self.executed(tgid, &comm);
                who.forget(tgid);
                self.places.forget(tgid);
                self.profiles.process_gone(tgid);
                self.logs.forget(tgid);
                if self.replaced.len() < LEAVING {
                    self.replaced.push(tgid);
                }
                return;
            }
            Record::Fork(fork) => {
                self.policies.forked(fork);
                if fork.child_tgid != tgid {
                    // The id may have been reused after an unseen exit.
                    self.engine.forget_process(fork.child_tgid);
                    who.forget(fork.child_tgid);
                    self.workloads.forked(tgid, fork.child_tgid);
                    self.subsystems.forked(tgid, fork.child_tgid);
                    self.forked(tgid, fork.child_tgid, who);
                }
                return;
            }
            Record::ThreadStats(stats) => {
                let gone = header.flags & tracer_common::event::THREAD_STATS_DEAD != 0 && header.tid == tgid;
                if gone {
                    self.leaving.push_back((header.nanos + FORGET, tgid));
                }
                if !self.engine.knows(tgid) {
                    // Other threads have names of their own.
                    let comm = (header.tid == tgid).then(|| decode::comm(&stats.comm));
                    if gone {
                        // A short-lived process has a name: enough to charge its CPU.
                        self.stand_in(tgid, comm.as_deref());
                    } else {
                        self.introduce(tgid, comm.as_deref(), who);
                    }
                }
                return;
            }
            // Whatever can be known of it is known by now.
            Record::ProcessEnd(_) => return,
            Record::Sample { .. } if header.flags & SAMPLE_KERNEL_THREAD != 0 => return,
            _ => {}
        }
        if tgid != 0 && !self.engine.knows(tgid) {
            self.introduce(tgid, None, who);
        }
    }

    fn introduce(&mut self, tgid: u32, comm: Option<&str>, who: &mut dyn Introduce) {
        match who.introduce(tgid) {
            Some(facts) => self.process(tgid, &facts),
            None => self.stand_in(tgid, comm),
        }
    }

    /// Forgets exited processes once they are due. One that still runs is introduced again by its next record.
    fn forget(&mut self, now: Nanos) {
        while let Some((due, tgid)) = self.leaving.front().copied()
            && (due <= now || self.leaving.len() > LEAVING)
        {
            self.leaving.pop_front();
            self.left_early += u64::from(due > now);
            self.engine.forget_process(tgid);
            self.short_lived.forget(tgid);
            self.places.forget(tgid);
            self.profiles.process_gone(tgid);
            self.logs.forget(tgid);
            self.containers.forget(tgid);
            self.workloads.gone(tgid);
            self.uncounted(tgid);
            self.subsystems.gone(tgid);
            for writer in &mut self.writers {
                writer.process_gone(tgid);
            }
            self.gone.push(tgid);
        }
    }

    /// Processes forgotten since last taken.
    pub fn take_gone(&mut self) -> std::vec::Drain<'_, u32> {
        self.gone.drain(..)
    }

    /// Processes that executed another program since last taken.
    pub fn take_replaced(&mut self) -> std::vec::Drain<'_, u32> {
        self.replaced.drain(..)
    }

    /// Passes the engine's output to the classifier and the sinks.
    fn give(&mut self, outputs: &mut Vec<Output>) {
        for output in outputs.drain(..) {
            match output {
                Output::Begun(slot) => {
                    self.classify_early(slot);
                    self.decide_service_class(slot);
                    self.decide_dimensions(slot, true);
                    self.watch_thread(slot);
                    self.tell(slot);
                }
                Output::Settled(slot) => {
                    self.decide_service_class(slot);
                    self.decide_dimensions(slot, false);
                    self.tell(slot);
                }
                Output::Answered(slot) => self.answer(slot),
                Output::Renamed { was, trace } => {
                    self.store.rename(was, trace);
                    if let Some(tail) = &mut self.tail {
                        tail.rename(was, trace);
                    }
                    self.profiles.rename(was, trace);
                }
                Output::Late { span, was, parent, trace } => {
                    self.store.adopt(span, was, parent, trace);
                    if let Some(tail) = &mut self.tail {
                        tail.adopt(span, was, parent, trace);
                    }
                }
                Output::Finished(live, verdicts) => self.finished(live, verdicts),
                Output::Declared(call) => self.declared_returned(&call),
                Output::DeclaredSample { declared, service, sample } => {
                    self.declared_sample(declared, service, sample);
                }
                Output::Sample(sample) => self.profiles.sample(&self.names, &sample),
            }
        }
    }

    fn classify_early(&mut self, slot: Slot) {
        if let Some(live) = self.engine.span(slot)
            && let Some(class) = classify_early(&mut self.classifier, &mut self.names, live)
        {
            self.engine.classify(slot, class, self.classifier.service_class(class));
        }
    }

    /// The rings were read to their end: all records of sockets and threads up to `until` were processed.
    pub fn catch_up(&mut self, until: Nanos) {
        self.engine.catch_up(until);
    }

    /// Runs about once a second, at `now` of `CLOCK_MONOTONIC`: expires state and updates the sinks.
    pub fn tick(&mut self, now: Nanos) {
        self.engine.advance(now);
        self.expire(false);
        for (name, expires) in self.engine.take_certificates() {
            self.metrics.set_certificate(&name, expires);
        }
        for (failed, count) in self.engine.take_failed_connects() {
            self.metrics.failed_connect(&self.names, failed, count);
        }
        for writer in &mut self.writers {
            writer.flush();
        }
    }

    /// Reports everything open as it stands: nothing comes after it.
    pub fn report_open(&mut self) {
        self.expire(true);
    }

    /// The end: reports everything open, and ends the writers.
    pub fn finish(&mut self) {
        self.report_open();
        // Readers that wait for the rest see that no more spans come.
        for mut writer in std::mem::take(&mut self.writers) {
            writer.finish();
            self.not_written += writer.dropped();
        }
    }

    fn expire(&mut self, finish: bool) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engine.expire(finish, &mut outputs);
        self.give(&mut outputs);
        self.export_due(finish);
        outputs.shrink_excess();
        self.leaving.shrink_excess();
        self.gone.shrink_excess();
        self.short_lived.shrink_excess();
        self.outputs = outputs;
        let (classes, overhead) = self.engine.take_costs();
        for (class, cost) in classes {
            self.charged.0 += cost.cpu;
            self.spend(Owner::Class(ClassId(class)), cost);
        }
        for (service, cost) in overhead {
            self.charged.1 += cost.cpu;
            self.spend(Owner::Overhead(service), cost);
        }
        for (tgid, work, cpu) in self.engine.take_process_costs() {
            self.workloads.spend(tgid, work, cpu);
            self.subsystems.spend(tgid, work, cpu);
            self.wake_demand.used(tgid, work != ProcessWork::Other, cpu);
        }
        let now = self.engine.now();
        self.settle_roots(now);
        self.forget(now);
        self.workloads.tick(now);
        self.metrics.set_workloads(&self.workloads);
        self.metrics.set_subsystems(&mut self.subsystems);
        self.metrics.tick(now);
        self.stats.tick(now);
        self.attainment.tick(now);
        self.store.tick(now);
        self.profiles.tick(now);
        self.publish();
    }

    fn spend(&mut self, owner: Owner, cost: Cost) {
        self.metrics.cost(&self.names, owner, cost);
        self.stats.cost(&self.names, owner, cost);
        self.history.cost(&self.names, owner, cost);
        self.roots.cost(owner, cost);
    }
}

#[cfg(test)]
mod tests;
