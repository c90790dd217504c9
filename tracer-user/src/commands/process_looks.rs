//! What the books of workloads and of subsystems need from `/proc` after a process was introduced: where it is now, what it calls
//! itself, and what the kernel says it used.

use tracer_host::{process, process_cpu};
use tracer_model::Nanos;

use super::database_figures::DatabaseFigures;
use crate::pipeline::Pipeline;

/// Ticks between two checks of the books of subsystems.
const CHECK_EVERY: u64 = 5;

/// Reads a bounded number of processes, once a second, and takes the figures of `servers`; `ticks` counts the calls.
pub(super) fn look_at_processes(pipeline: &mut Pipeline, now: Nanos, ticks: u64, servers: Option<&DatabaseFigures>) {
    for figures in servers.into_iter().flat_map(DatabaseFigures::take) {
        pipeline.subsystems.compare(figures);
    }
    for pid in pipeline.workloads.take_looks(now) {
        if let Some((user, cgroup)) = process::placement(pid) {
            pipeline.workloads.placed(pid, &user, &cgroup);
        }
    }
    for pid in pipeline.subsystems.wanted_titles() {
        if let Some(title) = process::title(pid) {
            pipeline.subsystems.title(pid, &title);
        }
    }
    if ticks.is_multiple_of(CHECK_EVERY) {
        for (instance, processes) in pipeline.subsystems.to_check() {
            let found = process_cpu::each(&processes);
            // Without the server, the sum lacks the children that ended.
            if found.first().map(|(pid, _)| pid) == processes.first() {
                pipeline.subsystems.checked(instance, &found);
            }
        }
    }
}
