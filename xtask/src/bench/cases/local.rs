//! Workloads without a network: system calls, and context switches. They run in this process, on a thread of their own.

use std::fs::File;
use std::io::{Read, Write, pipe};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Sample, Urgency, Workload, sched};
use crate::bench::statistics::permille;

/// Reads, status calls and the cheapest system call, in turn.
pub(super) struct Calls {
    file: File,
}

impl Calls {
    pub(super) fn new(dir: &Path) -> Result<Self> {
        let path = dir.join("file");
        std::fs::write(&path, [7; 4096]).context("cannot write a file")?;
        Ok(Self { file: File::open(path).context("cannot open a file")? })
    }
}

impl Workload for Calls {
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample> {
        pinned(urgency, || {
            let mut buffer = [0; 512];
            timed(time, 3, || {
                // SAFETY: takes nothing and cannot fail.
                unsafe { libc::syscall(libc::SYS_getppid) };
                self.file.read_at(&mut buffer, 0).context("cannot read a file")?;
                self.file.metadata().context("cannot ask about a file").map(drop)
            })
        })
    }
}

/// Two threads on one core that wake each other through pipes.
pub(super) struct Switches;

impl Workload for Switches {
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample> {
        let (mut near, mut far) = (pipe().context("no pipe")?, pipe().context("no pipe")?);
        std::thread::scope(|scope| {
            let other = scope.spawn(move || -> Result<u64> {
                sched::place(0, urgency, Some(sched::SERVER))?;
                let mut byte = [0];
                while near.0.read(&mut byte).context("cannot read a pipe")? > 0 {
                    far.1.write_all(&byte).context("cannot write a pipe")?;
                }
                Ok(sched::thread_cpu())
            });
            let (mut to, mut from) = (near.1, far.0);
            let sample = pinned(urgency, || {
                let mut byte = [0];
                let sample = timed(time, 1, || {
                    to.write_all(&byte).context("cannot write a pipe")?;
                    from.read_exact(&mut byte).context("cannot read a pipe")
                });
                // The other thread ends with its pipe.
                drop(to);
                sample
            });
            let others = other.join().unwrap_or_else(|_| bail!("a thread panicked"))?;
            sample.map(|sample| Sample { cpu_ns: sample.cpu_ns + others, ..sample })
        })
    }
}

/// Runs on an urgent, pinned thread of its own: urgency and pinning end with it.
pub(super) fn pinned(urgency: Urgency, run: impl FnOnce() -> Result<Sample> + Send) -> Result<Sample> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            sched::place(0, urgency, Some(sched::SERVER))?;
            run()
        });
        thread.join().unwrap_or_else(|_| bail!("a thread panicked"))
    })
}

/// Repeats `round`, which does `each` operations. Latencies are of whole rounds.
pub(super) fn timed(time: Duration, each: u64, mut round: impl FnMut() -> Result<()>) -> Result<Sample> {
    let mut latencies = Vec::with_capacity(1 << 20);
    let cpu = sched::thread_cpu();
    let begin = Instant::now();
    let mut last = Duration::ZERO;
    while last < time {
        round()?;
        let now = begin.elapsed();
        latencies.push(now.saturating_sub(last).as_nanos() as u64);
        last = now;
    }
    let cpu_ns = sched::thread_cpu() - cpu;
    latencies.sort_unstable();
    let [p50, p99, p999] = [500, 990, 999].map(|share| permille(&latencies, share) as f64 / 1e3);
    Ok(Sample { operations: latencies.len() as u64 * each, seconds: last.as_secs_f64(), p50, p99, p999, cpu_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_time_and_cpu_are_counted() {
        let dir = tempfile::tempdir().expect("dir");
        let mut cases: [(Box<dyn Workload>, u64); 2] =
            [(Box::new(Calls::new(dir.path()).expect("calls")), 3), (Box::new(Switches), 1)];
        for (case, each) in &mut cases {
            let sample = case.run(Duration::from_millis(50), Urgency::Usual).expect("runs");
            assert!(sample.operations > 10 && sample.operations.is_multiple_of(*each), "{sample:?}");
            assert!(sample.seconds >= 0.05 && sample.cpu_ns > 0, "{sample:?}");
            assert!(sample.p50 > 0.0 && sample.p50 <= sample.p99 && sample.p99 <= sample.p999, "{sample:?}");
        }
    }
}
