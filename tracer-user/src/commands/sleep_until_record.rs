//! On a calm host the agent does not poll: it sleeps until there is a record, a question, or the next tick.
//!
//! Stack samples and sums of threads wait until then. Whatever else the kernel side reports wakes it at once: operations, connections,
//! processes that begin. So what has to be asked of a process while it lives is asked earlier than by polls.

use std::time::Instant;

use tracer_host::guard::shed::Level;

use super::agent::Agent;
use super::poll_interval::Pace;
use crate::pipeline::Pipeline;

impl Agent {
    /// Whether nothing but a record needs the next turn of the loop before the next tick.
    fn may_sleep(&self, pipeline: &Pipeline) -> bool {
        let finder = self.processes.finder.as_ref();
        self.health.level == Level::Full
            && self.config.service_classes.is_empty()
            && !pipeline.expects_service_classes()
            && !self.profiling.is_waiting()
            && finder.is_none_or(|finder| finder.waiting() == 0)
            && self.reloading.as_ref().is_none_or(|reloading| !reloading.is_waiting())
    }

    /// Rests until there is a record, `due`, or somebody who `is_asking`, if the host is calm; whether it did.
    pub(super) fn sleep_until_record(
        &mut self,
        pipeline: &Pipeline,
        pace: &mut Pace,
        due: Instant,
        is_asking: impl Fn() -> bool,
    ) -> bool {
        if !pace.is_calm() || !self.may_sleep(pipeline) {
            return false;
        }
        let Some(wakeup) = self.status.wakeup() else { return false };
        let left = due.saturating_duration_since(Instant::now()).as_millis();
        wakeup.arm();
        let woken = if is_asking() || self.status.is_stopping() {
            Some(false)
        } else {
            // Not before it is due: the tick would take another turn.
            self.intake
                .rings
                .wait_for_record(i32::try_from(left).map_or(i32::MAX, |left| left.saturating_add(1)), wakeup.fd())
        };
        wakeup.disarm();
        if woken == Some(true) {
            pace.woken();
        }
        woken.is_some()
    }
}
