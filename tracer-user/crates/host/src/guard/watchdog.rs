//! An independent thread that measures the agent's usage, publishes the load shedding level, and detaches every program
//! when the pipeline's thread stalls or a ceiling does not hold.
//!
//! The watchdog detaches first and reports afterwards, because reporting can block. The process then stays for
//! [`LINGER`], so that `/healthz` (503) and `/metrics` can show the reason, and exits with [`EXIT_DETACHED`]; its
//! supervisor restarts it. Exiting alone would not suffice: a thread stuck in the kernel keeps descriptors, and with
//! them programs, alive.
//!
//! A stall is measured in checks of this thread, not by the clock: an agent that was stopped (SIGSTOP, a paused virtual
//! machine) made no checks, so it does not count as stuck when it continues. A runnable thread is judged by the CPU it
//! got, not by time, because on a busy host it may get little.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracer_model::Nanos;

use super::self_process::{self, EXIT_DETACHED};
use super::shed::{Ceilings, Shedder, Usage};
use super::status::Status;

/// How long a detached agent stays to show the reason.
pub const LINGER: Duration = Duration::from_secs(5);
/// The interval between checks is this fraction of the stall limit, within the bounds below: memory can grow by tens of
/// megabytes in a second.
const LOOKS: u32 = 16;
const LOOK_LEAST: Duration = Duration::from_millis(50);
const LOOK_MOST: Duration = Duration::from_millis(250);

/// What the watchdog watches, and how it acts.
pub struct Watchdog {
    /// State shared with the pipeline.
    pub status: Arc<Status>,
    /// The pipeline's thread.
    pub tid: u32,
    /// How long the pipeline may stall; zero = for ever.
    pub stall: Duration,
    /// Limits of the agent.
    pub ceilings: Ceilings,
    /// Nice value of the watchdog's own thread: it must run when the others do not.
    pub nice: i32,
    /// Detaches every program, whatever the pipeline's thread is stuck in; returns whether it succeeded.
    pub detach: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Called with the reason's name afterwards.
    pub detached: Box<dyn Fn(&'static str) + Send>,
}

/// What a thread did since the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It sent a heartbeat.
    Beat,
    /// No heartbeat; it waits for something.
    Waits,
    /// No heartbeat; it is runnable and got this much CPU, nanoseconds.
    Runs(Nanos),
}

/// Measures how long the pipeline has stalled. Pure.
#[derive(Debug)]
struct Standstill {
    /// Planned time between checks, nanoseconds.
    interval: Nanos,
    limit: Nanos,
    still: Nanos,
}

impl Standstill {
    /// Records a check `elapsed` nanoseconds after the last one; true when the stall has lasted too long.
    fn look(&mut self, seen: Seen, elapsed: Nanos) -> bool {
        match seen {
            Seen::Beat => self.still = 0,
            // If more time than planned has passed, this thread stalled too: only a part counts.
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
        // Without the privilege it keeps the priority of the others; the agent reported that at start.
        let _ = self_process::set_nice(self.nice);
        let mut shedder = Shedder::new(self.ceilings);
        let interval = (self.stall / LOOKS).clamp(LOOK_LEAST, LOOK_MOST);
        let nanos = |time: Duration| time.as_nanos() as Nanos;
        let mut standstill = Standstill { interval: nanos(interval), limit: nanos(self.stall), still: 0 };
        let (mut beats, mut cpu, mut looked) = (self.status.beats(), 0, self_process::monotonic());
        loop {
            std::thread::sleep(interval);
            let now = self_process::monotonic();
            let seen = if self.status.beats() == beats {
                let (state, used) = self_process::thread(self.tid).unwrap_or(('?', 0));
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
            let memory = self_process::memory().own;
            let level = shedder.observe(Usage { now, memory, cpu: self_process::cpu() + self.status.bpf() });
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
        self_process::say(&format!("{why}; ends in {} s with exit code {EXIT_DETACHED}", LINGER.as_secs()));
        let end = Instant::now() + LINGER;
        while Instant::now() < end && !self.status.is_stopping() {
            std::thread::sleep(LOOK_LEAST);
        }
        // The reason was reported above.
        self_process::end_now(EXIT_DETACHED)
    }
}

/// From now on a panic of the calling thread or of the watchdog detaches everything and ends the process, so that the
/// agent is never left half alive. Panics of other threads are reported as usual and end only those threads.
pub fn end_on_panic(detach: Arc<dyn Fn() -> bool + Send + Sync>) {
    let pipeline = std::thread::current().id();
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        if thread.id() == pipeline || thread.name() == Some("tracer-watchdog") {
            detach();
            self_process::end(&format!("a bug, please report it: {panic}; all programs are detached"), EXIT_DETACHED);
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
    fn time_without_a_check_is_no_standstill() {
        let mut watch = standstill();
        // Stopped for an hour, nine times, without time for a heartbeat.
        assert!((0..9).all(|_| !watch.look(Seen::Waits, 7200 * STEP)));
        assert!(!watch.look(Seen::Beat, STEP));
        // A hundredth of a CPU for a quarter of an hour, then a heartbeat; an endless loop is detected later.
        assert!((0..1800).all(|_| !watch.look(Seen::Runs(STEP / 100), STEP)));
        assert!(!watch.look(Seen::Beat, STEP));
        assert_eq!((1..1000).find(|_| watch.look(Seen::Runs(STEP / 2), STEP)), Some(40));
    }

    #[test]
    fn it_can_be_turned_off() {
        let mut watch = Standstill { limit: 0, ..standstill() };
        assert!((0..100_000).all(|_| !watch.look(Seen::Waits, STEP)));
    }

    /// Set in the child process in which a test reruns itself.
    const CHILD: &str = "TRACER_TEST_CHILD";

    /// Runs `test` of this test program in a child process; returns exit code and stderr.
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
            let (code, output) = child("a_panic_of_the_pipeline_detaches_and_ends_the_process");
            assert_eq!(code, Some(i32::from(EXIT_DETACHED)), "{output}");
            assert!(output.contains("the worker goes on"), "{output}");
            assert!(output.contains("detached first") && output.contains("index out of"), "{output}");
            return;
        }
        end_on_panic(Arc::new(|| {
            self_process::say("detached first");
            true
        }));
        // The process survives another thread's panic.
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
            let (code, output) = child("a_pipeline_that_hangs_is_detached_by_a_thread_that_does_not");
            assert_eq!(code, Some(i32::from(EXIT_DETACHED)), "{output}");
            assert!(
                output.contains("has not moved for 1 s") && output.contains("standstill was the reason"),
                "{output}"
            );
            // It ran for a second, stalled for one, and stayed to show the reason.
            assert!(began.elapsed() >= Duration::from_secs(2) + LINGER, "{:?}", began.elapsed());
            return;
        }
        let status = Arc::new(Status::default());
        let free = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&free);
        let watchdog = Watchdog {
            status: Arc::clone(&status),
            tid: self_process::thread_id(),
            stall: Duration::from_secs(1),
            ceilings: Ceilings { memory: 1 << 40, cpu: 100.0, calm: 1_000_000_000 },
            nice: 0,
            detach: Arc::new(move || {
                done.store(true, Ordering::SeqCst);
                true
            }),
            detached: Box::new(|what| self_process::say(&format!("{what} was the reason"))),
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
        // Blocks for ever, like a thread that waits for a reader that never reads.
        std::thread::park();
        std::thread::sleep(Duration::from_secs(60));
    }
}
