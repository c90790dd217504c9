//! Who goes when there are more connections than places: whoever has waited longest for its client. A client that reads a
//! byte now and then, or sends a request byte by byte, is waited for as well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How long a connection may wait for its client when others want its place.
const PATIENCE: Duration = Duration::from_millis(250);
/// Bytes that have to be taken within that time to count as being read.
const STEP: usize = 16 * 1024;

/// What a connection does.
#[derive(Debug)]
pub(super) struct Progress(Mutex<SlotState>);

#[derive(Debug)]
struct SlotState {
    /// When it was accepted, its first request was complete or answered, or a [`STEP`] of that answer was read. Later requests
    /// do not count: one connection could ask without end, and never read.
    at: Instant,
    /// Requests so far.
    requests: u64,
    /// The first one is being answered: the connection waits for the agent and not for its client.
    is_busy: bool,
    /// Bytes written since `at`.
    written: usize,
}

impl SlotState {
    fn advance(&mut self) {
        (self.at, self.written) = (Instant::now(), 0);
    }
}

impl Progress {
    fn new(now: Instant) -> Self {
        Self(Mutex::new(SlotState { at: now, requests: 0, is_busy: false, written: 0 }))
    }

    fn with<T>(&self, change: impl FnOnce(&mut SlotState) -> T) -> T {
        // Whoever panicked left numbers.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A request is being answered, until what this gives is dropped.
    pub(super) fn begin(progress: &Arc<Self>) -> Busy {
        progress.with(|state| {
            state.requests += 1;
            if state.requests == 1 {
                state.advance();
                state.is_busy = true;
            }
        });
        Busy(Arc::clone(progress))
    }

    /// So many bytes found room in the socket.
    pub(super) fn wrote(&self, bytes: usize) {
        self.with(|state| {
            state.written += bytes;
            if state.written >= STEP && state.requests <= 1 {
                state.advance();
            }
        });
    }

    /// Since when it waits for its client, if it does.
    fn waits_since(&self) -> Option<Instant> {
        self.with(|state| (!state.is_busy).then_some(state.at))
    }
}

/// See [`Progress::begin`].
#[derive(Debug)]
pub(super) struct Busy(Arc<Progress>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.with(|state| {
            if state.requests == 1 {
                state.advance();
            }
            state.is_busy = false;
        });
    }
}

#[derive(Clone, Debug)]
struct Entry {
    progress: Arc<Progress>,
    go: Arc<Notify>,
}

/// Connections that are open.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<(u64, HashMap<u64, Entry>)>);

impl Slots {
    fn with<T>(&self, change: impl FnOnce(&mut u64, &mut HashMap<u64, Entry>) -> T) -> T {
        // Every change is one call.
        let (next, open) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(next, open)
    }

    /// A connection begins.
    pub(super) fn enter(self: &Arc<Self>) -> Slot {
        let entry = Entry { progress: Arc::new(Progress::new(Instant::now())), go: Arc::default() };
        let id = self.with(|next, open| {
            *next += 1;
            open.insert(*next, entry.clone());
            *next
        });
        Slot { slots: Arc::clone(self), id, entry }
    }

    /// Ends the connection that has waited longest for its client, if that is long enough; gives how long to wait before asking
    /// again.
    pub(super) fn make_room(&self, now: Instant) -> Duration {
        let oldest = self.with(|_, open| {
            let waiting = open.iter().filter_map(|(id, entry)| Some((entry.progress.waits_since()?, *id)));
            let (since, id) = waiting.min()?;
            let waited = now.saturating_duration_since(since);
            // It is not asked twice.
            let entry = if waited >= PATIENCE { open.remove(&id) } else { None };
            Some((waited, entry))
        });
        match oldest {
            Some((_, Some(entry))) => {
                entry.go.notify_one();
                PATIENCE
            }
            Some((waited, None)) => PATIENCE.saturating_sub(waited).max(Duration::from_millis(1)),
            None => PATIENCE / 8,
        }
    }
}

/// A connection's place among them.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    id: u64,
    entry: Entry,
}

impl Slot {
    /// Where it says what it does.
    pub(super) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.entry.progress)
    }

    /// Ends when it has to go.
    pub(super) async fn evicted(&self) {
        self.entry.go.notified().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.with(|_, open| open.remove(&self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_waited_longest_for_its_client_goes() {
        let slots = Arc::new(Slots::default());
        let (begin, all) = (Instant::now(), [(); 4].map(|()| slots.enter()));
        let late = begin + PATIENCE + Duration::from_secs(1);
        let has_to_go = |slot: &Slot| slots.with(|_, open| !open.contains_key(&slot.id));
        let gone = || all.iter().map(has_to_go).collect::<Vec<_>>();
        slots.make_room(begin);
        assert_eq!(gone(), [false; 4], "they have only just come");
        // The first one's request is being answered; the second one's answer is read.
        let busy = Progress::begin(&all[0].progress());
        all[1].progress().wrote(STEP);
        all[2].progress().wrote(STEP - 1);
        slots.make_room(late);
        assert_eq!(gone(), [false, false, true, false]);
        slots.make_room(late);
        assert_eq!(gone(), [false, false, true, true]);
        slots.make_room(late);
        assert_eq!(gone(), [false, true, true, true]);
        assert!(slots.make_room(late) < PATIENCE && gone() == [false, true, true, true]);
        drop(busy);
        slots.make_room(late);
        assert_eq!(gone(), [true; 4]);
        // Who asks without end gets no younger by it.
        let (greedy, later) = (slots.enter(), slots.enter());
        drop(Progress::begin(&greedy.progress()));
        later.progress().wrote(STEP);
        let again = Progress::begin(&greedy.progress());
        greedy.progress().wrote(10 * STEP);
        slots.make_room(late);
        assert!(has_to_go(&greedy) && !has_to_go(&later));
        drop((again, greedy, later));
        drop(all);
        assert!(slots.with(|_, open| open.is_empty()));
    }
}
