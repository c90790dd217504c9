//! The thread that looks at processes for an interpreter, and tells the kernel side where its frames are.
//!
//! A process is looked at when a stack of it was sampled, and again at growing intervals: it may load an interpreter, or a
//! library that matters, later.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tracer_common::interpreter::{FRAME_JAVA, INTERPRETERS_MAX, InterpreterLayout, InterpreterOutcome};
use tracer_host::guard::tables::TableUse;
use tracer_kernel::interpreter::InterpreterMap;
use tracer_runtimes::maps::Maps;
use tracer_runtimes::python_frames::{Look, refused};
use tracer_runtimes::{hotspot, php_frames, python_frames, v8_frames};

/// Most looks that wait.
const QUEUE: usize = 256;
/// Most processes whose next look is remembered; beyond it all are looked at anew.
const SEEN: usize = 16_384;
/// Between two looks at a process, at first and at most: each is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(60);
/// Looks after which an interpreter that does not look as its version says is believed to be another build.
const PATIENCE: u32 = 6;
/// Between two looks whether processes ended unnoticed.
const SWEEP: Duration = Duration::from_secs(60);

/// Where layouts go.
pub trait Layouts: Send {
    /// Says where a process keeps its frames; an error where there is no room.
    fn set(&mut self, pid: u32, layout: InterpreterLayout) -> Result<(), String>;
    /// Forgets a process.
    fn forget(&mut self, pid: u32);
}

impl Layouts for InterpreterMap {
    fn set(&mut self, pid: u32, layout: InterpreterLayout) -> Result<(), String> {
        InterpreterMap::set(self, pid, layout)
    }

    fn forget(&mut self, pid: u32) {
        InterpreterMap::forget(self, pid);
    }
}

#[derive(Debug, Default)]
struct Figures {
    known: AtomicU64,
    refused: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    Look(u32),
    Forget(u32),
}

/// When a process is looked at next, and after how long again.
#[derive(Clone, Copy, Debug)]
struct Next {
    at: Instant,
    then: Duration,
}

/// Handle on the thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Interpreters {
    jobs: SyncSender<Job>,
    seen: FxHashMap<u32, Next>,
    figures: Arc<Figures>,
}

impl Interpreters {
    /// Starts the thread. Fails if the system cannot create one.
    pub fn start(layouts: impl Layouts + 'static, wanted: WantedLanguages) -> std::io::Result<Self> {
        let (jobs, queue) = sync_channel(QUEUE);
        let figures = Arc::new(Figures::default());
        let mut worker = Worker { layouts, wanted, known: HashMap::new(), figures: Arc::clone(&figures) };
        std::thread::Builder::new().name("tracer-interpreters".into()).spawn(move || worker.run(&queue))?;
        Ok(Self { jobs, seen: FxHashMap::default(), figures })
    }

    /// A stack of this process was sampled: looks at it, if it is time. Never waits.
    pub fn sampled(&mut self, pid: u32, now: Instant) {
        let next = self.seen.get(&pid).copied();
        if next.is_some_and(|next| now < next.at) {
            return;
        }
        if next.is_none() && self.seen.len() >= SEEN {
            self.seen.clear();
        }
        let wait = next.map_or(FIRST, |next| next.then);
        if self.jobs.try_send(Job::Look(pid)).is_ok() {
            self.seen.insert(pid, Next { at: now + wait, then: (wait * 2).min(LONGEST) });
        }
    }

    /// A process ended, or runs another program.
    pub fn forget(&mut self, pid: u32) {
        if self.seen.remove(&pid).is_some() {
            // If there is no room, the thread finds out by itself.
            let _ = self.jobs.try_send(Job::Forget(pid));
        }
    }

    /// Processes whose interpreter is known.
    pub fn table_use(&self) -> TableUse {
        let of = |value: &AtomicU64| value.load(Ordering::Relaxed);
        TableUse {
            entries: of(&self.figures.known),
            limit: u64::from(INTERPRETERS_MAX),
            reached: of(&self.figures.refused),
        }
    }
}

/// Languages whose interpreters are looked for.
#[derive(Clone, Copy, Debug)]
pub struct WantedLanguages {
    /// `CPython`.
    pub python: bool,
    /// PHP.
    pub php: bool,
    /// JavaScript, by Node.js.
    pub javascript: bool,
    /// Java, by HotSpot.
    pub java: bool,
}

/// Looks at a process for one language.
type Way = fn(&Maps) -> Look;

impl WantedLanguages {
    fn look(self, pid: u32) -> Look {
        let Some(maps) = Maps::read(pid) else { return Look::Nothing };
        // A program that has two runs the one with the library, or the name, of PHP, then of Node.js, Python and Java.
        let ways: [(bool, Way); 4] = [
            (self.php, php_frames::look),
            (self.javascript, v8_frames::look),
            (self.python, python_frames::look),
            (self.java, hotspot::look),
        ];
        let found = ways.into_iter().filter(|(wanted, _)| *wanted).map(|(_, look)| look(&maps));
        found.into_iter().find(|look| *look != Look::Nothing).unwrap_or(Look::Nothing)
    }
}

/// What is known of a process with an interpreter.
#[derive(Clone, Copy, Debug)]
struct InterpreterState {
    /// What the kernel side has; `None` = nothing yet.
    layout: Option<InterpreterLayout>,
    /// Looks that found one that has not begun.
    tries: u32,
}

struct Worker<L> {
    layouts: L,
    wanted: WantedLanguages,
    known: HashMap<u32, InterpreterState>,
    figures: Arc<Figures>,
}

impl<L: Layouts> Worker<L> {
    fn run(&mut self, queue: &Receiver<Job>) {
        let mut swept = Instant::now();
        loop {
            match queue.recv_timeout(SWEEP) {
                Ok(Job::Look(pid)) if self.is_settled(pid) => {}
                Ok(Job::Look(pid)) => self.take(pid, self.wanted.look(pid)),
                Ok(Job::Forget(pid)) => self.forget(pid),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if swept.elapsed() >= SWEEP {
                swept = Instant::now();
                self.sweep(|pid| Path::new(&format!("/proc/{pid}")).exists());
            }
            self.figures.known.store(self.known.len() as u64, Ordering::Relaxed);
        }
    }

    /// Whether looking again shows nothing else: Java's machine stays, and a look at it reads thousands of words.
    fn is_settled(&self, pid: u32) -> bool {
        let layout = self.known.get(&pid).and_then(|known| known.layout);
        layout.is_some_and(|layout| layout.refused == 0 && layout.flags & FRAME_JAVA != 0)
    }

    fn take(&mut self, pid: u32, found: Look) {
        if self.known.len() >= INTERPRETERS_MAX as usize && !self.known.contains_key(&pid) && found != Look::Nothing {
            self.figures.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let layout = match found {
            Look::Nothing => {
                self.forget(pid);
                return;
            }
            Look::NotYet => {
                let known = self.known.entry(pid).or_insert(InterpreterState { layout: None, tries: 0 });
                known.tries += 1;
                if known.tries < PATIENCE || known.layout.is_some() {
                    return;
                }
                refused(InterpreterOutcome::Unsupported, 0)
            }
            Look::Known(layout) => layout,
        };
        let known = self.known.entry(pid).or_insert(InterpreterState { layout: None, tries: 0 });
        if known.layout == Some(layout) {
            return;
        }
        match self.layouts.set(pid, layout) {
            Ok(()) => {
                log::debug!("process {pid} runs an interpreter: {layout:?}");
                known.layout = Some(layout);
            }
            Err(error) => {
                log::debug!("process {pid}: its interpreter's frames are not read: {error}");
                self.figures.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn forget(&mut self, pid: u32) {
        if self.known.remove(&pid).is_some_and(|known| known.layout.is_some()) {
            self.layouts.forget(pid);
        }
    }

    fn sweep(&mut self, exists: impl Fn(u32) -> bool) {
        let gone: Vec<u32> = self.known.keys().copied().filter(|pid| !exists(*pid)).collect();
        for pid in gone {
            self.forget(pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map with room for some.
    #[derive(Default)]
    struct Room(HashMap<u32, InterpreterLayout>, usize);

    impl Layouts for Room {
        fn set(&mut self, pid: u32, layout: InterpreterLayout) -> Result<(), String> {
            if self.0.len() >= self.1 && !self.0.contains_key(&pid) {
                return Err("full".into());
            }
            self.0.insert(pid, layout);
            Ok(())
        }

        fn forget(&mut self, pid: u32) {
            self.0.remove(&pid);
        }
    }

    const ALL: WantedLanguages = WantedLanguages { python: true, php: true, javascript: true, java: true };

    fn worker(room: usize) -> Worker<Room> {
        let wanted = ALL;
        Worker { layouts: Room(HashMap::new(), room), wanted, known: HashMap::new(), figures: Arc::default() }
    }

    const LAYOUT: InterpreterLayout = InterpreterLayout {
        state: 0x340,
        thread_id: 152,
        frame: 56,
        cframe: 9,
        code: 32,
        previous: 48,
        position: 56,
        owner: 68,
        owner_entry: 1,
        names: 112,
        flags: 11 << 8,
        refused: 0,
        owner_mask: 0xff,
    };

    #[test]
    fn an_interpreter_that_begins_is_waited_for() {
        let mut worker = worker(2);
        for _ in 1..PATIENCE {
            worker.take(1, Look::NotYet);
            assert!(worker.layouts.0.is_empty());
        }
        worker.take(1, Look::NotYet);
        assert_eq!(worker.layouts.0[&1].refused, InterpreterOutcome::Unsupported as u32);
        worker.take(1, Look::Known(LAYOUT));
        assert_eq!(worker.layouts.0[&1], LAYOUT);
        // Its memory cannot be read any more: what is known still holds.
        worker.take(1, Look::NotYet);
        assert_eq!(worker.layouts.0[&1], LAYOUT);
        worker.take(1, Look::Nothing);
        assert!(worker.layouts.0.is_empty() && worker.known.is_empty());
    }

    #[test]
    fn a_machine_of_java_is_looked_at_until_it_is_known() {
        let mut worker = worker(2);
        worker.take(1, Look::Nothing);
        worker.take(2, Look::Known(LAYOUT));
        assert!(!worker.is_settled(1) && !worker.is_settled(2));
        let java = InterpreterLayout { code: 8, flags: FRAME_JAVA, ..InterpreterLayout::default() };
        worker.take(1, Look::Known(java));
        assert!(worker.is_settled(1) && worker.layouts.0[&1] == java);
        // Another program.
        worker.forget(1);
        assert!(!worker.is_settled(1));
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut worker = worker(1);
        worker.take(1, Look::Known(LAYOUT));
        worker.take(2, Look::Known(LAYOUT));
        assert_eq!((worker.layouts.0.len(), worker.figures.refused.load(Ordering::Relaxed)), (1, 1));
        worker.sweep(|pid| pid != 1);
        worker.take(2, Look::Known(LAYOUT));
        assert_eq!(worker.layouts.0.keys().copied().collect::<Vec<_>>(), [2]);
        for pid in 0..INTERPRETERS_MAX + 10 {
            worker.take(pid, Look::NotYet);
        }
        assert!(worker.known.len() <= INTERPRETERS_MAX as usize && worker.figures.refused.load(Ordering::Relaxed) > 5);
    }

    #[test]
    fn looks_become_rare() {
        let mut interpreters = Interpreters::start(Room(HashMap::new(), 1), ALL).expect("a thread");
        let start = Instant::now();
        let mut looks = 0;
        let mut before = None;
        for tenth in 0..3000u32 {
            interpreters.sampled(u32::MAX, start + Duration::from_millis(100) * tenth);
            let next = interpreters.seen.get(&u32::MAX).map(|next| next.at);
            looks += u32::from(next != before);
            before = next;
        }
        assert!((8..=16).contains(&looks), "{looks} in five minutes");
        interpreters.forget(u32::MAX);
        assert!(interpreters.seen.is_empty());
    }
}
