//! Posts findings to a URL when they open and when they end, so that somebody is called.
//!
//! The pipeline compares the detector's findings with those it has already handed over, and never waits: a full queue
//! counts. A task on the server's threads posts them one by one, and tries again while the receiver is busy or away.

mod send;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use send::{Sender, Sent};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tracer_results::analysis::announced::{AnnouncedFindings, FindingEvent};
use tracer_results::analysis::finding::{Finding, FindingKind};

/// Notifications that may wait.
const QUEUE: usize = 64;
/// Pauses between attempts: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A notification is dropped after failing this long.
const GIVE_UP: Duration = Duration::from_secs(300);

/// Where findings are posted.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `http://` or `https://`. It may hold a secret: it is shown without its path.
    pub uri: hyper::Uri,
    /// File with a token that is sent as `Authorization: Bearer`.
    pub token_file: Option<PathBuf>,
    /// Kinds that are posted.
    pub kinds: Vec<FindingKind>,
}

/// Why posting cannot start.
#[derive(Debug, thiserror::Error)]
#[error("[analysis] {name}: {why}")]
pub struct SettingsError {
    /// The setting.
    name: &'static str,
    /// What is wrong with it.
    why: String,
}

/// Notifications so far.
#[derive(Debug, Default)]
pub struct Counts {
    sent: AtomicU64,
    no_room: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
}

impl Counts {
    /// By outcome: `sent`, `queue_full`, `rejected` (the receiver refused it), `failed` (it could not be reached for too
    /// long).
    pub fn by_outcome(&self) -> [(&'static str, u64); 4] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("sent", of(&self.sent)),
            ("queue_full", of(&self.no_room)),
            ("rejected", of(&self.rejected)),
            ("failed", of(&self.failed)),
        ]
    }
}

/// The agent's handle.
#[derive(Debug)]
pub struct Webhook {
    kinds: Vec<FindingKind>,
    host: String,
    queue: mpsc::Sender<Vec<u8>>,
    counts: Arc<Counts>,
    announced: AnnouncedFindings,
    done: oneshot::Receiver<()>,
}

impl Webhook {
    /// Starts to post. Must run inside a tokio runtime. Fails if the token or the system's certificates cannot be read.
    pub fn start(settings: Settings, host: &str) -> Result<Self, SettingsError> {
        let sender = Sender::new(&settings)?;
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (end, done) = oneshot::channel();
        let counts = Arc::new(Counts::default());
        let outcomes = Arc::clone(&counts);
        tokio::spawn(async move {
            work(&sender, waiting, &outcomes).await;
            let _ = end.send(());
        });
        Ok(Self {
            kinds: settings.kinds,
            host: host.to_owned(),
            queue,
            counts,
            announced: AnnouncedFindings::default(),
            done,
        })
    }

    /// Notifications so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Hands over what opened or ended since the last call. What finds no room is offered again with the next call.
    pub fn notify<'a>(&mut self, findings: impl Iterator<Item = &'a Finding>) {
        let (queue, counts, host) = (&self.queue, &self.counts, &self.host);
        let kinds = &self.kinds;
        self.announced.news(findings.filter(|finding| kinds.contains(&finding.kind)), |event, finding| {
            let taken = queue.try_send(body(event, host, finding)).is_ok();
            if !taken {
                counts.no_room.fetch_add(1, Ordering::Relaxed);
            }
            taken
        });
    }

    /// Ends posting: waits for what is under way, until `deadline`.
    pub async fn finish(self, deadline: Instant) {
        drop(self.queue);
        if tokio::time::timeout_at(deadline.into(), self.done).await.is_err() {
            log::warn!("the last findings could not be posted before the end: the webhook is too slow or not there");
        }
    }
}

/// A notification. `text` is what chats show that take a JSON object with it.
fn body(event: FindingEvent, host: &str, finding: &Finding) -> Vec<u8> {
    let text = event.text(finding, host);
    json!({ "event": event.name(), "host": host, "text": text, "finding": finding.to_json() }).to_string().into_bytes()
}

/// Posts until the queue is closed.
async fn work(sender: &Sender, mut waiting: mpsc::Receiver<Vec<u8>>, counts: &Counts) {
    let mut reached = true;
    while let Some(body) = waiting.recv().await {
        let (counter, failure) = match deliver(sender, &body, &waiting).await {
            Sent::Taken => (&counts.sent, None),
            Sent::Refused(why) => (&counts.rejected, Some(why)),
            Sent::Again(why) => (&counts.failed, Some(why)),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        match &failure {
            Some(why) if reached => log::error!("a finding could not be posted to {}: {why}", sender.place()),
            None if !reached => log::warn!("{} takes findings again", sender.place()),
            _ => {}
        }
        reached = failure.is_none();
    }
}

/// Posts a notification until it is taken or refused.
async fn deliver(sender: &Sender, body: &[u8], waiting: &mpsc::Receiver<Vec<u8>>) -> Sent {
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let sent = sender.post(body).await;
        // The agent is ending: no time to try again.
        if !matches!(sent, Sent::Again(_)) || waiting.is_closed() || begun.elapsed() + pause > GIVE_UP {
            return sent;
        }
        let end = tokio::time::Instant::now() + pause;
        while tokio::time::Instant::now() < end && !waiting.is_closed() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests;
