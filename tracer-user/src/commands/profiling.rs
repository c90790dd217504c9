//! Stack samples: how many are taken, how the kernel side walks stacks, and where debug files come from.

use std::time::{Duration, Instant};

use tracer_host::guard::tables::{TableUse, scaled};
use tracer_kernel::loader::Kernel;
use tracer_kernel::rings::Rings;
use tracer_kernel::trace_contexts::ThreadContext;
use tracer_results::metrics::Metrics;
use tracer_unwind::{Bounds, Figures, Interpreters, Unwinder, WantedLanguages};

use super::agent::Agent;
use super::sampling::Sampling;
use super::thread_clocks::ThreadClocks;
use super::{Failure, LoadError};
use crate::config::Config;
use crate::debuginfod::Debuginfod;
use crate::pipeline::Pipeline;

/// Bytes of unwind tables at the default ceiling of memory.
const UNWIND_BYTES: usize = 64 << 20;

/// How long samples only ask for unwind tables after the start: what runs a tenth of the time is met, and its stack's files are, one by
/// one; and no longer than that, however many tables are wanted.
const TABLES_FIRST_LEAST: Duration = Duration::from_millis(500);
const TABLES_FIRST_MOST: Duration = Duration::from_secs(2);

/// What profiling consists of; `None`: not wanted, or not possible here.
pub(super) struct Profiling {
    /// Rate of stack samples.
    pub(super) sampling: Sampling,
    /// Threads that work for slow requests.
    pub(super) thread_clocks: ThreadClocks,
    /// Since when samples ask for unwind tables and are not reported.
    tables_first: Option<Instant>,
    /// Makes unwind tables.
    unwinder: Option<Unwinder>,
    /// Looks for interpreters in processes whose stacks are sampled.
    pub(super) interpreters: Option<Interpreters>,
    /// Fetches debug files.
    debuginfod: Option<Debuginfod>,
    /// Contexts of the requests that threads hold, if they are published; kept between drains for its memory.
    pub(super) thread_contexts: Vec<ThreadContext>,
}

/// How full the tables of unwinding are.
#[derive(Default)]
pub(super) struct UnwindTableUse {
    pub(super) bytes: TableUse,
    pub(super) files: TableUse,
    pub(super) rules: TableUse,
}

impl Profiling {
    /// Has stacks walked as the settings and the kernel allow. Before the self-test, which reports what is not possible; nothing is
    /// sampled before [`super::agent::Agent::open_up`].
    pub(super) fn start(
        kernel: &mut Kernel,
        rings: &mut Rings,
        config: &Config,
        debuginfod: Option<Debuginfod>,
    ) -> Self {
        let unwinder = unwinding(kernel, rings, config);
        let interpreters = interpreting(kernel, config);
        // A rate that nothing samples at would be shown.
        let hertz = if kernel.sampler.forbidden().is_some() { 0 } else { config.sampling.hertz };
        Self {
            sampling: Sampling::new(hertz, config.sampling.overhead_budget, kernel.sampler.clocks()),
            thread_clocks: ThreadClocks::default(),
            tables_first: None,
            unwinder,
            interpreters,
            debuginfod,
            thread_contexts: Vec::new(),
        }
    }

    /// Starts the clocks ahead of time: what runs gets its unwind tables before its samples count.
    pub(super) fn ask_for_tables(&mut self, kernel: &mut Kernel) -> Result<(), LoadError> {
        let plan = self.sampling.plan();
        if self.unwinder.is_none() || plan.hertz == 0 {
            return Ok(());
        }
        kernel.policy.tables_first(true)?;
        kernel.sampler.set_hertz(plan.hertz)?;
        kernel.policy.sample_period(kernel.sampler.announced_period())?;
        self.tables_first = Some(Instant::now());
        Ok(())
    }

    /// Whether the next turn of the loop has something to do that no record tells of.
    pub(super) fn is_waiting(&self) -> bool {
        self.tables_first.is_some() || self.thread_clocks.are_running()
    }

    /// Whether that is over, just now: for want of tables that wait, or of time.
    fn are_tables_made(&mut self) -> bool {
        let Some(since) = self.tables_first else { return false };
        let waiting = self.unwinder.as_ref().map_or(0, |unwinder| unwinder.figures().waiting());
        let is_over = is_over(since.elapsed(), waiting);
        if is_over {
            log::debug!("samples are reported from {:?} on; {waiting} unwind tables are not made yet", since.elapsed());
            self.tables_first = None;
        }
        is_over
    }

    /// A process is gone, or runs another program.
    pub(super) fn forget(&mut self, pid: u32) {
        if let Some(interpreters) = &mut self.interpreters {
            interpreters.forget(pid);
        }
    }

    /// Counts what was fetched.
    pub(super) fn count(&self, metrics: &Metrics) {
        if let Some(debuginfod) = &self.debuginfod {
            let (outcomes, bytes) = debuginfod.counts();
            metrics.set_debuginfod(&outcomes, bytes);
        }
    }

    /// How full the tables of unwinding are.
    pub(super) fn unwind_tables(&self) -> UnwindTableUse {
        let of = |figures: &Figures| UnwindTableUse {
            bytes: figures.bytes(),
            files: figures.files(),
            rules: figures.rules(),
        };
        self.unwinder.as_ref().map(Unwinder::figures).map_or_else(UnwindTableUse::default, of)
    }

    /// Processes with interpreters.
    pub(super) fn interpreter_processes(&self) -> TableUse {
        self.interpreters.as_ref().map_or_else(TableUse::default, Interpreters::table_use)
    }
}

/// Whether samples are reported, so long after the clocks were started, while so many tables are not made.
fn is_over(elapsed: Duration, waiting: u64) -> bool {
    elapsed >= if waiting == 0 { TABLES_FIRST_LEAST } else { TABLES_FIRST_MOST }
}

impl Agent {
    /// Has samples reported once the tables of what runs are made.
    pub(super) fn follow_tables(&mut self) {
        if self.profiling.are_tables_made()
            && let Err(error) = self.kernel.policy.tables_first(false)
        {
            log::error!("no samples: {error}");
        }
    }
}

/// Fetches debug files, if servers are configured. Starts with the helpers: its thread has their priority.
pub(super) fn fetch_debug_files(config: &Config, pipeline: &Pipeline) -> Result<Option<Debuginfod>, Failure> {
    let (Some(settings), Some(requests)) = (&config.profiles.debug_info.debuginfod, &pipeline.debug_requests) else {
        return Ok(None);
    };
    let failed = |why| Failure::Running(format!("[profiles] debuginfod: {why}"));
    Debuginfod::start(settings, requests.clone()).map(Some).map_err(failed)
}

/// Has stacks walked by unwind tables, where the kernel and the settings allow it.
fn unwinding(kernel: &mut Kernel, rings: &mut Rings, config: &Config) -> Option<Unwinder> {
    let bytes =
        config.sampling.unwind_tables.unwrap_or_else(|| scaled(UNWIND_BYTES, config.limits.ceilings.memory) as u64);
    if bytes == 0 {
        kernel.no_unwind = Some("unwind_tables is 0".into());
        return None;
    }
    // `check` reports what follows.
    kernel.try_unwinding(rings).ok()?;
    let started = Unwinder::start(kernel.tables.take()?, Bounds { bytes }, config.priority.nice, config.sampling.java);
    if let Err(error) = &started {
        kernel.no_unwind = Some(format!("no thread for unwind tables: {error}"));
        if let Err(error) = kernel.policy.unwind(false) {
            log::warn!("{error}");
        }
    }
    started.ok()
}

/// Has interpreters' frames read, where the settings allow it.
fn interpreting(kernel: &mut Kernel, config: &Config) -> Option<Interpreters> {
    let wanted = WantedLanguages {
        python: config.sampling.python.is_some(),
        php: config.sampling.php.is_some(),
        javascript: config.sampling.javascript,
        java: config.sampling.java,
    };
    if !(wanted.python || wanted.php || wanted.javascript || wanted.java) {
        return None;
    }
    Interpreters::start(kernel.interpreters.take()?, wanted)
        .inspect_err(|error| {
            log::warn!("no thread that looks for interpreters, their functions are not shown: {error}");
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_wait_for_tables_and_not_for_long() {
        let over = |millis, waiting| is_over(Duration::from_millis(millis), waiting);
        assert_eq!([over(0, 0), over(499, 0), over(500, 0)], [false, false, true]);
        assert_eq!([over(500, 1), over(1999, 9), over(2000, 9)], [false, false, true]);
    }
}
