//! Exports finished spans, metrics ([`metrics`]), findings ([`logs`]) and profiles ([`profiles`]) to an OpenTelemetry collector.
//!
//! The pipeline puts spans into a bounded queue and never waits: a full queue drops spans and counts them. A task on
//! the server's threads collects them into batches and sends each batch, retrying while the collector is busy or away.

mod instance;
mod log_proto;
pub mod logs;
mod metric_names;
mod metric_proto;
pub mod metrics;
mod profile_proto;
mod profile_requests;
pub mod profiles;
mod proto;
mod send;
mod settings;
mod spans;
pub(crate) mod tls;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

pub use logs::FindingExport;
pub use metrics::MetricExport;
pub use profiles::ProfileExport;
pub use settings::{Protocol, Settings, SettingsError, Signal, Tls, read, signal};

use crate::guard::loss_log::LossLog;
use crate::guard::tables::TableUse;
use crate::host::container_names::NamesCache;
use crate::host::instance::Instance;
use crate::host::process::ProcessFacts;
use crate::model::{Names, Span};
use crate::pipeline::SpanWriter;
use instance::HostFacts;
use send::{Sender, Sent};
use spans::Finished;

/// Waits between attempts: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A batch is dropped after failing this long.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Most processes whose facts are kept; as many as the engine follows.
const INSTANCES: usize = 65_536;

/// Outcomes of spans, log records or samples so far.
#[derive(Debug, Default)]
pub struct Counts {
    sent: AtomicU64,
    no_room: AtomicU64,
    rejected: AtomicU64,
    given_up: AtomicU64,
    retries: AtomicU64,
}

impl Counts {
    /// By outcome: `sent`, `queue_full` (the queue had no room), `rejected` (by the collector), `failed` (the collector
    /// was unreachable for too long).
    pub fn by_outcome(&self) -> [(&'static str, u64); 4] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("sent", of(&self.sent)),
            ("queue_full", of(&self.no_room)),
            ("rejected", of(&self.rejected)),
            ("failed", of(&self.given_up)),
        ]
    }

    /// Those dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.by_outcome().iter().filter(|(outcome, _)| *outcome != "sent").map(|(_, count)| count).sum()
    }

    /// Numbers by outcome, for a message.
    fn outcomes(&self) -> String {
        let outcomes: Vec<String> =
            self.by_outcome().iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
        outcomes.join(", ")
    }

    fn summary(&self, dropped: u64) -> String {
        format!("{dropped} spans were dropped and are not exported; spans since the start: {}", self.outcomes())
    }

    /// Number of retried requests.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

/// The pipeline's handle.
#[derive(Debug)]
pub struct Exporter {
    queue: mpsc::Sender<Finished>,
    counts: Arc<Counts>,
    ratio: f64,
    wall_offset: i64,
    /// Processes, until they are gone.
    instances: HashMap<u32, Arc<Instance>>,
}

/// The agent's handle.
#[derive(Debug)]
pub struct Export {
    /// Outcomes of spans.
    pub counts: Arc<Counts>,
    queue: mpsc::WeakSender<Finished>,
    room: usize,
    log: LossLog,
    done: oneshot::Receiver<()>,
}

impl Export {
    /// Table use of the queue.
    pub fn table_use(&self) -> TableUse {
        let waiting = self.queue.upgrade().map_or(0, |queue| queue.max_capacity() - queue.capacity());
        TableUse::new(waiting, self.room, self.counts.no_room.load(Ordering::Relaxed))
    }

    /// A log message about dropped spans, due at `now`; `None` if nothing was dropped since the last message, or that
    /// was only just now.
    pub fn drops(&mut self, now: Instant) -> Option<String> {
        self.log.due(now, self.counts.dropped()).map(|dropped| self.counts.summary(dropped))
    }

    /// Waits for the last batches after the [`Exporter`] is gone, until `deadline`.
    pub async fn finish(mut self, deadline: Instant) {
        if tokio::time::timeout_at(deadline.into(), self.done).await.is_err() {
            log::warn!("the last spans could not be sent before the end: the collector is too slow or not there");
        }
        if let Some(dropped) = self.log.rest(self.counts.dropped()) {
            log::warn!("{}", self.counts.summary(dropped));
        }
    }
}

/// Starts to send. Must run inside a tokio runtime. Fails if required certificates cannot be read.
pub fn start(settings: Settings, host: &str, wall_offset: i64) -> Result<(Exporter, Export), SettingsError> {
    let sender = Sender::new(settings.clone())?;
    let (queue, waiting) = mpsc::channel(settings.queue);
    let (end, done) = oneshot::channel();
    let counts = Arc::new(Counts::default());
    let export = Export {
        counts: Arc::clone(&counts),
        queue: queue.downgrade(),
        room: settings.queue,
        log: LossLog::default(),
        done,
    };
    let exporter =
        Exporter { queue, counts: Arc::clone(&counts), ratio: settings.ratio, wall_offset, instances: HashMap::new() };
    let host = host.to_owned();
    tokio::spawn(async move {
        work(settings, sender, &host, waiting, &counts).await;
        let _ = end.send(());
    });
    Ok((exporter, export))
}

impl SpanWriter for Exporter {
    fn span(&mut self, names: &Names, span: &Span) {
        if !spans::is_sampled(span.trace, self.ratio) {
            return;
        }
        // Reserve before cloning: a full queue may drop thousands of spans a second.
        match self.queue.try_reserve() {
            Ok(room) => room.send(Finished {
                span: span.clone(),
                service: names.service(span.service),
                instance: self.instances.get(&span.pid).cloned(),
                class: names.class(span.class).cloned(),
                wall_offset: self.wall_offset,
            }),
            Err(_) => Counts::count(&self.counts.no_room, 1),
        }
    }

    fn process(&mut self, tgid: u32, facts: &ProcessFacts) {
        // Beyond it, spans have the process's id only.
        if self.instances.len() < INSTANCES || self.instances.contains_key(&tgid) {
            self.instances.insert(tgid, Arc::new(Instance::new(tgid, facts)));
        }
    }

    fn process_gone(&mut self, tgid: u32) {
        self.instances.remove(&tgid);
    }

    fn flush(&mut self) {}

    fn clock(&mut self, wall_offset: i64) {
        self.wall_offset = wall_offset;
    }

    fn dropped(&self) -> u64 {
        0
    }

    /// [`Export::finish`] waits.
    fn finish(&mut self) {}
}

/// Sends spans until the queue is closed.
async fn work(settings: Settings, sender: Sender, host: &str, mut waiting: mpsc::Receiver<Finished>, counts: &Counts) {
    let Settings { uri, batch, delay, resource, .. } = settings;
    let mut reached = true;
    let host = HostFacts::read(host);
    let mut names = NamesCache::default();
    loop {
        let mut spans = Vec::new();
        if waiting.recv_many(&mut spans, batch).await == 0 {
            return;
        }
        let full = tokio::time::Instant::now() + delay;
        while spans.len() < batch && !waiting.is_closed() {
            let more = batch - spans.len();
            if !matches!(tokio::time::timeout_at(full, waiting.recv_many(&mut spans, more)).await, Ok(1..)) {
                break;
            }
        }
        let instances = spans.iter().filter_map(|span| span.instance.as_ref()?.container.clone());
        names.learn(instances).await;
        let request = spans::request(&spans, &host, &names, &resource);
        match deliver(&sender, &request, &waiting, counts, "spans").await {
            Ok((rejected, why)) => {
                let rejected = rejected.min(spans.len() as u64);
                Counts::count(&counts.sent, spans.len() as u64 - rejected);
                Counts::count(&counts.rejected, rejected);
                if rejected > 0 {
                    log::warn!("{uri} did not take {rejected} of {} spans: {why}", spans.len());
                } else if !reached {
                    log::warn!("{uri} takes spans again");
                }
                reached = true;
            }
            Err((refused, why)) => {
                Counts::count(if refused { &counts.rejected } else { &counts.given_up }, spans.len() as u64);
                if reached {
                    log::error!(
                        "spans cannot be sent to {uri}: {why}; those that find no room are counted, tracing goes on"
                    );
                }
                reached = false;
            }
        }
    }
}

/// Sends a request until it is accepted; returns how many of its `things` were rejected, and why. The error tells whether
/// the collector refused the request or only did not accept it in time.
async fn deliver<T>(
    sender: &Sender,
    request: &impl prost::Message,
    waiting: &mpsc::Receiver<T>,
    counts: &Counts,
    things: &str,
) -> Result<(u64, String), (bool, String)> {
    let begun = Instant::now();
    let mut wait = FIRST_WAIT;
    loop {
        let (why, asked) = match sender.send(request).await {
            Sent::Taken(rejected, why) => return Ok((rejected, why)),
            Sent::Refused(why) => return Err((true, why)),
            Sent::Again(why, asked) => (why, asked),
        };
        // The agent is ending: no time to retry.
        if waiting.is_closed() || begun.elapsed() + wait > GIVE_UP {
            return Err((false, why));
        }
        Counts::count(&counts.retries, 1);
        log::info!("{things} are sent again in {wait:?}: {why}");
        // Jitter, so that the agents of a network do not retry at the same moment.
        let jitter = f64::from(begun.elapsed().subsec_nanos() % 1000) / 2000.0;
        let pause = asked.unwrap_or(wait.mul_f64(0.75 + jitter));
        let end = tokio::time::Instant::now() + pause;
        while tokio::time::Instant::now() < end && !waiting.is_closed() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

#[cfg(test)]
mod tests;
