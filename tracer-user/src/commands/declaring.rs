//! Attaches the probes of declared transactions, in a thread of its own: once for each file, in every process that runs
//! it, now or later. Programs that appear later are found by their path, or by the processes that run them. Probes of a
//! transaction that is called more often than its limit are detached for good.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracer_common::runtime::{UserProbe, declared as cookie};
use tracer_kernel::declared_calls::DeclaredCalls;
use tracer_kernel::loader::Kernel;
use tracer_kernel::uprobes::Prober;
use tracer_runtimes::declared::{Binary, Declared, DeclaredSite, DeclaredTable, ProbePlace, Site, UsdtSite};
use tracer_runtimes::file_identity::FileIdentity;
use tracer_transactions::classes::rules::Glob;

use super::call_limits::CallLimits;
use super::file_patterns::expand;

/// Between two looks whether programs appeared at the declared paths.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Processes that wait to be looked at.
const QUEUE: usize = 256;

/// What the thread is asked to do.
enum Ask {
    /// A process runs another program.
    LookAt(u32),
    /// Other transactions are declared.
    Replace,
}

/// The thread that attaches.
pub(super) struct Declaring {
    ask: SyncSender<Ask>,
    next: Arc<Next>,
}

/// The transactions that the thread is to take up.
#[derive(Default)]
struct Next {
    table: Mutex<Option<DeclaredTable>>,
    /// The probes are not those of the latest transactions yet.
    busy: AtomicBool,
    /// Transactions whose probes went because they were called too often: number, and calls a second.
    withdrawn: Mutex<Vec<(usize, f64)>>,
}

impl Next {
    fn swap(&self, table: Option<DeclaredTable>) -> Option<DeclaredTable> {
        std::mem::replace(&mut *self.table.lock().unwrap_or_else(PoisonError::into_inner), table)
    }
}

impl Declaring {
    /// Starts the thread and, if `wait`, waits until it attached to what is there; `None` if nothing is declared.
    pub(super) fn start(declared: &DeclaredTable, kernel: &Kernel, wait: bool) -> std::io::Result<Option<Self>> {
        if declared.is_empty() {
            return Ok(None);
        }
        let (ask, asked) = sync_channel(QUEUE);
        let (ready, is_ready) = sync_channel::<()>(1);
        let next = Arc::new(Next { busy: AtomicBool::new(true), ..Next::default() });
        let its_next = Arc::clone(&next);
        let mut watch = Watch {
            declared: declared.clone(),
            prober: kernel.prober(),
            files: HashMap::new(),
            visits: 0,
            calls: kernel.declared_calls.clone(),
            limits: CallLimits::default(),
            next: Arc::clone(&next),
        };
        std::thread::Builder::new().name("tracer-declare".into()).spawn(move || {
            watch.look();
            watch.look_at_all_processes();
            its_next.busy.store(false, Ordering::Release);
            // Whoever started it may be gone.
            let _ = ready.send(());
            watch.follow(&asked);
        })?;
        if wait {
            // An error means that the thread is gone, which it has logged.
            let _ = is_ready.recv();
        }
        Ok(Some(Self { ask, next }))
    }

    /// A process runs another program.
    pub(super) fn look_at(&self, pid: u32) {
        // When the queue is full, its path is looked at all the same.
        let _ = self.ask.try_send(Ask::LookAt(pid));
    }

    /// Whether the probes are not those of the latest transactions yet.
    pub(super) fn is_busy(&self) -> bool {
        self.next.busy.load(Ordering::Acquire)
    }

    /// Transactions whose probes went because they were called too often, since this was last asked: number, and calls a
    /// second.
    pub(super) fn take_withdrawn(&self) -> Vec<(usize, f64)> {
        std::mem::take(&mut *self.next.withdrawn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Other transactions are declared: detaches the probes of those that are gone and attaches those of new ones, soon.
    pub(super) fn replace(&self, declared: &DeclaredTable) {
        self.next.busy.store(true, Ordering::Release);
        self.next.swap(Some(declared.clone()));
        // When the queue is full, the thread finds them all the same.
        let _ = self.ask.try_send(Ask::Replace);
    }
}

/// A file with probes, or one that was refused.
struct Watched {
    /// The path it was found by.
    path: PathBuf,
    /// Of each transaction that was looked for in it, the number under which its probes are kept; `None`: it was refused.
    visits: HashMap<usize, Option<u64>>,
}

struct Watch {
    declared: DeclaredTable,
    prober: Prober,
    files: HashMap<FileIdentity, Watched>,
    visits: u64,
    calls: DeclaredCalls,
    limits: CallLimits,
    next: Arc<Next>,
}

impl Watch {
    fn follow(&mut self, asked: &Receiver<Ask>) {
        let mut looked = Instant::now();
        loop {
            let wait = LOOK_EVERY.saturating_sub(looked.elapsed());
            let ask = asked.recv_timeout(self.limits.wait(Instant::now()).map_or(wait, |limit| limit.min(wait)));
            self.withdraw();
            if let Some(declared) = self.next.swap(None) {
                self.replace(declared);
                self.next.busy.store(false, Ordering::Release);
            }
            match ask {
                Ok(Ask::LookAt(pid)) => self.look_at_process(pid),
                Ok(Ask::Replace) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if looked.elapsed() >= LOOK_EVERY {
                self.look();
                self.leave();
                looked = Instant::now();
            }
        }
    }

    /// Detaches the probes of transactions that are called more often than their limit.
    fn withdraw(&mut self) {
        let exceeded = self.limits.exceeded(Instant::now(), |number| self.calls.of(number));
        if exceeded.is_empty() {
            return;
        }
        for (number, _) in &exceeded {
            // It stays refused in these files.
            for visit in self.files.values_mut().filter_map(|watched| watched.visits.get_mut(number)?.take()) {
                self.prober.detach_file(visit);
            }
        }
        for (number, rate) in &exceeded {
            let Some(one) = self.declared.get(*number) else { continue };
            let (place, name, limit) = (&one.place, &one.name, one.max_rate.unwrap_or_default());
            log::warn!(
                "{place}: transaction '{name}': {rate:.0} calls a second, more than {limit}: its probes are detached"
            );
        }
        self.next.withdrawn.lock().unwrap_or_else(PoisonError::into_inner).extend(exceeded);
    }

    /// Detaches the probes of transactions that are gone and attaches those of new ones; others stay.
    fn replace(&mut self, declared: DeclaredTable) {
        self.declared = declared;
        let (declared, prober) = (&self.declared, &mut self.prober);
        self.files.retain(|_, watched| {
            watched.visits.retain(|number, visit| {
                let stays = declared.get(*number).is_some();
                if let (false, Some(visit)) = (stays, visit) {
                    prober.detach_file(*visit);
                }
                stays
            });
            !watched.visits.is_empty()
        });
        self.limits.retain(|number| self.declared.get(number).is_some());
        self.look();
        self.look_at_all_processes();
    }

    /// Looks at the declared paths.
    fn look(&mut self) {
        let declared = self.declared.clone();
        for (_, one) in declared.iter() {
            for path in expand(&one.program) {
                self.consider(&path, &path);
            }
        }
    }

    fn look_at_all_processes(&mut self) {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            self.withdraw();
            if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                self.look_at_process(pid);
            }
        }
    }

    /// Looks at the program of a process: a path in a container is another one here.
    fn look_at_process(&mut self, pid: u32) {
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        if let Ok(path) = fs::read_link(&exe) {
            self.consider(&path, &exe);
        }
    }

    /// Attaches to the file at `open` if its name is declared and it has no probes yet.
    fn consider(&mut self, name: &Path, open: &Path) {
        let text = name.to_string_lossy();
        let declared = self.declared.iter().filter(|(_, one)| Glob::new(&one.program).fits(&text));
        let mut declared: Vec<(usize, Arc<Declared>)> =
            declared.map(|(number, one)| (number, Arc::clone(one))).collect();
        if declared.is_empty() {
            return;
        }
        let Some(identity) = FileIdentity::of(open) else { return };
        if let Some(known) = self.files.get(&identity) {
            declared.retain(|(number, _)| !known.visits.contains_key(number));
            if declared.is_empty() {
                return;
            }
        }
        let mut visits = HashMap::new();
        let binary = Binary::open(open);
        for (number, one) in &declared {
            let placed = binary.as_ref().map_err(Clone::clone).and_then(|binary| binary.declared(one));
            let done = placed.map_err(|why| why.to_string()).and_then(|at| self.attach(open, *number, one, &at));
            if let (Ok(_), Some(rate)) = (&done, one.max_rate) {
                self.limits.add(*number, rate, Instant::now(), self.calls.of(*number));
            }
            visits.insert(*number, done.as_ref().ok().copied());
            match done {
                Ok(_) => log::info!("transaction '{}': {} of {text} is traced", one.name, one.target),
                Err(why) => log::error!("{}: transaction '{}': {text}: {why}", one.place, one.name),
            }
        }
        let watched = || Watched { path: name.to_owned(), visits: HashMap::new() };
        self.files.entry(identity).or_insert_with(watched).visits.extend(visits);
        self.withdraw();
    }

    /// Attaches the probes of one transaction, all or none; the number they are kept under.
    fn attach(&mut self, file: &Path, index: usize, declared: &Declared, placed: &DeclaredSite) -> Result<u64, String> {
        self.visits += 1;
        let visit = self.visits;
        let done = match placed {
            DeclaredSite::Code(site) => self.attach_code(visit, file, index as u64, declared, site),
            DeclaredSite::Usdt(site) => self.attach_usdt(visit, file, index as u64, declared, site),
        };
        if let Err(why) = done {
            self.prober.detach_file(visit);
            return Err(why);
        }
        Ok(visit)
    }

    fn attach_usdt(
        &mut self,
        visit: u64,
        file: &Path,
        index: u64,
        declared: &Declared,
        site: &UsdtSite,
    ) -> Result<(), String> {
        // Ends first, as below.
        for end in &site.ends {
            self.prober.attach_place(visit, file, end, index | cookie::RETURN | declared.capture(true))?;
        }
        for begin in &site.begins {
            self.prober.attach_place(visit, file, begin, index | declared.capture(false))?;
        }
        Ok(())
    }

    fn attach_code(
        &mut self,
        visit: u64,
        file: &Path,
        index: u64,
        declared: &Declared,
        site: &Site,
    ) -> Result<(), String> {
        let number = index | if site.go { cookie::GO } else { 0 };
        let (begins, ends) = (number | declared.capture(false), number | declared.capture(true));
        let mut probes = vec![];
        for end in &site.ends {
            let shared = if end.shared { cookie::SHARED } else { 0 };
            let stack = ((i64::from(end.stack)) << cookie::STACK) as u64;
            probes.push((UserProbe::DeclaredPlace, end.at, ends | cookie::RETURN | shared | stack));
        }
        if site.ends.is_empty() {
            probes.push((UserProbe::DeclaredReturn, site.entry, ends));
        }
        // Returns first: an entry without its return would be a call that never ends.
        for (probe, offset, cookie) in probes {
            self.prober.attach_file(probe, visit, (file, offset), cookie)?;
        }
        let entry = ProbePlace { at: site.entry, semaphore: None, operands: site.operands.clone() };
        self.prober.attach_place(visit, file, &entry, begins)
    }

    /// Detaches from files that are at none of the declared paths any more and that no process runs.
    fn leave(&mut self) {
        let replaced = |identity: &FileIdentity, watched: &Watched| FileIdentity::of(&watched.path) != Some(*identity);
        let mut gone: HashMap<FileIdentity, Vec<u64>> = self
            .files
            .iter()
            .filter(|(identity, watched)| replaced(identity, watched))
            .map(|(i, w)| (*i, w.visits.values().flatten().copied().collect()))
            .collect();
        if gone.is_empty() {
            return;
        }
        for identity in running() {
            gone.remove(&identity);
        }
        for (identity, visits) in gone {
            self.files.remove(&identity);
            for visit in visits {
                self.prober.detach_file(visit);
            }
        }
    }
}

/// The programs that processes run.
fn running() -> HashSet<FileIdentity> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| FileIdentity::of(&entry.path().join("exe"))).collect()
}
