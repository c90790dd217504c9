//! `tracer run` and `tracer record`: the agent.
//!
//! This thread drains the kernel's rings into the pipeline; tokio's serve HTTP. They meet in two bounded channels, jobs
//! and commands. The watchdog's needs neither: it reads a heartbeat and can detach everything (`guard/watchdog.rs`).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::agent::Agent;
use super::agent_files::AgentFiles;
use super::configure::configure;
use super::counting;
use super::database_figures::DatabaseFigures;
use super::enforcing::{self, Enforcing};
use super::exports::Exports;
use super::fleet_policies::FleetPolicies;
use super::loss_watch::Noticed;
use super::netns::OwnNetns;
use super::own_priority::{prioritize, prioritize_pipeline};
use super::poll_interval::Pace;
use super::process_watchers::ProcessWatchers;
use super::profiling::{Profiling, fetch_debug_files};
use super::relaying::Relaying;
use super::reloading::{ReloadRequests, Reloading};
use super::self_check::check;
use super::{Failure, clock, descriptors, host_name, signals, summary};
use crate::cli::AgentOptions;
use crate::config::Config;
use crate::guard::loss_log::LossLog;
use crate::guard::self_process;
use crate::guard::service_manager::ServiceManager;
use crate::guard::shed::Level;
use crate::guard::status::Status;
use crate::guard::watchdog::{self, Watchdog};
use crate::http::token::Token;
use crate::http::{self, ControlCommand, Job, Shared};
use crate::kernel::admin_capability;
use crate::kernel::inband::InBand;
use crate::kernel::loader::{self, Options, monotonic};
use crate::kernel::policy::Scope;
use crate::kernel::skips::Skips;
use crate::pipeline::Pipeline;
use crate::record::{Origin, Writer};

/// Time between ticks.
const TICK: Duration = Duration::from_secs(1);
/// How long the end may wait for disks, for whoever reads a pipe and for a collector.
const ENDING: Duration = Duration::from_millis(600);

/// Runs the agent until a signal or `--duration`; records to `record`.
pub fn run(options: &AgentOptions, record: Option<&Path>) -> Result<(), Failure> {
    env_logger::Builder::new().filter_level(options.log).format_timestamp_millis().init();
    let (config, sections) = configure(options)?;
    enforcing::allow(&config, options.config.as_deref())?;
    admin_capability::give_up_if_unneeded(enforcing::why_admin_capability(&config));
    let token = config.token_file.as_deref().map(Token::of).transpose()?;
    self_process::keep_little_freed();
    // Threads inherit it.
    let nice_before = prioritize(&config);
    // Before anything touches the kernel: a port in use is reported at once.
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
    let manager = ServiceManager::from_environment();
    let status = Arc::new(Status::default());
    let interrupted = Arc::new(AtomicBool::new(false));
    let (reloading, requests) = options
        .config
        .as_deref()
        .map(|file| Reloading::start(file, &config, sections))
        .transpose()
        .map_err(|error| Failure::Running(format!("no thread that reads the configuration again: {error}")))?
        .unzip();
    let fleet_policies = follow_fleet(options.config.as_deref(), &config, requests.as_ref())?;
    signals::watch(&runtime, &status, &interrupted, requests);

    let origin = Origin { wall_offset: clock::wall_offset(), seed: seed(), host: host_name() };
    let mut pipeline = Pipeline::new(&config, origin.seed, origin.wall_offset, &origin.host);
    if let Some(own) = crate::host::process::read(std::process::id()) {
        pipeline.history.identities.begin(own.start_time);
    }
    let mut files = AgentFiles::default();
    if let Some(path) = &options.transactions {
        files.write_spans(path, &config, &origin, &mut pipeline)?;
    }
    let exports = {
        let _inside = runtime.enter();
        Exports::start(options, &config, &origin, &mut pipeline)?
    };
    let debuginfod = fetch_debug_files(&config, &pipeline)?;
    let databases = DatabaseFigures::start(&config.database_logins)
        .map_err(|error| Failure::Running(format!("no thread for questions to databases: {error}")))?;
    {
        let _inside = runtime.enter();
        files.open(record, &config, &origin, &mut pipeline)?;
    }

    // The helpers run: the server's threads, and the one that names stacks.
    prioritize_pipeline(&config);
    // A context that comes late delays reports: what other agents say is read at the pipeline's priority.
    let enforcing = Enforcing::start(&config)?;
    let relaying = Relaying::start(&config.relay, origin.seed, &origin.host)?;
    let inband = InBand::wanted(config.relay.tcp_option, &config.relay.headers, config.own_netns);
    let (mut kernel, mut rings) = loader::load(&Options {
        // The budget decides when everything is ready.
        hertz: 0,
        all: config.all_hooks,
        log_level: options.bpf_log as u8,
        inband,
        send_priority: enforcing::send_priority_mode(&config),
        trace_contexts: config.trace_contexts.clone(),
    })?;
    if kernel.trace_contexts.is_some() {
        pipeline.publish_contexts();
    } else if counting::is_possible(&config) {
        pipeline.count_in_kernel();
    }
    enforcing::check_network(&kernel.attached)?;
    let at_start = kernel.since;
    let attachments = kernel.attachments();
    let restore = enforcing.restorer();
    let detach: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(move || {
        let restored = restore();
        attachments.detach() && restored
    });
    watchdog::end_on_panic(Arc::clone(&detach));
    let profiling = Profiling::start(&mut kernel, &mut rings, &config, debuginfod);
    let mut health = check(&mut kernel, &mut rings, origin.host, &config.dns_ports)?;
    health.ceilings = Some(config.ceilings);
    let watchdog = Watchdog {
        status: Arc::clone(&status),
        tid: self_process::thread_id(),
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
    let (commands, mut command_queue) = mpsc::channel::<ControlCommand>(16);
    let console = Arc::new(http::Console::default());
    let config_netns = config.own_netns.then(OwnNetns::new).transpose().map_err(Failure::Running)?;
    let processes = ProcessWatchers::start(&config, &kernel, &pipeline, databases, record.is_some())?;
    let mut agent = Agent {
        config,
        kernel,
        rings,
        health,
        at_start,
        wall_offset: origin.wall_offset,
        drained: false,
        status: Arc::clone(&status),
        level,
        console: Arc::clone(&console),
        jobs: jobs.clone(),
        ticks: 0,
        asks_waiting: 0,
        skips: Skips::default(),
        losses: Noticed::default(),
        loss_log: LossLog::default(),
        exports,
        files,
        profiling,
        processes,
        relaying,
        netns: config_netns,
        reloading,
        fleet_policies,
        enforcing,
        thread_contexts: Vec::new(),
    };
    agent.limit_detail(Level::Full);
    agent.open_up()?;

    let metrics = pipeline.metrics.exposition();
    let shared = Shared { jobs, commands, metrics, listen, token, status: Arc::clone(&status), console };
    let (ended, end) = oneshot::channel::<()>();
    let server = runtime.spawn(http::serve(listener, shared, places, async move {
        let _ = end.await;
    }));
    announce(listen, &agent, &manager);
    // Loading took tens of megabytes: the kernel's types, the programs.
    self_process::release_memory();

    let finish = options.duration.map(|duration| Instant::now() + duration);
    let mut next_tick = Instant::now() + TICK;
    let mut pace = Pace::new();
    let mut rested = true;
    while !status.is_stopping() && finish.is_none_or(|finish| Instant::now() < finish) {
        status.beat();
        agent.shed(&mut pipeline);
        agent.take_messages(&mut pipeline);
        let found = agent.drain(&mut pipeline);
        agent.tell(&mut pipeline);
        while let Ok(job) = job_queue.try_recv() {
            job(&pipeline.view(&agent.health));
        }
        while let Ok(command) = command_queue.try_recv() {
            agent.apply_limits(command);
        }
        agent.follow_configuration(&mut pipeline);
        agent.follow_budget();
        agent.follow_slow_requests(&mut pipeline);
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + TICK;
            agent.tick(&mut pipeline);
            manager.alive();
        }
        rested = agent.rest(&mut pipeline, &mut pace, &found, rested);
    }

    // From here on the watchdog counts how long ending takes. The console's port is free at once, and the host is rid of the
    // programs before anything is written: what follows may wait for a disk.
    status.stop();
    manager.stopping();
    let _ = ended.send(());
    agent.enforcing.end();
    agent.kernel.policy.scope(Scope::Nothing)?;
    agent.drain(&mut pipeline);
    // Requests that waited for evidence belong to the last window, too.
    pipeline.report_open();
    pipeline.history.end();
    agent.tick(&mut pipeline);
    agent.exports.end(&mut pipeline, agent.wall_offset);
    let Agent { kernel, health, exports, files, .. } = agent;
    drop(kernel);
    // Counted from here: the kernel takes its own time to remove probes from running programs.
    let deadline = Instant::now() + ENDING;
    let (uploader, recorder) = files.finish(&mut pipeline, deadline);
    runtime.block_on(async {
        let _ = tokio::time::timeout_at(deadline.into(), server).await;
        exports.finish(deadline).await;
        if let Some(uploader) = uploader {
            uploader.finish(deadline).await;
        }
    });
    runtime.shutdown_background();
    // The summary is printed whatever became of the recording.
    let recorded = recorder.map_or(Ok(()), Writer::finish);
    if options.duration.is_some() || interrupted.load(Ordering::Relaxed) {
        self_process::print(summary::table(&pipeline, Some(&health)));
    }
    Ok(recorded?)
}

/// Looks for new policies of the fleet, if the configuration names a place.
fn follow_fleet(
    path: Option<&Path>,
    config: &Config,
    requests: Option<&ReloadRequests>,
) -> Result<Option<FleetPolicies>, Failure> {
    let (Some(settings), Some(path), Some(requests)) = (&config.fleet, path, requests) else { return Ok(None) };
    let started = FleetPolicies::start(settings, path, requests.clone());
    started.map(Some).map_err(|error| Failure::Running(format!("no thread for the fleet's policies: {error}")))
}

/// Says that the agent is up: to people, and to the service manager.
fn announce(listen: SocketAddr, agent: &Agent, manager: &ServiceManager) {
    eprintln!("tracer: console, metrics and API on http://{listen}/");
    if let Some(listen) = agent.relaying.as_ref().and_then(Relaying::listen) {
        eprintln!("tracer: other agents are listened to on {listen}");
    }
    for note in agent.health.not_ready.iter().chain(&agent.health.degraded) {
        eprintln!("tracer: {note}");
    }
    let state = match agent.health.not_ready.first() {
        Some(why) => format!("not ready: {why}"),
        None => "tracing".to_owned(),
    };
    manager.ready(&format!("{state}; console on http://{listen}/"));
}

/// Ids of two runs must differ; they need not be unguessable.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u64(monotonic());
    hasher.finish()
}
