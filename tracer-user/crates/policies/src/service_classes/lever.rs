//! The lever: the one owner of every changed priority. Orders come through a bounded queue and are carried out on a
//! thread of its own, so nothing here can hold the pipeline up.
//!
//! What it guarantees:
//! - A change is written to the state file before it is made ([`super::journal`]).
//! - A thread is known by its id *and* its start time: an id that was reused is never touched.
//! - A thread's own value is read when it is first changed, and restored. When somebody else has set another value in
//!   the meantime, the lever gives the thread up and does not touch it again.
//! - Threads that inherited a changed value from the thread that made them get its own value.
//! - [`Lever::restore_all`] works from any thread: at the end, in a panic, from the watchdog. The lever does it by
//!   itself when it hears nothing of the pipeline for [`SILENCE`], and when it ends for any reason.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::decision::{Order, THREADS_MAX};
use super::journal::{self, ChangedThread, Journal, Lock, SavedThreads};
use super::thread_priority::{self as thread, ThreadStat};

/// Batches of orders that may wait.
const QUEUE: usize = 64;
/// How long the lever waits for a word of the pipeline before it restores everything.
pub const SILENCE: Duration = Duration::from_secs(2);
/// Between two looks whether the pipeline is silent, and whether changed threads handed their value on unseen.
const LOOK: Duration = Duration::from_millis(250);
const SWEEP: Duration = Duration::from_secs(10);
/// Most threads that are left alone because somebody else sets their priority.
const DISOWNED_MAX: usize = 4096;
/// Most processes whose threads may have inherited a value.
const PROCESSES_MAX: usize = 1024;
/// How long [`Lever::restore_all`] waits for the lever's thread.
const PATIENCE: Duration = Duration::from_millis(500);

/// Why an order was not carried out, or a change ended in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The thread had ended.
    Ended,
    /// Its policy (real time, idle) has no nice value.
    Policy,
    /// Somebody else set its priority while it was changed.
    ChangedByOthers,
    /// The system refused.
    Permission,
    /// Too many threads, or too many orders waited.
    Limit,
    /// The state file could not be written: a change could not be undone after a kill.
    StateFile,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 6] =
        [Self::Ended, Self::Policy, Self::ChangedByOthers, Self::Permission, Self::Limit, Self::StateFile];

    /// Label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Policy => "policy",
            Self::ChangedByOthers => "changed_by_others",
            Self::Permission => "permission",
            Self::Limit => "limit",
            Self::StateFile => "state_file",
        }
    }
}

/// Counts of one service class since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// Changes made.
    pub applied: u64,
    /// Changes that a dry run would have made.
    pub would_apply: u64,
    /// Threads that got their own value back.
    pub restored: u64,
    /// Orders not carried out, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

/// Counts of one service class. Atomic: restoring in a panic must not wait for whoever reads them.
#[derive(Debug, Default)]
struct Count {
    applied: AtomicU64,
    restored: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
}

/// Counts by service class.
#[derive(Debug)]
struct Counts(Vec<Count>);

impl Counts {
    fn applied(&self, class: usize) {
        if let Some(count) = self.0.get(class) {
            count.applied.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn restored(&self, class: usize) {
        if let Some(count) = self.0.get(class) {
            count.restored.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn refuse(&self, class: usize, why: Refusal) {
        if let Some(refused) = self.0.get(class).and_then(|count| count.refused.get(why as usize)) {
            refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Count {
    fn actions(&self) -> Actions {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let refused = Refusal::ALL.iter().zip(&self.refused).map(|(why, count)| (why.name(), of(count)));
        let refused = refused.filter(|(_, count)| *count > 0).collect();
        Actions { applied: of(&self.applied), would_apply: 0, restored: of(&self.restored), refused }
    }
}

/// What an earlier agent left, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Threads that got their own value back.
    pub restored: u64,
    /// Threads that inherited a value and got their maker's own.
    pub inherited: u64,
    /// Threads that had ended, or whose priority somebody else had set.
    pub gone: u64,
    /// Threads that could not be restored.
    pub failed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Owned {
    entry: ChangedThread,
    class: usize,
    slot: usize,
}

/// Everything that is changed.
#[derive(Debug)]
struct Books {
    journal: Option<Journal>,
    threads: HashMap<u32, Owned>,
    free: Vec<usize>,
    slots: usize,
    /// Threads of others: id and start.
    disowned: HashSet<(u32, u64)>,
    /// Processes whose threads were changed: since when (ticks), by which values, and the value before.
    processes: HashMap<u32, Inheritance>,
    /// Threads that could not be restored: their lines stay for the next start.
    left: usize,
    /// Nothing is changed any more.
    closed: bool,
}

#[derive(Clone, Debug, Default)]
struct Inheritance {
    since: u64,
    /// Changed value, and the thread's own.
    values: BTreeMap<i8, i8>,
}

/// Handle of the lever.
#[derive(Clone, Debug)]
pub struct Lever {
    shared: Arc<Shared>,
    orders: SyncSender<Vec<Order>>,
}

#[derive(Debug)]
struct Shared {
    books: Mutex<Books>,
    counts: Counts,
    /// Milliseconds since `begun` at which the pipeline was last known to work.
    last_heartbeat: AtomicU64,
    begun: Instant,
    /// Everything was restored without an order: what the pipeline believes is void.
    reset: AtomicBool,
}

/// Restores what an earlier agent left in `directory`, if it left anything; for an agent that changes nothing itself.
/// Errors: the directory is not safely the agent's; another agent works there (`WouldBlock`).
pub fn recover_left(directory: &Path) -> io::Result<Option<Recovered>> {
    if !journal::exists(directory) {
        return Ok(None);
    }
    let lock = Lock::take(directory)?;
    let recovered = recover(&lock)?;
    if recovered.failed == 0 {
        lock.clear()?;
    }
    Ok(Some(recovered))
}

fn recover(lock: &Lock) -> io::Result<Recovered> {
    let SavedThreads { entries, damaged } = lock.left()?;
    let mut recovered = Recovered { gone: damaged as u64, ..Recovered::default() };
    for entry in &entries {
        match restore(entry) {
            Ok(true) => recovered.restored += 1,
            Ok(false) => recovered.gone += 1,
            Err(_) => recovered.failed += 1,
        }
    }
    let mut processes: HashMap<u32, Inheritance> = HashMap::new();
    for entry in &entries {
        inherit(&mut processes, entry);
    }
    recovered.inherited = sweep(&processes, true, &|_, _| false);
    Ok(recovered)
}

/// Gives a thread its own value; false if it ended or somebody else set its priority.
fn restore(entry: &ChangedThread) -> io::Result<bool> {
    let Ok(stat) = thread::read(entry.tgid, entry.tid) else { return Ok(false) };
    if stat.start != entry.start || !(stat.nice == entry.set || stat.nice == entry.before) {
        return Ok(false);
    }
    if stat.nice != entry.base {
        thread::set(entry.tid, entry.base)?;
    }
    Ok(true)
}

fn inherit(processes: &mut HashMap<u32, Inheritance>, entry: &ChangedThread) {
    if processes.len() >= PROCESSES_MAX && !processes.contains_key(&entry.tgid) {
        return;
    }
    let known = processes.entry(entry.tgid).or_insert(Inheritance { since: entry.since, ..Inheritance::default() });
    known.since = known.since.min(entry.since);
    for value in [entry.set, entry.before].into_iter().filter(|value| *value != entry.base) {
        known.values.insert(value, entry.base);
    }
}

/// Gives threads that inherited a value in these processes, or in those they made, their maker's own; how many.
fn sweep(processes: &HashMap<u32, Inheritance>, children: bool, is_owned: &dyn Fn(u32, u64) -> bool) -> u64 {
    let mut found = 0;
    let mut of = |tgid: u32, known: &Inheritance| {
        for tid in thread::threads(tgid) {
            let Ok(stat) = thread::read(tgid, tid) else { continue };
            let Some(base) = known.values.get(&stat.nice).filter(|_| stat.start >= known.since && stat.fair) else {
                continue;
            };
            if !is_owned(tid, stat.start) && thread::set(tid, *base).is_ok() {
                found += 1;
            }
        }
    };
    for (tgid, known) in processes {
        of(*tgid, known);
    }
    if children && !processes.is_empty() {
        for tgid in thread::processes() {
            let parent = thread::read(tgid, tgid).ok().and_then(|stat| processes.get(&stat.parent));
            if let Some(known) = parent.filter(|_| !processes.contains_key(&tgid)) {
                of(tgid, known);
            }
        }
    }
    found
}

impl Lever {
    /// Restores what an earlier agent left in `directory`, begins a new state file there and starts the thread, for
    /// `classes` service classes.
    pub fn start(directory: &Path, classes: usize) -> io::Result<(Self, Recovered)> {
        let lock = Lock::take(directory)?;
        let recovered = recover(&lock)?;
        let (lever, orders) = Self::with(Some(lock.begin()?), classes);
        let shared = Arc::clone(&lever.shared);
        std::thread::Builder::new().name("tracer-priority".into()).spawn(move || work(&shared, &orders))?;
        Ok((lever, recovered))
    }

    fn with(journal: Option<Journal>, classes: usize) -> (Self, Receiver<Vec<Order>>) {
        let (orders, queue) = sync_channel(QUEUE);
        let books = Books {
            journal,
            threads: HashMap::new(),
            free: Vec::new(),
            slots: 0,
            disowned: HashSet::new(),
            processes: HashMap::new(),
            left: 0,
            closed: false,
        };
        let shared = Arc::new(Shared {
            books: Mutex::new(books),
            counts: Counts((0..classes).map(|_| Count::default()).collect()),
            last_heartbeat: AtomicU64::new(0),
            begun: Instant::now(),
            reset: AtomicBool::new(false),
        });
        (Self { shared, orders }, queue)
    }

    /// The pipeline works.
    pub fn heartbeat(&self) {
        self.shared.last_heartbeat.store(self.shared.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Whether everything was restored without an order since last asked: every decision so far is void.
    pub fn take_reset(&self) -> bool {
        self.shared.reset.swap(false, Ordering::Relaxed)
    }

    /// Hands orders over without waiting; gives them back if too many wait.
    pub fn order(&self, orders: Vec<Order>) -> Result<(), Vec<Order>> {
        self.orders.try_send(orders).map_err(|error| match error {
            TrySendError::Full(orders) | TrySendError::Disconnected(orders) => orders,
        })
    }

    /// Counts an order that was not handed over.
    pub fn refuse(&self, class: usize, why: Refusal) {
        self.shared.counts.refuse(class, why);
    }

    /// Counts since the start, by service class.
    pub fn actions(&self) -> Vec<Actions> {
        self.shared.counts.0.iter().map(Count::actions).collect()
    }

    /// Restores every thread and changes none from now on; from any thread. Whether it could: the books may be held by
    /// a thread that is stuck. What is left then is in the state file.
    pub fn restore_all(&self) -> bool {
        let until = Instant::now() + PATIENCE;
        let mut books = loop {
            match self.shared.books.try_lock() {
                Ok(books) => break books,
                Err(TryLockError::Poisoned(books)) => break books.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                Err(TryLockError::WouldBlock) => return false,
            }
        };
        if books.closed && books.threads.is_empty() {
            return books.left == 0;
        }
        books.closed = true;
        books.restore_all(&self.shared.counts);
        sweep(&books.processes, true, &|_, _| false);
        if books.left == 0
            && let Some(journal) = books.journal.take()
            && let Err(error) = journal.end()
        {
            log::warn!("the state file of priorities stays: {error}");
        }
        books.left == 0
    }
}

/// Restores everything when the lever's thread ends, also by a panic.
struct AtEnd<'a>(&'a Shared);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.restore(true);
    }
}

fn work(shared: &Shared, orders: &Receiver<Vec<Order>>) {
    let _at_end = AtEnd(shared);
    let mut swept = Instant::now();
    loop {
        match orders.recv_timeout(LOOK) {
            Ok(batch) => {
                let mut books = shared.books();
                for order in batch {
                    books.carry_out(order, &shared.counts);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let last = Duration::from_millis(shared.last_heartbeat.load(Ordering::Relaxed));
        if shared.begun.elapsed().saturating_sub(last) > SILENCE && !shared.books().threads.is_empty() {
            log::warn!("the pipeline is silent: every priority is restored");
            shared.restore(false);
        }
        if swept.elapsed() >= SWEEP {
            swept = Instant::now();
            shared.books().sweep();
        }
    }
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn restore(&self, close: bool) {
        let mut books = self.books();
        books.closed |= close;
        books.restore_all(&self.counts);
        self.reset.store(true, Ordering::Relaxed);
    }
}

impl Books {
    fn carry_out(&mut self, order: Order, counts: &Counts) {
        if self.closed {
            return;
        }
        match order {
            Order::Change { tid, tgid, class, delta } => match self.change(tid, tgid, class, delta) {
                Ok(()) => counts.applied(class),
                Err(why) => counts.refuse(class, why),
            },
            Order::Restore { tid, class } => {
                if let Some(owned) = self.threads.get(&tid).copied() {
                    self.give_back(&owned, counts);
                } else {
                    log::trace!("thread {tid} of service class {class} was given up before");
                }
            }
            Order::Inherited { parent, tid, tgid } => self.inherited(parent, tid, tgid),
        }
    }

    fn change(&mut self, tid: u32, tgid: u32, class: usize, delta: i8) -> Result<(), Refusal> {
        let Ok(stat) = thread::read(tgid, tid) else {
            self.forget(tid);
            return Err(Refusal::Ended);
        };
        let is_same = |owned: &Owned| owned.entry.start == stat.start && owned.entry.tgid == tgid;
        let known = self.threads.get(&tid).copied().filter(is_same);
        let owned = match known {
            Some(owned) if stat.nice == owned.entry.set => owned,
            Some(_) => {
                self.disown(tid, stat.start);
                return Err(Refusal::ChangedByOthers);
            }
            None => {
                // The id was reused, if it is known at all.
                self.forget(tid);
                self.take(tid, tgid, class, &stat)?
            }
        };
        let set = owned.entry.base.saturating_add(delta).clamp(-20, 19);
        let entry = ChangedThread { before: stat.nice, set, ..owned.entry };
        self.write(owned.slot, Some(&entry)).map_err(|_| {
            if known.is_none() {
                self.free.push(owned.slot);
            }
            Refusal::StateFile
        })?;
        // An id cannot be reused in the microseconds since the look: the kernel gives out all others first.
        if let Err(error) = thread::set(tid, set) {
            // An earlier change stands, and so does its line.
            if self.write(owned.slot, known.map(|known| known.entry).as_ref()).is_ok() && known.is_none() {
                self.free.push(owned.slot);
            }
            let ended = error.raw_os_error() == Some(libc::ESRCH);
            return Err(if ended { Refusal::Ended } else { Refusal::Permission });
        }
        inherit(&mut self.processes, &entry);
        self.threads.insert(tid, Owned { entry, class, ..owned });
        Ok(())
    }

    /// A thread that is changed for the first time.
    fn take(&mut self, tid: u32, tgid: u32, class: usize, stat: &ThreadStat) -> Result<Owned, Refusal> {
        if !stat.fair {
            return Err(Refusal::Policy);
        }
        if self.disowned.contains(&(tid, stat.start)) {
            return Err(Refusal::ChangedByOthers);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots < THREADS_MAX => {
                self.slots += 1;
                self.slots - 1
            }
            None => return Err(Refusal::Limit),
        };
        let nice = stat.nice;
        let entry =
            ChangedThread { tid, tgid, start: stat.start, base: nice, before: nice, set: nice, since: now_ticks() };
        Ok(Owned { entry, class, slot })
    }

    fn give_back(&mut self, owned: &Owned, counts: &Counts) {
        let Owned { entry, class, .. } = owned;
        let stat = thread::read(entry.tgid, entry.tid).ok().filter(|stat| stat.start == entry.start);
        match stat {
            None => counts.refuse(*class, Refusal::Ended),
            Some(stat) if stat.nice != entry.set => {
                counts.refuse(*class, Refusal::ChangedByOthers);
                self.disown(entry.tid, entry.start);
                return;
            }
            Some(_) => match thread::set(entry.tid, entry.base) {
                Ok(()) => counts.restored(*class),
                Err(error) => {
                    // It stays in the state file.
                    log::error!("thread {} of process {} keeps nice {}: {error}", entry.tid, entry.tgid, entry.set);
                    counts.refuse(*class, Refusal::Permission);
                    self.threads.remove(&entry.tid);
                    self.left += 1;
                    return;
                }
            },
        }
        self.forget(entry.tid);
    }

    fn restore_all(&mut self, counts: &Counts) {
        for owned in self.threads.values().copied().collect::<Vec<_>>() {
            self.give_back(&owned, counts);
        }
    }

    /// Somebody else sets this thread's priority.
    fn disown(&mut self, tid: u32, start: u64) {
        self.forget(tid);
        if self.disowned.len() >= DISOWNED_MAX {
            // Most of them have ended.
            self.disowned.clear();
        }
        self.disowned.insert((tid, start));
    }

    fn forget(&mut self, tid: u32) {
        if let Some(owned) = self.threads.remove(&tid) {
            // A line that stays names a thread whose value is not the changed one: the next start leaves it alone.
            if self.write(owned.slot, None).is_ok() {
                self.free.push(owned.slot);
            }
        }
    }

    fn write(&self, slot: usize, entry: Option<&ChangedThread>) -> io::Result<()> {
        self.journal.as_ref().map_or(Ok(()), |journal| journal.write(slot, entry))
    }

    /// `parent`, whose priority is changed, made a thread.
    fn inherited(&mut self, parent: u32, tid: u32, tgid: u32) {
        let Some(Owned { entry, .. }) = self.threads.get(&parent).copied() else { return };
        let Ok(stat) = thread::read(tgid, tid) else { return };
        if stat.start >= entry.since && stat.fair && [entry.set, entry.before].contains(&stat.nice) {
            // It is a moment old, and whoever could set its value would set another one.
            let _ = thread::set(tid, entry.base);
        }
    }

    /// Threads that inherited a value although the record of their creation was lost.
    fn sweep(&mut self) {
        let owned = |tid: u32, start: u64| self.threads.get(&tid).is_some_and(|owned| owned.entry.start == start);
        sweep(&self.processes, false, &owned);
        let active: HashSet<u32> = self.threads.values().map(|owned| owned.entry.tgid).collect();
        self.processes.retain(|tgid, _| active.contains(tgid));
    }
}

/// Now in clock ticks since boot, as start times of threads are.
fn now_ticks() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    // SAFETY: takes a constant.
    let a_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
    time.tv_sec as u64 * a_second + time.tv_nsec as u64 * a_second / 1_000_000_000
}

#[cfg(test)]
mod tests;
