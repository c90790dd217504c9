//! Attaches the probes of functions that throw exceptions, in a thread of its own: once for each file, in every process that has it
//! mapped, as soon as one of them serves requests. A file that throws more often than the limit loses its probe until
//! these processes have ended.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tracer_common::runtime::{UserProbe, declared};
use tracer_kernel::declared_calls::DeclaredCalls;
use tracer_kernel::loader::Kernel;
use tracer_kernel::uprobes::Prober;
use tracer_runtimes::exceptions::{
    ExceptionSettings, FILES, MappedFile, ThrowProbe, ThrowSite, ThrowingRuntime, files_that_may_throw, sites,
};
use tracer_runtimes::file_identity::FileIdentity;
use tracer_runtimes::maps::Maps;

use super::call_limits::CallLimits;

/// Processes that wait to be looked at.
const QUEUE: usize = 1024;
/// Between two looks whether files are unused.
const LEAVE_EVERY: Duration = Duration::from_secs(10);
/// Most files that are remembered, with probes or without.
const KNOWN: usize = 1024;
/// Most processes of a file that are remembered: with more it stays.
const USERS: usize = 1024;
/// First number of this thread's visits: those of declared transactions and of TLS libraries are below.
const VISITS: u64 = 1 << 33;

/// The thread that attaches.
pub(super) struct ExceptionProbes {
    ask: SyncSender<u32>,
    counts: Arc<ExceptionProbeCounts>,
}

/// What the thread has done so far.
#[derive(Debug, Default)]
pub(super) struct ExceptionProbeCounts {
    /// Files whose probe was detached because it was hit too often.
    pub(super) withdrawn: AtomicU64,
    /// Processes not looked at because too many waited.
    pub(super) skipped: AtomicU64,
}

impl ExceptionProbes {
    /// Starts the thread; `None` if exceptions are not wanted.
    pub(super) fn start(settings: ExceptionSettings, kernel: &Kernel) -> std::io::Result<Option<Self>> {
        if !settings.enabled {
            return Ok(None);
        }
        let counts = Arc::new(ExceptionProbeCounts::default());
        let (ask, asked) = sync_channel(QUEUE);
        let mut watch = Watch {
            max_rate: settings.max_rate,
            prober: kernel.prober(),
            calls: kernel.declared_calls.clone(),
            limits: CallLimits::default(),
            files: HashMap::new(),
            visits: VISITS,
            counts: Arc::clone(&counts),
        };
        std::thread::Builder::new().name("tracer-throw".into()).spawn(move || watch.follow(&asked))?;
        Ok(Some(Self { ask, counts }))
    }

    /// A process began to serve requests.
    pub(super) fn look_at(&self, pid: u32) {
        if let Err(TrySendError::Full(_)) = self.ask.try_send(pid) {
            self.counts.skipped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What the thread has done so far.
    pub(super) fn counts(&self) -> &ExceptionProbeCounts {
        &self.counts
    }
}

/// A file that was looked at.
#[derive(Default)]
struct Watched {
    /// Its probes: number, and the visit that they are kept under. One that was hit too often is not among them.
    probes: Vec<(u64, u64)>,
    /// Its path, for people.
    path: String,
    /// Processes that were seen to have it.
    users: HashSet<u32>,
    /// There were more.
    has_more_users: bool,
}

struct Watch {
    max_rate: u32,
    prober: Prober,
    calls: DeclaredCalls,
    limits: CallLimits,
    files: HashMap<FileIdentity, Watched>,
    visits: u64,
    counts: Arc<ExceptionProbeCounts>,
}

impl Watch {
    fn follow(&mut self, asked: &Receiver<u32>) {
        let mut next = Instant::now() + LEAVE_EVERY;
        loop {
            let now = Instant::now();
            let left = next.saturating_duration_since(now);
            let asked = asked.recv_timeout(self.limits.wait(now).map_or(left, |limit| limit.min(left)));
            self.withdraw();
            match asked {
                Ok(pid) => self.look_at_process(pid),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next {
                self.leave();
                next = Instant::now() + LEAVE_EVERY;
            }
        }
    }

    fn look_at_process(&mut self, pid: u32) {
        // It may be gone.
        let Some(maps) = Maps::read(pid) else { return };
        for file in files_that_may_throw(&maps) {
            let Some(identity) = FileIdentity::of(&file.open_by) else { continue };
            if !self.files.contains_key(&identity) {
                if self.files.len() >= KNOWN {
                    self.files.retain(|_, watched| !watched.probes.is_empty());
                }
                let watched = self.attach(&file);
                self.files.insert(identity, watched);
            }
            if let Some(watched) = self.files.get_mut(&identity) {
                watched.has_more_users |= watched.users.len() >= USERS;
                if !watched.has_more_users {
                    watched.users.insert(pid);
                }
            }
        }
    }

    /// Attaches to what throws in a file that was not known.
    fn attach(&mut self, file: &MappedFile) -> Watched {
        let mut watched = Watched { path: file.path.clone(), ..Watched::default() };
        for site in sites(file) {
            let path = &file.path;
            match self.attach_site(&file.open_by, &site) {
                Ok(probe) => {
                    log::info!("exceptions of {} are traced in {path}", site.runtime.name());
                    watched.probes.push(probe);
                }
                Err(why) => log::warn!("exceptions of {} are not traced in {path}: {why}", site.runtime.name()),
            }
        }
        watched
    }

    fn attach_site(&mut self, file: &Path, site: &ThrowSite) -> Result<(u64, u64), String> {
        let number = self.free(site.runtime).ok_or_else(|| format!("{FILES} other files have probes"))?;
        self.visits += 1;
        let visit = self.visits;
        let rate = self.max_rate.saturating_mul(site.runtime.hits_an_exception());
        self.limits.add(number as usize, rate, Instant::now(), self.calls.of(number as usize));
        let cookie = site.runtime.cookie(number);
        let done = match &site.probe {
            ThrowProbe::Thrown(place) => self.prober.attach_place(visit, file, place, cookie),
            ThrowProbe::PythonExcept { at, minor } => {
                let cookie = cookie | u64::from(*minor) << declared::OPERANDS;
                let places: Vec<(u64, u64)> = at.iter().map(|at| (*at, cookie)).collect();
                self.prober.attach_file_at(UserProbe::PythonExcept, visit, file, &places)
            }
        };
        if let Err(why) = done {
            self.prober.detach_file(visit);
            self.limits.retain(|other| other as u64 != number);
            return Err(why);
        }
        Ok((number, visit))
    }

    /// A number of the runtime that no probe carries.
    fn free(&self, runtime: ThrowingRuntime) -> Option<u64> {
        let used: HashSet<u64> =
            self.files.values().flat_map(|watched| watched.probes.iter().map(|(number, _)| *number)).collect();
        (0..FILES).map(|file| runtime.number(file)).find(|number| !used.contains(number))
    }

    /// Detaches the probes of files that throw more often than the limit.
    fn withdraw(&mut self) {
        for (number, rate) in self.limits.exceeded(Instant::now(), |number| self.calls.of(number)) {
            for watched in self.files.values_mut() {
                let prober = &mut self.prober;
                let is_it = |(of, _): &mut (u64, u64)| *of == number as u64;
                for (_, visit) in watched.probes.extract_if(.., is_it) {
                    prober.detach_file(visit);
                    self.counts.withdrawn.fetch_add(1, Ordering::Relaxed);
                    let (path, most) = (&watched.path, self.max_rate);
                    let hits = ThrowingRuntime::of(number as u64).map_or(1, ThrowingRuntime::hits_an_exception);
                    let rate = rate / f64::from(hits);
                    log::warn!("{path}: {rate:.0} exceptions a second, more than {most}: they are not traced any more");
                }
            }
        }
    }

    /// Detaches from files that no process with requests has any more.
    fn leave(&mut self) {
        let (prober, limits) = (&mut self.prober, &mut self.limits);
        self.files.retain(|_, watched| {
            watched.users.retain(|pid| Path::new(&format!("/proc/{pid}")).exists());
            let stays = watched.has_more_users || !watched.users.is_empty();
            if !stays {
                for (number, visit) in watched.probes.drain(..) {
                    prober.detach_file(visit);
                    limits.retain(|other| other as u64 != number);
                }
            }
            stays
        });
    }
}
