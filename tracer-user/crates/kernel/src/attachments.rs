//! Keeps programs attached: their links and clock events, which any thread can release.
//!
//! The pipeline does not own them: a watchdog must be able to detach while the pipeline's thread is stuck. The kernel
//! also detaches when the process ends, but only once its last thread is gone, and a thread blocked in the kernel (a
//! dead network file system under a file it writes) can stay for ever.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::sampler::ThreadClock;
use super::user_links;

/// How long detaching waits for a thread that is changing the sampling rate.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where a probe was attached: the process and its detection run.
pub type Visit = (u32, u64);

/// The link of a probe, and the visit it belongs to.
type User = (Visit, Box<dyn Send>);

/// The links of all programs, the clock event of each CPU and those of single threads.
#[derive(Clone, Default)]
pub struct Attachments(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Dropping one detaches.
    links: Mutex<Vec<Box<dyn Send>>>,
    clocks: Mutex<Vec<(u32, OwnedFd)>>,
    /// Clock events of single threads.
    thread_clocks: Mutex<Vec<(u32, ThreadClock)>>,
    users: Mutex<Vec<User>>,
    /// Everything was detached; later links are dropped at once.
    over: AtomicBool,
}

impl Attachments {
    /// Keeps a link.
    pub(super) fn link(&self, link: impl Send + 'static) {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(link));
    }

    /// Clock events by CPU.
    pub(super) fn clocks(&self) -> MutexGuard<'_, Vec<(u32, OwnedFd)>> {
        self.0.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_thread_clocks(&self) -> MutexGuard<'_, Vec<(u32, ThreadClock)>> {
        self.0.thread_clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the clock of a thread; drops it if everything was detached already.
    pub(super) fn thread_clock(&self, tid: u32, clock: ThreadClock) {
        let mut clocks = self.all_thread_clocks();
        clocks.push((tid, clock));
        // Check under the lock: `detach` sets the flag before it takes the lock.
        if self.0.over.load(Ordering::SeqCst) {
            clocks.clear();
        }
    }

    /// Takes out the clock of a thread; dropping it stops it.
    pub(super) fn take_thread_clock(&self, tid: u32) -> Vec<ThreadClock> {
        self.all_thread_clocks().extract_if(.., |(of, _)| *of == tid).map(|(_, clock)| clock).collect()
    }

    fn all_users(&self) -> MutexGuard<'_, Vec<User>> {
        self.0.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the link of a probe in a process; drops it if everything was detached already.
    pub(super) fn user(&self, visit: Visit, link: impl Send + 'static) {
        let mut users = self.all_users();
        users.push((visit, Box::new(link)));
        // Check under the lock: `detach` sets the flag before it takes the lock.
        if self.0.over.load(Ordering::SeqCst) {
            users.clear();
        }
    }

    /// Number of probes in processes.
    pub(super) fn users(&self) -> usize {
        self.all_users().len()
    }

    /// Takes out the links of the probes in a process, of one visit or of all; dropping them detaches.
    pub(super) fn take_user(&self, pid: u32, visit: Option<u64>) -> Vec<Box<dyn Send>> {
        let of = |(of, which): Visit| of == pid && visit.is_none_or(|visit| visit == which);
        self.all_users().extract_if(.., |(visit, _)| of(*visit)).map(|(_, link)| link).collect()
    }

    /// Detaches everything, from any thread; `false` if a lock stayed taken.
    pub fn detach(&self) -> bool {
        self.0.over.store(true, Ordering::SeqCst);
        let end = Instant::now() + PATIENCE;
        // Clear all of them, even if one fails.
        let links = clear(&self.0.links, end);
        let clocks = clear(&self.0.clocks, end);
        let threads = clear(&self.0.thread_clocks, end);
        let users = taken(&self.0.users, end);
        let all = users.is_some() && clocks && links && threads;
        user_links::detach(users.into_iter().flatten().map(|(_, link)| link).collect());
        all
    }
}

fn clear<T>(all: &Mutex<Vec<T>>, end: Instant) -> bool {
    taken(all, end).is_some()
}

/// Takes out all; `None` if the lock stays taken until `end`.
fn taken<T>(all: &Mutex<Vec<T>>, end: Instant) -> Option<Vec<T>> {
    loop {
        match all.try_lock() {
            Ok(mut all) => return Some(std::mem::take(&mut all)),
            Err(TryLockError::Poisoned(all)) => return Some(std::mem::take(&mut all.into_inner())),
            Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

/// Detaches when dropped.
pub(super) struct DetachOnDrop(pub(super) Attachments);

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        self.0.detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn any_thread_can_let_go_whoever_holds_them() {
        let (mut reader, link) = UnixStream::pair().unwrap();
        let (mut other, clock) = UnixStream::pair().unwrap();
        let all = Attachments::default();
        all.link(link);
        all.clocks().push((0, clock.into()));
        let held = DetachOnDrop(all.clone());
        let elsewhere = all.clone();
        assert!(std::thread::spawn(move || elsewhere.detach()).join().unwrap());
        // Closed: the other ends read end-of-file.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
        drop(held);
        // A thread that holds the lock on the clocks does not keep the links attached.
        let (mut reader, link) = UnixStream::pair().unwrap();
        all.link(link);
        let stuck = all.clocks();
        assert!(!all.detach());
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        drop(stuck);
    }
}
