//! `tracer fleet`: one read-only console for all hosts of a history. It keeps nothing of its own: what it shows is read from
//! the directory or bucket, and read again after the next start.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tracer_http::fleet::{self, FleetState, NewWindows};
use tracer_results::analysis::detector::Settings;

use super::Failure;
use crate::bucket::BucketError;
use crate::bucket::source::{HistoryFile, HistorySource, Hour};
use crate::cli::FleetOptions;
use crate::config::Config;

/// A part of a window is waited for so long: an agent may not have reached its bucket for a while.
const PATIENCE: Duration = Duration::from_secs(2 * 3600);

/// Reads what is new in the history.
struct HistoryReader {
    source: HistorySource,
    since: Duration,
    settings: Option<Settings>,
    state: Arc<Mutex<FleetState>>,
    /// Sizes and times of the files of an hour when it was read, by host and hour.
    read: HashMap<(String, i64), Vec<(u64, i64)>>,
    ended: Arc<AtomicBool>,
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl HistoryReader {
    fn state(&self) -> MutexGuard<'_, FleetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads hours with files that changed. Later windows of a host are added, earlier ones are known.
    async fn refresh(&mut self) -> Result<(), BucketError> {
        let from = now().saturating_sub(self.since);
        let listing = self.source.list_with_edges(i64::try_from(from.as_secs()).unwrap_or(i64::MAX)).await?;
        let patience_ns = nanos(now().saturating_sub(PATIENCE));
        let there: std::collections::HashSet<(&str, i64)> = listing
            .hosts
            .iter()
            .flat_map(|(host, hours)| hours.keys().map(move |hour| (host.as_str(), *hour)))
            .collect();
        self.read.retain(|(host, hour), _| there.contains(&(host.as_str(), *hour)));
        for (host, hours) in &listing.hosts {
            for (hour, files) in hours {
                if self.ended.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let key = (host.clone(), *hour);
                let mut versions: Vec<(u64, i64)> = files.iter().map(|file| (file.size, file.modified_ns)).collect();
                versions.sort_unstable();
                if self.read.get(&key) == Some(&versions) {
                    continue;
                }
                self.hour(host, files, patience_ns).await?;
                self.read.insert(key, versions);
            }
        }
        let mut state = self.state();
        state.forget(nanos(from));
        state.read_ns = nanos(now());
        state.problem =
            listing.truncated.then(|| "the history has too many files: the newest are not shown".to_owned());
        Ok(())
    }

    async fn hour(&self, host: &str, files: &[HistoryFile], patience_ns: u64) -> Result<(), BucketError> {
        let ignored = self.state().ignored;
        let mut hour = self.source.hour(files, ignored).await?;
        await_edges(&mut hour);
        let settings = |length_s: f64| {
            self.settings.clone().unwrap_or_else(|| {
                let mut settings = Settings::default();
                settings.scale_to(Duration::from_secs_f64(length_s.clamp(1.0, 60.0).round()));
                settings
            })
        };
        let new = NewWindows { windows: hour.windows, classes: hour.classes, edges: hour.edges, last: hour.newest };
        let mut state = self.state();
        state.ignored += hour.ignored;
        state.add(host, new, &settings, patience_ns);
        Ok(())
    }
}

/// Windows whose edges have not all reached the bucket are parts, too.
fn await_edges(hour: &mut Hour) {
    let mut found: HashMap<u64, u64> = HashMap::new();
    for row in &hour.edges {
        *found.entry(row.start_ns).or_default() += 1;
    }
    for read in &mut hour.windows {
        read.whole &= found.get(&read.window.start_ns).copied().unwrap_or(0) >= read.host.edge_rows;
    }
}

/// Serves until it is interrupted.
pub fn run(options: &FleetOptions) -> Result<(), Failure> {
    env_logger::Builder::new().filter_level(log::LevelFilter::Info).format_timestamp_millis().init();
    let settings = options.config.as_deref().map(Config::load).transpose()?.map(|config| config.analysis.detector);
    let source = HistorySource::open(&options.history)
        .map_err(|error| Failure::Running(format!("{}: {error}", options.history)))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::Running(format!("no threads for serving: {error}")))?;
    let listener = runtime.block_on(TcpListener::bind(options.listen)).map_err(|error| {
        Failure::Running(format!("cannot listen on {}: {error}; choose another with --listen", options.listen))
    })?;
    let listen = listener.local_addr().unwrap_or(options.listen);
    let state = Arc::new(Mutex::new(FleetState::default()));
    let ended = Arc::new(AtomicBool::new(false));
    let (read, since) = (HashMap::new(), options.since);
    let reader = HistoryReader { source, since, settings, state: Arc::clone(&state), read, ended: Arc::clone(&ended) };
    // Decoding files takes a core for a while: a thread of its own, beside those that serve.
    let thread = read_on_thread(reader, options.refresh.max(Duration::from_secs(1)), options.history.to_string())
        .map_err(|error| Failure::Running(format!("no thread for reading: {error}")))?;
    log::info!("the console of the fleet is at http://{listen}/");
    let place = options.history.to_string();
    runtime.block_on(fleet::serve(listener, state, place, async {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
        let terminated = async {
            match &mut terminate {
                Ok(signal) => drop(signal.recv().await),
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            () = terminated => {}
        }
    }));
    ended.store(true, Ordering::Relaxed);
    thread.thread().unpark();
    // A request to a bucket may still wait for its answer: nothing depends on it.
    runtime.shutdown_background();
    Ok(())
}

fn read_on_thread(
    mut reader: HistoryReader,
    every: Duration,
    place: String,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("fleet-reader".to_owned()).spawn(move || {
        let mut failed = false;
        while !reader.ended.load(Ordering::Relaxed) {
            let next = Instant::now() + every;
            match runtime.block_on(reader.refresh()) {
                Ok(()) if failed => log::info!("{place} is read again"),
                Ok(()) => {}
                Err(error) => {
                    if !failed {
                        log::warn!("{place}: {error}: the console shows what was read last");
                    }
                    reader.state().problem =
                        Some(format!("the history cannot be read: {error}; what is shown was read before"));
                }
            }
            failed = reader.state().problem.is_some();
            while Instant::now() < next && !reader.ended.load(Ordering::Relaxed) {
                std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
            }
        }
    })
}
