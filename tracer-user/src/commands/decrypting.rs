//! Attaches the probes of TLS libraries, in a thread of its own: once for each file, in every process that has it mapped,
//! now or later.
//!
//! Files are found in the system's directories, in the processes that run when the agent starts, and in those that begin to
//! use TLS or run another program later: nothing is polled.

mod held_file;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tracer_common::runtime::UserProbe;
use tracer_kernel::uprobes::Prober;
use tracer_runtimes::file_identity::{CodeByte, FileIdentity};
use tracer_runtimes::maps::Maps;
use tracer_runtimes::tls::{Candidate, Libraries, Library, NSS, Refusal, Site, Sites, candidates, inspect, shared};

use self::held_file::{Content, Held};
use super::file_patterns::expand;

/// Where systems have their libraries: programs that run briefly are traced from their beginning.
const SYSTEM: [&str; 5] = ["/usr/lib/*/", "/usr/lib64/", "/usr/lib/", "/lib/", "/lib64/"];
/// The beginnings of their names.
const NAMES: [&str; 3] = ["libssl.so.*", "libgnutls.so.*", NSS];
/// Where systems have programs with a library inside that often run briefly.
const INSIDE: [&str; 2] = ["/usr/bin/node", "/usr/local/bin/node"];
/// Between two looks whether files are unused, and two attempts to attach where the kernel refused it.
const LEAVE_EVERY: Duration = Duration::from_secs(10);
/// Processes that wait to be looked at.
const QUEUE: usize = 1024;
/// How often a file's probes are attached at once, and the time between: while other probes come and go, or processes end,
/// the kernel may refuse them for a moment.
const ATTEMPTS: usize = 5;
/// See [`ATTEMPTS`].
const PAUSE: Duration = Duration::from_millis(20);
/// Most files that are remembered, with probes or without.
const FILES: usize = 256;
/// Most programs without a TLS library inside that are remembered: others are read again.
const PROGRAMS: usize = 1024;
/// Most processes of a file that are remembered: it is in use while one of them has it.
const USERS: usize = 64;
/// Most copies of one file, in containers' writable layers, that have probes of their own.
const COPIES: usize = 8;
/// Most programs that are held to be searched for a library inside.
const LATER: usize = 64;
/// First number of this thread's visits: those of declared transactions are below.
const VISITS: u64 = 1 << 32;

/// The thread that attaches.
pub(super) struct Decrypting {
    ask: SyncSender<u32>,
    counts: Arc<Counts>,
}

/// What the thread has done so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Files with probes, now.
    pub(super) files: AtomicU64,
    /// Files refused, or not looked at because there are too many.
    pub(super) refused: AtomicU64,
    /// Processes not looked at because too many waited.
    pub(super) skipped: AtomicU64,
}

impl Decrypting {
    /// Starts the thread and waits until it attached to what is there; `None` if no library is wanted.
    pub(super) fn start(libraries: &Libraries, prober: Prober) -> std::io::Result<Option<Self>> {
        if libraries.is_empty() {
            return Ok(None);
        }
        let counts = Arc::new(Counts::default());
        let (ask, asked) = sync_channel(QUEUE);
        let (ready, is_ready) = sync_channel::<()>(1);
        let mut watch = Watch {
            libraries: libraries.clone(),
            prober,
            files: HashMap::new(),
            without: HashSet::new(),
            later: VecDeque::new(),
            inspected: HashMap::new(),
            visits: VISITS,
            counts: Arc::clone(&counts),
        };
        std::thread::Builder::new().name("tracer-tls".into()).spawn(move || {
            watch.look_at_system();
            watch.look_at_all_processes();
            // Whoever started it may be gone.
            let _ = ready.send(());
            watch.follow(&asked);
        })?;
        // An error means that the thread is gone, which it has logged.
        let _ = is_ready.recv();
        Ok(Some(Self { ask, counts }))
    }

    /// A process began to use TLS, or runs another program.
    pub(super) fn look_at(&self, pid: u32) {
        if let Err(TrySendError::Full(_)) = self.ask.try_send(pid) {
            self.counts.skipped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What the thread has done so far.
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// A file that was looked at.
#[derive(Default)]
struct Watched {
    /// The number its probes are kept under; `None`: it was refused.
    visit: Option<u64>,
    /// Those of copies of it, which show the same numbers.
    copies: Vec<u64>,
    /// The first place of its probes.
    code: Option<CodeByte>,
    /// Processes that run a file which no path leads to any more: it was copied up after they began, and had no probes yet.
    unreachable: Vec<u32>,
    /// The kernel refused the probes, which may not last: to be tried again.
    again: Option<Box<(Library, Held, Sites)>>,
    /// It belongs to the system: its probes stay.
    system: bool,
    /// Processes that were seen to have it.
    users: Vec<u32>,
}

struct Watch {
    libraries: Libraries,
    prober: Prober,
    files: HashMap<FileIdentity, Watched>,
    /// Programs without a TLS library inside.
    without: HashSet<FileIdentity>,
    /// Programs to be searched for a library inside, of these processes or the system's, once nothing else is to be done: that
    /// takes up to a second for a large one.
    later: VecDeque<(FileIdentity, Held, Option<u32>)>,
    /// What was found in files, which is not searched for again when they are next used.
    inspected: HashMap<Content, (Library, Sites)>,
    visits: u64,
    counts: Arc<Counts>,
}

impl Watch {
    fn follow(&mut self, asked: &Receiver<u32>) {
        let mut next = Instant::now() + LEAVE_EVERY;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            let wait = if self.later.is_empty() { left } else { Duration::ZERO };
            match asked.recv_timeout(wait) {
                Ok(pid) => self.look_at_process(pid),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {
                    if let Some((inode, held, user)) = self.later.pop_front() {
                        self.consider(inode, held, user);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.try_again();
                    self.leave();
                    next = Instant::now() + LEAVE_EVERY;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look_at_system(&mut self) {
        let patterns = SYSTEM.iter().flat_map(|directory| NAMES.map(|name| format!("{directory}{name}")));
        for path in patterns.flat_map(|pattern| expand(&pattern)) {
            let name = path.display().to_string();
            if let Some(library) = shared(&name).filter(|library| self.libraries.has(*library)) {
                self.see(&Candidate { library: Some(library), path: name, lies_at: path.clone(), open_by: path }, None);
            }
        }
        for path in INSIDE {
            let (open_by, lies_at) = (path.into(), path.into());
            self.see(&Candidate { library: None, path: path.to_owned(), open_by, lies_at }, None);
        }
    }

    fn look_at_all_processes(&mut self) {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                self.look_at_process(pid);
            }
        }
    }

    fn look_at_process(&mut self, pid: u32) {
        if pid == std::process::id() {
            return;
        }
        let Some(maps) = Maps::read(pid) else { return };
        for candidate in candidates(&maps, &self.libraries) {
            self.see(&candidate, Some(pid));
        }
    }

    /// Attaches to a file that has no probes yet, at once where it is the library, else later. `user`: a process that has it;
    /// else it belongs to the system.
    fn see(&mut self, candidate: &Candidate, user: Option<u32>) {
        let Some(inode) = FileIdentity::of(&candidate.open_by) else { return };
        if let Some(watched) = self.files.get_mut(&inode) {
            watched.uses(user);
            if let Some(pid) = user.filter(|pid| inode.may_have_copies() && watched.is_missed_by(*pid, &candidate.path))
            {
                self.attach_to_copy(inode, candidate, pid);
            }
            return;
        }
        let waits = || self.later.iter().any(|(waiting, ..)| *waiting == inode);
        if candidate.library.is_none() && (self.without.contains(&inode) || waits()) {
            return;
        }
        let Some(held) = Held::of(candidate) else { return };
        let is_known = || held.content().is_some_and(|content| self.inspected.contains_key(&content));
        if candidate.library.is_some() || is_known() {
            self.consider(inode, held, user);
        } else if self.later.len() < LATER {
            self.later.push_back((inode, held, user));
        } else {
            self.counts.skipped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Attaches to a file, unless it got its probes meanwhile.
    fn consider(&mut self, inode: FileIdentity, held: Held, user: Option<u32>) {
        if let Some(watched) = self.files.get_mut(&inode) {
            watched.uses(user);
            return;
        }
        let content = held.content();
        let known = content.and_then(|content| self.inspected.get(&content)).cloned();
        let candidate = &held.candidate;
        let inspected = known.map_or_else(|| inspect(candidate, &self.libraries), Ok);
        if inspected == Err(Refusal::Absent) {
            if self.without.len() >= PROGRAMS {
                self.without.clear();
            }
            self.without.insert(inode);
            return;
        }
        if self.files.len() >= FILES {
            self.refuse("too many files with TLS libraries", candidate);
            return;
        }
        let (mut visit, mut again, mut code) = (None, None, None);
        match inspected {
            Ok((library, sites)) => match self.attach(library, candidate, &sites) {
                Ok(number) => {
                    visit = Some(number);
                    code = sites.sites.first().and_then(|site| CodeByte::read(&held.file, site.offset));
                    if let Some(content) = content {
                        if self.inspected.len() >= FILES {
                            self.inspected.clear();
                        }
                        self.inspected.insert(content, (library, sites));
                    }
                }
                Err(why) => {
                    self.refuse(&why, candidate);
                    let (name, path) = (library.name(), &candidate.path);
                    log::warn!("text of {name} is not traced in {path} for now, which is tried again: {why}");
                    again = Some(Box::new((library, held, sites)));
                }
            },
            Err(why) => self.refuse(&why.to_string(), candidate),
        }
        let mut watched = Watched { visit, again, code, system: user.is_none(), ..Watched::default() };
        watched.uses(user);
        self.files.insert(inode, watched);
    }

    /// A process does not run the probes of its file: it was copied up to its container's writable layer before the process
    /// began. Attaches to that copy, if it is what the process runs.
    fn attach_to_copy(&mut self, inode: FileIdentity, candidate: &Candidate, pid: u32) {
        let inspected = Held::of(candidate).map(|held| (inspect(&held.candidate, &self.libraries), held));
        let Some(watched) = self.files.get(&inode) else { return };
        // Once more: a process that has just begun is shown with a mapping before the kernel puts probes there.
        if watched.copies.len() >= COPIES || !watched.is_missed_by(pid, &candidate.path) {
            return;
        }
        let Some((Ok((library, sites)), held)) = inspected else { return };
        let Ok(visit) = self.attach(library, &held.candidate, &sites) else { return };
        let Some(watched) = self.files.get_mut(&inode) else { return };
        if watched.is_missed_by(pid, &candidate.path) {
            if watched.unreachable.len() >= USERS {
                watched.unreachable.clear();
            }
            watched.unreachable.push(pid);
            self.prober.detach_file(visit);
            self.counts.files.fetch_sub(1, Ordering::Relaxed);
            self.refuse("it was copied up after its process began", candidate);
        } else {
            watched.copies.push(visit);
        }
    }

    fn refuse(&self, why: &str, candidate: &Candidate) {
        // Most Go programs do not use TLS. `tracer doctor` shows the reasons.
        log::debug!("text of {} is not traced in {}: {why}", candidate.name(), candidate.path);
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Attaches the probes of a file, all or none; the number they are kept under.
    fn attach(&mut self, library: Library, candidate: &Candidate, sites: &Sites) -> Result<u64, String> {
        self.visits += 1;
        let visit = self.visits;
        for (probe, places) in by_probe(&sites.sites) {
            let mut attempt = || self.prober.attach_file_at(probe, visit, &candidate.open_by, &places);
            let mut done = attempt();
            for _ in 1..ATTEMPTS {
                if done.is_ok() {
                    break;
                }
                std::thread::sleep(PAUSE);
                done = attempt();
            }
            if let Err(why) = done {
                self.prober.detach_file(visit);
                return Err(why);
            }
        }
        let dear = if sites.stepped > 0 { ", at some cost: its code has no cheap place" } else { "" };
        log::info!("text of {} is traced in {}{dear}", library.name(), candidate.path);
        self.counts.files.fetch_add(1, Ordering::Relaxed);
        Ok(visit)
    }

    /// Attaches where the kernel refused it before.
    fn try_again(&mut self) {
        let waits = |(inode, watched): (&FileIdentity, &Watched)| watched.again.is_some().then_some(*inode);
        let waiting: Vec<FileIdentity> = self.files.iter().filter_map(waits).collect();
        for inode in waiting {
            let Some(again) = self.files.get_mut(&inode).and_then(|watched| watched.again.take()) else { continue };
            let done = self.attach(again.0, &again.1.candidate, &again.2);
            if done.is_ok() {
                self.counts.refused.fetch_sub(1, Ordering::Relaxed);
            }
            let Some(watched) = self.files.get_mut(&inode) else { continue };
            match done {
                Ok(visit) => {
                    watched.visit = Some(visit);
                    watched.code = again.2.sites.first().and_then(|site| CodeByte::read(&again.1.file, site.offset));
                }
                Err(_) => watched.again = Some(again),
            }
        }
    }

    /// Detaches from files that no process has mapped any more.
    fn leave(&mut self) {
        for watched in self.files.values_mut() {
            watched.users.retain(|pid| Path::new(&format!("/proc/{pid}")).exists());
        }
        let unused = |watched: &Watched| !watched.system && watched.users.is_empty();
        if !self.files.values().any(unused) {
            return;
        }
        // Other processes may have them.
        self.look_at_all_processes();
        let gone: Vec<FileIdentity> =
            self.files.iter().filter(|(_, watched)| unused(watched)).map(|(at, _)| *at).collect();
        for inode in gone {
            let Some(watched) = self.files.remove(&inode) else { continue };
            for visit in watched.visit.into_iter().chain(watched.copies) {
                self.prober.detach_file(visit);
                self.counts.files.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Watched {
    /// Whether a process runs the file's code without its probes, though it has some.
    fn is_missed_by(&self, pid: u32, path: &str) -> bool {
        let Some(code) = self.code.filter(|_| !self.unreachable.contains(&pid)) else { return false };
        Maps::read(pid).is_some_and(|maps| code.is_unchanged(&maps, path))
    }

    fn uses(&mut self, user: Option<u32>) {
        if let Some(user) = user.filter(|user| self.users.len() < USERS && !self.users.contains(user)) {
            self.users.push(user);
        }
    }
}

/// The places of each probe, offset and cookie, in the order in which the probes first appear.
fn by_probe(sites: &[Site]) -> Vec<(UserProbe, Vec<(u64, u64)>)> {
    let mut found: Vec<(UserProbe, Vec<(u64, u64)>)> = Vec::new();
    for site in sites {
        let place = (site.offset, site.cookie);
        match found.iter_mut().find(|(probe, _)| *probe == site.probe) {
            Some((_, places)) => places.push(place),
            None => found.push((site.probe, vec![place])),
        }
    }
    found
}
