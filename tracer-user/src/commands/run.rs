//! `tracer run` and `tracer record`: the agent.
//!
//! This thread drains the kernel's rings into the pipeline; tokio's serve HTTP. They meet in two bounded channels, jobs
//! and commands. The watchdog's needs neither: it reads a heartbeat and can detach everything (`guard/watchdog.rs`).

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tracer_common::limits::{ASKS_MAX, PROCESSES_MAX, SAMPLE_RING_BYTES};
use tracer_common::lost::Lost;

use super::sweep::Sweep;
use super::units::Lines;
use super::{Failure, clock, descriptors, host_name, summary};
use crate::cli::Live;
use crate::config::{Config, OOM_SCORE_ADJ};
use crate::guard::fill::{AgentFills, Fill};
use crate::guard::own;
use crate::guard::shed::Level;
use crate::guard::status::Status;
use crate::guard::watchdog::{self, Watchdog};
use crate::host::process::{self, ProcessFacts};
use crate::host::services::service_name;
use crate::host::stat::{self, HostCpu};
use crate::http::token::Token;
use crate::http::{self, Command, Health, Job, Shared};
use crate::kernel::level::RingLevel;
use crate::kernel::load::{self, Kernel, Options, monotonic};
use crate::kernel::policy::Scope;
use crate::kernel::probes::Until;
use crate::kernel::rings::Rings;
use crate::kernel::selftest;
use crate::kernel::skips::Skips;
use crate::model::HostBooks;
use crate::otlp::{self, Export};
use crate::pipeline::{Introduce, Pipeline};
use crate::record::{Kind, Origin, Writer};

/// Records taken from a ring before the other one and everything else (shedding among it) get their turn.
const BATCH: usize = 16_384;
/// Milliseconds between drains while there is traffic, while there is little (a drain finds [`FEW`] records at most), and
/// at most when there is none. Each wakes this thread, which costs an idle host more than the records do.
const BUSY_WAIT: i32 = 4;
const CALM_WAIT: i32 = 20;
const IDLE_WAIT: i32 = 50;
/// See [`CALM_WAIT`]; some thousand a second.
const FEW: usize = 32;
/// Time between ticks.
const TICK: Duration = Duration::from_secs(1);

/// Reads who a process is, and writes it down when recording.
struct Introducer<'a> {
    recorder: Option<&'a mut Writer>,
    /// Services that are traced, when only some are; and what was found out.
    only: &'a [String],
    rules: &'a crate::host::services::NamingRules,
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
        if !self.only.is_empty() && self.asked.insert(tgid) && self.only.contains(&service_name(&facts, self.rules)) {
            self.allowed.push(tgid);
        }
        Some(facts)
    }
}

/// Introduces nobody: who ends need not be known.
struct Nobody;

impl Introduce for Nobody {
    fn introduce(&mut self, _: u32) -> Option<ProcessFacts> {
        None
    }
}

/// Everything but the pipeline.
struct Agent {
    config: Config,
    kernel: Kernel,
    rings: Rings,
    recorder: Option<Writer>,
    health: Health,
    at_start: Option<HostCpu>,
    asked: HashSet<u32>,
    sweep: Sweep,
    /// Wall clock minus monotonic clock as times are shown, nanoseconds.
    wall_offset: i64,
    /// Whether the last drain took all there was.
    drained: bool,
    /// Stack samples per second and CPU that are wanted; there are fewer while load is shed.
    hertz: u32,
    status: Arc<Status>,
    /// Gauge of the ring of stacks.
    level: Option<RingLevel>,
    console: Arc<http::Console>,
    jobs: mpsc::Sender<Job>,
    skips: Skips,
    export: Option<Export>,
    /// Ticks so far, and wishes in the kernel as counted last: counting them takes milliseconds.
    ticks: u64,
    asks_waiting: usize,
}

/// Records between two heartbeats: a full ring takes a while where CPU is short.
const BEAT_EVERY: u32 = 1024;
/// Ticks between two counts of what is in the kernel's maps.
const COUNT_EVERY: u64 = 16;

/// Runs the agent until a signal or `--duration`; records to `record`.
pub fn run(options: &Live, record: Option<&Path>) -> Result<(), Failure> {
    env_logger::Builder::new().filter_level(options.log).format_timestamp_millis().init();
    let config = configure(options)?;
    let token = config.token_file.as_deref().map(Token::of).transpose()?;
    own::keep_little_freed();
    // Threads inherit it.
    let nice_before = prioritize(&config);
    // Before anything touches the kernel: a port in use is said at once.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("tracer-http")
        .enable_all()
        .build()
        .map_err(|error| Failure::Running(format!("no threads for serving: {error}")))?;
    let listener = runtime.block_on(TcpListener::bind(config.listen)).map_err(|error| {
        Failure::Running(format!("cannot listen on {}: {error}; choose another with --listen", config.listen))
    })?;
    let listen = listener.local_addr().unwrap_or(config.listen);
    let status = Arc::new(Status::default());
    watch_signals(&runtime, &status);

    let wall_offset = clock::wall_offset();
    let seed = seed();
    let host = host_name();
    let mut pipeline = Pipeline::new(&config, seed, wall_offset, &host);
    if let Some(path) = &options.transactions {
        pipeline.write_units(Box::new(Lines::create(path, wall_offset, &host)?));
    }
    let spans = otlp::read(options.otlp.as_deref(), |name| std::env::var(name).ok()).map_err(Failure::Export)?;
    let export = spans.map(|settings| {
        let _inside = runtime.enter();
        let (exporter, export) = otlp::start(settings, &host, wall_offset);
        pipeline.write_units(Box::new(exporter));
        export
    });
    let recorder = match record {
        Some(path) => Some(Writer::create(path, &Origin { wall_offset, seed, host: host.clone() })?),
        None => None,
    };

    // The helpers run: the server's threads, and the one that names stacks.
    prioritize_pipeline(&config);
    let (mut kernel, mut rings) =
        load::load(Options { hertz: config.hertz, all: config.all_hooks, log_level: options.bpf_log as u8 })?;
    let at_start = kernel.since;
    let attachments = kernel.attachments();
    let detach: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(move || attachments.detach());
    watchdog::end_on_panic(Arc::clone(&detach));
    let mut health = check(&mut kernel, &mut rings, host)?;
    health.ceilings = Some(config.ceilings);
    let watchdog = Watchdog {
        status: Arc::clone(&status),
        tid: own::thread_id(),
        stall: config.stall,
        ceilings: config.ceilings,
        nice: nice_before,
        detach,
        detached: Box::new(pipeline.metrics.on_detached()),
    };
    let places = descriptors::connections()?;
    watchdog.start().map_err(|error| Failure::Running(format!("no thread for the watchdog: {error}")))?;
    let level = rings
        .sample_level()
        .map_err(|error| log::warn!("the fill level of the stacks' ring is not known: {error}"))
        .ok();
    let (jobs, mut job_queue) = mpsc::channel::<Job>(256);
    let (commands, mut command_queue) = mpsc::channel::<Command>(16);
    let console = Arc::new(http::Console::default());
    let mut agent = Agent {
        hertz: config.hertz,
        config,
        kernel,
        rings,
        recorder,
        health,
        at_start,
        asked: HashSet::new(),
        sweep: Sweep::new(),
        wall_offset,
        drained: false,
        status: Arc::clone(&status),
        level,
        console: Arc::clone(&console),
        jobs: jobs.clone(),
        ticks: 0,
        asks_waiting: 0,
        skips: Skips::default(),
        export,
    };
    agent.open_up()?;

    let registry = pipeline.metrics.registry();
    let shared = Shared { jobs, commands, registry, listen, token, status: Arc::clone(&status), console };
    let (ended, end) = oneshot::channel::<()>();
    let server = runtime.spawn(http::serve(listener, shared, places, async move {
        let _ = end.await;
    }));
    announce(listen, &agent);
    // Loading took tens of megabytes: the kernel's types, the programs.
    own::release_memory();

    let finish = options.duration.map(|duration| Instant::now() + duration);
    let mut next_tick = Instant::now() + TICK;
    let mut wait = BUSY_WAIT;
    while !status.is_stopping() && finish.is_none_or(|finish| Instant::now() < finish) {
        status.beat();
        agent.shed(&mut pipeline);
        let taken = agent.drain(&mut pipeline);
        while let Ok(job) = job_queue.try_recv() {
            job(&pipeline.view(&agent.health));
        }
        while let Ok(command) = command_queue.try_recv() {
            agent.obey(command);
        }
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + TICK;
            agent.tick(&mut pipeline);
        }
        wait = match taken {
            0 => (wait * 2).min(IDLE_WAIT),
            1..=FEW => (wait * 2).min(CALM_WAIT),
            _ => BUSY_WAIT,
        };
        agent.rings.wait(wait);
    }

    // From here on the watchdog counts how long ending takes. Detach first: whatever follows costs the host nothing.
    status.stop();
    agent.kernel.policy.scope(Scope::Nothing)?;
    agent.drain(&mut pipeline);
    agent.tick(&mut pipeline);
    let Agent { kernel, recorder, health, export, .. } = agent;
    drop(kernel);
    pipeline.finish();
    let _ = ended.send(());
    runtime.block_on(async {
        let _ = tokio::time::timeout(Duration::from_millis(500), server).await;
        if let Some(export) = export {
            export.finish().await;
        }
    });
    runtime.shutdown_background();
    if let Some(recorder) = recorder {
        recorder.finish()?;
    }
    if options.duration.is_some() {
        summary::print(&pipeline, Some(&health));
    }
    Ok(())
}

/// Nice value of every thread but the pipeline's: reading symbols and drawing pages can wait.
const HELPERS_NICE: i32 = 10;

/// Makes the agent less important than what it traces; gives the nice value it was started with. The pipeline's thread
/// gets its own by [`prioritize_pipeline`] once the others were started.
fn prioritize(config: &Config) -> i32 {
    let score = config.oom_score_adj.unwrap_or_else(|| own::oom_score_adj().unwrap_or(0).max(OOM_SCORE_ADJ));
    if let Err(error) = own::set_oom_score_adj(score) {
        log::warn!("{error}: the agent is not ended before others when memory is short");
    }
    own::set_nice(config.nice.max(HELPERS_NICE)).unwrap_or_else(|error| {
        log::warn!("{error}: the agent's helper threads run at the priority they were started with");
        0
    })
}

/// The pipeline's thread: threads it starts from here on get the same.
fn prioritize_pipeline(config: &Config) {
    if let Err(error) = own::set_nice(config.nice) {
        log::warn!("{error}: the pipeline runs at a lower priority and may lose events on a busy host");
    }
    if config.nice != 0 {
        own::set_session_nice(config.nice);
    }
}

fn configure(options: &Live) -> Result<Config, Failure> {
    let mut config = match &options.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    if let Some(listen) = options.listen {
        config.listen = listen;
    }
    if let Some(file) = &options.token_file {
        config.token_file = Some(file.clone());
    }
    if let Some(memory) = options.max_memory {
        config.ceilings.memory = memory;
    }
    if let Some(cpu) = options.max_cpu {
        config.ceilings.cpu = cpu;
    }
    if let Some(nice) = options.nice {
        config.nice = nice;
    }
    if let Some(hertz) = options.hertz {
        config.hertz = hertz.min(crate::kernel::sampler::MAX_HERTZ);
    }
    let narrow = &options.narrow;
    if !narrow.service.is_empty() {
        config.only_services.clone_from(&narrow.service);
    }
    if !narrow.pid.is_empty() {
        config.only_pids.clone_from(&narrow.pid);
    }
    if !narrow.port.is_empty() {
        config.only_ports.clone_from(&narrow.port);
    }
    Ok(config)
}

/// Runs the self-test and says what follows from it and from what could not be attached.
fn check(kernel: &mut Kernel, rings: &mut Rings, host: String) -> Result<Health, Failure> {
    let mut health = Health { host, ..Health::default() };
    for attached in &kernel.attached {
        if let Some(why) = &attached.missing {
            health.degraded.push(format!("{}: {why}; {}", attached.hook, attached.without));
        }
    }
    let findings = selftest::run(kernel, rings)?;
    for finding in findings {
        let Some(fault) = finding.fault else { continue };
        let what = format!("self-test on {} sockets: {fault}", finding.family);
        log::error!("{what}");
        if finding.family == "udp" {
            // No protocol over UDP is followed yet.
            health.degraded.push(what);
        } else {
            health.not_ready.push(what);
        }
    }
    Ok(health)
}

fn announce(listen: SocketAddr, agent: &Agent) {
    eprintln!("tracer: console, metrics and API on http://{listen}/");
    for note in agent.health.not_ready.iter().chain(&agent.health.degraded) {
        eprintln!("tracer: {note}");
    }
}

impl Agent {
    /// Lets the kernel report what the configuration asks for.
    fn open_up(&mut self) -> Result<(), Failure> {
        let policy = &mut self.kernel.policy;
        policy.only_ports(&self.config.only_ports)?;
        policy.names(&self.config.dns_ports)?;
        policy.sample_period(self.kernel.sampler.announced_period())?;
        for pid in &self.config.only_pids {
            policy.process(*pid, true)?;
        }
        if !self.config.only_services.is_empty() {
            // Those that run now; later ones when they are first heard of.
            for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
                let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                if let Some(facts) = process::read(pid)
                    && self.config.only_services.contains(&service_name(&facts, &self.config.services))
                {
                    policy.process(pid, true)?;
                }
            }
        }
        let listed = !self.config.only_pids.is_empty() || !self.config.only_services.is_empty();
        policy.scope(if listed { Scope::Listed } else { Scope::Everything })?;
        Ok(())
    }

    /// Empties the rings into the pipeline; gives the number of records.
    fn drain(&mut self, pipeline: &mut Pipeline) -> usize {
        if let Some(level) = &mut self.level {
            level.look();
        }
        let mut allowed = Vec::new();
        let mut recorder = self.recorder.as_mut();
        let (only, rules, asked) = (&self.config.only_services, &self.config.services, &mut self.asked);
        let (status, mut records) = (&self.status, 0u32);
        let mut take = |bytes: &[u8]| {
            records += 1;
            if records.is_multiple_of(BEAT_EVERY) {
                status.beat();
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
        // Samples first: what they were taken in is in the other ring by then, or is known from before.
        let samples = self.rings.samples(BATCH, &mut take);
        let events = self.rings.events(BATCH, &mut take);
        self.drained = events < BATCH;
        let taken = samples + events;
        for pid in allowed {
            if let Err(error) = self.kernel.policy.process(pid, true) {
                log::warn!("{error}");
            }
        }
        for pid in pipeline.take_gone() {
            // Its id may come back as another's.
            self.kernel.policy.forget_process(pid);
            self.asked.remove(&pid);
        }
        if pipeline.take_unseen() {
            self.kernel.attach_deferred(Until::Spliced);
        }
        for (cookie, ask) in pipeline.take_asks() {
            self.kernel.policy.ask(cookie, ask);
        }
        taken
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Hertz(hertz, answer) => {
                self.hertz = hertz;
                let allowed = hertz.min(self.health.level.diet().hertz_max);
                // Whoever asked may be gone.
                let _ = answer.send(self.sample(allowed));
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
    fn bury(&mut self, pipeline: &mut Pipeline) {
        if !self.drained {
            // Their report may yet come.
            return;
        }
        for record in self.sweep.tick(pipeline) {
            if let Some(recorder) = &mut self.recorder {
                recorder.frame(Kind::Record, &record);
            }
            pipeline.record(&record, &mut Nobody);
        }
        pipeline.metrics.set_lost("thread_ends_unreported", self.sweep.found);
    }

    fn sample(&mut self, hertz: u32) -> Result<(), String> {
        self.kernel.sampler.set_hertz(hertz).map_err(|error| error.to_string())?;
        let period = self.kernel.sampler.announced_period();
        self.kernel.policy.sample_period(period).map_err(|error| error.to_string())
    }

    /// Gives up as much detail as the watchdog found necessary, or takes it back.
    fn shed(&mut self, pipeline: &mut Pipeline) {
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
        if let Err(error) = self.sample(self.hertz.min(diet.hertz_max)) {
            log::warn!("{error}");
        }
        own::release_memory();
    }

    /// How full everything around the pipeline is.
    fn fills(&mut self) -> AgentFills {
        let samples = self.level.as_mut().map_or(0, RingLevel::take_most);
        let (events, event_bytes) = self.rings.event_level();
        if self.ticks % COUNT_EVERY == 1 {
            self.asks_waiting = self.kernel.policy.asks_waiting();
        }
        let lost = self.kernel.lost();
        let of = |reasons: &[Lost]| reasons.iter().filter_map(|reason| lost.get(*reason as usize)).sum();
        let ring = |entries, bytes, reached| Fill { entries, limit: bytes as u64, reached };
        AgentFills {
            ring_event_bytes: ring(
                events,
                event_bytes as usize,
                of(&[Lost::RingOp, Lost::RingConnection, Lost::RingThread]),
            ),
            ring_sample_bytes: ring(samples, SAMPLE_RING_BYTES, of(&[Lost::RingSample])),
            kernel_asks: Fill::new(self.asks_waiting, ASKS_MAX as usize, self.kernel.policy.asks_refused),
            kernel_processes: Fill::new(
                self.kernel.policy.listed(),
                PROCESSES_MAX as usize,
                self.kernel.policy.processes_refused,
            ),
            otlp_queue: self.export.as_ref().map_or_else(Fill::default, Export::fill),
            http_jobs: self.console.jobs(&self.jobs),
            http_connections: self.console.connections(),
        }
    }

    /// Once a second: expiry, the host's books, losses, own cost.
    fn tick(&mut self, pipeline: &mut Pipeline) {
        let now = monotonic();
        self.ticks += 1;
        if self.health.level > Level::Full {
            // What was freed counts until it is given back.
            own::release_memory();
        }
        self.kernel.forward_log();
        self.follow_clock(pipeline);
        self.bury(pipeline);
        if let Some(recorder) = &mut self.recorder {
            recorder.frame(Kind::Tick, &now.to_ne_bytes());
            recorder.flush();
            pipeline.metrics.set_lost("records_not_written", recorder.dropped);
        }
        pipeline.tick(now);
        let lost = self.kernel.lost();
        let mut total = 0;
        for (reason, count) in tracer_common::lost::Lost::ALL.into_iter().zip(&lost) {
            pipeline.metrics.set_lost(reason.name(), *count);
            if reason.is_event() {
                total += count;
            }
        }
        pipeline.metrics.set_lost("asks_refused", self.kernel.policy.asks_refused);
        pipeline.metrics.set_lost("profile_stacks_refused", pipeline.profiles.refused);
        pipeline.metrics.set_lost("symbols_stuck", pipeline.profiles.stuck());
        pipeline.metrics.set_lost("store_units_dropped", pipeline.store.units_dropped);
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
        let hertz = self.kernel.sampler.hertz();
        pipeline.metrics.set_hertz(hertz);
        self.health.lost = total + skipped;
        self.health.hertz = hertz;
        self.health.books = self.books(pipeline);
        pipeline.host_books(&self.health.books);
        self.status.set_bpf(bpf);
        let (cpu, own::Memory { resident: rss, own: memory }) = (own::cpu() as f64 / 1e9, own::memory());
        self.health.own_cpu_s = cpu;
        self.health.own_rss = rss;
        self.health.own_memory = memory;
        pipeline.metrics.set_own(cpu, rss);
        let (_, cores) = self.status.usage();
        self.health.own_cores = cores;
        pipeline.metrics.set_usage(&self.config.ceilings, memory, cores);
        if let Some(export) = &self.export {
            pipeline.metrics.set_export(&export.counts.spans(), export.counts.retries());
        }
        let fills = self.fills();
        pipeline.metrics.set_fills(&fills.all());
    }

    fn books(&self, pipeline: &Pipeline) -> HostBooks {
        let cpus = self.kernel.cpu_books();
        let charged = pipeline.charged();
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let system = match (stat::read(), self.at_start) {
            (Some(now), Some(start)) => now.busy_s - start.busy_s,
            _ => 0.0,
        };
        HostBooks {
            requests: seconds(charged.requests),
            overhead: seconds(charged.overhead),
            kernel: seconds(cpus.kernel),
            unreported: seconds(cpus.user.saturating_sub(charged.requests + charged.overhead)),
            idle: seconds(cpus.idle.max(0) as u64),
            system_busy: system,
        }
    }
}

fn watch_signals(runtime: &tokio::runtime::Runtime, status: &Arc<Status>) {
    use tokio::signal::unix::{SignalKind, signal};
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let status = Arc::clone(status);
        runtime.spawn(async move {
            if let Ok(mut signals) = signal(kind) {
                signals.recv().await;
                status.stop();
            }
        });
    }
}

/// Ids of two runs must differ; nobody needs to be unable to guess them.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u64(monotonic());
    hasher.finish()
}
