//! `tracer run` and `tracer record`: the agent.
//!
//! Two threads: this one drains the kernel's rings into the pipeline; tokio's serves HTTP. They meet in two bounded
//! channels, jobs and commands.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::sweep::Sweep;
use super::units::Lines;
use super::{Failure, clock, descriptors, host_name, summary};
use crate::cli::Live;
use crate::config::Config;
use crate::host::process::{self, ProcessFacts};
use crate::host::services::service_name;
use crate::host::stat::{self, HostCpu};
use crate::http::token::Token;
use crate::http::{self, Command, Health, Job, Shared};
use crate::kernel::load::{self, Kernel, Options, monotonic};
use crate::kernel::policy::Scope;
use crate::kernel::probes::SAMPLER;
use crate::kernel::rings::Rings;
use crate::kernel::selftest;
use crate::model::HostBooks;
use crate::pipeline::{Introduce, Pipeline};
use crate::record::{Kind, Origin, Writer};

/// Records taken from a ring before the other one and everything else get their turn.
const BATCH: usize = 65_536;
/// Milliseconds between drains while there is traffic, and at most when there is none.
const BUSY_WAIT: i32 = 4;
const IDLE_WAIT: i32 = 50;
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
}

/// Runs the agent until a signal or `--duration`; records to `record`.
pub fn run(options: &Live, record: Option<&Path>) -> Result<(), Failure> {
    env_logger::Builder::new().filter_level(options.log).format_timestamp_millis().init();
    let config = configure(options)?;
    let token = config.token_file.as_deref().map(Token::of).transpose()?;
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
    let stop = Arc::new(AtomicBool::new(false));
    watch_signals(&runtime, &stop);

    let wall_offset = clock::wall_offset();
    let seed = seed();
    let host = host_name();
    let mut pipeline = Pipeline::new(&config, seed, wall_offset, &host);
    if let Some(path) = &options.transactions {
        pipeline.write_units(Box::new(Lines::create(path, wall_offset, &host)?));
    }
    let recorder = match record {
        Some(path) => Some(Writer::create(path, &Origin { wall_offset, seed, host: host.clone() })?),
        None => None,
    };

    let (mut kernel, mut rings) =
        load::load(Options { hertz: config.hertz, all: config.all_hooks, log_level: options.bpf_log as u8 })?;
    let at_start = kernel.since;
    let health = check(&mut kernel, &mut rings, host)?;
    let places = descriptors::connections()?;
    let mut agent = Agent {
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
    };
    agent.open_up()?;

    let (jobs, mut job_queue) = mpsc::channel::<Job>(256);
    let (commands, mut command_queue) = mpsc::channel::<Command>(16);
    let shared = Shared { jobs, commands, registry: pipeline.metrics.registry(), listen, token };
    let (ended, end) = oneshot::channel::<()>();
    let server = runtime.spawn(http::serve(listener, shared, places, async move {
        let _ = end.await;
    }));
    announce(listen, &agent);

    let finish = options.duration.map(|duration| Instant::now() + duration);
    let mut next_tick = Instant::now() + TICK;
    let mut wait = BUSY_WAIT;
    while !stop.load(Ordering::Relaxed) && finish.is_none_or(|finish| Instant::now() < finish) {
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
        wait = if taken > 0 { BUSY_WAIT } else { (wait * 2).min(IDLE_WAIT) };
        agent.rings.wait(wait);
    }

    // Detach first: whatever follows costs the host nothing.
    agent.kernel.policy.scope(Scope::Nothing)?;
    agent.drain(&mut pipeline);
    agent.tick(&mut pipeline);
    let Agent { kernel, recorder, health, .. } = agent;
    drop(kernel);
    pipeline.finish();
    let _ = ended.send(());
    runtime.block_on(async {
        let _ = tokio::time::timeout(Duration::from_millis(500), server).await;
    });
    runtime.shutdown_background();
    if let Some(recorder) = recorder {
        recorder.finish()?;
    }
    if options.duration.is_some() {
        summary::print(&pipeline, Some(&health.books), health.lost);
    }
    Ok(())
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
        let mut allowed = Vec::new();
        let mut recorder = self.recorder.as_mut();
        let (only, rules, asked) = (&self.config.only_services, &self.config.services, &mut self.asked);
        let mut take = |bytes: &[u8]| {
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
            self.kernel.attach_deferred();
        }
        for (cookie, ask) in pipeline.take_asks() {
            self.kernel.policy.ask(cookie, ask);
        }
        taken
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Hertz(hertz, answer) => {
                let done = self.kernel.sampler.set_hertz(hertz).map_err(|error| error.to_string()).and_then(|()| {
                    let period = self.kernel.sampler.announced_period();
                    self.kernel.policy.sample_period(period).map_err(|error| error.to_string())
                });
                // Whoever asked may be gone.
                let _ = answer.send(done);
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

    /// Once a second: expiry, the host's books, losses, own cost.
    fn tick(&mut self, pipeline: &mut Pipeline) {
        let now = monotonic();
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
        let mut skipped = 0;
        for (program, usage) in self.kernel.usage() {
            // A stack more or less is no event.
            skipped += if program == SAMPLER { 0 } else { usage.missed };
            pipeline.metrics.set_bpf(&program, usage);
        }
        pipeline.metrics.set_lost("hook_skipped", skipped);
        let hertz = self.kernel.sampler.hertz();
        pipeline.metrics.set_hertz(hertz);
        self.health.lost = total + skipped;
        self.health.hertz = hertz;
        self.health.books = self.books(pipeline);
        pipeline.host_books(&self.health.books);
        let (cpu, rss) = own_usage();
        self.health.own_cpu_s = cpu;
        self.health.own_rss = rss;
        pipeline.metrics.set_own(cpu, rss);
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

fn watch_signals(runtime: &tokio::runtime::Runtime, stop: &Arc<AtomicBool>) {
    use tokio::signal::unix::{SignalKind, signal};
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let stop = Arc::clone(stop);
        runtime.spawn(async move {
            if let Ok(mut signals) = signal(kind) {
                signals.recv().await;
                stop.store(true, Ordering::Relaxed);
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

/// CPU seconds and resident bytes of this process.
fn own_usage() -> (f64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split_whitespace().collect();
    let field = |i: usize| fields.get(i).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    ((field(11) + field(12)) as f64 / 100.0, field(21) * 4096)
}
