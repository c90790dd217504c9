//! Addresses to names, on a thread of its own: reading symbol tables takes milliseconds.
//!
//! The files read are those of traced processes, whoever wrote them, and the library that reads them is not ours. What
//! it does is bounded from outside: a panic costs one stack its names; a file that shrinks reads as zeros (`fault.rs`);
//! a thread that does not come back (a `.gnu_debuglink` that names a FIFO) is left behind and replaced, a few times;
//! debug information, the largest and most intricate part, is read of files of root and the agent's user only.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use blazesym::Pid;
use blazesym::symbolize::source::{Elf, Kernel, Process, Source};
use blazesym::symbolize::{Input, Reason, Symbolized, Symbolizer};
use rustc_hash::FxHashSet;

use crate::guard::fill::Fill;

use super::jit::Names;

/// Frames of a stack, outermost first.
pub(super) type Frames = Arc<[Arc<str>]>;

/// Stacks waiting to be named.
const QUEUE: usize = 8192;
/// Frame names kept; beyond it they are not shared any more.
const NAMES: usize = 200_000;
/// Processes whose symbol tables are kept open.
const PROCESSES: usize = 24;
/// The same while memory is short.
const PROCESSES_FRUGAL: usize = 2;
/// Symbol tables are mapped files: they are let go when nothing was asked for this long.
const REST: Duration = Duration::from_secs(10);
/// How long a renderer waits for names.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest time for one stack; a program of a gigabyte takes a few seconds.
const STUCK: Duration = Duration::from_secs(30);
/// Threads that may be left behind: each holds what it was reading.
const REPLACED: u64 = 8;
/// Mapped files looked at to see who owns them.
const MAPPED: usize = 1024;

/// A stack to be named.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) id: u32,
    pub(super) pid: u32,
    /// Innermost first.
    pub(super) user: Vec<u64>,
    pub(super) kernel: Vec<u64>,
}

#[derive(Debug)]
enum Job {
    Name(Wanted),
    Forget(u32),
    /// Wakes the thread, for it to see how much memory there is.
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
    /// How much memory there is for names: [`Means`].
    means: AtomicU8,
}

/// Handle on the naming thread.
#[derive(Clone, Debug)]
pub(super) struct Symbols {
    jobs: SyncSender<Job>,
    named: Arc<Mutex<HashMap<u32, Frames>>>,
    turn: Arc<Turn>,
    levels: Arc<Levels>,
}

/// Whose turn it is to name stacks, and since when it is busy with one.
#[derive(Debug)]
struct Turn {
    queue: Mutex<Receiver<Job>>,
    begin: Instant,
    /// Milliseconds since `begin` at which the current stack was begun; 0 = none is.
    busy: AtomicU64,
    /// Number of the thread; others end.
    number: AtomicU64,
}

impl Symbols {
    /// Starts the thread; it ends when the last handle is gone.
    pub(super) fn start() -> Self {
        let (jobs, queue) = sync_channel(QUEUE);
        let turn = Turn {
            queue: Mutex::new(queue),
            begin: Instant::now(),
            busy: AtomicU64::new(0),
            number: AtomicU64::new(0),
        };
        let symbols =
            Self { jobs, named: Arc::new(Mutex::new(HashMap::new())), turn: Arc::new(turn), levels: Arc::default() };
        symbols.spawn();
        symbols
    }

    fn spawn(&self) {
        let (turn, results, levels) = (Arc::clone(&self.turn), Arc::clone(&self.named), Arc::clone(&self.levels));
        let number = turn.number.load(Ordering::Acquire);
        let run = move || {
            super::fault::survive();
            work(&turn, number, &results, &levels);
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
            log::warn!("naming a stack takes more than {STUCK:?}: that thread is left behind, another takes its place");
            self.spawn();
        }
    }

    /// How full they are: stacks that wait, shared names, processes whose tables are open.
    pub(super) fn fills(&self) -> [Fill; 3] {
        let of = |entries: &AtomicUsize, limit, reached: &AtomicU64| {
            Fill::new(entries.load(Ordering::Relaxed), limit, reached.load(Ordering::Relaxed))
        };
        let levels = &self.levels;
        [
            of(&levels.queue, QUEUE, &levels.refused),
            of(&levels.names, NAMES, &levels.names_refused),
            of(&levels.processes, PROCESSES, &levels.processes_dropped),
        ]
    }

    /// Keeps the names of these stacks only.
    pub(super) fn keep(&self, used: &FxHashSet<u32>) {
        if let Ok(mut named) = self.named.lock() {
            named.retain(|id, _| used.contains(id));
            named.shrink_to_fit();
        }
    }

    /// How much memory there is from now on. With less, tables and names that are there go at once.
    pub(super) fn set_means(&self, means: Means) {
        if self.levels.means.swap(means as u8, Ordering::Relaxed) != means as u8 {
            // A full queue wakes it as well.
            let _ = self.jobs.try_send(Job::Wake);
        }
    }

    /// Asks for names; never waits. What finds no place is asked for again when it is rendered.
    pub(super) fn want(&self, wanted: Wanted) {
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

    /// Names of a stack, once known.
    pub(super) fn get(&self, id: u32) -> Option<Frames> {
        self.named.lock().ok()?.get(&id).cloned()
    }

    /// Waits, for a while, until all of these are named.
    pub(super) fn complete(&self, missing: Vec<Wanted>) {
        let ids: Vec<u32> = missing.iter().map(|wanted| wanted.id).collect();
        let end = Instant::now() + PATIENCE;
        for wanted in missing {
            self.want(wanted);
        }
        while Instant::now() < end && ids.iter().any(|id| self.get(*id).is_none()) {
            std::thread::sleep(Duration::from_millis(5));
        }
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

fn builder() -> blazesym::symbolize::Builder {
    Symbolizer::builder().enable_code_info(false).enable_inlined_fns(true)
}

fn work(turn: &Turn, number: u64, results: &Mutex<HashMap<u32, Frames>>, levels: &Levels) {
    let mut symbolizer = builder().build();
    let mut names: HashMap<Box<str>, Arc<str>> = HashMap::new();
    let mut processes: HashMap<u32, Option<Names>> = HashMap::new();
    let mut means = Means::Ample;
    while turn.is(number) {
        let now = match levels.means.load(Ordering::Relaxed) {
            0 => Means::Ample,
            1 => Means::Little,
            _ => Means::None,
        };
        if now > means {
            symbolizer = builder().build();
            processes = HashMap::new();
            names = HashMap::new();
            crate::guard::own::release_memory();
        }
        means = now;
        levels.names.store(names.len(), Ordering::Relaxed);
        levels.processes.store(processes.len(), Ordering::Relaxed);
        let Ok(queue) = turn.queue.lock() else { return };
        let job = queue.recv_timeout(REST);
        drop(queue);
        let job = match job {
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => {
                if !processes.is_empty() {
                    symbolizer = builder().build();
                    processes.clear();
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let wanted = match job {
            Job::Forget(pid) => {
                processes.remove(&pid);
                continue;
            }
            Job::Wake => continue,
            Job::Name(wanted) => wanted,
        };
        levels.queue.fetch_sub(1, Ordering::Relaxed);
        if means == Means::None {
            levels.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if results.lock().is_ok_and(|results| results.contains_key(&wanted.id)) {
            continue;
        }
        let most = if means == Means::Ample { PROCESSES } else { PROCESSES_FRUGAL };
        if processes.len() >= most && !processes.contains_key(&wanted.pid) {
            // Start over rather than keep every program ever seen in memory.
            levels.processes_dropped.fetch_add(1, Ordering::Relaxed);
            symbolizer = builder().build();
            processes.clear();
        }
        let jit = processes.entry(wanted.pid).or_default();
        turn.busy.store(turn.since().max(1), Ordering::Release);
        let found = catch_unwind(AssertUnwindSafe(|| frames(&symbolizer, &wanted, jit, means == Means::Ample)));
        if !turn.is(number) {
            // Taken for lost meanwhile.
            return;
        }
        turn.busy.store(0, Ordering::Release);
        let found = found.unwrap_or_else(|_| {
            // In whatever state it is in now.
            symbolizer = builder().build();
            processes.clear();
            [unknown(&wanted.user, ""), unknown(&wanted.kernel, "_[k]")].concat()
        });
        let mut frames: Vec<Arc<str>> = Vec::new();
        let mut intern = |name: &str| {
            if let Some(known) = names.get(name) {
                return Arc::clone(known);
            }
            let shared: Arc<str> = Arc::from(name);
            if names.len() < NAMES {
                names.insert(name.into(), Arc::clone(&shared));
            } else {
                levels.names_refused.fetch_add(1, Ordering::Relaxed);
            }
            shared
        };
        frames.extend(found.iter().map(|name| intern(name)));
        if frames.is_empty() {
            frames.push(intern("[no stack]"));
        }
        if let Ok(mut results) = results.lock() {
            results.insert(wanted.id, Arc::from(frames));
        }
    }
}

/// Names of a stack, outermost first; `debug` information is the largest of what is read.
fn frames(symbolizer: &Symbolizer, wanted: &Wanted, jit: &mut Option<Names>, debug: bool) -> Vec<String> {
    let mut frames = Vec::new();
    if !wanted.user.is_empty() {
        let process = |debug_syms| {
            let pid = Pid::from(wanted.pid);
            Source::Process(Process { map_files: true, perf_map: false, debug_syms, ..Process::new(pid) })
        };
        let mut name = |debug| name(symbolizer, &process(debug), &wanted.user, "", Some((wanted.pid, jit)));
        // Debug information that cannot be read must not hide the symbols that can.
        let found = if debug && trusted(wanted.pid) { name(true) } else { None };
        let found = found.or_else(|| name(false));
        frames.extend(found.unwrap_or_else(|| unknown(&wanted.user, "")));
    }
    if !wanted.kernel.is_empty() {
        let kernel = Source::Kernel(Kernel { vmlinux: blazesym::MaybeDefault::None, ..Kernel::default() });
        let found = name(symbolizer, &kernel, &wanted.kernel, "_[k]", None);
        frames.extend(found.unwrap_or_else(|| unknown(&wanted.kernel, "_[k]")));
    }
    frames
}

/// Whether the files a process has mapped are root's or our own user's. It may map others a moment later.
fn trusted(pid: u32) -> bool {
    // SAFETY: takes nothing, cannot fail.
    let own = unsafe { libc::geteuid() };
    let Ok(maps) = std::fs::read_dir(format!("/proc/{pid}/map_files")) else { return false };
    let mut looked = 0;
    for entry in maps.flatten() {
        looked += 1;
        // By the mapping, not by its name: whatever stands under the name now.
        let owned = std::fs::metadata(entry.path()).is_ok_and(|about| about.uid() == 0 || about.uid() == own);
        if !owned || looked > MAPPED {
            return false;
        }
    }
    true
}

/// Names of addresses in a file, as the agent would read it in a process; for fuzzing.
pub fn name_in_file(path: &Path, offsets: &[u64]) -> usize {
    let mut named = 0;
    for debug_syms in [true, false] {
        let symbolizer = builder().build();
        let source = Source::Elf(Elf { debug_syms, ..Elf::new(path) });
        let found = symbolizer.symbolize(&source, Input::VirtOffset(offsets));
        named += found.map_or(0, |found| found.iter().filter(|symbol| matches!(symbol, Symbolized::Sym(_))).count());
    }
    named
}

fn unknown(addresses: &[u64], mark: &str) -> Vec<String> {
    addresses.iter().map(|_| format!("[unknown]{mark}")).collect()
}

/// Names of `addresses` (innermost first), outermost first; `None` when the source cannot be read.
fn name(
    symbolizer: &Symbolizer,
    source: &Source<'_>,
    addresses: &[u64],
    mark: &str,
    mut jit: Option<(u32, &mut Option<Names>)>,
) -> Option<Vec<String>> {
    // All but the innermost are return addresses: the call is the instruction before.
    let calls: Vec<u64> = addresses
        .iter()
        .enumerate()
        .map(|(i, address)| if i == 0 { *address } else { address.saturating_sub(1) })
        .collect();
    let found = match symbolizer.symbolize(source, Input::AbsAddr(&calls)) {
        Ok(found) => found,
        Err(error) => {
            log::debug!("no names from {source:?}: {error:#}");
            return None;
        }
    };
    // Code without frame pointers leaves the frame register with anything; what it led to is no stack.
    let sound = found.iter().position(|symbol| matches!(symbol, Symbolized::Unknown(Reason::Unmapped)));
    let mut out = Vec::new();
    if sound.is_some() {
        out.push(format!("[callers unknown]{mark}"));
    }
    for (symbol, call) in found.iter().zip(&calls).take(sound.unwrap_or(found.len())).rev() {
        match symbol {
            Symbolized::Sym(symbol) => {
                out.push(format!("{}{mark}", symbol.name));
                // Functions inlined at this address, outermost first.
                for inlined in &symbol.inlined {
                    out.push(format!("{}{mark}", inlined.name));
                }
            }
            Symbolized::Unknown(_) => {
                // Memory without a file behind it: made while running.
                let made = jit.as_mut().and_then(|(pid, names)| {
                    names.get_or_insert_with(|| Names::of(*pid).unwrap_or_default()).find(*call)
                });
                out.push(made.map_or_else(|| format!("[unknown]{mark}"), |name| format!("{name}{mark}")));
            }
        }
    }
    Some(out)
}
