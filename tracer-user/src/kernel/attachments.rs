//! What keeps programs attached: links and clock events, where any thread can let go of them.
//!
//! They are not the pipeline's: a watchdog must be able to detach while the pipeline's thread is stuck. The end of the
//! process detaches too, but only once its last thread is gone, and a thread that waits inside the kernel (a dead
//! network file system under a file it writes) can stay for ever.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use tracer_common::runtime::UserProbe;

/// How long detaching waits for a thread that changes the sampling rate.
const PATIENCE: Duration = Duration::from_secs(1);

/// A probe in a process, and its link.
type User = (u32, UserProbe, Box<dyn Send>);

/// The links of every program, and the clock event of each CPU.
#[derive(Clone, Default)]
pub struct Attachments(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Dropping one detaches.
    links: Mutex<Vec<Box<dyn Send>>>,
    clocks: Mutex<Vec<(u32, OwnedFd)>>,
    /// In which process, which probe, and its link.
    users: Mutex<Vec<User>>,
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

    fn all_users(&self) -> MutexGuard<'_, Vec<User>> {
        self.0.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the link of a probe in the process `pid`.
    pub(super) fn user(&self, pid: u32, probe: UserProbe, link: impl Send + 'static) {
        self.all_users().push((pid, probe, Box::new(link)));
    }

    /// Whether the probe is attached in the process.
    pub(super) fn has_user(&self, pid: u32, probe: UserProbe) -> bool {
        self.all_users().iter().any(|(of, which, _)| (*of, *which) == (pid, probe))
    }

    /// Probes in processes.
    pub(super) fn users(&self) -> usize {
        self.all_users().len()
    }

    /// Takes out the links of the probes in a process; dropping them detaches.
    pub(super) fn take_user(&self, pid: u32) -> Vec<Box<dyn Send>> {
        self.all_users().extract_if(.., |(of, ..)| *of == pid).map(|(.., link)| link).collect()
    }

    /// Detaches everything, from any thread; whether all of it was.
    pub fn detach(&self) -> bool {
        let end = Instant::now() + PATIENCE;
        // All of them, whatever becomes of the first.
        let links = clear(&self.0.links, end);
        let clocks = clear(&self.0.clocks, end);
        clear(&self.0.users, end) && clocks && links
    }
}

fn clear<T>(all: &Mutex<Vec<T>>, end: Instant) -> bool {
    loop {
        match all.try_lock() {
            Ok(mut all) => all.clear(),
            Err(TryLockError::Poisoned(all)) => all.into_inner().clear(),
            Err(TryLockError::WouldBlock) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(TryLockError::WouldBlock) => return false,
        }
        return true;
    }
}

/// Detaches when dropped.
pub(super) struct Held(pub(super) Attachments);

impl Drop for Held {
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
        let held = Held(all.clone());
        let elsewhere = all.clone();
        assert!(std::thread::spawn(move || elsewhere.detach()).join().unwrap());
        // Closed: their other ends are at the end.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
        drop(held);
        // Somebody who never lets go of the clocks does not keep the links.
        let (mut reader, link) = UnixStream::pair().unwrap();
        all.link(link);
        let stuck = all.clocks();
        assert!(!all.detach());
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        drop(stuck);
    }
}
