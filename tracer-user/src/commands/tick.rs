//! What the agent does once a second: what is known is made to expire, and everything is counted.

use tracer_common::interpreter::Language;
use tracer_common::lost::Lost;

use super::agent::Agent;
use super::clock;
use crate::guard::self_process;
use crate::guard::shed::Level;
use crate::host::process::ProcessFacts;
use crate::host::stat;
use crate::kernel::loader::monotonic;
use crate::kernel::probes::Until;
use crate::model::HostCpu;
use crate::pipeline::{Introduce, Pipeline};
use crate::record::FrameKind;

/// Introduces no process: those that end need not be known.
struct NoProcess;

impl Introduce for NoProcess {
    fn introduce(&mut self, _: u32) -> Option<ProcessFacts> {
        None
    }
}

impl Agent {
    /// Times follow the wall clock when somebody sets it.
    fn follow_clock(&mut self, pipeline: &mut Pipeline) {
        let Some(offset) = clock::moved(self.wall_offset) else { return };
        self.wall_offset = offset;
        self.files.record(FrameKind::Clock, &offset.to_ne_bytes());
        pipeline.clock(offset);
    }

    /// Ends the threads and processes whose own report of it was lost.
    fn expire_exited(&mut self, pipeline: &mut Pipeline) {
        if !self.drained {
            // Their report may yet come.
            return;
        }
        for record in self.processes.sweep.tick(pipeline) {
            self.files.record(FrameKind::Record, &record);
            pipeline.record(&record, &mut NoProcess);
        }
        pipeline.metrics.set_lost("thread_ends_unreported", self.processes.sweep.found);
    }

    /// Gives up as much detail as the watchdog found necessary, or takes it back.
    pub(super) fn shed(&mut self, pipeline: &mut Pipeline) {
        let (before, level) = (self.health.level, self.status.level());
        if level == before {
            return;
        }
        let (memory, cpu) = self.status.usage();
        let usage = format!("memory {} MB, CPU {:.0} % of a core", memory >> 20, cpu * 100.0);
        // Each level once, in order: one may have come and stayed between two ticks with the next.
        for taken in Level::ALL.into_iter().filter(|taken| *taken > before && *taken <= level) {
            log::warn!("load is shed ({usage}): {}", taken.what());
        }
        if level < before {
            log::warn!("load is shed less ({usage}): {}", level.what());
        }
        self.health.level = level;
        self.files.record(FrameKind::Shed, &[level as u8]);
        pipeline.shed(level);
        self.limit_detail(level);
        let limits = level.detail_limits();
        if let Err(error) = self.kernel.policy.head_max(limits.head_max) {
            log::warn!("{error}");
        }
        if let Err(error) = self.limit_sampling() {
            log::warn!("{error}");
        }
        self_process::release_memory();
    }

    /// Once a second: expiry, the host's CPU, losses, own cost.
    pub(super) fn tick(&mut self, pipeline: &mut Pipeline) {
        let now = monotonic();
        self.ticks += 1;
        if self.health.level > Level::Full {
            // What was freed counts until it is given back.
            self_process::release_memory();
        }
        self.kernel.forward_log();
        self.follow_clock(pipeline);
        self.expire_exited(pipeline);
        self.files.record_tick(now, &pipeline.metrics);
        self.read_counts(pipeline);
        pipeline.tick(now);
        self.watch_wakes(pipeline);
        self.processes.look(pipeline, now, self.ticks);
        self.files.read_past(pipeline);
        self.count_relayed(pipeline);
        self.count_kernel_side(pipeline);
        self.show_sampling(pipeline);
        self.account_losses(pipeline);
        self.health.host_cpu = self.host_cpu(pipeline);
        let lost = self.health.lost.iter().filter(|(why, _)| why == Lost::RingOp.name()).map(|(_, count)| count).sum();
        pipeline.host_books(&self.health.host_cpu, lost);
        self.count_own_use(pipeline);
        self.count_outputs(pipeline);
        self.instrument(pipeline, now);
        self.enforcing.follow_goals(pipeline, now.saturating_add_signed(self.wall_offset));
        self.health.enforcement = self.enforcing.view(pipeline);
        pipeline.export_service_classes(&self.health.enforcement);
        let table_use = self.table_use();
        pipeline.metrics.set_table_use(&table_use.all());
    }

    /// What the programs in the kernel did, and what they could not do.
    fn count_kernel_side(&mut self, pipeline: &mut Pipeline) {
        let lost = self.kernel.lost();
        for (reason, count) in Lost::ALL.into_iter().zip(&lost) {
            pipeline.metrics.set_lost(reason.name(), *count);
        }
        pipeline.metrics.set_lost("handovers_refused", self.kernel.policy.handovers_refused);
        pipeline.metrics.set_lost("runtimes_refused", self.kernel.policy.runtimes_refused);
        if let Some(headers) = &self.kernel.headers {
            pipeline.metrics.set_headers(headers.counts());
        }
        pipeline.metrics.set_probes(&self.kernel.hits(), self.kernel.attempts());
        if let Some(runtimes) = self.processes.count(pipeline) {
            self.health.runtimes = runtimes;
        }
        pipeline.metrics.set_lost("asks_refused", self.kernel.policy.asks_refused);
        pipeline.metrics.set_lost("profile_stacks_refused", pipeline.profiles.refused);
        pipeline.metrics.set_lost("symbols_stuck", pipeline.profiles.stuck());
        pipeline.metrics.set_lost("store_units_dropped", pipeline.store.spans_dropped);
        let usage = self.kernel.usage();
        let bpf = usage.values().map(|usage| usage.nanos).sum();
        let skipped = self.skips.lost(&usage, self.kernel.has(Until::Skipped));
        if skipped > 0 {
            self.kernel.attach_deferred(Until::Skipped);
        }
        for (program, usage) in &usage {
            pipeline.metrics.set_bpf(program, *usage);
        }
        pipeline.metrics.set_lost("hook_skipped", skipped);
        self.losses.skipped = skipped;
        pipeline.metrics.set_walks(self.kernel.walks.counts().map(|(outcome, count)| (outcome.name(), count)));
        for language in Language::ALL {
            let walks = self.kernel.interpreter_walks.counts(language);
            let walks = walks.map(|(outcome, count)| (outcome.name(), count));
            pipeline.metrics.set_interpreted(language, walks, pipeline.profiles.functions(language));
        }
        self.status.set_bpf(bpf);
    }

    /// CPU and memory of the agent itself.
    fn count_own_use(&mut self, pipeline: &Pipeline) {
        let (cpu, self_process::SelfMemory { resident: rss, own: memory }) =
            (self_process::cpu() as f64 / 1e9, self_process::memory());
        self.health.own_cpu_s = cpu;
        self.health.own_rss = rss;
        self.health.own_memory = memory;
        pipeline.metrics.set_own(cpu, rss);
        let (_, cores) = self.status.usage();
        self.health.own_cores = cores;
        pipeline.metrics.set_usage(&self.config.ceilings, memory, cores);
    }

    /// What leaves the agent: files, exports and notifications.
    fn count_outputs(&mut self, pipeline: &mut Pipeline) {
        // Findings of earlier runs are known before those of this one are sent.
        self.files.tick(pipeline);
        self.exports.tick(pipeline, &mut self.health, self.wall_offset);
        if let Some(policies) = &self.fleet_policies {
            let (version, looks) = policies.status();
            pipeline.metrics.set_fleet_policies(version, &looks);
        }
        self.profiling.count(&pipeline.metrics);
    }

    fn host_cpu(&self, pipeline: &Pipeline) -> HostCpu {
        let cpus = self.kernel.cpu_books();
        let charged = pipeline.charged();
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let (system, steal, steal_is_busy, online) = match (stat::read(), self.at_start) {
            (Some(now), Some(start)) => (now.busy_s - start.busy_s, now.steal_s - start.steal_s, !now.exact, now.cpus),
            _ => (0.0, 0.0, false, 0),
        };
        HostCpu {
            requests: seconds(charged.requests),
            overhead: seconds(charged.overhead),
            kernel: seconds(cpus.kernel),
            unreported: seconds(cpus.user.saturating_sub(charged.requests + charged.overhead)),
            idle: seconds(cpus.idle.max(0) as u64),
            system_busy: system,
            steal,
            steal_is_busy,
            cpus: online,
        }
    }
}
