//! Exports stacks by request class, on the CPU and off it. The signal is in development: off unless somebody asks for it.
//!
//! The agent hands over what was sampled since the last time ([`Pipeline::take_unsent`]), once an interval, when the queue has room for
//! it, and never waits; until then it adds up there, within a bound. A task on the server's threads has it named and sends it,
//! retrying while the collector is busy or away, as it does with spans.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracer_host::container_names::NamesCache;
use tracer_model::Nanos;
use tracer_results::profiles::{Profiles, UnsentSamples};

use super::Counts;
use super::instance::HostFacts;
use super::outgoing::{self, Outgoing, SendingTask, SentSignal, TaskEnd};
use super::profile_requests::{Interval, ProfileIds, Requests};
use super::settings::{Settings, SettingsError};
use crate::pipeline::Pipeline;

/// Time between two exports, and the fill of the table from which on they come sooner.
const INTERVAL: Duration = Duration::from_secs(10);
const FILL: u64 = 2;
/// What is sent here.
const PROFILES: SentSignal = SentSignal {
    things: "profiles",
    advice: "the signal is in development, and not every collector takes it",
    // It says how many profiles, but what is counted here are samples.
    rejects_some: false,
};

/// Samples of an interval, and wall clock minus `CLOCK_MONOTONIC` at its end, nanoseconds.
type Taken = (UnsentSamples, i64);

/// The agent's handle.
#[derive(Debug)]
pub struct ProfileExport {
    /// Outcomes of samples.
    pub counts: Arc<Counts>,
    queue: mpsc::Sender<Taken>,
    exported: Nanos,
    end: TaskEnd,
}

impl ProfileExport {
    /// Starts to send what is sampled from `now` on. Must run inside a tokio runtime. Fails if required certificates cannot be
    /// read.
    pub fn start(settings: Settings, host: &str, profiles: &mut Profiles, now: Nanos) -> Result<Self, SettingsError> {
        let host = HostFacts::read(host);
        // One that waits while another is sent; more would take memory, and adding up takes none.
        let SendingTask { counts, queue, end } =
            outgoing::start(settings, 1, PROFILES, |outgoing| work(outgoing, host))?;
        profiles.keep_unsent(now);
        Ok(Self { counts, queue, exported: now, end })
    }

    /// Hands over what is due at `now`. `wall_offset` is wall clock minus `CLOCK_MONOTONIC`, nanoseconds.
    pub fn offer(&mut self, pipeline: &mut Pipeline, now: Nanos, wall_offset: i64) {
        let waiting = pipeline.profiles.unsent();
        let is_due = now.saturating_sub(self.exported) >= INTERVAL.as_nanos() as u64;
        if is_due || waiting.entries > waiting.limit / FILL {
            self.hand_over(pipeline, now, wall_offset);
        }
        Counts::count(&self.counts.no_room, pipeline.profiles.take_unsent_dropped());
    }

    fn hand_over(&mut self, pipeline: &mut Pipeline, now: Nanos, wall_offset: i64) {
        // What finds no room stays where it is.
        let Ok(room) = self.queue.try_reserve() else { return };
        self.exported = now;
        if let Some(samples) = pipeline.take_unsent(now) {
            room.send((samples, wall_offset));
        }
    }

    /// Hands over the rest, at the end.
    pub fn last(&mut self, pipeline: &mut Pipeline, now: Nanos, wall_offset: i64) {
        self.hand_over(pipeline, now, wall_offset);
        let rest = pipeline.take_unsent(now).map_or(0, |samples| samples.count());
        Counts::count(&self.counts.no_room, rest + pipeline.profiles.take_unsent_dropped());
    }

    /// Ends: waits for what is under way, until `deadline`.
    pub async fn finish(self, deadline: Instant) {
        drop(self.queue);
        self.end.wait(deadline).await;
        let dropped = self.counts.dropped();
        if dropped > 0 {
            log::warn!("{dropped} stack samples were not exported: {}", self.counts.outcomes());
        }
    }
}

async fn work(mut outgoing: Outgoing<Taken>, host: HostFacts) {
    let (mut names, mut ids) = (NamesCache::default(), ProfileIds::new());
    while let Some((taken, wall_offset)) = outgoing.waiting.recv().await {
        let wall = |at: Nanos| u64::try_from((at as i64).saturating_add(wall_offset)).unwrap_or(0);
        let duration = taken.until.saturating_sub(taken.since);
        let (interval, lines) = (Interval { start: wall(taken.since), duration }, taken.lines);
        let all = taken.count();
        // Names of new stacks take a while.
        let Ok(samples) = tokio::task::spawn_blocking(move || taken.named()).await else {
            Counts::count(&outgoing.counts.given_up, all);
            continue;
        };
        names.learn(samples.iter().filter_map(|sample| sample.instance.container.clone())).await;
        let more = outgoing.settings.resource.clone();
        for (request, samples) in Requests::new(samples, (interval, lines), &host, &names, &more, &mut ids) {
            outgoing.send(&request, samples).await;
        }
    }
}
