//! Watches wake-ups between tasks in processes whose calls have no parent without, or whose CPU is no request's, and stops where that
//! costs too much or shows nothing.

use tracer_common::runtime::UserProbe;
use tracer_host::process_cpu;
use tracer_runtimes::wake_demand::WakeDecision;

use super::agent::Agent;
use crate::pipeline::Pipeline;

impl Agent {
    /// Once a second.
    pub(super) fn watch_wakes(&mut self, pipeline: &mut Pipeline) {
        let Some(finder) = &mut self.processes.finder else { return };
        let hits = self.kernel.hits();
        let probes = [UserProbe::TokioWoken, UserProbe::TokioClosure, UserProbe::GoReady].map(UserProbe::name);
        let hits = hits.iter().filter(|(probe, _)| probes.contains(probe)).map(|(_, hits)| *hits).sum();
        for (pid, decision) in pipeline.wake_demand.tick(hits, |pid| process_cpu::read(pid).map(|cpu| cpu.own)) {
            match decision {
                WakeDecision::Watch => {
                    log::info!(
                        "process {pid}: many calls have no parent, or much CPU is no request's: which task wakes which is watched from now on"
                    );
                    finder.watch_wakes(pid);
                }
                WakeDecision::TooCostly => finder.too_costly(pid),
                WakeDecision::Stop | WakeDecision::Useless => {
                    let is_costly = decision == WakeDecision::Stop;
                    let Some(look) = finder.unwatch_wakes(pid, is_costly) else { continue };
                    if is_costly {
                        log::warn!(
                            "process {pid}: to see which task wakes which costs too much of its CPU: not any more"
                        );
                    } else {
                        log::info!(
                            "process {pid}: which task wakes which does not show whose its CPU is: not watched any more"
                        );
                    }
                    self.kernel.detach_user(pid, Some(look));
                    pipeline.stop_watching_wakes(pid);
                }
            }
        }
    }
}
