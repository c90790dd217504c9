//! Writes files in a background thread with a bounded queue, so that a stalled disk holds up nothing else.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tracer_host::guard::tables::TableUse;

/// Most bytes queued.
const WAITING_MAX: usize = 16 << 20;
/// How often [`Sink::rest`] is called.
const REST: Duration = Duration::from_secs(1);
/// How long a caller that can wait sleeps before checking for room again.
const LOOK: Duration = Duration::from_millis(2);
/// How long after the deadline the thread has to end by itself: it looks between two fragments.
const GRACE: Duration = Duration::from_millis(100);

/// Writes pieces to their destination.
pub trait Sink: Send + 'static {
    /// Writes a whole piece or nothing.
    fn write(&mut self, piece: &[u8]) -> io::Result<()>;

    /// Called about once a second, for housekeeping.
    fn rest(&mut self) {}

    /// Called once before anything is written: a sink that waits must not wait beyond this.
    fn until(&mut self, deadline: Deadline) {
        let _ = deadline;
    }
}

impl Sink for Box<dyn Sink> {
    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        (**self).write(piece)
    }

    fn rest(&mut self) {
        (**self).rest();
    }

    fn until(&mut self, deadline: Deadline) {
        (**self).until(deadline);
    }
}

/// When writing has to be over. Without one it takes as long as it takes.
#[derive(Clone, Debug, Default)]
pub struct Deadline(Arc<OnceLock<Instant>>);

impl Deadline {
    /// Sets it; the first one stays.
    fn set(&self, at: Instant) {
        let _ = self.0.set(at);
    }

    fn at(&self) -> Option<Instant> {
        self.0.get().copied()
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> bool {
        self.at().is_some_and(|at| at <= Instant::now())
    }
}

/// Texts for log messages about a destination.
#[derive(Clone, Debug)]
pub struct Words {
    /// The destination: a path.
    pub place: String,
    /// What the pieces contain: "spans".
    pub what: &'static str,
    /// The consequence of a failure: "are not written until this passes".
    pub meaning: &'static str,
    /// Whether a failure is temporary.
    pub passes: bool,
}

#[derive(Debug, Default)]
struct WriterState {
    /// Bytes queued, including the piece being written.
    waiting: AtomicUsize,
    /// Items in pieces by outcome: written, failed, dropped because the queue was full.
    written: AtomicU64,
    failed: AtomicU64,
    no_room: AtomicU64,
    /// The last piece could not be written.
    failing: AtomicBool,
    /// The last piece did not fit into the queue.
    full: AtomicBool,
    /// Of what fragments hold: not yet written.
    held: AtomicU64,
    deadline: Deadline,
}

impl WriterState {
    /// A piece that holds so many things is dealt with; `false` where it was counted as not written before.
    fn take(&self, holds: u64) -> bool {
        let take = |held: u64| held.checked_sub(holds);
        self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }
}

/// A gauge of the queue; outlives the writer.
#[derive(Clone, Debug)]
pub struct Waiting(Arc<WriterState>);

impl Waiting {
    /// Table use of the queue, bytes.
    pub fn table_use(&self) -> TableUse {
        let WriterState { waiting, no_room, .. } = &*self.0;
        TableUse::new(waiting.load(Ordering::Relaxed), WAITING_MAX, no_room.load(Ordering::Relaxed))
    }

    /// The agent ends: what is not written at `deadline` is counted as not written.
    pub fn end_by(&self, deadline: Instant) {
        self.0.deadline.set(deadline);
    }
}

struct Piece {
    bytes: Vec<u8>,
    holds: u64,
}

/// Queues pieces for the background thread.
#[derive(Debug)]
pub struct Behind {
    /// `None` once it is finished.
    queue: Option<Sender<Piece>>,
    /// Closed when the thread has ended.
    ended: Option<Receiver<()>>,
    state: Arc<WriterState>,
    words: Words,
}

impl Behind {
    /// Starts the thread, with the caller's priority. Fails if the system cannot create one.
    pub fn start(sink: impl Sink, words: Words) -> io::Result<Self> {
        let (queue, fragments) = channel();
        let (ends, ended) = channel();
        let state = Arc::new(WriterState::default());
        let (shared, reported) = (Arc::clone(&state), words.clone());
        std::thread::Builder::new().name("tracer-files".into()).spawn(move || {
            work(sink, &fragments, &shared, &reported);
            drop::<Sender<()>>(ends);
        })?;
        Ok(Self { queue: Some(queue), ended: Some(ended), state, words })
    }

    /// Queues a piece with `holds` items and does not wait; if the queue is full, drops the piece and counts its items.
    /// Returns whether there was room.
    pub fn write(&self, bytes: Vec<u8>, holds: u64) -> bool {
        if self.state.waiting.load(Ordering::Acquire) + bytes.len() > WAITING_MAX {
            self.state.no_room.fetch_add(holds, Ordering::Relaxed);
            if !self.state.full.swap(true, Ordering::Relaxed) {
                let Words { place, what, meaning, .. } = &self.words;
                let room = WAITING_MAX >> 20;
                log::error!("{place}: the disk is too slow, {room} MiB wait: {what} {meaning}, tracing goes on");
            }
            return false;
        }
        self.hand(Piece { bytes, holds });
        true
    }

    /// The same for somebody who has the time to wait for room, until the deadline if there is one.
    pub fn write_in_time(&self, bytes: Vec<u8>, holds: u64) {
        // A piece larger than the whole queue goes alone.
        while self.state.waiting.load(Ordering::Acquire).saturating_add(bytes.len()) > WAITING_MAX.max(bytes.len()) {
            if self.state.deadline.has_passed() {
                self.state.no_room.fetch_add(holds, Ordering::Relaxed);
                return;
            }
            std::thread::sleep(LOOK);
        }
        self.hand(Piece { bytes, holds });
    }

    fn hand(&self, piece: Piece) {
        let (bytes, holds) = (piece.bytes.len(), piece.holds);
        self.state.waiting.fetch_add(bytes, Ordering::AcqRel);
        self.state.held.fetch_add(holds, Ordering::AcqRel);
        if self.queue.as_ref().is_none_or(|queue| queue.send(piece).is_err()) {
            self.state.waiting.fetch_sub(bytes, Ordering::AcqRel);
            self.state.held.fetch_sub(holds, Ordering::AcqRel);
            self.state.failed.fetch_add(holds, Ordering::Relaxed);
        }
    }

    /// Whether the last write failed.
    pub fn is_failing(&self) -> bool {
        self.state.failing.load(Ordering::Relaxed)
    }

    /// Number of items written.
    pub fn written(&self) -> u64 {
        self.state.written.load(Ordering::Relaxed)
    }

    /// Number of items dropped: writes that failed, or a full queue.
    pub fn dropped(&self) -> u64 {
        self.state.failed.load(Ordering::Acquire) + self.state.no_room.load(Ordering::Relaxed)
    }

    /// A gauge of the queue.
    pub fn waiting(&self) -> Waiting {
        Waiting(Arc::clone(&self.state))
    }

    /// Waits until everything is written, until the deadline if there is one; nothing more is taken. What is not written by
    /// then is counted and reported.
    pub fn finish(&mut self) {
        self.queue = None;
        let Some(ended) = self.ended.take() else { return };
        let before = self.dropped();
        let is_over = match self.state.deadline.at() {
            // It has no way to panic; had it one, what it left would be counted as it stands.
            None => ended.recv().is_err(),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now()) + GRACE;
                ended.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
            }
        };
        if !is_over {
            // The thread is stuck in the disk and is left behind.
            self.state.failed.fetch_add(self.state.held.swap(0, Ordering::AcqRel), Ordering::Relaxed);
        }
        let lost = self.dropped() - before;
        if lost > 0 {
            let Words { place, what, .. } = &self.words;
            log::error!("{place}: the disk or the reader was too slow: {lost} {what} were not written before the end");
        }
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.finish();
    }
}

fn work(mut sink: impl Sink, fragments: &Receiver<Piece>, state: &WriterState, words: &Words) {
    let mut rested = Instant::now();
    sink.until(state.deadline.clone());
    loop {
        match fragments.recv_timeout(REST) {
            Ok(Piece { bytes, holds }) if state.deadline.has_passed() => {
                // Counted where the end waits for this thread.
                if state.take(holds) {
                    state.failed.fetch_add(holds, Ordering::Relaxed);
                }
                state.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
            }
            Ok(Piece { bytes, holds }) => {
                let written = sink.write(&bytes);
                if !state.take(holds) {
                    // The agent has ended and counted the piece.
                    return;
                }
                settle(written, holds, state, words);
                state.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if rested.elapsed() >= REST {
            rested = Instant::now();
            sink.rest();
        }
    }
}

/// Counts a piece's outcome, and logs when it changes.
fn settle(written: io::Result<()>, holds: u64, state: &WriterState, words: &Words) {
    let Words { place, what, meaning, passes } = words;
    match written {
        Ok(()) => {
            state.written.fetch_add(holds, Ordering::Relaxed);
            let failing = state.failing.swap(false, Ordering::Relaxed);
            if *passes && (state.full.swap(false, Ordering::Relaxed) || failing) {
                let not = state.failed.load(Ordering::Relaxed) + state.no_room.load(Ordering::Relaxed);
                log::warn!("{place}: {what} are written again; {not} were not");
            }
        }
        Err(error) => {
            // Before the count: a caller that sees the loss also sees that writing fails.
            let failing = state.failing.swap(true, Ordering::Relaxed);
            state.failed.fetch_add(holds, Ordering::Release);
            if !failing {
                log::error!("{place}: {error}: {what} {meaning}, tracing goes on");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{SyncSender, sync_channel};

    /// A disk that writes a piece whenever the test lets it, with the given result.
    struct Disk {
        let_through: Receiver<io::Result<()>>,
        written: Sender<Vec<u8>>,
    }

    impl Sink for Disk {
        fn write(&mut self, piece: &[u8]) -> io::Result<()> {
            self.let_through.recv().expect("a word")?;
            self.written.send(piece.to_vec()).expect("a reader");
            Ok(())
        }
    }

    fn disk() -> (Behind, SyncSender<io::Result<()>>, Receiver<Vec<u8>>) {
        let (word, let_through) = sync_channel(0);
        let (sender, written) = channel();
        let words = Words { place: "disk".into(), what: "things", meaning: "are gone", passes: true };
        let behind = Behind::start(Disk { let_through, written: sender }, words).expect("a thread");
        (behind, word, written)
    }

    #[test]
    fn a_stalled_disk_blocks_no_thread_and_costs_what_does_not_fit() {
        let (mut behind, word, written) = disk();
        let piece = vec![7; WAITING_MAX / 4];
        // The disk does not answer meanwhile.
        let taken: Vec<bool> = (0..6).map(|_| behind.write(piece.clone(), 10)).collect();
        assert_eq!(taken, [true, true, true, true, false, false]);
        assert_eq!((behind.written(), behind.dropped()), (0, 20));
        assert_eq!(behind.waiting().table_use(), TableUse::new(WAITING_MAX, WAITING_MAX, 20));
        for _ in 0..4 {
            word.send(Ok(())).expect("it writes");
            assert_eq!(written.recv().expect("a piece").len(), piece.len());
        }
        while behind.waiting().table_use().entries > 0 {
            std::thread::yield_now();
        }
        assert!(behind.write(b"last".to_vec(), 1));
        word.send(Ok(())).expect("it writes");
        behind.finish();
        assert_eq!((behind.written(), behind.dropped(), written.recv()), (41, 20, Ok(b"last".to_vec())));
        assert!(behind.write(b"late".to_vec(), 5), "there was room");
        assert_eq!((behind.dropped(), behind.waiting().table_use().entries), (25, 0), "no writer is left");
    }

    #[test]
    fn a_disk_that_stalls_does_not_hold_up_the_end() {
        let (mut behind, word, _written) = disk();
        assert!(behind.write(vec![1], 5) && behind.write(vec![2], 7));
        behind.waiting().end_by(Instant::now());
        let begin = Instant::now();
        behind.write_in_time(vec![0; WAITING_MAX], 2);
        behind.finish();
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        assert_eq!((behind.written(), behind.dropped()), (0, 14));
        // It moves after all: nothing is counted twice.
        let _ = word.send(Ok(()));
        assert_eq!((behind.written(), behind.dropped()), (0, 14));
    }

    #[test]
    fn what_the_system_refuses_is_counted_and_ends_by_itself() {
        let (mut behind, word, written) = disk();
        for (result, failing, dropped) in [(Err(io::Error::other("full")), true, 3), (Ok(()), false, 3)] {
            behind.write(vec![1], 3);
            word.send(result).expect("it writes");
            while behind.waiting().table_use().entries > 0 {
                std::thread::yield_now();
            }
            assert_eq!((behind.is_failing(), behind.dropped()), (failing, dropped));
        }
        behind.finish();
        assert_eq!((behind.written(), written.iter().count()), (3, 1));
    }

    #[test]
    fn who_has_time_loses_nothing() {
        let (mut behind, word, written) = disk();
        let slow = std::thread::spawn(move || while word.send(Ok(())).is_ok() {});
        for _ in 0..12 {
            behind.write_in_time(vec![0; WAITING_MAX / 3], 1);
        }
        behind.write_in_time(vec![0; WAITING_MAX + 1], 1);
        behind.finish();
        assert_eq!((behind.written(), behind.dropped(), written.iter().count()), (13, 0, 13));
        slow.join().expect("the disk is gone");
    }
}
