//! `tracer run` and `tracer record`: the agent.
//!
//! This thread drains the kernel's rings into the pipeline; tokio's serve HTTP. They meet in two bounded channels, jobs
//! and commands. The watchdog's needs neither: it reads a heartbeat and can detach everything (`guard/watchdog.rs`).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracer_host::guard::self_process;
use tracer_host::guard::service_manager::ServiceManager;
use tracer_host::guard::shed::Level;
use tracer_host::guard::status::Status;
use tracer_host::guard::watchdog::{self, Watchdog};
use tracer_http::Health;
use tracer_http::token::Token;
use tracer_kernel::admin_capability;
use tracer_kernel::inband::InBand;
use tracer_kernel::loader::{self, Kernel, Options, monotonic};
use tracer_kernel::log_lines::LogLineMode;
use tracer_kernel::policy::Scope;
use tracer_kernel::rings::Rings;
use tracer_model::quantity::Detail;
use tracer_results::record::{Origin, Writer};

use super::agent::Agent;
use super::agent_files::AgentFiles;
use super::clock::{self, Clock};
use super::configure::configure;
use super::database_figures::DatabaseFigures;
use super::enforcing::{self, Enforcing};
use super::exports::Exports;
use super::intake::Intake;
use super::loss_watch::Losses;
use super::own_priority::{prioritize, prioritize_pipeline};
use super::poll_interval::Pace;
use super::process_watchers::ProcessWatchers;
use super::profiling::{Profiling, fetch_debug_files};
use super::relaying::Relaying;
use super::reloading::Reloading;
use super::self_check::check;
use super::serving::{Listener, Server};
use super::{Failure, counting, descriptors, host_name, signals, summary};
use crate::cli::AgentOptions;
use crate::config::Config;
use crate::pipeline::Pipeline;

/// Time between ticks.
const TICK: Duration = Duration::from_secs(1);
/// How long the end may wait for disks, for whoever reads a pipe and for a collector.
const ENDING: Duration = Duration::from_millis(600);

/// Runs the agent until a signal or `--duration`; records to `record`.
///
/// The order of the starts matters where a comment says so. Whatever was started ends with its value, on the way out of a
/// failure, too.
pub fn run(options: &AgentOptions, record: Option<&Path>) -> Result<(), Failure> {
    env_logger::Builder::new().filter_level(options.log).format_timestamp_millis().init();
    let (config, sections) = configure(options)?;
    enforcing::allow(&config, options.config.as_deref())?;
    admin_capability::give_up_if_unneeded(enforcing::why_admin_capability(&config));
    let token = config.agent.token_file.as_deref().map(Token::of).transpose()?;
    self_process::keep_little_freed();
    // Before any thread is started: threads inherit it.
    let nice_before = prioritize(&config);
    // Before anything touches the kernel: a port in use is reported at once.
    let listener = Listener::bind(config.agent.listen)?;
    let manager = ServiceManager::from_environment();
    let (status, interrupted) = (Arc::new(Status::default()), Arc::new(AtomicBool::new(false)));
    let reloading = options.config.as_deref().map(|file| Reloading::start(file, &config, sections));
    let (reloading, requests) = reloading.transpose()?.unzip();
    signals::watch(&listener.runtime, &status, &interrupted, requests);

    let origin = Origin { wall_offset: clock::wall_offset(), seed: seed(), host: host_name() };
    let mut pipeline = Pipeline::new(&config, origin.seed, origin.wall_offset, &origin.host);
    if let Some(own) = tracer_host::process::read(std::process::id()) {
        pipeline.history.identities.begin(own.start_time);
    }
    let in_runtime = listener.runtime.enter();
    let mut files = AgentFiles::default();
    files.write_spans(options.transactions.as_deref(), &config, &origin, &mut pipeline)?;
    let exports = Exports::start(options, &config, &origin, &mut pipeline)?;
    let debuginfod = fetch_debug_files(&config, &pipeline)?;
    let databases = DatabaseFigures::start(&config.subsystems.servers)
        .map_err(|error| Failure::Running(format!("no thread for questions to databases: {error}")))?;
    files.open(record, &config, &origin, &mut pipeline)?;
    drop(in_runtime);

    // The helpers run (the server's threads, and the one that names stacks). What starts from here on has the pipeline's
    // priority: a context of another agent that comes late delays reports.
    prioritize_pipeline(&config);
    let enforcing = Enforcing::start(&config)?;
    let relaying = Relaying::start(&config.relay, origin.seed, &origin.host)?;
    let (mut kernel, mut rings) = load(options, &config, record.is_some(), &mut pipeline)?;
    let detach = detacher(&kernel, &enforcing);
    watchdog::end_on_panic(Arc::clone(&detach));
    // Before the check, which reports how stacks are walked.
    let mut profiling = Profiling::start(&mut kernel, &mut rings, &config, debuginfod);
    let health = check(&mut kernel, &mut rings, origin.host, &config)?;
    profiling.ask_for_tables(&mut kernel)?;
    let places = descriptors::connections()?;
    let watchdog = Watchdog {
        status: Arc::clone(&status),
        tid: self_process::thread_id(),
        stall: config.watchdog.stall,
        ceilings: config.limits.ceilings,
        nice: nice_before,
        detach,
        detached: Box::new(pipeline.metrics.on_detached()),
    };
    watchdog.start().map_err(|error| Failure::Running(format!("no thread for the watchdog: {error}")))?;
    let intake = Intake::new(rings, config.agent.own_netns)?;
    // While nothing is reported yet: what runs has its probes before its first record.
    let processes = ProcessWatchers::start(&config, &kernel, &pipeline, databases, record.is_some())?;
    let mut agent = Agent {
        config,
        kernel,
        intake,
        clock: Clock::new(origin.wall_offset),
        health,
        status: Arc::clone(&status),
        losses: Losses::default(),
        gauges: listener.gauges(),
        profiling,
        processes,
        exports,
        files,
        relaying,
        reloading,
        enforcing,
    };
    agent.limit_detail(Level::Full);
    agent.open_up()?;

    let address = listener.address;
    let mut server = listener.serve(pipeline.metrics.exposition(), token, status, places);
    announce(address, &agent, &manager);
    // Loading took tens of megabytes: the kernel's types, the programs.
    self_process::release_memory();
    self_process::release_file();

    let until = options.duration.map(|duration| Instant::now() + duration);
    trace(&mut agent, &mut pipeline, &mut server, &manager, until);
    let (health, recorder) = end(agent, &mut pipeline, server, &manager)?;
    // The summary is printed whatever became of the recording.
    let recorded = recorder.map_or(Ok(()), Writer::finish);
    if options.duration.is_some() || interrupted.load(Ordering::Relaxed) {
        self_process::print(summary::table(&pipeline, Some(&health)));
    }
    Ok(recorded?)
}

/// Loads the programs, and tells the pipeline what the kernel side does of its work.
fn load(
    options: &AgentOptions,
    config: &Config,
    is_recorded: bool,
    pipeline: &mut Pipeline,
) -> Result<(Kernel, Rings), Failure> {
    let (kernel, rings) = loader::load(&Options {
        // The budget decides when everything is ready.
        hertz: 0,
        all: config.agent.all_hooks,
        log_level: options.bpf_log as u8,
        inband: InBand::wanted(config.relay.tcp_option, &config.relay.headers, config.agent.own_netns),
        send_priority: enforcing::send_priority_mode(config),
        exceptions: config.exceptions.enabled,
        log_lines: if config.logs.is_on() { LogLineMode::On } else { LogLineMode::Off },
        trace_contexts: config.profiles.trace_contexts.clone(),
    })?;
    if kernel.trace_contexts.is_some() {
        pipeline.publish_contexts();
    } else if counting::is_possible(config) {
        let is_kept = is_recorded || config.hindsight.dir.is_some();
        let takes_all = pipeline.writes_spans() || is_kept || config.transactions.save.is_some();
        pipeline.count_in_kernel(config.sampling.detail == Detail::Auto && !takes_all);
    }
    enforcing::check_network(&kernel.attached)?;
    Ok((kernel, rings))
}

/// Restores every priority and detaches every program, from whichever thread it is called.
fn detacher(kernel: &Kernel, enforcing: &Enforcing) -> Arc<dyn Fn() -> bool + Send + Sync> {
    let (attachments, restore) = (kernel.attachments(), enforcing.restorer());
    Arc::new(move || {
        let restored = restore();
        attachments.detach() && restored
    })
}

/// The loop: until the agent is asked to end, or `until`.
fn trace(
    agent: &mut Agent,
    pipeline: &mut Pipeline,
    server: &mut Server,
    manager: &ServiceManager,
    until: Option<Instant>,
) {
    let mut next_tick = Instant::now() + TICK;
    let mut pace = Pace::new();
    let mut rested = true;
    while !agent.status.is_stopping() && until.is_none_or(|until| Instant::now() < until) {
        agent.status.beat();
        agent.shed(pipeline);
        // What other agents said goes in before the records that it explains, and what they are told comes out after.
        agent.take_messages(pipeline);
        let found = agent.drain(pipeline);
        agent.tell(pipeline);
        while let Ok(job) = server.jobs.try_recv() {
            job(&pipeline.view(&agent.health));
        }
        while let Ok(command) = server.commands.try_recv() {
            agent.carry_out(command);
        }
        agent.follow_configuration(pipeline);
        agent.follow_tables();
        agent.follow_budget();
        agent.follow_slow_requests(pipeline);
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + TICK;
            agent.tick(pipeline);
            manager.alive();
        }
        let due = until.map_or(next_tick, |until| until.min(next_tick));
        let is_asking = || !server.jobs.is_empty() || !server.commands.is_empty();
        rested = agent.rest(pipeline, &mut pace, &found, rested, (due, &is_asking));
    }
}

/// Ends all but the recording; gives what the agent last said of itself, and the recording.
///
/// From here on the watchdog counts how long ending takes. The console's port is free at once, and the host is rid of the programs
/// before anything is written: what follows may wait for a disk.
fn end(
    mut agent: Agent,
    pipeline: &mut Pipeline,
    mut server: Server,
    manager: &ServiceManager,
) -> Result<(Health, Option<Writer>), Failure> {
    agent.status.stop();
    manager.stopping();
    server.stop();
    agent.enforcing.end();
    agent.kernel.policy.scope(Scope::Nothing)?;
    agent.drain(pipeline);
    // Requests that waited for evidence belong to the last window, too.
    pipeline.report_open();
    pipeline.history.end();
    agent.tick(pipeline);
    agent.exports.end(pipeline, agent.clock.wall_offset);
    let Agent { kernel, health, exports, files, .. } = agent;
    drop(kernel);
    // Counted from here: the kernel takes its own time to remove probes from running programs.
    let deadline = Instant::now() + ENDING;
    let (uploader, recorder) = files.finish(pipeline, deadline);
    server.finish(deadline, async {
        exports.finish(deadline).await;
        if let Some(uploader) = uploader {
            uploader.finish(deadline).await;
        }
    });
    Ok((health, recorder))
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
