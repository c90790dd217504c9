//! A thread that needs nobody: measures what the agent uses, publishes how much is to be given up, and detaches every
//! program when the pipeline's thread stands still or a ceiling does not hold.
//!
//! Programs are detached first and explained afterwards, because explaining can block. Then the process stays for
//! [`LINGER`], so that `/healthz` (503) and `/metrics` can say why, and ends with [`EXIT_DETACHED`]; whoever supervises
//! it starts it anew. The end of the process alone would not do: a thread stuck in the kernel keeps descriptors, and
//! with them programs, alive.
//!
//! Standing still is counted in looks of this thread, not by the clock: an agent that was stopped (SIGSTOP, a paused
//! virtual machine) did not look, and is not taken for a stuck one when it goes on. A thread that is runnable is judged
//! by the CPU it was given, not by time: on a busy host a little goes a long way.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::own::{self, EXIT_DETACHED};
use super::shed::{Ceilings, Shedder, Usage};
use super::status::Status;
use crate::model::Nanos;

/// How long a detached agent stays to say why.
pub const LINGER: Duration = Duration::from_secs(5);
/// Time between two looks: part of the time a standstill takes to be one, within these bounds. Memory can grow by tens
/// of megabytes in a second.
const LOOKS: u32 = 16;
const LOOK_LEAST: Duration = Duration::from_millis(50);
const LOOK_MOST: Duration = Duration::from_millis(250);

/// What the watchdog watches, and what it does about it.
pub struct Watchdog {
    /// Where it hears of the pipeline and says what it found.
    pub status: Arc<Status>,
    /// The pipeline's thread.
    pub tid: u32,
    /// How long the pipeline may stand still; zero = for ever.
    pub stall: Duration,
    /// Most the agent may take.
    pub ceilings: Ceilings,
    /// Nice value of the watchdog's own thread: it must run when the others do not.
    pub nice: i32,
    /// Detaches every program, whatever the pipeline's thread is stuck in; whether that was done.
    pub detach: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Told the name of what was the reason afterwards.
    pub detached: Box<dyn Fn(&'static str) + Send>,
}

/// What a thread was seen doing since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It said that it is alive.
    Beat,
    /// It did not, and it waits for something.
    Waits,
    /// It did not, is runnable and was given this much CPU, nanoseconds.
    Runs(Nanos),
}

/// Counts how long the pipeline has stood still. Pure.
#[derive(Debug)]
struct Standstill {
    /// Time between looks as planned, nanoseconds.
    interval: Nanos,
    limit: Nanos,
    still: Nanos,
}

impl Standstill {
    /// Takes a look `elapsed` nanoseconds after the last one; true when it has lasted too long.
    fn look(&mut self, seen: Seen, elapsed: Nanos) -> bool {
        match seen {
            Seen::Beat => self.still = 0,
            // More time than planned has passed: this thread stood still too. It vouches for a part only.
            Seen::Waits => self.still += elapsed.min(2 * self.interval),
            Seen::Runs(cpu) => self.still += cpu.min(elapsed).min(2 * self.interval),
        }
        self.limit > 0 && self.still >= self.limit
    }
}

impl Watchdog {
    /// Starts the thread; it ends with the process.
    pub fn start(self) -> io::Result<()> {
        std::thread::Builder::new().name("tracer-watchdog".into()).spawn(move || self.watch()).map(drop)
    }

    fn watch(self) -> ! {
        // Where privileges do not allow it, it stays as low as the others; that was said at start.
        let _ = own::set_nice(self.nice);
        let mut shedder = Shedder::new(self.ceilings);
        let interval = (self.stall / LOOKS).clamp(LOOK_LEAST, LOOK_MOST);
        let nanos = |time: Duration| time.as_nanos() as Nanos;
        let mut standstill = Standstill { interval: nanos(interval), limit: nanos(self.stall), still: 0 };
        let (mut beats, mut cpu, mut looked) = (self.status.beats(), 0, own::monotonic());
        loop {
            std::thread::sleep(interval);
            let now = own::monotonic();
            let seen = if self.status.beats() == beats {
                let (state, used) = own::thread(self.tid).unwrap_or(('?', 0));
                let given = used.saturating_sub(cpu);
                cpu = used;
                if state == 'R' { Seen::Runs(given) } else { Seen::Waits }
            } else {
                beats = self.status.beats();
                Seen::Beat
            };
            if standstill.look(seen, now.saturating_sub(looked)) {
                let stood = self.stall.as_secs_f64();
                let (what, why) = if self.status.is_stopping() {
                    ("ending", format!("the agent was asked to end and did not get there in {stood} s"))
                } else {
                    ("standstill", format!("the pipeline has not moved for {stood} s"))
                };
                self.give_up(what, &why);
            }
            looked = now;
            let memory = own::memory().own;
            let level = shedder.observe(Usage { now, memory, cpu: own::cpu() + self.status.bpf() });
            self.status.measured(level, memory, shedder.cpu());
            if let Some(ceiling) = shedder.beyond() {
                let Ceilings { memory: most, cpu: cores, .. } = self.ceilings;
                let why = format!(
                    "its {} could not be brought below the ceiling although everything was given up ({} MB of {} MB, {:.0} % of {:.0} % of a core)",
                    ceiling.name(),
                    memory >> 20,
                    most >> 20,
                    shedder.cpu() * 100.0,
                    cores * 100.0
                );
                self.give_up(ceiling.name(), &why);
            }
        }
    }

    fn give_up(&self, what: &'static str, why: &str) -> ! {
        let done = (self.detach)();
        let result = if done { "all programs are detached" } else { "not all programs could be detached" };
        let why = format!("watchdog: {why}: {result}; traced programs are not affected");
        self.status.set_detached(&why);
        (self.detached)(what);
        own::say(&format!("{why}; ends in {} s with exit code {EXIT_DETACHED}", LINGER.as_secs()));
        let end = Instant::now() + LINGER;
        while Instant::now() < end && !self.status.is_stopping() {
            std::thread::sleep(LOOK_LEAST);
        }
        // Said already.
        own::end_now(EXIT_DETACHED)
    }
}

/// From now on a panic of the calling thread, or of the watchdog's, detaches everything and ends the process: an agent
/// is never left half alive. Other threads' panics are said, as usual, and end what they were doing.
pub fn end_on_panic(detach: Arc<dyn Fn() -> bool + Send + Sync>) {
    let pipeline = std::thread::current().id();
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        if thread.id() == pipeline || thread.name() == Some("tracer-watchdog") {
            detach();
            own::end(&format!("a bug, please report it: {panic}; all programs are detached"), EXIT_DETACHED);
        }
        usual(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};

    const STEP: Nanos = 500_000_000;

    fn standstill() -> Standstill {
        Standstill { interval: STEP, limit: 20 * STEP, still: 0 }
    }

    #[test]
    fn a_standstill_takes_its_time() {
        let mut watch = standstill();
        for _ in 0..1000 {
            assert!((0..19).all(|_| !watch.look(Seen::Waits, STEP)));
            assert!(!watch.look(Seen::Beat, STEP));
        }
        assert!((0..19).all(|_| !watch.look(Seen::Waits, STEP)));
        assert!(watch.look(Seen::Waits, STEP));
    }

    #[test]
    fn time_nobody_looked_is_no_standstill() {
        let mut watch = standstill();
        // Stopped for an hour, nine times, and nothing has had the time to beat yet.
        assert!((0..9).all(|_| !watch.look(Seen::Waits, 7200 * STEP)));
        assert!(!watch.look(Seen::Beat, STEP));
        // A hundredth of a CPU for a quarter of an hour, then a beat; a loop without end shows later, but it does.
        assert!((0..1800).all(|_| !watch.look(Seen::Runs(STEP / 100), STEP)));
        assert!(!watch.look(Seen::Beat, STEP));
        assert_eq!((1..1000).find(|_| watch.look(Seen::Runs(STEP / 2), STEP)), Some(40));
    }

    #[test]
    fn it_can_be_turned_off() {
        let mut watch = Standstill { limit: 0, ..standstill() };
        assert!((0..100_000).all(|_| !watch.look(Seen::Waits, STEP)));
    }

    /// Set in the process a test starts of itself.
    const CHILD: &str = "TRACER_TEST_CHILD";

    /// Runs this test program's `test` alone in a process of its own; exit code and what it said.
    fn child(test: &str) -> (Option<i32>, String) {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("guard::watchdog::tests::{test}"), "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    #[test]
    fn a_panic_of_the_pipeline_detaches_and_ends_the_process() {
        if std::env::var_os(CHILD).is_none() {
            let (code, said) = child("a_panic_of_the_pipeline_detaches_and_ends_the_process");
            assert_eq!(code, Some(i32::from(EXIT_DETACHED)), "{said}");
            assert!(said.contains("the worker goes on"), "{said}");
            assert!(said.contains("detached first") && said.contains("index out of"), "{said}");
            return;
        }
        end_on_panic(Arc::new(|| {
            own::say("detached first");
            true
        }));
        // Another thread's panic is survived.
        let worker = std::thread::spawn(|| panic!("the worker goes on"));
        assert!(worker.join().is_err());
        let nothing: [u8; 0] = std::hint::black_box([]);
        let index = std::hint::black_box(3);
        let _value = std::hint::black_box(nothing[index]);
    }

    #[test]
    fn a_pipeline_that_hangs_is_detached_by_a_thread_that_does_not() {
        if std::env::var_os(CHILD).is_none() {
            let began = Instant::now();
            let (code, said) = child("a_pipeline_that_hangs_is_detached_by_a_thread_that_does_not");
            assert_eq!(code, Some(i32::from(EXIT_DETACHED)), "{said}");
            assert!(said.contains("has not moved for 1 s") && said.contains("standstill was the reason"), "{said}");
            // It moved for a second, stood still for one, and stayed to say why.
            assert!(began.elapsed() >= Duration::from_secs(2) + LINGER, "{:?}", began.elapsed());
            return;
        }
        let status = Arc::new(Status::default());
        let free = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&free);
        let watchdog = Watchdog {
            status: Arc::clone(&status),
            tid: own::thread_id(),
            stall: Duration::from_secs(1),
            ceilings: Ceilings { memory: 1 << 40, cpu: 100.0, calm: 1_000_000_000 },
            nice: 0,
            detach: Arc::new(move || {
                done.store(true, Ordering::SeqCst);
                true
            }),
            detached: Box::new(|what| own::say(&format!("{what} was the reason"))),
        };
        watchdog.start().unwrap();
        for _ in 0..20 {
            status.beat();
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!free.load(Ordering::SeqCst));
        while !free.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Held for ever: what a thread does that waits for a reader that never reads.
        std::thread::park();
        std::thread::sleep(Duration::from_secs(60));
    }
}
