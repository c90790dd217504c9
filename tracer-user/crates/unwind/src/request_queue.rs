//! Requests for unwind tables that have not been served, and which one is next: a program that is sampled much does not wait for one
//! that was seen once, and a table that takes long does not keep all others waiting.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tracer_common::unwind::{FileKey, TableRequest};

use super::large_table::LARGE;

/// What opening and reading any file costs, as bytes of a file: a smaller one is not served faster.
const LEAST_COST: u64 = 64 << 10;
/// Every so many tables, one is that of the oldest request: a file that few walks meet gets its table, too.
const OLDEST_EVERY: u64 = 8;
/// How often the walks that wait are counted anew.
const REFRESH: Duration = Duration::from_millis(20);
/// Most files that are kept open until their turn comes.
const OPEN_FILES: usize = 64;

/// A file that was opened for a request, if it was a regular one.
pub(super) type OpenResult = io::Result<Option<File>>;

/// A request that has not been served.
#[derive(Debug)]
struct Waiting {
    request: TableRequest,
    /// OpenResult when it was asked for: the process by which it is reached may end before its turn comes, as compilers do.
    file: Option<OpenResult>,
    /// Walks that ended for want of the table.
    walks: u32,
    /// Its number among all requests.
    number: u64,
}

impl Waiting {
    /// Walks that a byte of work makes whole. Tables in this order leave the fewest walks incomplete altogether.
    fn urgency(&self) -> f64 {
        f64::from(self.walks.max(1)) / self.request.key.size.max(LEAST_COST) as f64
    }
}

/// All requests. The kernel side asks for a file while it has an entry for it, so there are as many as it knows files, at most.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    waiting: FxHashMap<FileKey, Waiting>,
    /// Requests so far, and those that were served.
    pushed: u64,
    popped: u64,
    open: usize,
    refreshed: Option<Instant>,
}

impl RequestQueue {
    /// Adds a request, and opens its file by `open` where there is room for that. One for the same file has its place: another
    /// walk waits for it.
    pub(super) fn push(&mut self, request: TableRequest, open: impl FnOnce(&TableRequest) -> OpenResult) {
        if let Some(waiting) = self.waiting.get_mut(&request.key) {
            // The process of an earlier request may be gone.
            waiting.request = request;
            waiting.walks = waiting.walks.saturating_add(1);
            return;
        }
        let file = (self.open < OPEN_FILES).then(|| open(&request));
        self.open += usize::from(file.is_some());
        self.waiting.insert(request.key, Waiting { request, file, walks: 1, number: self.pushed });
        self.pushed += 1;
    }

    /// Files that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes over how many walks wait for each table, as `walks` has it.
    pub(super) fn refresh(&mut self, now: Instant, walks: impl Fn(FileKey) -> u32) {
        if self.waiting.len() < 2 || self.refreshed.is_some_and(|at| now.saturating_duration_since(at) < REFRESH) {
            return;
        }
        self.refreshed = Some(now);
        for (key, waiting) in &mut self.waiting {
            waiting.walks = waiting.walks.max(walks(*key));
        }
    }

    /// The request that is served next, and its file, if that was opened. `large`: also that of a large file.
    pub(super) fn pop(&mut self, large: bool) -> Option<(TableRequest, Option<OpenResult>)> {
        let all = self.waiting.iter().filter(|(key, _)| large || key.size < LARGE);
        let (key, _) = if self.popped % OLDEST_EVERY == OLDEST_EVERY - 1 {
            all.min_by_key(|(_, waiting)| waiting.number)?
        } else {
            all.max_by(|(_, a), (_, b)| a.urgency().total_cmp(&b.urgency()).then(b.number.cmp(&a.number)))?
        };
        let key = *key;
        self.popped += 1;
        let waiting = self.waiting.remove(&key)?;
        self.open -= usize::from(waiting.file.is_some());
        Some((waiting.request, waiting.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn request(inode: u64, size: u64) -> TableRequest {
        let key = FileKey { inode, size, ..FileKey::default() };
        TableRequest { key, start: 0, end: 0, tgid: 1, reserved: 0 }
    }

    fn push(queue: &mut RequestQueue, request: TableRequest) {
        queue.push(request, |_| Ok(None));
    }

    fn pop(queue: &mut RequestQueue) -> Option<TableRequest> {
        queue.pop(true).map(|(request, _)| request)
    }

    /// The order in which `requests` (inode, size, walks) are served.
    fn order(requests: &[(u64, u64, u32)]) -> Vec<u64> {
        let mut queue = RequestQueue::default();
        for (inode, size, _) in requests {
            push(&mut queue, request(*inode, *size));
        }
        let walks =
            |key: FileKey| requests.iter().find(|(inode, ..)| *inode == key.inode).map_or(0, |(.., walks)| *walks);
        queue.refresh(Instant::now(), walks);
        std::iter::from_fn(|| pop(&mut queue)).map(|request| request.key.inode).collect()
    }

    #[test]
    fn the_table_that_most_walks_wait_for_comes_first() {
        // A server beside programs of the same size that were seen once; a compiler's library that takes a hundred times the work
        // is not worth it before, although it is sampled ten times as much.
        let requests = [(1, 2 * MIB, 1), (2, 2 * MIB, 1), (3, 200 * MIB, 400), (4, 2 * MIB, 40), (5, MIB, 1)];
        assert_eq!(order(&requests), [4, 3, 5, 1, 2]);
    }

    #[test]
    fn without_samples_the_smallest_comes_first() {
        assert_eq!(order(&[(1, 200 * MIB, 0), (2, 2 * MIB, 0), (3, 30 * MIB, 0)]), [2, 3, 1]);
        assert_eq!(order(&[(1, 10, 0), (2, 4096, 0), (3, 0, 0)]), [1, 2, 3], "equal work: in the order of requests");
    }

    #[test]
    fn a_file_that_few_walks_meet_gets_its_table_too() {
        let mut queue = RequestQueue::default();
        push(&mut queue, request(1, 200 * MIB));
        let mut served = 0;
        // Whoever makes new programs all the time does not keep it waiting for ever.
        for inode in 2.. {
            push(&mut queue, request(inode, MIB));
            push(&mut queue, request(inode + 1_000_000, MIB));
            served += 1;
            if pop(&mut queue).expect("there are some").key.inode == 1 {
                break;
            }
            assert!(served < 100);
        }
        assert_eq!(served, OLDEST_EVERY);
    }

    #[test]
    fn a_file_has_one_place_and_the_latest_process() {
        let mut queue = RequestQueue::default();
        push(&mut queue, request(1, MIB));
        push(&mut queue, request(2, MIB));
        push(&mut queue, TableRequest { tgid: 7, ..request(2, MIB) });
        assert_eq!(pop(&mut queue).map(|request| request.tgid), Some(7), "two walks wait");
        assert_eq!(pop(&mut queue).map(|request| request.key.inode), Some(1));
        assert_eq!(pop(&mut queue), None);
    }

    #[test]
    fn counts_are_read_again_after_a_while_only() {
        let mut queue = RequestQueue::default();
        push(&mut queue, request(1, MIB));
        push(&mut queue, request(2, MIB));
        let (begin, reads) = (Instant::now(), std::cell::Cell::new(0));
        let mut refresh = |after: Duration| {
            queue.refresh(begin + after, |_| {
                reads.set(reads.get() + 1);
                0
            });
            reads.get()
        };
        assert_eq!([refresh(Duration::ZERO), refresh(REFRESH / 2), refresh(REFRESH)], [2, 2, 4]);
    }
    #[test]
    fn a_large_file_waits_for_the_one_that_is_being_read() {
        let mut queue = RequestQueue::default();
        push(&mut queue, request(1, LARGE));
        push(&mut queue, request(2, LARGE - 1));
        assert_eq!(queue.pop(false).map(|(request, _)| request.key.inode), Some(2));
        assert!(queue.pop(false).is_none());
        assert_eq!(pop(&mut queue).map(|request| request.key.inode), Some(1));
    }

    #[test]
    fn only_so_many_files_are_open_at_once() {
        let mut queue = RequestQueue::default();
        let all = OPEN_FILES as u64 + 10;
        for inode in 0..all {
            push(&mut queue, request(inode, 1));
        }
        let opened = std::iter::from_fn(|| queue.pop(true)).filter(|(_, file)| file.is_some()).count();
        assert_eq!((opened, queue.open), (OPEN_FILES, 0));
    }
}
