//! What the programs in the kernel counted: their losses, their cost, and the CPU of the host.

use tracer_common::interpreter::Language;
use tracer_common::lost::Lost;
use tracer_host::stat;
use tracer_kernel::probes::Until;
use tracer_model::HostCpu;

use super::agent::Agent;
use crate::pipeline::Pipeline;

impl Agent {
    /// What the programs in the kernel did, and what they could not do.
    pub(super) fn count_kernel_side(&mut self, pipeline: &mut Pipeline) {
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
        pipeline.metrics.set_lost("asks_refused", self.kernel.policy.asks_refused);
        pipeline.metrics.set_lost("profile_stacks_refused", pipeline.profiles.refused);
        pipeline.metrics.set_lost("symbols_stuck", pipeline.profiles.stuck());
        pipeline.metrics.set_lost("store_units_dropped", pipeline.store.spans_dropped);
        let usage = self.kernel.usage();
        let bpf = usage.values().map(|usage| usage.nanos).sum();
        let skipped = self.losses.count_skipped(&usage, self.kernel.has(Until::Skipped));
        if skipped > 0 {
            self.kernel.attach_deferred(Until::Skipped);
        }
        for (program, usage) in &usage {
            pipeline.metrics.set_bpf(program, *usage);
        }
        pipeline.metrics.set_lost("hook_skipped", skipped);
        pipeline.metrics.set_walks(self.kernel.walks.counts().map(|(outcome, count)| (outcome.name(), count)));
        for language in Language::ALL {
            let walks = self.kernel.interpreter_walks.counts(language);
            let walks = walks.map(|(outcome, count)| (outcome.name(), count));
            pipeline.metrics.set_interpreted(language, walks, pipeline.profiles.functions(language));
        }
        self.status.set_bpf(bpf);
    }

    /// CPU of the host since the start, as the books of the kernel side and the system itself have it.
    pub(super) fn host_cpu(&self, pipeline: &Pipeline) -> HostCpu {
        let cpus = self.kernel.cpu_books();
        let charged = pipeline.charged();
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let (system, steal, steal_is_busy, online) = match (stat::read(), self.kernel.since) {
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
