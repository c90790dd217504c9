//! Files that a thread of their own writes: a disk that stalls holds up nobody else. What waits for it is bounded.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::guard::fill::Fill;

/// Most bytes that wait to be written.
const WAITING_MAX: usize = 16 << 20;
/// How often a sink may look after itself.
const REST: Duration = Duration::from_secs(1);
/// How long somebody who has time waits before looking for room again.
const LOOK: Duration = Duration::from_millis(2);

/// Where pieces go.
pub trait Sink: Send + 'static {
    /// Writes a piece, whole or not at all.
    fn write(&mut self, piece: &[u8]) -> io::Result<()>;

    /// About once a second.
    fn rest(&mut self) {}
}

/// How what becomes of pieces is said.
#[derive(Clone, Debug)]
pub struct Words {
    /// What is written to: a path.
    pub place: String,
    /// What the pieces hold: "units".
    pub what: &'static str,
    /// What a failure means: "are not written until this passes".
    pub meaning: &'static str,
    /// Whether it passes.
    pub passes: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that wait, the piece being written among them.
    waiting: AtomicUsize,
    /// Of what pieces hold: written, refused by the system, without room to wait.
    written: AtomicU64,
    failed: AtomicU64,
    no_room: AtomicU64,
    /// The last piece was refused by the system.
    failing: AtomicBool,
    /// The last piece found no room.
    full: AtomicBool,
}

/// How much waits; outlives who writes.
#[derive(Clone, Debug)]
pub struct Waiting(Arc<State>);

impl Waiting {
    /// Bytes that wait.
    pub fn fill(&self) -> Fill {
        let State { waiting, no_room, .. } = &*self.0;
        Fill::new(waiting.load(Ordering::Relaxed), WAITING_MAX, no_room.load(Ordering::Relaxed))
    }
}

struct Piece {
    bytes: Vec<u8>,
    holds: u64,
}

/// Hands pieces to the thread that writes them.
#[derive(Debug)]
pub struct Behind {
    /// `None` once it is over.
    queue: Option<Sender<Piece>>,
    thread: Option<JoinHandle<()>>,
    state: Arc<State>,
    words: Words,
}

impl Behind {
    /// Starts the thread, with the priority of whoever calls. Fails where there can be none.
    pub fn start(sink: impl Sink, words: Words) -> io::Result<Self> {
        let (queue, pieces) = channel();
        let state = Arc::new(State::default());
        let (shared, said) = (Arc::clone(&state), words.clone());
        let thread = std::thread::Builder::new()
            .name("tracer-files".into())
            .spawn(move || work(sink, &pieces, &shared, &said))?;
        Ok(Self { queue: Some(queue), thread: Some(thread), state, words })
    }

    /// Hands a piece over, which holds so many things, and does not wait; what finds no room is counted. Gives whether there
    /// was room.
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

    /// The same for somebody who has the time to wait for room.
    pub fn write_in_time(&self, bytes: Vec<u8>, holds: u64) {
        // A piece larger than all the room goes alone.
        while self.state.waiting.load(Ordering::Acquire).saturating_add(bytes.len()) > WAITING_MAX.max(bytes.len()) {
            std::thread::sleep(LOOK);
        }
        self.hand(Piece { bytes, holds });
    }

    fn hand(&self, piece: Piece) {
        let (bytes, holds) = (piece.bytes.len(), piece.holds);
        self.state.waiting.fetch_add(bytes, Ordering::AcqRel);
        if self.queue.as_ref().is_none_or(|queue| queue.send(piece).is_err()) {
            self.state.waiting.fetch_sub(bytes, Ordering::AcqRel);
            self.state.failed.fetch_add(holds, Ordering::Relaxed);
        }
    }

    /// Whether the system refused the last piece.
    pub fn is_failing(&self) -> bool {
        self.state.failing.load(Ordering::Relaxed)
    }

    /// How many of what pieces hold were written.
    pub fn written(&self) -> u64 {
        self.state.written.load(Ordering::Relaxed)
    }

    /// How many were not: refused, or without room.
    pub fn dropped(&self) -> u64 {
        self.state.failed.load(Ordering::Relaxed) + self.state.no_room.load(Ordering::Relaxed)
    }

    /// How much waits.
    pub fn waiting(&self) -> Waiting {
        Waiting(Arc::clone(&self.state))
    }

    /// Waits until everything is written; nothing more is taken.
    pub fn finish(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // It has no way to panic; had it one, what it left would be counted as it stands.
            let _ = thread.join();
        }
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.finish();
    }
}

fn work(mut sink: impl Sink, pieces: &Receiver<Piece>, state: &State, words: &Words) {
    let mut rested = Instant::now();
    loop {
        match pieces.recv_timeout(REST) {
            Ok(Piece { bytes, holds }) => {
                settle(sink.write(&bytes), holds, state, words);
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

/// Counts what became of a piece, and says when that changes.
fn settle(written: io::Result<()>, holds: u64, state: &State, words: &Words) {
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
            state.failed.fetch_add(holds, Ordering::Relaxed);
            if !state.failing.swap(true, Ordering::Relaxed) {
                log::error!("{place}: {error}: {what} {meaning}, tracing goes on");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{SyncSender, sync_channel};

    /// A disk that writes a piece whenever it is let, with what comes of it.
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
    fn a_disk_that_stalls_holds_up_nobody_and_costs_what_has_no_room() {
        let (mut behind, word, written) = disk();
        let piece = vec![7; WAITING_MAX / 4];
        // The disk says nothing all the while.
        let taken: Vec<bool> = (0..6).map(|_| behind.write(piece.clone(), 10)).collect();
        assert_eq!(taken, [true, true, true, true, false, false]);
        assert_eq!((behind.written(), behind.dropped()), (0, 20));
        assert_eq!(behind.waiting().fill(), Fill::new(WAITING_MAX, WAITING_MAX, 20));
        for _ in 0..4 {
            word.send(Ok(())).expect("it writes");
            assert_eq!(written.recv().expect("a piece").len(), piece.len());
        }
        while behind.waiting().fill().entries > 0 {
            std::thread::yield_now();
        }
        assert!(behind.write(b"last".to_vec(), 1));
        word.send(Ok(())).expect("it writes");
        behind.finish();
        assert_eq!((behind.written(), behind.dropped(), written.recv()), (41, 20, Ok(b"last".to_vec())));
        assert!(behind.write(b"late".to_vec(), 5), "there was room");
        assert_eq!((behind.dropped(), behind.waiting().fill().entries), (25, 0), "and nobody to write it");
    }

    #[test]
    fn what_the_system_refuses_is_counted_and_ends_by_itself() {
        let (mut behind, word, written) = disk();
        for (result, failing, dropped) in [(Err(io::Error::other("full")), true, 3), (Ok(()), false, 3)] {
            behind.write(vec![1], 3);
            word.send(result).expect("it writes");
            while behind.waiting().fill().entries > 0 {
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
