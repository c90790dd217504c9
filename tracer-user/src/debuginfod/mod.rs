//! Fetches debug files by build id from debuginfod servers, for names and lines of programs without debug information on this
//! host. Off unless servers are configured: they learn which programs run here.
//!
//! A thread of its own takes the requests of whoever names stacks, one after the other, and puts the files into a bounded
//! directory. Nothing waits for it.

mod cache;
mod fetch;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cache::Cache;
use fetch::{Client, Fetched};
use tracer_results::profiles::DebugRequests;

/// Largest file that is fetched, bytes, and the longest that fetching one may take.
const FILE: u64 = 256 << 20;
const TIMEOUT: Duration = Duration::from_secs(120);
/// How often requests, and whether files are too old, are looked for.
const LOOK: Duration = Duration::from_millis(500);
const SWEEP: Duration = Duration::from_secs(600);
/// How long it is believed that servers lack a file, and that they cannot be reached.
const MISSING: Duration = Duration::from_secs(3600);
const FAILED: Duration = Duration::from_secs(300);
/// Build ids of which that is remembered.
const REMEMBERED: usize = 4096;

/// Where files come from and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `http://` or `https://`, asked in this order. They may hold secrets: errors show only the host.
    pub servers: Vec<hyper::Uri>,
    /// Directory of the files.
    pub cache: PathBuf,
    /// Most bytes in it.
    pub max_size: u64,
    /// Files that were fetched longer ago go.
    pub max_age: Duration,
}

/// Outcomes so far.
#[derive(Debug, Default)]
pub struct Counts {
    fetched: AtomicU64,
    cached: AtomicU64,
    missing: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    cache_bytes: AtomicU64,
}

impl Counts {
    /// By outcome; see [`tracer_results::metrics::Metrics::set_debuginfod`].
    fn by_outcome(&self, no_room: u64) -> [(&'static str, u64); 6] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("fetched", of(&self.fetched)),
            ("cached", of(&self.cached)),
            ("missing", of(&self.missing)),
            ("failed", of(&self.failed)),
            ("refused", of(&self.refused)),
            ("queue_full", no_room),
        ]
    }
}

/// The agent's handle.
#[derive(Debug)]
pub struct Debuginfod {
    counts: Arc<Counts>,
    requests: DebugRequests,
}

impl Debuginfod {
    /// Starts to fetch. Fails if the directory cannot be used, or the system's certificates cannot be read.
    pub fn start(settings: &Settings, requests: DebugRequests) -> Result<Self, String> {
        let cache = Cache::open(settings)?;
        let client = Client::new(&settings.servers)?;
        let counts = Arc::new(Counts::default());
        let worker =
            Worker { requests: requests.clone(), counts: Arc::clone(&counts), cache, client, known: HashMap::new() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let work = move || runtime.block_on(worker.work());
        std::thread::Builder::new().name("tracer-debuginfo".into()).spawn(work).map_err(|error| error.to_string())?;
        Ok(Self { counts, requests })
    }

    /// Requests by outcome, and bytes in the directory.
    pub fn counts(&self) -> ([(&'static str, u64); 6], u64) {
        (self.counts.by_outcome(self.requests.refused()), self.counts.cache_bytes.load(Ordering::Relaxed))
    }
}

struct Worker {
    requests: DebugRequests,
    counts: Arc<Counts>,
    cache: Cache,
    client: Client,
    /// Build ids that servers lack or did not give, and until when that is believed.
    known: HashMap<Vec<u8>, Instant>,
}

impl Worker {
    /// Works until the process ends.
    async fn work(mut self) {
        let mut swept = Instant::now();
        self.counts.cache_bytes.store(self.cache.bytes(), Ordering::Relaxed);
        loop {
            match self.requests.next() {
                Some(build_id) => self.get(&build_id).await,
                None => tokio::time::sleep(LOOK).await,
            }
            if swept.elapsed() > SWEEP {
                swept = Instant::now();
                self.cache.sweep();
            }
            self.counts.cache_bytes.store(self.cache.bytes(), Ordering::Relaxed);
        }
    }

    async fn get(&mut self, build_id: &[u8]) {
        let count = |counter: &AtomicU64| _ = counter.fetch_add(1, Ordering::Relaxed);
        if self.cache.has(build_id) {
            return count(&self.counts.cached);
        }
        let now = Instant::now();
        if self.known.get(build_id).is_some_and(|until| *until > now) {
            return count(&self.counts.missing);
        }
        let (mut kept_for, mut outcome) = (MISSING, &self.counts.missing);
        for server in 0..self.client.servers() {
            let cache = &mut self.cache;
            let took = tokio::time::timeout(TIMEOUT, self.client.fetch(server, build_id, FILE, cache)).await;
            let took = took.unwrap_or_else(|_| Fetched::Failed(format!("it took longer than {TIMEOUT:?}")));
            match took {
                Fetched::Complete => match self.cache.keep(build_id) {
                    Ok(()) => {
                        self.requests.came();
                        return count(&self.counts.fetched);
                    }
                    Err(why) => {
                        outcome = &self.counts.refused;
                        log::debug!("{}: {why}", self.client.place(server));
                    }
                },
                Fetched::Missing => {}
                Fetched::TooLarge => outcome = &self.counts.refused,
                Fetched::Failed(why) => {
                    (kept_for, outcome) = (FAILED, &self.counts.failed);
                    log::debug!("{}: {why}", self.client.place(server));
                }
            }
            self.cache.abandon();
        }
        count(outcome);
        if self.known.len() >= REMEMBERED {
            self.known.retain(|_, until| *until > now);
            if self.known.len() >= REMEMBERED {
                self.known.clear();
            }
        }
        self.known.insert(build_id.to_vec(), now + kept_for);
    }
}

#[cfg(test)]
mod tests;
