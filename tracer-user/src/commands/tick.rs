//! What the agent does once a second: what is known is made to expire, and everything is counted.

use tracer_common::lost::Lost;
use tracer_host::guard::self_process;
use tracer_host::guard::shed::Level;
use tracer_host::process::ProcessFacts;
use tracer_kernel::loader::monotonic;
use tracer_results::record::FrameKind;

use super::agent::Agent;
use crate::pipeline::{Introduce, Pipeline};

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
        let Some(offset) = self.clock.follow() else { return };
        self.files.recorders.frame(FrameKind::Clock, &offset.to_ne_bytes());
        pipeline.clock(offset);
    }

    /// Ends the threads and processes whose own report of it was lost.
    fn expire_exited(&mut self, pipeline: &mut Pipeline) {
        if !self.intake.drained {
            // Their report may yet come.
            return;
        }
        for record in self.processes.sweep.tick(pipeline) {
            self.files.recorders.frame(FrameKind::Record, &record);
            pipeline.record(&record, &mut NoProcess);
        }
        pipeline.metrics.set_lost("thread_ends_unreported", self.processes.sweep.found);
    }

    /// Once a second: expiry, the host's CPU, losses, own cost.
    ///
    /// What the pipeline is given comes first, and into the recording in the same order. What is counted comes before what is
    /// sent and shown of it.
    pub(super) fn tick(&mut self, pipeline: &mut Pipeline) {
        let now = monotonic();
        self.clock.ticks += 1;
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
        self.processes.look(pipeline, now, self.clock.ticks);
        self.files.read_past(pipeline);
        self.count_relayed(pipeline);
        self.count_kernel_side(pipeline);
        if let Some(runtimes) = self.processes.count(pipeline) {
            self.health.runtimes = runtimes;
        }
        self.show_sampling(pipeline);
        // Of everything that was counted above; the books of this second are not whole where operations were lost.
        self.account_losses(pipeline);
        self.health.host_cpu = self.host_cpu(pipeline);
        let lost = self.health.lost.iter().filter(|(why, _)| why == Lost::RingOp.name()).map(|(_, count)| count).sum();
        pipeline.host_books(&self.health.host_cpu, lost);
        self.count_own_use(pipeline);
        // Findings of earlier runs are known before those of this one are sent.
        self.files.tick(pipeline);
        self.exports.tick(pipeline, &mut self.health, self.clock.wall_offset);
        if let Some(reloading) = &self.reloading {
            reloading.count(&pipeline.metrics);
        }
        self.profiling.count(&pipeline.metrics);
        self.instrument(pipeline, now);
        self.enforcing.follow_goals(pipeline, now.saturating_add_signed(self.clock.wall_offset));
        self.health.enforcement = self.enforcing.view(pipeline);
        pipeline.export_service_classes(&self.health.enforcement);
        let table_use = self.table_use();
        pipeline.metrics.set_table_use(&table_use.all());
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
        pipeline.metrics.set_usage(&self.config.limits.ceilings, memory, cores);
    }
}
