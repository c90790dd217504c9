//! Publishes which request each thread holds, for profilers of others.

use tracer_kernel::loader::monotonic;

use super::agent::Agent;
use crate::pipeline::Pipeline;

impl Agent {
    /// Publishes what the records drained so far say; whether the next drain should come soon.
    pub(super) fn publish_contexts(&mut self, pipeline: &mut Pipeline) -> bool {
        let Some(contexts) = &self.kernel.trace_contexts else { return false };
        self.profiling.thread_contexts.clear();
        pipeline.thread_contexts(&mut self.profiling.thread_contexts);
        contexts.publish(&self.profiling.thread_contexts, monotonic());
        // Each is as late as the next drain.
        pipeline.expects_thread_contexts()
    }
}
