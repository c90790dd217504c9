//! What runs in a process that serves requests: whether its requests share threads, and how its tasks are told apart.
//!
//! Read from the process's files and memory, once, when it first serves: by version tables and checks. What is not known is
//! said ([`State`]) and counted, and its tasks are then told apart by nobody.

pub mod elf;
pub mod go;
mod greenlet;
pub mod maps;
mod node;
pub mod python;
pub mod tokio;
pub mod told;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use tracer_common::limits::RUNTIMES_MAX;
use tracer_common::runtime::{Runtime, UserProbe};

use self::told::Known;
use crate::guard::fill::Fill;

/// Processes that may wait to be looked at.
const QUEUE: usize = 256;

/// How well the tasks of a process are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// They are.
    Known,
    /// Of a version whose memory is not known.
    UnknownVersion,
    /// Names that are needed are not in its files (stripped, another build).
    NoSymbols,
    /// Its files or memory could not be read, or are not as its version says.
    Unreadable,
    /// A probe that is needed could not be attached.
    NoProbe,
    /// On this processor or C library it cannot be done.
    Unsupported,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Known, Self::UnknownVersion, Self::NoSymbols, Self::Unreadable, Self::NoProbe, Self::Unsupported];

    /// Label value of `tracer_runtime_processes{state}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::UnknownVersion => "unknown_version",
            Self::NoSymbols => "no_symbols",
            Self::Unreadable => "unreadable",
            Self::NoProbe => "no_probe",
            Self::Unsupported => "unsupported",
        }
    }

    /// What follows, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Known => "its tasks are told apart",
            Self::UnknownVersion => {
                "its tasks are not told apart: where this version keeps them is not known; calls of requests that share \
                 threads are ambiguous or nobody's"
            }
            Self::NoSymbols => {
                "its tasks are not told apart: names that are needed are not in its files (stripped, or another build); \
                 calls of requests that share threads are ambiguous or nobody's"
            }
            Self::Unreadable => {
                "its tasks are not told apart: its files or memory could not be read, or are not as its version says; \
                 calls of requests that share threads are ambiguous or nobody's"
            }
            Self::NoProbe => {
                "its tasks are not told apart: a probe that is needed could not be attached (the agent's log says why); \
                 calls of requests that share threads are ambiguous or nobody's"
            }
            Self::Unsupported => {
                "its tasks are not told apart on this processor or C library; calls of requests that share threads are \
                 ambiguous or nobody's"
            }
        }
    }
}

/// Sources that cost so much that they are only used where somebody asks for them: probes that are hit ten times a request and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Which task of tokio wakes which.
    pub tokio_wakers: bool,
    /// Which goroutine lets which go on.
    pub go_ready: bool,
}

/// Where a probe goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which.
    pub probe: UserProbe,
    /// File it is in.
    pub file: PathBuf,
    /// Where in the file, bytes.
    pub offset: u64,
}

/// What was found in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The runtime's name, label value of `tracer_runtime_processes{runtime}`.
    pub name: &'static str,
    /// Its version, as far as it is known; for people.
    pub version: String,
    /// How well.
    pub state: State,
    /// What the kernel is told.
    pub runtime: Runtime,
    /// Probes it needs: without one of them its tasks are not told apart.
    pub places: Vec<Place>,
    /// Probes that were asked for ([`Extras`]) and that it can do without.
    pub extra: Vec<Place>,
}

impl Found {
    /// A runtime whose tasks are told apart without probes.
    pub fn known(name: &'static str, version: String, runtime: Runtime) -> Self {
        Self { name, version, state: State::Known, runtime, places: Vec::new(), extra: Vec::new() }
    }

    /// The same, with tasks that cannot be told apart.
    #[must_use]
    pub fn without(self, state: State) -> Self {
        let runtime = Runtime { kind: self.runtime.kind, ..Runtime::default() };
        Self { state, runtime, places: Vec::new(), extra: Vec::new(), ..self }
    }
}

/// Finds out what runs in a process; `None`: nothing whose tasks share threads, as far as is known, or it is gone.
pub fn recognise(pid: u32, extras: Extras) -> Option<Found> {
    let maps = maps::Maps::read(pid)?;
    go::recognise(pid, &maps, extras.go_ready)
        .or_else(|| greenlet::recognise(pid, &maps))
        .or_else(|| python::recognise(pid, &maps))
        .or_else(|| node::recognise(pid, &maps))
        .or_else(|| tokio::recognise(pid, &maps, extras.tokio_wakers))
}

/// What was found, with its probes attached; with tasks that cannot be told apart where one is not.
fn probed(look: Look, mut found: Found, attach: &mut impl FnMut(Look, &Place) -> Result<(), String>) -> Found {
    for place in std::mem::take(&mut found.places) {
        if let Err(why) = attach(look, &place) {
            log::warn!("process {}: {} could not be attached: {why}", look.0, place.probe.place());
            return found.without(State::NoProbe);
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
                    // Whoever is not seen to be woken may have been.
                    *watched = 0;
                }
            }
        }
    }
    found
}

/// A look at a process: its id, and which look of all that was.
pub type Look = (u32, u64);

/// Looks at processes in a thread of its own: files of tens of megabytes are read for it, and the kernel takes its time to
/// attach probes.
#[derive(Debug)]
pub struct Finder {
    ask: SyncSender<Look>,
    told: Receiver<(Look, Option<Found>)>,
    /// Looks so far.
    looks: u64,
    /// Those that were asked for and have not come back, and those that have.
    waiting: u64,
    looked: u64,
    /// The last look at each process that is there and waits for it, or has something that is known.
    asked: HashMap<u32, u64>,
    /// Processes that were not looked at because too many waited.
    pub refused: u64,
    known: HashMap<u32, Known>,
}

impl Finder {
    /// Starts it; `attach` puts a probe where it belongs. Errors are the system's, where it has no thread to give.
    pub fn start(
        extras: Extras,
        mut attach: impl FnMut(Look, &Place) -> Result<(), String> + Send + 'static,
    ) -> std::io::Result<Self> {
        let (ask, asked) = sync_channel::<Look>(QUEUE);
        let (tell, told) = sync_channel(QUEUE);
        std::thread::Builder::new().name("tracer-runtimes".into()).spawn(move || {
            for look in asked {
                let found = recognise(look.0, extras).map(|found| probed(look, found, &mut attach));
                if tell.send((look, found)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self {
            ask,
            told,
            looks: 0,
            waiting: 0,
            looked: 0,
            asked: HashMap::new(),
            refused: 0,
            known: HashMap::new(),
        })
    }

    /// Wants to know what runs in a process; does nothing where that was asked already.
    pub fn ask(&mut self, pid: u32) {
        if self.asked.contains_key(&pid) {
            return;
        }
        if self.asked.len() >= RUNTIMES_MAX as usize + QUEUE {
            self.refused += 1;
            return;
        }
        self.looks += 1;
        match self.ask.try_send((pid, self.looks)) {
            Ok(()) => {
                self.asked.insert(pid, self.looks);
                self.waiting += 1;
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.refused += 1,
        }
    }

    /// The next process that was looked at. Whether it is still there: one that is not, or runs another program, may have
    /// got probes that belong nowhere now.
    pub fn found(&mut self) -> Option<(Look, Option<Found>, bool)> {
        let (look, found) = self.told.try_recv().ok()?;
        self.waiting = self.waiting.saturating_sub(1);
        self.looked += 1;
        let there = self.asked.get(&look.0) == Some(&look.1);
        if there && found.is_none() {
            self.asked.remove(&look.0);
        }
        Some((look, found, there))
    }

    /// Remembers what became of a process.
    pub fn note(&mut self, pid: u32, found: &Found) {
        if self.known.len() < RUNTIMES_MAX as usize || self.known.contains_key(&pid) {
            self.known.insert(pid, Known::of(found));
        } else {
            self.refused += 1;
        }
    }

    /// The process is gone, or runs another program.
    pub fn forget(&mut self, pid: u32) {
        self.asked.remove(&pid);
        self.known.remove(&pid);
    }

    /// Processes by runtime and state.
    pub fn counts(&self) -> Vec<(&'static str, State, u64)> {
        let mut counts: Vec<(&'static str, State, u64)> = Vec::new();
        for Known { name, state, .. } in self.known.values() {
            match counts.iter_mut().find(|(n, s, _)| (n, s) == (name, state)) {
                Some((.., count)) => *count += 1,
                None => counts.push((*name, *state, 1)),
            }
        }
        counts.sort_unstable_by_key(|(name, state, _)| (*name, state.name()));
        counts
    }

    /// What was found, by process.
    pub fn known(&self) -> impl Iterator<Item = (u32, &Known)> {
        self.known.iter().map(|(pid, known)| (*pid, known))
    }

    /// Processes that are being looked at, or wait for it: what they do meanwhile is told apart by nobody.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Looks that have come back.
    pub fn looked(&self) -> u64 {
        self.looked
    }

    /// How many are known.
    pub fn fill(&self) -> Fill {
        Fill::new(self.known.len(), RUNTIMES_MAX as usize, self.refused)
    }
}
