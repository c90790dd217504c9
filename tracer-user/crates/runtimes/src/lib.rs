//! Detects the runtime of a process that serves requests: whether its requests share threads, and how to tell its tasks
//! apart.
//!
//! Reads the process's files and memory once, when it first serves a request, using version tables and plausibility
//! checks. For an unknown runtime version it reports a [`DetectionState`] and counts it; tasks of that process are not
//! distinguished.

mod cheap_places;
pub mod declared;
pub mod elf;
pub mod exceptions;
pub mod file_identity;
pub mod go;
mod greenlet;
pub mod hotspot;
pub mod maps;
mod node;
pub mod php_code;
pub mod php_frames;
pub mod process_memory;
pub mod python;
pub mod python_code;
pub mod python_frames;
pub mod return_instructions;
mod rust_functions;
pub mod status_view;
pub mod tls;
pub mod tokio;
pub mod v8_code;
pub mod v8_constants;
pub mod v8_frames;
pub mod wake_demand;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use tracer_common::limits::RUNTIMES_MAX;
use tracer_common::runtime::{Runtime, UserProbe};
use tracer_host::guard::tables::TableUse;

use self::status_view::{DetectedRuntime, WakesSeen};

/// Most processes queued for detection.
const QUEUE: usize = 256;

/// Whether the tasks of a process can be distinguished, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DetectionState {
    /// They can.
    Known,
    /// The memory layout of its version is not known.
    UnknownVersion,
    /// Its files lack required symbols (stripped, or another build).
    NoSymbols,
    /// Its files or memory are unreadable, or do not match the version.
    Unreadable,
    /// A required probe could not be attached.
    NoProbe,
    /// Not supported on this processor or C library.
    Unsupported,
    /// Its threads are followed as those of any program; tasks that move between them cannot be distinguished.
    ThreadsOnly,
    /// Requests are read and answered by threads of another runtime in the same process, which hand them over.
    ServedByAnother,
}

impl DetectionState {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Known,
        Self::UnknownVersion,
        Self::NoSymbols,
        Self::Unreadable,
        Self::NoProbe,
        Self::Unsupported,
        Self::ThreadsOnly,
        Self::ServedByAnother,
    ];

    /// Label value of `tracer_runtime_processes{state}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::UnknownVersion => "unknown_version",
            Self::NoSymbols => "no_symbols",
            Self::Unreadable => "unreadable",
            Self::NoProbe => "no_probe",
            Self::Unsupported => "unsupported",
            Self::ThreadsOnly => "threads_only",
            Self::ServedByAnother => "served_by_another",
        }
    }

    /// What the state means, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Known => "its tasks are distinguished",
            Self::UnknownVersion => {
                "its tasks are not distinguished: where this version keeps them is not known; calls of requests that share \
                 threads are ambiguous or orphans"
            }
            Self::NoSymbols => {
                "its tasks are not distinguished: names that are needed are not in its files (stripped, or another build); \
                 calls of requests that share threads are ambiguous or orphans"
            }
            Self::Unreadable => {
                "its tasks are not distinguished: its files or memory could not be read, or are not as its version says; \
                 calls of requests that share threads are ambiguous or orphans"
            }
            Self::NoProbe => {
                "its tasks are not distinguished: a probe that is needed could not be attached (the agent's log says why); \
                 calls of requests that share threads are ambiguous or orphans"
            }
            Self::Unsupported => {
                "its tasks are not distinguished on this processor or C library; calls of requests that share threads are \
                 ambiguous or orphans"
            }
            Self::ThreadsOnly => {
                "its threads and pools are followed; tasks that move between threads (Java's virtual threads before 21, or with ZGC or \
                 Shenandoah before 24, or where its library has no symbols) are not distinguished: their calls are ambiguous or orphans"
            }
            Self::ServedByAnother => {
                "its tasks are not distinguished: threads of another runtime in the process (granian's, robyn's) read and answer its \
                 requests; calls are orphans, and the CPU of its code is overhead of the service"
            }
        }
    }
}

/// When wake-ups between tasks are watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchWakes {
    /// Never.
    Never,
    /// Where calls have no parent without, as [`wake_demand`] decides.
    #[default]
    OnDemand,
    /// In every process.
    Always,
}

impl WatchWakes {
    /// The probes that show wake-ups: those to attach at once ([`Found::extra`]), and those to attach on demand.
    fn split(self, probes: Vec<Place>) -> (Vec<Place>, Vec<Place>) {
        match self {
            Self::Always => (probes, Vec::new()),
            Self::OnDemand => (Vec::new(), probes),
            Self::Never => (Vec::new(), Vec::new()),
        }
    }
}

/// Sources that cost enough not to be used everywhere: their probes fire ten times per request and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Which tokio task wakes which.
    pub tokio_wakers: WatchWakes,
    /// Which goroutine makes which ready.
    pub go_ready: WatchWakes,
}

/// Where to attach a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The probe.
    pub probe: UserProbe,
    /// The file to attach to.
    pub file: PathBuf,
    /// Offset in the file, bytes.
    pub offset: u64,
}

/// The result of detection in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The runtime's name, label value of `tracer_runtime_processes{runtime}`.
    pub name: &'static str,
    /// Its version if known, for people.
    pub version: String,
    /// Whether its tasks can be distinguished.
    pub state: DetectionState,
    /// The description for the kernel side.
    pub runtime: Runtime,
    /// Required probes: without one of them its tasks are not distinguished.
    pub places: Vec<Place>,
    /// Optional probes, attached only if configured ([`Extras`]).
    pub extra: Vec<Place>,
    /// Probes that show which task wakes which, attached when calls have no parent without.
    pub on_demand: Vec<Place>,
}

impl Found {
    /// A runtime whose tasks are distinguished without probes.
    pub fn known(name: &'static str, version: String, runtime: Runtime) -> Self {
        Self {
            name,
            version,
            state: DetectionState::Known,
            runtime,
            places: Vec::new(),
            extra: Vec::new(),
            on_demand: Vec::new(),
        }
    }

    /// The same runtime, but its tasks cannot be distinguished.
    #[must_use]
    pub fn without(self, state: DetectionState) -> Self {
        let runtime = Runtime { kind: self.runtime.kind, ..Runtime::default() };
        Self { state, runtime, places: Vec::new(), extra: Vec::new(), on_demand: Vec::new(), ..self }
    }
}

/// Detects the runtime of a process; `None` if no known runtime shares threads between tasks there, or the process is
/// gone.
pub fn recognise(pid: u32, extras: Extras) -> Option<Found> {
    let maps = maps::Maps::read(pid)?;
    hotspot::virtual_threads::recognise(pid, &maps)
        .or_else(|| go::recognise(pid, &maps, extras.go_ready))
        .or_else(|| greenlet::recognise(pid, &maps))
        .or_else(|| python::recognise(pid, &maps))
        .or_else(|| node::recognise(pid, &maps))
        .or_else(|| tokio::recognise(pid, &maps, extras.tokio_wakers))
}

/// A runtime that nothing here distinguishes the tasks of: its name, and what that means. `None`: none that is known.
pub fn unfollowed(maps: &maps::Maps) -> Option<(&'static str, &'static str)> {
    let program = maps::name(&maps.exe);
    let has = |library: &str| maps.named(|name| name == library).is_some();
    Some(match program {
        "beam.smp" => {
            ("erlang", "its processes are not distinguished: calls of requests at the same time are ambiguous")
        }
        "bun" | "bun.exe" => {
            ("bun", "its callbacks are not distinguished: calls of requests at the same time are ambiguous")
        }
        _ if has("libjvm.so") => (
            "java",
            "its threads and pools are followed; virtual threads, CompletableFuture and java.net.http.HttpClient are not: their \
             calls are ambiguous or orphans where requests come at the same time",
        ),
        _ if has("libcoreclr.so") => {
            ("dotnet", "its tasks are not distinguished: calls of requests at the same time are ambiguous")
        }
        _ => return None,
    })
}

/// Attaches the probes of `found`; if a required one fails, its tasks are not distinguished.
fn probed(look: Look, mut found: Found, attach: &mut impl FnMut(Look, &Place) -> Result<(), String>) -> Found {
    for place in std::mem::take(&mut found.places) {
        if let Err(why) = attach(look, &place) {
            log::warn!("process {}: {} could not be attached: {why}", look.0, place.probe.place());
            return found.without(DetectionState::NoProbe);
        }
    }
    for place in std::mem::take(&mut found.extra) {
        match attach(look, &place) {
            Ok(()) => found.extra.push(place),
            Err(why) => {
                log::warn!("process {}: {} could not be attached: {why}", look.0, place.probe.place());
                if place.probe == UserProbe::TokioWoken
                    && let Some(watched) = found.runtime.at.get_mut(1)
                {
                    // Without this probe wake-ups go unseen: do not conclude from their absence.
                    *watched = 0;
                }
            }
        }
    }
    found
}

/// A detection run: the process id and the run's sequence number.
pub type Look = (u32, u64);

/// What the thread is asked for: to detect the runtime of a process, or to attach these probes that are optional.
#[derive(Debug)]
struct Asked {
    look: Look,
    watch: Option<Found>,
}

/// A process in which wake-ups between tasks can be watched.
#[derive(Debug)]
struct Watchable {
    /// Its runtime, with the probes that do.
    found: Found,
    /// The run in which they were attached.
    look: Option<u64>,
}

/// Runs detection in its own thread, because it reads files of tens of megabytes and the kernel takes long to attach
/// probes.
#[derive(Debug)]
pub struct Finder {
    ask: SyncSender<Asked>,
    results: Receiver<(Look, Option<Found>)>,
    /// Detection runs started so far.
    looks: u64,
    /// Runs that have not returned yet, and runs that have.
    waiting: u64,
    looked: u64,
    /// The last run for each process that is pending, or had a known runtime.
    asked: HashMap<u32, u64>,
    /// Processes not examined because the queue was full.
    pub refused: u64,
    known: HashMap<u32, DetectedRuntime>,
    watchable: HashMap<u32, Watchable>,
}

impl Finder {
    /// Starts the thread; `attach` attaches a probe. Fails if the system cannot create a thread.
    pub fn start(
        extras: Extras,
        mut attach: impl FnMut(Look, &Place) -> Result<(), String> + Send + 'static,
    ) -> std::io::Result<Self> {
        let (ask, asked) = sync_channel::<Asked>(QUEUE);
        let (report, results) = sync_channel(QUEUE);
        std::thread::Builder::new().name("tracer-runtimes".into()).spawn(move || {
            for Asked { look, watch } in asked {
                let found = watch.or_else(|| recognise(look.0, extras));
                let found = found.map(|found| probed(look, found, &mut attach));
                if report.send((look, found)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self {
            ask,
            results,
            looks: 0,
            waiting: 0,
            looked: 0,
            asked: HashMap::new(),
            refused: 0,
            known: HashMap::new(),
            watchable: HashMap::new(),
        })
    }

    /// Requests detection in a process; does nothing if that was already requested.
    pub fn ask(&mut self, pid: u32) {
        if self.asked.contains_key(&pid) {
            return;
        }
        if self.asked.len() >= RUNTIMES_MAX as usize + QUEUE {
            self.refused += 1;
            return;
        }
        self.send(pid, None);
    }

    /// Whether the thread takes the request.
    fn send(&mut self, pid: u32, watch: Option<Found>) -> bool {
        self.looks += 1;
        match self.ask.try_send(Asked { look: (pid, self.looks), watch }) {
            Ok(()) => {
                self.asked.insert(pid, self.looks);
                self.waiting += 1;
                true
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.refused += 1;
                false
            }
        }
    }

    /// Has the probes attached that show which task wakes which, in a process where they can be. The result comes as that of a
    /// detection.
    pub fn watch_wakes(&mut self, pid: u32) {
        let Some(watchable) = self.watchable.get(&pid).filter(|watchable| watchable.look.is_none()) else { return };
        let mut found = watchable.found.clone();
        found.extra = std::mem::take(&mut found.on_demand);
        let sent = self.send(pid, Some(found));
        let look = self.looks;
        if let Some(watchable) = self.watchable.get_mut(&pid).filter(|_| sent) {
            watchable.look = Some(look);
        }
    }

    /// Whether a result is that of [`Self::watch_wakes`]: the kernel side knows the runtime already.
    pub fn is_watching(&self, (pid, look): Look) -> bool {
        self.watchable.get(&pid).is_some_and(|watchable| watchable.look == Some(look))
    }

    /// The run in which these probes were attached in a process: they are to be detached, because they cost too much or show nothing.
    pub fn unwatch_wakes(&mut self, pid: u32, is_costly: bool) -> Option<u64> {
        let watchable = self.watchable.get_mut(&pid)?;
        if let Some(known) = self.known.get_mut(&pid) {
            known.wakes = if is_costly { WakesSeen::TooCostly } else { WakesSeen::No };
        }
        watchable.look.take()
    }

    /// It would cost a process too much to watch its wake-ups.
    pub fn too_costly(&mut self, pid: u32) {
        if let Some(known) = self.known.get_mut(&pid).filter(|known| known.wakes == WakesSeen::No) {
            known.wakes = WakesSeen::TooCostly;
        }
    }

    /// The next result, and whether the process still exists unchanged: one that is gone or runs another program may
    /// have got stale probes.
    pub fn found(&mut self) -> Option<(Look, Option<Found>, bool)> {
        let (look, found) = self.results.try_recv().ok()?;
        self.waiting = self.waiting.saturating_sub(1);
        self.looked += 1;
        let there = self.asked.get(&look.0) == Some(&look.1);
        if there && found.is_none() {
            self.asked.remove(&look.0);
        }
        Some((look, found, there))
    }

    /// Remembers the result for a process; whether its wake-ups can be watched on demand.
    pub fn note(&mut self, pid: u32, found: &Found) -> bool {
        let is_watchable = found.state == DetectionState::Known && !found.on_demand.is_empty();
        if is_watchable && self.watchable.len() < RUNTIMES_MAX as usize {
            self.watchable.insert(pid, Watchable { found: found.clone(), look: None });
        }
        if self.known.len() < RUNTIMES_MAX as usize || self.known.contains_key(&pid) {
            self.known.insert(pid, DetectedRuntime::of(found));
        } else {
            self.refused += 1;
        }
        is_watchable
    }

    /// Forgets a process that is gone or runs another program.
    pub fn forget(&mut self, pid: u32) {
        self.asked.remove(&pid);
        self.known.remove(&pid);
        self.watchable.remove(&pid);
    }

    /// Number of processes by runtime and state.
    pub fn counts(&self) -> Vec<(&'static str, DetectionState, u64)> {
        let mut counts: Vec<(&'static str, DetectionState, u64)> = Vec::new();
        for DetectedRuntime { name, state, .. } in self.known.values() {
            match counts.iter_mut().find(|(n, s, _)| (n, s) == (name, state)) {
                Some((.., count)) => *count += 1,
                None => counts.push((*name, *state, 1)),
            }
        }
        counts.sort_unstable_by_key(|(name, state, _)| (*name, state.name()));
        counts
    }

    /// Number of processes in which wake-ups between tasks are watched, and in which that would cost too much.
    pub fn wakes(&self) -> [(WakesSeen, u64); 2] {
        [WakesSeen::Yes, WakesSeen::TooCostly].map(|seen| {
            let count = self.known.values().filter(|known| known.wakes == seen).count();
            (seen, count as u64)
        })
    }

    /// Results by process.
    pub fn known(&self) -> impl Iterator<Item = (u32, &DetectedRuntime)> {
        self.known.iter().map(|(pid, known)| (*pid, known))
    }

    /// Processes with pending detection: until it ends, their tasks are not distinguished.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Detection runs that have returned.
    pub fn looked(&self) -> u64 {
        self.looked
    }

    /// Table use of the known processes.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.known.len(), RUNTIMES_MAX as usize, self.refused)
    }
}
