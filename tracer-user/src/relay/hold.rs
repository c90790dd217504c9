//! Contexts that are about to say more: a call in the middle of a chain is sent before its own host has heard which
//! transaction it is of. Held for a moment, most of them go once instead of twice.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::key::Key;
use super::message::{Context, Message};

/// How long a context waits for its transaction. Some hops' worth of gathering, and well below what a match may take.
pub const HOLD: Duration = Duration::from_millis(5);
/// Most that are held; more go at once.
const LIMIT: usize = 4096;

/// Those held for one session.
#[derive(Debug, Default)]
pub struct Hold {
    held: FxHashMap<Key, (Instant, Context)>,
    order: VecDeque<(Instant, Key)>,
}

impl Hold {
    /// Takes from `messages` what is to wait, and adds what has waited long enough.
    pub fn pass(&mut self, now: Instant, messages: &mut Vec<Message>) {
        messages.retain(|message| {
            let Message::Context(context) = message else { return true };
            if context.settled {
                self.held.remove(&context.key);
                return true;
            }
            if let Some((_, known)) = self.held.get_mut(&context.key) {
                known.clone_from(context);
                return false;
            }
            if self.order.len() >= LIMIT {
                return true;
            }
            self.held.insert(context.key, (now, context.clone()));
            self.order.push_back((now, context.key));
            false
        });
        while let Some((since, key)) = self.order.front().copied()
            && now.saturating_duration_since(since) >= HOLD
        {
            self.order.pop_front();
            if self.held.get(&key).is_some_and(|(held, _)| *held == since)
                && let Some((_, context)) = self.held.remove(&key)
            {
                messages.push(Message::Context(context));
            }
        }
        if self.held.is_empty() {
            self.order.clear();
        }
    }

    /// When the next has waited long enough.
    pub fn due(&self) -> Option<Instant> {
        self.order.front().map(|(since, _)| *since + HOLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{TraceId, UnitId};

    fn context(seq: u32, trace: u128, settled: bool) -> Message {
        Message::Context(Context {
            key: Key { opener: 1, accepting: 2, seq },
            trace: TraceId(trace),
            parent: UnitId(u64::from(seq) + 1),
            settled,
            broadcast: false,
            sampled: None,
            service: "".into(),
            class: "".into(),
        })
    }

    #[test]
    fn what_is_about_to_say_more_goes_once() {
        let (mut hold, start) = (Hold::default(), Instant::now());
        let pass = |hold: &mut Hold, after: u64, mut messages: Vec<Message>| {
            hold.pass(start + Duration::from_millis(after), &mut messages);
            messages
        };
        let first = vec![context(1, 1, false), Message::Alive, context(2, 2, false), context(3, 3, true)];
        assert_eq!(pass(&mut hold, 0, first), [Message::Alive, context(3, 3, true)]);
        assert_eq!(hold.due(), Some(start + HOLD));
        assert_eq!(pass(&mut hold, 2, vec![context(1, 9, true)]), [context(1, 9, true)], "in the place of the first");
        assert_eq!(pass(&mut hold, 4, vec![context(2, 8, false)]), [], "another name, and still not for good");
        assert_eq!(pass(&mut hold, 8, vec![]), [context(2, 8, false)]);
        assert_eq!((hold.due(), pass(&mut hold, 99, vec![])), (None, vec![]));
        assert_eq!(pass(&mut hold, 100, vec![context(2, 8, true)]), [context(2, 8, true)]);
    }

    #[test]
    fn no_more_is_held_than_there_is_room_for() {
        let (mut hold, start) = (Hold::default(), Instant::now());
        let mut messages: Vec<Message> = (0..LIMIT as u32 + 5).map(|seq| context(seq, 1, false)).collect();
        hold.pass(start, &mut messages);
        assert_eq!((messages.len(), hold.held.len()), (5, LIMIT));
        let mut settled: Vec<Message> = (0..LIMIT as u32).map(|seq| context(seq, 1, true)).collect();
        hold.pass(start, &mut settled);
        assert_eq!((settled.len(), hold.due()), (LIMIT, None));
    }
}
