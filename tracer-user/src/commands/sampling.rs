//! The sampling rate has one owner: what is asked for and load shedding set its ceiling, the overhead budget sets it below.

use tracer_host::guard::overhead_budget::{Costs, OverheadBudget, Plan};
use tracer_host::guard::self_process;
use tracer_host::guard::shed::Level;
use tracer_http::Profiler;
use tracer_kernel::clock_cost;
use tracer_kernel::loader::{Kernel, monotonic};
use tracer_kernel::probes::Until;

use super::LoadError;
use super::agent::Agent;
use crate::pipeline::Pipeline;

/// The rate that is asked for, and the one in force.
pub(super) struct Sampling {
    /// Stack samples per second and CPU that are asked for.
    wanted: u32,
    budget: OverheadBudget,
    in_force: Option<Plan>,
    /// Stacks of calls are taken.
    calls: bool,
    /// What an expiry of a clock costs beyond the program, nanoseconds.
    interrupt: u64,
    /// CPU of this thread for reading samples, nanoseconds.
    pub(super) agent_nanos: u64,
    /// The kernel's last refusal was logged.
    refused: bool,
}

impl Sampling {
    /// Nothing is sampled until [`Agent::follow_budget`].
    pub(super) fn new(wanted: u32, budget: f64, clocks: usize) -> Self {
        let budget = OverheadBudget::new(budget, clocks, wanted);
        let interrupt = clock_cost::measure();
        log::debug!("an expiry of a clock costs {interrupt} ns beyond the program it runs");
        Self { wanted, budget, in_force: None, calls: false, interrupt, agent_nanos: 0, refused: false }
    }

    /// What the budget allows now.
    pub(super) fn plan(&self) -> Plan {
        self.budget.plan()
    }

    /// What profiling has cost so far.
    fn costs(&self, kernel: &Kernel) -> Costs {
        let costs = kernel.profiler_cost();
        let interrupts = |ticks: u64| ticks.saturating_mul(self.interrupt);
        Costs {
            agent_nanos: self.agent_nanos,
            interrupt_nanos: interrupts(costs.ticks),
            ad_hoc_nanos: costs.ad_hoc_nanos.saturating_add(interrupts(costs.ad_hoc_ticks)),
            ..costs
        }
    }

    /// Samples per second that all slow requests together may have of their own.
    pub(super) fn ad_hoc(&self) -> u32 {
        self.budget.ad_hoc()
    }

    fn view(&self) -> Profiler {
        Profiler {
            hertz: self.in_force.map_or(0, |plan| plan.hertz),
            max_hertz: self.budget.ceiling(),
            cost: self.budget.cost(),
            budget: self.budget.budget(),
        }
    }
}

impl Agent {
    /// Starts sampling: no more often than the budget allows for samples of unknown cost.
    pub(super) fn start_sampling(&mut self) -> Result<(), LoadError> {
        let plan = self.profiling.sampling.budget.plan();
        self.put_in_force(plan)?;
        self.take_calls(self.profiling.sampling.wanted > 0)?;
        self.take_off_cpu(self.profiling.sampling.wanted > 0)
    }

    /// Sets the rate that is asked for.
    pub(super) fn ask_for_hertz(&mut self, hertz: u32) -> Result<(), String> {
        self.profiling.sampling.wanted = hertz;
        self.limit_sampling().map_err(|error| error.to_string())
    }

    /// Applies what is asked for and what load shedding leaves of it.
    pub(super) fn limit_sampling(&mut self) -> Result<(), LoadError> {
        let level = self.health.level;
        let plan = self
            .profiling
            .sampling
            .budget
            .set_ceiling(self.profiling.sampling.wanted.min(level.detail_limits().hertz_max));
        self.put_in_force(plan)?;
        let is_wanted = self.profiling.sampling.wanted > 0 && level < Level::Sampling;
        self.take_calls(is_wanted)?;
        self.take_off_cpu(is_wanted)
    }

    /// Keeps sampling within its budget; a few times a second.
    pub(super) fn follow_budget(&mut self) {
        let now = monotonic();
        if !self.profiling.sampling.budget.is_due(now) {
            return;
        }
        let costs = self.profiling.sampling.costs(&self.kernel);
        let plan = self.profiling.sampling.budget.observe(now, costs);
        match self.put_in_force(plan) {
            Ok(()) => self.profiling.sampling.refused = false,
            Err(error) if !self.profiling.sampling.refused => {
                log::warn!("the sampling rate stays as it was: {error}");
                self.profiling.sampling.refused = true;
            }
            Err(_) => {}
        }
    }

    /// Once a second: rate, cost and budget for whoever looks.
    pub(super) fn show_sampling(&mut self, pipeline: &Pipeline) {
        self.health.profiler = self.profiling.sampling.view();
        let Profiler { hertz, cost, budget, .. } = self.health.profiler;
        let slow = pipeline.profiles.slow_requests().counts();
        pipeline
            .metrics
            .set_ad_hoc(slow.requests, [&slow.by_kind(), &slow.by_reason(), &self.profiling.thread_clocks.outcomes()]);
        let calls = if self.profiling.sampling.calls { self.profiling.sampling.budget.call_share() } else { 0.0 };
        let shares = (self.profiling.sampling.budget.off_cpu_share(), calls);
        pipeline.metrics.set_profiler(
            hertz,
            shares,
            (cost, budget),
            &self.profiling.sampling.costs(&self.kernel).parts(),
        );
        pipeline.metrics.set_call_stacks(&pipeline.profiles.call_counts());
    }

    fn put_in_force(&mut self, plan: Plan) -> Result<(), LoadError> {
        let before = self.profiling.sampling.in_force;
        if before == Some(plan) {
            return Ok(());
        }
        if before.is_none_or(|before| before.hertz != plan.hertz) {
            self.kernel.sampler.set_hertz(plan.hertz)?;
            self.kernel.policy.sample_period(self.kernel.sampler.announced_period())?;
        }
        if before.is_none_or(|before| before.off_cpu_share != plan.off_cpu_share) {
            self.kernel.policy.off_cpu_share(plan.off_cpu_share)?;
        }
        if self.profiling.sampling.calls && before.is_none_or(|before| before.call_share != plan.call_share) {
            self.kernel.policy.call_share(plan.call_share)?;
        }
        self.profiling.sampling.in_force = Some(plan);
        Ok(())
    }

    /// Has stacks of calls taken, if the configuration wants them, or not.
    fn take_calls(&mut self, wanted: bool) -> Result<(), LoadError> {
        let wanted = wanted && self.config.sampling.call_stacks;
        if wanted != self.profiling.sampling.calls {
            self.kernel.policy.call_share(if wanted { self.profiling.sampling.budget.plan().call_share } else { 0 })?;
            self.profiling.sampling.calls = wanted;
        }
        Ok(())
    }

    /// Has stacks of threads off the CPU taken, if the configuration wants them, or not.
    fn take_off_cpu(&mut self, wanted: bool) -> Result<(), LoadError> {
        let nanos = if wanted { u64::from(self.config.sampling.off_cpu_micros) * 1000 } else { 0 };
        if nanos > 0 {
            self.kernel.attach_deferred(Until::WakeUps);
        }
        self.kernel.policy.off_cpu(nanos)
    }
}

/// Runs `work`, and adds to `nanos` what it took of this thread's CPU.
pub(super) fn timed<T>(nanos: &mut u64, work: impl FnOnce() -> T) -> T {
    let begin = self_process::thread_cpu();
    let done = work();
    *nanos += self_process::thread_cpu().saturating_sub(begin);
    done
}
