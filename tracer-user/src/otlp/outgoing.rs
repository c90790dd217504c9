//! The task that sends what an exporter hands over: a bounded queue, retries, outcomes, and its end. The agent never waits for it.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::Counts;
use super::send::{Sender, Sent};
use super::settings::{Settings, SettingsError};

/// Waits between attempts: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A request is dropped after failing this long.
const GIVE_UP: Duration = Duration::from_secs(120);

/// What differs between signals.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentSignal {
    /// What is sent, for messages.
    pub things: &'static str,
    /// What the log adds when the collector does not take it.
    pub advice: &'static str,
    /// Whether a collector that takes a part says how many of the things it did not take; else it counts for all of them.
    pub rejects_some: bool,
}

/// The exporter's end of the task.
#[derive(Debug)]
pub(super) struct SendingTask<T> {
    pub counts: Arc<Counts>,
    pub queue: mpsc::Sender<T>,
    pub end: TaskEnd,
}

/// Where the end of the task shows.
#[derive(Debug)]
pub(super) struct TaskEnd {
    done: oneshot::Receiver<()>,
    things: &'static str,
}

impl TaskEnd {
    /// Waits until what was handed over is sent, but not longer than `deadline`. The queue must be closed.
    pub(super) async fn wait(self, deadline: Instant) {
        if tokio::time::timeout_at(deadline.into(), self.done).await.is_err() {
            let things = self.things;
            log::warn!("the last {things} could not be sent before the end: the collector is too slow or not there");
        }
    }
}

/// The task's own end: what waits, and where it goes.
pub(super) struct Outgoing<T> {
    pub settings: Settings,
    pub waiting: mpsc::Receiver<T>,
    pub counts: Arc<Counts>,
    sender: Sender,
    signal: SentSignal,
    /// Whether the collector took the last request.
    reached: bool,
}

/// Starts `work`, which ends when the queue is closed and empty. Must run inside a tokio runtime. Fails if required
/// certificates cannot be read.
pub(super) fn start<T, W>(
    settings: Settings,
    room: usize,
    signal: SentSignal,
    work: impl FnOnce(Outgoing<T>) -> W,
) -> Result<SendingTask<T>, SettingsError>
where
    W: Future<Output = ()> + Send + 'static,
{
    let sender = Sender::new(settings.clone())?;
    let (queue, waiting) = mpsc::channel(room);
    let (finished, done) = oneshot::channel();
    let counts = Arc::new(Counts::default());
    let work = work(Outgoing { settings, waiting, counts: Arc::clone(&counts), sender, signal, reached: true });
    tokio::spawn(async move {
        work.await;
        let _ = finished.send(());
    });
    Ok(SendingTask { counts, queue, end: TaskEnd { done, things: signal.things } })
}

impl<T> Outgoing<T> {
    /// Sends a request with `all` things until the collector answers for good, counts how that ended, and logs when it begins to
    /// fail and when it works again.
    pub(super) async fn send(&mut self, request: &impl prost::Message, all: u64) {
        let failure = match self.deliver(request).await {
            Ok((rejected, why)) => {
                let rejected = if self.signal.rejects_some || rejected == 0 { rejected.min(all) } else { all };
                Counts::count(&self.counts.sent, all - rejected);
                Counts::count(&self.counts.rejected, rejected);
                (rejected > 0).then(|| format!("it rejected {rejected} of {all}: {why}"))
            }
            Err((is_refused, why)) => {
                Counts::count(if is_refused { &self.counts.rejected } else { &self.counts.given_up }, all);
                Some(why)
            }
        };
        let (uri, SentSignal { things, advice, .. }) = (&self.settings.uri, self.signal);
        match &failure {
            Some(why) if self.reached => log::error!("{things} cannot be sent to {uri}: {why}; {advice}"),
            None if !self.reached => log::warn!("{uri} takes {things} again"),
            _ => {}
        }
        self.reached = failure.is_none();
    }

    /// Sends a request until it is accepted; returns how many of its things were rejected, and why. The error tells whether
    /// the collector refused the request or only did not accept it in time.
    async fn deliver(&self, request: &impl prost::Message) -> Result<(u64, String), (bool, String)> {
        let begun = Instant::now();
        let mut wait = FIRST_WAIT;
        loop {
            let (why, asked) = match self.sender.send(request).await {
                Sent::Taken(rejected, why) => return Ok((rejected, why)),
                Sent::Refused(why) => return Err((true, why)),
                Sent::Again(why, asked) => (why, asked),
            };
            // The agent is ending: no time to retry.
            if self.waiting.is_closed() || begun.elapsed() + wait > GIVE_UP {
                return Err((false, why));
            }
            Counts::count(&self.counts.retries, 1);
            log::info!("{} are sent again in {wait:?}: {why}", self.signal.things);
            // Jitter, so that the agents of a network do not retry at the same moment.
            let jitter = f64::from(begun.elapsed().subsec_nanos() % 1000) / 2000.0;
            let pause = asked.unwrap_or(wait.mul_f64(0.75 + jitter));
            let end = tokio::time::Instant::now() + pause;
            while tokio::time::Instant::now() < end && !self.waiting.is_closed() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}
