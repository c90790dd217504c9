//! Finished units of work as OpenTelemetry spans, sent to a collector.
//!
//! The pipeline puts units into a bounded queue and never waits: what finds no room is counted. A task of the server's
//! threads gathers them into batches, sends each, and again after a while where the collector was busy or away.

mod proto;
mod send;
mod settings;
mod spans;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

pub use settings::{Protocol, Settings, SettingsError, Tls, read};

use crate::guard::fill::Fill;
use crate::model::{Names, Unit};
use crate::pipeline::UnitWriter;
use send::{Sender, Sent};
use spans::Finished;

/// Waits between tries: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A batch that could not be sent for so long is given up.
const GIVE_UP: Duration = Duration::from_secs(120);
/// How long the end of the agent may wait for the last batches.
const LAST: Duration = Duration::from_secs(3);

/// What became of spans so far.
#[derive(Debug, Default)]
pub struct Counts {
    sent: AtomicU64,
    no_room: AtomicU64,
    rejected: AtomicU64,
    given_up: AtomicU64,
    retries: AtomicU64,
}

impl Counts {
    /// By outcome: `sent`, `queue_full` (no room to wait), `rejected` (by the collector), `failed` (the collector could not
    /// be reached for long).
    pub fn spans(&self) -> [(&'static str, u64); 4] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("sent", of(&self.sent)),
            ("queue_full", of(&self.no_room)),
            ("rejected", of(&self.rejected)),
            ("failed", of(&self.given_up)),
        ]
    }

    /// Requests that were sent again.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

/// The pipeline's end of it.
#[derive(Debug)]
pub struct Exporter {
    queue: mpsc::Sender<Finished>,
    counts: Arc<Counts>,
    ratio: f64,
    wall_offset: i64,
}

/// The agent's end of it.
#[derive(Debug)]
pub struct Export {
    /// What became of spans.
    pub counts: Arc<Counts>,
    queue: mpsc::WeakSender<Finished>,
    room: usize,
    done: oneshot::Receiver<()>,
}

impl Export {
    /// How full the queue is.
    pub fn fill(&self) -> Fill {
        let waiting = self.queue.upgrade().map_or(0, |queue| queue.max_capacity() - queue.capacity());
        Fill::new(waiting, self.room, self.counts.no_room.load(Ordering::Relaxed))
    }

    /// Waits for the last batches after the [`Exporter`] is gone, a little.
    pub async fn finish(self) {
        if tokio::time::timeout(LAST, self.done).await.is_err() {
            log::warn!("the last spans could not be sent within {LAST:?}");
        }
    }
}

/// Begins to send. Call it where tasks can be started. Fails when certificates it needs cannot be read.
pub fn start(settings: Settings, host: &str, wall_offset: i64) -> Result<(Exporter, Export), SettingsError> {
    let sender = Sender::new(settings.clone())?;
    let (queue, waiting) = mpsc::channel(settings.queue);
    let (end, done) = oneshot::channel();
    let counts = Arc::new(Counts::default());
    let export = Export { counts: Arc::clone(&counts), queue: queue.downgrade(), room: settings.queue, done };
    let exporter = Exporter { queue, counts: Arc::clone(&counts), ratio: settings.ratio, wall_offset };
    let host = host.to_owned();
    tokio::spawn(async move {
        work(settings, sender, &host, waiting, &counts).await;
        let _ = end.send(());
    });
    Ok((exporter, export))
}

impl UnitWriter for Exporter {
    fn unit(&mut self, names: &Names, unit: &Unit) {
        if !spans::is_sampled(unit.trace, self.ratio) {
            return;
        }
        // Before anything is copied: where there is no room, there is none for thousands a second.
        match self.queue.try_reserve() {
            Ok(room) => room.send(Finished {
                unit: unit.clone(),
                service: names.service(unit.service),
                class: names.class(unit.class).cloned(),
                wall_offset: self.wall_offset,
            }),
            Err(_) => Counts::count(&self.counts.no_room, 1),
        }
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

/// Sends what comes until nobody can put anything into the queue any more.
async fn work(settings: Settings, sender: Sender, host: &str, mut waiting: mpsc::Receiver<Finished>, counts: &Counts) {
    let Settings { uri, batch, delay, resource, .. } = settings;
    let mut reached = true;
    loop {
        let mut units = Vec::new();
        if waiting.recv_many(&mut units, batch).await == 0 {
            return;
        }
        let full = tokio::time::Instant::now() + delay;
        while units.len() < batch && !waiting.is_closed() {
            let more = batch - units.len();
            if !matches!(tokio::time::timeout_at(full, waiting.recv_many(&mut units, more)).await, Ok(1..)) {
                break;
            }
        }
        let request = spans::request(&units, host, &resource);
        match deliver(&sender, &request, &waiting, counts).await {
            Ok((rejected, why)) => {
                let rejected = rejected.min(units.len() as u64);
                Counts::count(&counts.sent, units.len() as u64 - rejected);
                Counts::count(&counts.rejected, rejected);
                if rejected > 0 {
                    log::warn!("{uri} did not take {rejected} of {} spans: {why}", units.len());
                } else if !reached {
                    log::warn!("{uri} takes spans again");
                }
                reached = true;
            }
            Err((refused, why)) => {
                Counts::count(if refused { &counts.rejected } else { &counts.given_up }, units.len() as u64);
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

/// Sends a request until it is taken; gives the spans that were not, and why. An error says whether it was refused, or
/// only did not get there in time.
async fn deliver(
    sender: &Sender,
    request: &proto::Request,
    waiting: &mpsc::Receiver<Finished>,
    counts: &Counts,
) -> Result<(u64, String), (bool, String)> {
    let begun = Instant::now();
    let mut wait = FIRST_WAIT;
    loop {
        let (why, asked) = match sender.send(request).await {
            Sent::Taken(rejected, why) => return Ok((rejected, why)),
            Sent::Refused(why) => return Err((true, why)),
            Sent::Again(why, asked) => (why, asked),
        };
        // The agent ends: there is no later.
        if waiting.is_closed() || begun.elapsed() + wait > GIVE_UP {
            return Err((false, why));
        }
        Counts::count(&counts.retries, 1);
        log::info!("spans are sent again in {wait:?}: {why}");
        // Not all agents of a network at the same moment.
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
#[path = "otlp_tests.rs"]
mod tests;
