//! Messages that wait to be sent: each batch costs both agents a wake-up and a packet, so messages of some milliseconds
//! go together and wake the relay's thread once.
//!
//! Unsettled contexts wait a little longer: a call in the middle of a chain is sent before its own host knows which
//! transaction it belongs to. So most of those contexts go once instead of twice.

use std::collections::VecDeque;
use std::net::IpAddr;

use rustc_hash::FxHashMap;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_model::Nanos;

use super::Outgoing;
use super::key::RequestKey;
use super::message::Context;

/// Shortest time between two batches of contexts, nanoseconds: two iterations of the agent's loop under load. With the
/// iteration that finds the call, the one at the other end and the network, it is well below what a match may take (20
/// ms).
const CONTEXTS: Nanos = 7_000_000;
/// The same for summaries, which only have to arrive before their call is reported.
const SUMMARIES: Nanos = 28_000_000;
/// How long a context waits for its transaction, nanoseconds: until the next iteration of the loop.
const HOLD: Nanos = 3_000_000;
/// Most messages queued.
const LIMIT: usize = 65_536;

/// The queued messages.
#[derive(Debug, Default)]
pub struct Outbox {
    contexts: Vec<Outgoing>,
    summaries: Vec<Outgoing>,
    held: FxHashMap<RequestKey, (Nanos, IpAddr, Context)>,
    /// When each held context was first held.
    order: VecDeque<(Nanos, RequestKey)>,
    /// When the last batch of contexts and of summaries went.
    last: (Nanos, Nanos),
    /// Messages dropped because the queue was full.
    pub dropped: u64,
}

impl Outbox {
    /// Queues a message at `now`.
    pub fn put(&mut self, now: Nanos, outgoing: Outgoing) {
        if self.contexts.len() + self.summaries.len() + self.order.len() >= LIMIT {
            self.dropped += 1;
            return;
        }
        match outgoing {
            Outgoing::Summary { .. } => self.summaries.push(outgoing),
            Outgoing::Context { ref context, .. } if context.settled => {
                self.held.remove(&context.key);
                self.contexts.push(outgoing);
            }
            Outgoing::Context { remote, context } => {
                let key = context.key;
                let mut since = now;
                if let Some((first, ..)) = self.held.get(&key) {
                    since = *first;
                } else {
                    self.order.push_back((now, key));
                }
                self.held.insert(key, (since, remote, context));
            }
        }
    }

    /// When the next batch may go; `None` if the queue is empty.
    pub fn due(&self) -> Option<Nanos> {
        let ready = (!self.contexts.is_empty()).then_some(0);
        let held = self.order.front().map(|(since, _)| since + HOLD);
        let contexts = ready.or(held).map(|due| due.max(self.last.0 + CONTEXTS));
        let summaries = (!self.summaries.is_empty()).then_some(self.last.1 + SUMMARIES);
        contexts.into_iter().chain(summaries).min()
    }

    /// Takes the batch to send at `now`.
    pub fn take(&mut self, now: Nanos) -> Vec<Outgoing> {
        let mut batch = Vec::new();
        if now >= self.last.0 + CONTEXTS {
            batch.append(&mut self.contexts);
            while let Some((since, key)) = self.order.front().copied()
                && since + HOLD <= now
            {
                self.order.pop_front();
                if self.held.get(&key).is_some_and(|(held, ..)| *held == since)
                    && let Some((_, remote, context)) = self.held.remove(&key)
                {
                    batch.push(Outgoing::Context { remote, context });
                }
            }
            if !batch.is_empty() {
                self.last.0 = now;
            }
        }
        if now >= self.last.1 + SUMMARIES && !self.summaries.is_empty() {
            batch.append(&mut self.summaries);
            self.last.1 = now;
        }
        batch
    }

    /// Frees memory of tables that are mostly empty.
    pub fn shrink_excess(&mut self) {
        self.contexts.shrink_excess();
        self.summaries.shrink_excess();
        self.held.shrink_excess();
        self.order.shrink_excess();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Summary;
    use tracer_model::{SpanId, TraceId};

    const MS: Nanos = 1_000_000;

    fn context(seq: u32, trace: u128, settled: bool) -> Outgoing {
        let context = Context {
            key: RequestKey { opener: 1, accepting: 2, seq },
            trace: TraceId(trace),
            parent: SpanId(u64::from(seq) + 1),
            settled,
            broadcast: false,
            trace_flags: None,
            service: "".into(),
            class: "".into(),
            carried: None,
            root: crate::message::ContextRoot::Unknown,
        };
        Outgoing::Context { remote: IpAddr::from([10, 0, 0, 1]), context }
    }

    fn summary() -> Outgoing {
        let key = RequestKey { opener: 1, accepting: 2, seq: 3 };
        let (duration, queue, cpu, start, status, error) = (1, 0, 0, 0, 200, false);
        Outgoing::Summary {
            to: 1,
            summary: Summary { key, span: SpanId(1), duration, queue, cpu, start, status, error },
        }
    }

    /// Messages queued at `at` (milliseconds), and the batch sent then.
    fn turn(outbox: &mut Outbox, at: Nanos, messages: Vec<Outgoing>) -> Vec<Outgoing> {
        for message in messages {
            outbox.put(at * MS, message);
        }
        outbox.take(at * MS)
    }

    #[test]
    fn the_first_goes_at_once_and_what_follows_goes_together() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.due(), None);
        assert_eq!(turn(&mut outbox, 100, vec![context(1, 1, true), summary()]).len(), 2);
        assert_eq!(turn(&mut outbox, 104, vec![context(2, 2, true)]), []);
        assert_eq!(outbox.due(), Some(107 * MS));
        assert_eq!(turn(&mut outbox, 108, vec![context(3, 3, true), summary()]).len(), 2, "no summary yet");
        assert_eq!(outbox.due(), Some(128 * MS));
        assert_eq!(turn(&mut outbox, 129, vec![]), [summary()]);
        assert_eq!(outbox.due(), None);
    }

    #[test]
    fn what_is_about_to_say_more_goes_once() {
        let mut outbox = Outbox::default();
        let first = vec![context(1, 1, false), context(2, 2, false), context(3, 3, true)];
        assert_eq!(turn(&mut outbox, 100, first), [context(3, 3, true)]);
        assert_eq!(outbox.due(), Some(107 * MS), "both wait");
        assert_eq!(turn(&mut outbox, 104, vec![context(1, 9, true), context(2, 8, false)]), []);
        let second = [context(1, 9, true), context(2, 8, false)];
        assert_eq!(turn(&mut outbox, 108, vec![]), second, "in the place of the first; another name");
        assert_eq!((outbox.due(), turn(&mut outbox, 199, vec![])), (None, vec![]));
        assert_eq!(turn(&mut outbox, 200, vec![context(2, 8, true)]), [context(2, 8, true)]);
        assert!(outbox.held.is_empty() && outbox.order.is_empty());
    }

    #[test]
    fn no_more_waits_than_there_is_room_for() {
        let mut outbox = Outbox::default();
        let many = (0..LIMIT as u32 + 5).map(|seq| context(seq, 1, seq % 2 == 0)).collect();
        assert_eq!(turn(&mut outbox, 1, many), []);
        assert_eq!((outbox.dropped, outbox.contexts.len() + outbox.order.len()), (5, LIMIT));
        assert_eq!(turn(&mut outbox, 50, vec![]).len(), LIMIT);
        assert_eq!((outbox.due(), outbox.dropped), (None, 5));
    }
}
