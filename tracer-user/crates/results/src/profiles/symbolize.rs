//! Stacks to names, on a thread of its own: reading symbol tables takes milliseconds (`naming.rs`).
//!
//! The files read are those of traced processes, whoever wrote them, and the library that reads them is not ours. What
//! it does is bounded from outside: a panic costs some stacks their names; a file that shrinks reads as zeros
//! (`fault.rs`); a thread that does not come back (a `.gnu_debuglink` that names a FIFO) is left behind and replaced, a
//! few times; debug information, the largest and most intricate part, is read of files of root and the agent's user only.
//!
//! Stacks of a process seen for the first time are named at once: it may live for a second. Those of others are put
//! together for a while, because asking for one name costs as much as asking for a hundred; for longer where the process has
//! lived for longer. Whoever reads a profile does not wait for that.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracer_common::interpreter::Language;
use tracer_host::guard::self_process::release_memory;
use tracer_host::guard::tables::TableUse;

use super::debug_requests::DebugRequests;
use super::frame::Frame;
use super::interpreted::{Lines, ShownLines};
use super::naming::{ADDRESSES, Frames, Namer, PROCESSES, REST, Stack};
use super::shared_names::NAMES;

/// Stacks waiting to be named.
const QUEUE: usize = 8192;
/// Processes whose symbol tables are open at a time.
const OPEN: usize = 64;
/// The same while memory is short.
const OPEN_FRUGAL: usize = 2;
/// How long stacks of a process are put together that is known, and of one that has been for [`SETTLED`]; and how many at most.
const TOGETHER: Duration = Duration::from_millis(500);
const TOGETHER_SETTLED: Duration = Duration::from_secs(30);
/// The same of a process that makes code: by then other code may stand in its place.
const TOGETHER_JIT: Duration = Duration::from_secs(10);
const SETTLED: Duration = Duration::from_secs(20);
const _: () = assert!(TOGETHER_SETTLED.as_secs() < REST.as_secs(), "tables stay open from one batch to the next");
const BATCH: usize = 256;
/// How long a renderer waits for names.
const PATIENCE: Duration = Duration::from_secs(5);
/// Without anything to do the thread looks around this often.
const IDLE: Duration = Duration::from_secs(60);

/// Longest time for one batch; a program of a gigabyte takes a few seconds.
const STUCK: Duration = Duration::from_secs(30);
/// Threads that may be left behind: each holds what it was reading.
const REPLACED: u64 = 8;

/// The receiver of the names.
#[derive(Debug)]
enum NameReceiver {
    /// Those who keep the stack, by its id: [`Symbols::take_named`].
    Keeper(u32),
    /// Somebody who waits, by the place in the list that was asked for.
    Asker(usize, SyncSender<(usize, Frames)>),
}

/// A stack to be named.
#[derive(Debug)]
struct NamingRequest {
    stack: Arc<Stack>,
    receiver: NameReceiver,
}

#[derive(Debug)]
enum Job {
    Name(NamingRequest),
    Forget(u32),
    /// Wakes the thread, for it to see how much memory there is, and to name what it put together.
    Wake,
}

/// How much memory there is for names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Means {
    /// As much as it takes.
    #[default]
    Ample,
    /// Little: no debug information, few tables open.
    Little,
    /// None: stacks stay without names.
    None,
}

/// How full its queue and caches are.
#[derive(Debug, Default)]
struct Levels {
    /// Stacks waiting; and times there was no place.
    queue: AtomicUsize,
    refused: AtomicU64,
    names: AtomicUsize,
    names_refused: AtomicU64,
    processes: AtomicUsize,
    processes_dropped: AtomicU64,
    addresses: AtomicUsize,
    addresses_dropped: AtomicU64,
    /// How much memory there is for names: [`Means`].
    means: AtomicU8,
    /// Most memory for debug information.
    debug_most: AtomicU64,
    /// Bytes of names from files that processes wrote themselves; most of them, and times they did not fit.
    maps: AtomicUsize,
    maps_most: AtomicUsize,
    maps_cut: AtomicU64,
    /// Whether functions of compiled programs are shown with the line that runs.
    native_lines: AtomicBool,
    /// Whether methods of Java are read.
    java: AtomicBool,
    /// Whether interpreted functions are shown with the line that runs; how many were read, and could not be. By language.
    running_lines: [AtomicBool; Language::ALL.len()],
    functions: [[AtomicU64; 2]; Language::ALL.len()],
}

impl Levels {
    fn publish(&self, namer: &Namer) {
        let (names, processes, addresses) = namer.sizes();
        self.names.store(names, Ordering::Relaxed);
        self.processes.store(processes, Ordering::Relaxed);
        self.addresses.store(addresses, Ordering::Relaxed);
        self.names_refused.store(namer.names.refused, Ordering::Relaxed);
        self.processes_dropped.store(namer.processes_dropped, Ordering::Relaxed);
        self.addresses_dropped.store(namer.addresses_dropped, Ordering::Relaxed);
        self.maps.store(namer.maps_bytes(), Ordering::Relaxed);
        self.maps_cut.store(namer.maps_cut, Ordering::Relaxed);
        for (shown, (named, unnamed)) in self.functions.iter().zip(namer.functions) {
            shown[0].store(named, Ordering::Relaxed);
            shown[1].store(unnamed, Ordering::Relaxed);
        }
    }

    fn lines(&self) -> ShownLines {
        let of =
            |running: &AtomicBool| if running.load(Ordering::Relaxed) { Lines::Running } else { Lines::Definition };
        let [python, php, ..] = &self.running_lines;
        ShownLines { python: of(python), php: of(php) }
    }

    fn means(&self) -> Means {
        match self.means.load(Ordering::Relaxed) {
            0 => Means::Ample,
            1 => Means::Little,
            _ => Means::None,
        }
    }
}

/// Handle on the naming thread.
#[derive(Clone, Debug)]
pub(super) struct Symbols {
    jobs: SyncSender<Job>,
    named: Arc<Mutex<Vec<(u32, Frames)>>>,
    turn: Arc<Turn>,
    levels: Arc<Levels>,
    /// Directories with separate debug files.
    debug_directories: Arc<[PathBuf]>,
    /// Who is asked for debug files that are not there.
    requests: Option<DebugRequests>,
}

/// Whose turn it is to name stacks, and since when it is busy with some.
#[derive(Debug)]
struct Turn {
    queue: Mutex<Receiver<Job>>,
    begin: Instant,
    /// Milliseconds since `begin` at which the current batch was begun; 0 = none is.
    busy: AtomicU64,
    /// Number of the thread; others end.
    number: AtomicU64,
}

impl Symbols {
    /// Starts the thread; it ends when the last handle is gone.
    pub(super) fn start(debug_directories: &[PathBuf], requests: Option<DebugRequests>) -> Self {
        let (jobs, queue) = sync_channel(QUEUE);
        let turn = Turn {
            queue: Mutex::new(queue),
            begin: Instant::now(),
            busy: AtomicU64::new(0),
            number: AtomicU64::new(0),
        };
        let symbols = Self {
            jobs,
            named: Arc::default(),
            turn: Arc::new(turn),
            levels: Arc::default(),
            debug_directories: debug_directories.into(),
            requests,
        };
        symbols.spawn();
        symbols
    }

    fn spawn(&self) {
        let (turn, results, levels) = (Arc::clone(&self.turn), Arc::clone(&self.named), Arc::clone(&self.levels));
        let number = turn.number.load(Ordering::Acquire);
        let (directories, requests) = (Arc::clone(&self.debug_directories), self.requests.clone());
        let run = move || {
            super::fault::survive();
            let namer = Namer::new(&directories).asking(requests);
            Worker { turn: &turn, number, results: &results, levels: &levels, namer }.work();
        };
        if let Err(error) = std::thread::Builder::new().name("tracer-symbols".into()).spawn(run) {
            log::error!("no thread for symbols ({error}): flame graphs will have no names");
        }
    }

    /// Threads that were left behind.
    pub(super) fn stuck(&self) -> u64 {
        self.turn.number.load(Ordering::Acquire)
    }

    /// Replaces a thread that does not come back.
    fn check(&self) {
        let turn = &self.turn;
        let busy = turn.busy.load(Ordering::Acquire);
        let late = busy != 0 && turn.since().saturating_sub(busy) > STUCK.as_millis() as u64;
        // One of several callers wins.
        if late
            && turn.stuck_less_than(REPLACED)
            && turn.busy.compare_exchange(busy, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            turn.number.fetch_add(1, Ordering::AcqRel);
            log::warn!("naming stacks takes more than {STUCK:?}: that thread is left behind, another takes its place");
            self.spawn();
        }
    }

    /// How full they are: stacks that wait, shared names, processes that have some, addresses with names, names that
    /// processes wrote into files.
    pub(super) fn table_use(&self) -> [TableUse; 5] {
        let of = |entries: &AtomicUsize, limit, reached: &AtomicU64| {
            TableUse::new(entries.load(Ordering::Relaxed), limit, reached.load(Ordering::Relaxed))
        };
        let levels = &self.levels;
        [
            of(&levels.queue, QUEUE, &levels.refused),
            of(&levels.names, NAMES, &levels.names_refused),
            of(&levels.processes, PROCESSES, &levels.processes_dropped),
            of(&levels.addresses, ADDRESSES, &levels.addresses_dropped),
            of(&levels.maps, levels.maps_most.load(Ordering::Relaxed), &levels.maps_cut),
        ]
    }

    /// How much memory there is from now on. With less, tables and names that are there go at once.
    pub(super) fn set_means(&self, means: Means) {
        if self.levels.means.swap(means as u8, Ordering::Relaxed) != means as u8 {
            // A full queue wakes it as well.
            let _ = self.jobs.try_send(Job::Wake);
        }
    }

    /// Debug information takes at most so much memory from now on, by estimate.
    pub(super) fn set_debug_most(&self, bytes: u64) {
        self.levels.debug_most.store(bytes, Ordering::Relaxed);
    }

    /// Names that processes wrote into files take at most so many bytes from now on.
    pub(super) fn set_maps_most(&self, bytes: usize) {
        self.levels.maps_most.store(bytes, Ordering::Relaxed);
    }

    /// How interpreted functions are shown from now on.
    pub(super) fn set_lines(&self, shown: ShownLines) {
        let [python, php, ..] = &self.levels.running_lines;
        python.store(shown.python == Lines::Running, Ordering::Relaxed);
        php.store(shown.php == Lines::Running, Ordering::Relaxed);
    }

    /// Whether functions of compiled programs are shown with the line that runs, from now on.
    pub(super) fn set_native_lines(&self, shown: bool) {
        self.levels.native_lines.store(shown, Ordering::Relaxed);
    }

    /// Whether methods of Java are read from the processes that run them, from now on.
    pub(super) fn set_java(&self, read: bool) {
        self.levels.java.store(read, Ordering::Relaxed);
    }

    /// Functions of a language that were read, and that could not be.
    pub(super) fn functions(&self, language: Language) -> (u64, u64) {
        let [named, unnamed] = &self.levels.functions[language as usize];
        (named.load(Ordering::Relaxed), unnamed.load(Ordering::Relaxed))
    }

    /// Asks for the names of stack `id`; never waits. What finds no place is asked for again when it is rendered.
    pub(super) fn want(&self, id: u32, stack: &Arc<Stack>) {
        self.send(NamingRequest { stack: Arc::clone(stack), receiver: NameReceiver::Keeper(id) });
    }

    fn send(&self, wanted: NamingRequest) {
        self.check();
        // Counted first: the thread may take it at once.
        self.levels.queue.fetch_add(1, Ordering::Relaxed);
        match self.jobs.try_send(Job::Name(wanted)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.levels.queue.fetch_sub(1, Ordering::Relaxed);
                self.levels.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The process is gone.
    pub(super) fn forget(&self, pid: u32) {
        let _ = self.jobs.try_send(Job::Forget(pid));
    }

    /// Stacks that were named since last asked.
    pub(super) fn take_named(&self) -> Vec<(u32, Frames)> {
        self.named.lock().map(|mut named| std::mem::take(&mut *named)).unwrap_or_default()
    }

    /// Names of these stacks, in their order; waits for a while. `None` for those that were not named by then.
    pub(super) fn names(&self, stacks: &[Arc<Stack>]) -> Vec<Option<Frames>> {
        let mut found: Vec<Option<Frames>> = vec![None; stacks.len()];
        let (answer, answers) = sync_channel(stacks.len());
        for (index, stack) in stacks.iter().enumerate() {
            self.send(NamingRequest { stack: Arc::clone(stack), receiver: NameReceiver::Asker(index, answer.clone()) });
        }
        drop(answer);
        let _ = self.jobs.try_send(Job::Wake);
        let end = Instant::now() + PATIENCE;
        // Ends early when all were named or given up.
        while let Ok((index, frames)) = answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
            if let Some(place) = found.get_mut(index) {
                *place = Some(frames);
            }
        }
        found
    }
}

impl Turn {
    fn since(&self) -> u64 {
        self.begin.elapsed().as_millis() as u64
    }

    fn stuck_less_than(&self, most: u64) -> bool {
        self.number.load(Ordering::Acquire) < most
    }

    fn is(&self, number: u64) -> bool {
        self.number.load(Ordering::Acquire) == number
    }
}

/// The thread.
struct Worker<'a> {
    turn: &'a Turn,
    number: u64,
    results: &'a Mutex<Vec<(u32, Frames)>>,
    levels: &'a Levels,
    namer: Namer,
}

impl Worker<'_> {
    fn work(mut self) {
        // Stacks put together, by process; and when they are named.
        let mut together: HashMap<u32, Vec<NamingRequest>> = HashMap::new();
        let mut due: Option<Instant> = None;
        let mut means = Means::Ample;
        while self.turn.is(self.number) {
            let now = self.levels.means();
            if now > means {
                self.namer.clear();
                release_memory();
            }
            means = now;
            if means == Means::None {
                together.clear();
            }
            if self.namer.rest(Instant::now()) {
                release_memory();
            }
            self.levels.publish(&self.namer);
            let next = due.into_iter().chain(self.namer.next_rest()).min();
            let wait = next.map_or(IDLE, |next| next.saturating_duration_since(Instant::now()));
            let Ok(queue) = self.turn.queue.lock() else { return };
            let job = queue.recv_timeout(wait);
            drop(queue);
            let all = match job {
                Ok(Job::Name(wanted)) => {
                    self.levels.queue.fetch_sub(1, Ordering::Relaxed);
                    if means == Means::None {
                        self.levels.refused.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    let pid = wanted.stack.process.0;
                    let known = self.namer.known_for(pid);
                    self.namer.lines = self.levels.lines();
                    self.namer.native_lines = self.levels.native_lines.load(Ordering::Relaxed);
                    self.namer.java = self.levels.java.load(Ordering::Relaxed);
                    self.namer.learn(pid, &wanted.stack);
                    let stacks = together.entry(pid).or_default();
                    stacks.push(wanted);
                    if let Some(known) = known.filter(|_| stacks.len() < BATCH) {
                        let wait = match known {
                            _ if known < SETTLED => TOGETHER,
                            _ if self.namer.makes_code(pid) => TOGETHER_JIT,
                            _ => TOGETHER_SETTLED,
                        };
                        let at = Instant::now() + wait;
                        due = Some(due.map_or(at, |due| due.min(at)));
                    } else {
                        let stacks = together.remove(&pid).unwrap_or_default();
                        if !self.name(pid, stacks, means) {
                            return;
                        }
                    }
                    false
                }
                Ok(Job::Forget(pid)) => {
                    // What waits is named first, while something of the process is still known.
                    if let Some(stacks) = together.remove(&pid)
                        && !self.name(pid, stacks, means)
                    {
                        return;
                    }
                    self.namer.forget(pid);
                    false
                }
                Ok(Job::Wake) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if all || due.is_some_and(|due| due <= Instant::now()) {
                for (pid, stacks) in std::mem::take(&mut together) {
                    if !self.name(pid, stacks, means) {
                        return;
                    }
                }
            }
            due = due.filter(|_| !together.is_empty());
        }
    }

    /// Names stacks of one process; `false` when this thread was taken for lost meanwhile.
    fn name(&mut self, pid: u32, wanted: Vec<NamingRequest>, means: Means) -> bool {
        let stacks: Vec<Arc<Stack>> = wanted.iter().map(|wanted| Arc::clone(&wanted.stack)).collect();
        let tables = if means == Means::Ample { OPEN } else { OPEN_FRUGAL };
        let debug = if means == Means::Ample { self.levels.debug_most.load(Ordering::Relaxed) } else { 0 };
        let (turn, namer) = (self.turn, &mut self.namer);
        namer.maps_most = self.levels.maps_most.load(Ordering::Relaxed);
        turn.busy.store(turn.since().max(1), Ordering::Release);
        let found = catch_unwind(AssertUnwindSafe(|| namer.name(pid, &stacks, debug, tables)));
        if !turn.is(self.number) {
            return false;
        }
        turn.busy.store(0, Ordering::Release);
        let found = found.unwrap_or_else(|_| {
            // In whatever state it is in now.
            self.namer.clear();
            stacks.iter().map(|stack| unknown(stack)).collect()
        });
        for (wanted, frames) in wanted.into_iter().zip(found) {
            match wanted.receiver {
                NameReceiver::Keeper(id) => {
                    if let Ok(mut results) = self.results.lock() {
                        results.push((id, frames));
                    }
                }
                NameReceiver::Asker(index, answer) => {
                    // It has room for all of them; whoever asked may be gone.
                    let _ = answer.try_send((index, frames));
                }
            }
        }
        true
    }
}

fn unknown(stack: &Stack) -> Frames {
    let user = stack.user.iter().map(|_| Frame::plain("[unknown]"));
    let kernel = stack.kernel.iter().map(|_| Frame::plain("[unknown]_[k]"));
    user.chain(kernel).chain(stack.off_cpu.as_ref().map(|wait| Frame::plain(&wait.frame()))).collect()
}
