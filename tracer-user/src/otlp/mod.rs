//! Exports finished spans, metrics ([`metrics`]), findings ([`logs`]) and profiles ([`profiles`]) to an OpenTelemetry collector.
//!
//! The pipeline puts spans into a bounded queue and never waits: a full queue drops spans and counts them. A task on
//! the server's threads (`outgoing`) collects them into batches and sends each batch, retrying while the collector is busy or away.

#[cfg(test)]
mod conventions;
mod instance;
mod log_proto;
pub mod logs;
mod metric_names;
mod metric_proto;
pub mod metrics;
mod outgoing;
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
use std::time::Instant;

use tokio::sync::mpsc;

pub use logs::FindingExport;
pub use metrics::MetricExport;
pub use profiles::ProfileExport;
pub use settings::{Protocol, Settings, SettingsError, Signal, Tls, read, signal};

use instance::HostFacts;
use outgoing::{Outgoing, SendingTask, SentSignal, TaskEnd};
use spans::Finished;
use tracer_host::container_names::NamesCache;
use tracer_host::guard::loss_log::LossLog;
use tracer_host::guard::tables::TableUse;
use tracer_host::instance::Instance;
use tracer_host::process::ProcessFacts;
use tracer_model::{Names, Span, Threshold};
use tracer_policies::tail_sampling::{combined, randomness};

use crate::pipeline::SpanWriter;

/// What is sent here.
const SPANS: SentSignal =
    SentSignal { things: "spans", advice: "those that find no room are counted, tracing goes on", rejects_some: true };

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
    /// Share of transactions, on top of what the pipeline chose.
    share: Threshold,
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
    end: TaskEnd,
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
        self.end.wait(deadline).await;
        if let Some(dropped) = self.log.rest(self.counts.dropped()) {
            log::warn!("{}", self.counts.summary(dropped));
        }
    }
}

/// Starts to send. Must run inside a tokio runtime. Fails if required certificates cannot be read.
pub fn start(settings: Settings, host: &str, wall_offset: i64) -> Result<(Exporter, Export), SettingsError> {
    let (room, share, host) = (settings.queue, Threshold::of_share(settings.ratio), HostFacts::read(host));
    let SendingTask { counts, queue, end } = outgoing::start(settings, room, SPANS, |outgoing| work(outgoing, host))?;
    let export = Export { counts: Arc::clone(&counts), queue: queue.downgrade(), room, log: LossLog::default(), end };
    let exporter = Exporter { queue, counts, share, wall_offset, instances: HashMap::new() };
    Ok((exporter, export))
}

impl SpanWriter for Exporter {
    fn span(&mut self, names: &Names, span: &Span) {
        let state = span.carried.as_ref().map_or("", |carried| &*carried.state);
        if !self.share.keeps(randomness(span.trace, state)) {
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
                threshold: combined(span.kept, self.share),
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
async fn work(mut outgoing: Outgoing<Finished>, host: HostFacts) {
    let Settings { batch, delay, resource, .. } = outgoing.settings.clone();
    let mut names = NamesCache::default();
    loop {
        let mut spans = Vec::new();
        if outgoing.waiting.recv_many(&mut spans, batch).await == 0 {
            return;
        }
        let full = tokio::time::Instant::now() + delay;
        while spans.len() < batch && !outgoing.waiting.is_closed() {
            let room = batch - spans.len();
            let more = outgoing.waiting.recv_many(&mut spans, room);
            if !matches!(tokio::time::timeout_at(full, more).await, Ok(1..)) {
                break;
            }
        }
        let instances = spans.iter().filter_map(|span| span.instance.as_ref()?.container.clone());
        names.learn(instances).await;
        let request = spans::request(&spans, &host, &names, &resource);
        outgoing.send(&request, spans.len() as u64).await;
    }
}

#[cfg(test)]
mod tests;
