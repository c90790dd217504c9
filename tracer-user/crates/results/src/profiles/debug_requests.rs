//! Debug files that programs would need and that are not on this host: asked for by build id, and fetched by whoever takes the
//! requests. Neither side waits for the other.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Requests that may wait. What finds no room is asked for again when a process is looked at anew.
const WAITING: usize = 256;

/// Requests for debug files. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct DebugRequests(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: Mutex<VecDeque<Vec<u8>>>,
    refused: AtomicU64,
    /// Files that came so far.
    came: AtomicU64,
    /// Where they come to: a directory by build id.
    directory: PathBuf,
}

impl DebugRequests {
    /// Requests for files that will be in `directory`.
    pub fn into_directory(directory: PathBuf) -> Self {
        Self(Arc::new(Inner { directory, ..Inner::default() }))
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.0.directory.clone()
    }

    /// Asks for the debug file of a build id.
    pub(super) fn ask(&self, build_id: &[u8]) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.iter().any(|known| known == build_id) {
            return;
        }
        if waiting.len() >= WAITING {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
        } else {
            waiting.push_back(build_id.to_vec());
        }
    }

    /// The next build id, oldest first.
    pub fn next(&self) -> Option<Vec<u8>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Another file is there.
    pub fn came(&self) {
        self.0.came.fetch_add(1, Ordering::Release);
    }

    pub(super) fn files(&self) -> u64 {
        self.0.came.load(Ordering::Acquire)
    }

    /// Requests that found no room.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded_and_asked_once() {
        let requests = DebugRequests::default();
        for id in (0..300u32).chain(0..300) {
            requests.clone().ask(&id.to_ne_bytes());
        }
        assert_eq!(requests.refused(), 2 * (300 - WAITING as u64));
        assert_eq!(requests.next().as_deref(), Some(&[0; 4][..]));
        assert_eq!(std::iter::from_fn(|| requests.next()).count(), WAITING - 1);
        assert_eq!(requests.files(), 0);
        requests.came();
        assert_eq!(requests.files(), 1);
    }
}
