//! Addresses to names, on a thread of its own: reading symbol tables takes milliseconds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use blazesym::Pid;
use blazesym::symbolize::source::{Kernel, Process, Source};
use blazesym::symbolize::{Input, Reason, Symbolized, Symbolizer};
use rustc_hash::FxHashSet;

use crate::guard::fill::Fill;

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

/// A stack to be named.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) id: u32,
    pub(super) pid: u32,
    /// Innermost first.
    pub(super) user: Vec<u64>,
    pub(super) kernel: Vec<u64>,
}

enum Job {
    Name(Wanted),
    Forget(u32),
    /// Wakes the thread, for it to see that it is to be frugal.
    Wake,
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
    /// Memory is short: tables are let go at once, debug information is not read, few tables are open.
    frugal: AtomicBool,
}

/// Handle on the naming thread.
#[derive(Clone, Debug)]
pub(super) struct Symbols {
    jobs: SyncSender<Job>,
    named: Arc<Mutex<HashMap<u32, Frames>>>,
    levels: Arc<Levels>,
}

impl Symbols {
    /// Starts the thread; it ends when the last handle is gone.
    pub(super) fn start() -> Self {
        let (jobs, queue) = sync_channel(QUEUE);
        let named = Arc::new(Mutex::new(HashMap::new()));
        let results = Arc::clone(&named);
        let levels = Arc::new(Levels::default());
        let seen = Arc::clone(&levels);
        let named_thread = std::thread::Builder::new().name("tracer-symbols".into());
        let spawned = named_thread.spawn(move || work(&queue, &results, &seen));
        if let Err(error) = spawned {
            log::error!("no thread for symbols ({error}): flame graphs will have no names");
        }
        Self { jobs, named, levels }
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

    /// Whether memory is short: then symbol tables and names are let go at once, and later ones are read without debug
    /// information, few at a time.
    pub(super) fn be_frugal(&self, frugal: bool) {
        if self.levels.frugal.swap(frugal, Ordering::Relaxed) != frugal {
            // A full queue wakes it as well.
            let _ = self.jobs.try_send(Job::Wake);
        }
    }

    /// Asks for names; never waits. What finds no place is asked for again when it is rendered.
    pub(super) fn want(&self, wanted: Wanted) {
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

fn builder() -> blazesym::symbolize::Builder {
    Symbolizer::builder().enable_code_info(false).enable_inlined_fns(true)
}

fn work(queue: &Receiver<Job>, results: &Mutex<HashMap<u32, Frames>>, levels: &Levels) {
    let mut symbolizer = builder().build();
    let mut names: HashMap<Box<str>, Arc<str>> = HashMap::new();
    let mut processes: Vec<u32> = Vec::new();
    let mut frugal = false;
    loop {
        let now_frugal = levels.frugal.load(Ordering::Relaxed);
        if now_frugal && !frugal {
            symbolizer = builder().build();
            processes = Vec::new();
            names = HashMap::new();
        }
        frugal = now_frugal;
        levels.names.store(names.len(), Ordering::Relaxed);
        levels.processes.store(processes.len(), Ordering::Relaxed);
        let job = match queue.recv_timeout(REST) {
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
                processes.retain(|known| *known != pid);
                continue;
            }
            Job::Wake => continue,
            Job::Name(wanted) => wanted,
        };
        levels.queue.fetch_sub(1, Ordering::Relaxed);
        if results.lock().is_ok_and(|results| results.contains_key(&wanted.id)) {
            continue;
        }
        if !processes.contains(&wanted.pid) {
            processes.push(wanted.pid);
        }
        if processes.len() > if frugal { PROCESSES_FRUGAL } else { PROCESSES } {
            // Start over rather than keep every program ever seen in memory.
            levels.processes_dropped.fetch_add(1, Ordering::Relaxed);
            symbolizer = builder().build();
            processes.clear();
        }
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
        if !wanted.user.is_empty() {
            let process = |debug_syms| {
                let pid = Pid::from(wanted.pid);
                Source::Process(Process { map_files: true, perf_map: true, debug_syms, ..Process::new(pid) })
            };
            // Debug information that cannot be read must not hide the symbols that can.
            let found = (!frugal)
                .then(|| name(&symbolizer, &process(true), &wanted.user, ""))
                .flatten()
                .or_else(|| name(&symbolizer, &process(false), &wanted.user, ""));
            frames.extend(found.unwrap_or_else(|| unknown(&wanted.user, "")).iter().map(|name| intern(name)));
        }
        if !wanted.kernel.is_empty() {
            let kernel = Source::Kernel(Kernel { vmlinux: blazesym::MaybeDefault::None, ..Kernel::default() });
            let found = name(&symbolizer, &kernel, &wanted.kernel, "_[k]");
            frames.extend(found.unwrap_or_else(|| unknown(&wanted.kernel, "_[k]")).iter().map(|name| intern(name)));
        }
        if frames.is_empty() {
            frames.push(intern("[no stack]"));
        }
        if let Ok(mut results) = results.lock() {
            results.insert(wanted.id, Arc::from(frames));
        }
    }
}

fn unknown(addresses: &[u64], mark: &str) -> Vec<String> {
    addresses.iter().map(|_| format!("[unknown]{mark}")).collect()
}

/// Names of `addresses` (innermost first), outermost first; `None` when the source cannot be read.
fn name(symbolizer: &Symbolizer, source: &Source<'_>, addresses: &[u64], mark: &str) -> Option<Vec<String>> {
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
    for symbol in found.iter().take(sound.unwrap_or(found.len())).rev() {
        match symbol {
            Symbolized::Sym(symbol) => {
                out.push(format!("{}{mark}", symbol.name));
                // Functions inlined at this address, outermost first.
                for inlined in &symbol.inlined {
                    out.push(format!("{}{mark}", inlined.name));
                }
            }
            Symbolized::Unknown(_) => out.push(format!("[unknown]{mark}")),
        }
    }
    Some(out)
}
