//! What one turn of the agent's loop does: between the kernel, the pipeline and everything around them.

use std::sync::Arc;
use std::time::Instant;

use tracer_common::event::{Header, Kind as EventKind};
use tracer_common::limits::SAMPLE_RING_BYTES;
use tracer_common::policy::Statics;
use tracer_host::guard::status::Status;
use tracer_host::statics;
use tracer_http::{ControlCommand, Health};
use tracer_kernel::loader::{Kernel, monotonic};
use tracer_kernel::probes::Until;
use tracer_results::record::FrameKind;

use super::agent_files::AgentFiles;
use super::agent_tables::Gauges;
use super::clock::Clock;
use super::enforcing::Enforcing;
use super::exports::Exports;
use super::intake::Intake;
use super::loss_watch::Losses;
use super::netns::OwnNetns;
use super::poll_interval::Found;
use super::process_watchers::ProcessWatchers;
use super::profiling::Profiling;
use super::relaying::Relaying;
use super::reloading::Reloading;
use super::sampling::timed;
use super::traced_processes::Introducer;
use crate::config::Config;
use crate::pipeline::Pipeline;

/// Records taken from a ring before the other one and everything else (shedding among it) get their turn.
const BATCH: usize = 4096;

/// Everything but the pipeline, part by part. Each part is started by `run`, does its work in a turn of the loop or in
/// [`Agent::tick`], and is ended by `run`.
pub(super) struct Agent {
    pub(super) config: Config,
    pub(super) kernel: Kernel,
    pub(super) intake: Intake,
    pub(super) clock: Clock,
    /// What the agent says of itself.
    pub(super) health: Health,
    /// What it shares with the watchdog.
    pub(super) status: Arc<Status>,
    pub(super) losses: Losses,
    pub(super) gauges: Gauges,
    pub(super) profiling: Profiling,
    pub(super) processes: ProcessWatchers,
    pub(super) exports: Exports,
    pub(super) files: AgentFiles,
    /// Other hosts' agents.
    pub(super) relaying: Option<Relaying>,
    /// Reads the configuration again, and the fleet's policies.
    pub(super) reloading: Option<Reloading>,
    /// Enforces service classes.
    pub(super) enforcing: Enforcing,
}

/// Records between two heartbeats: a full ring takes a while where CPU is short.
const BEAT_EVERY: u32 = 1024;

/// The process of a stack of user space, if the record is one.
fn sampled(bytes: &[u8]) -> Option<u32> {
    let header = Header::decode(bytes)?;
    let kinds = [EventKind::Sample, EventKind::OffCpu, EventKind::WaitEnd, EventKind::CallStack];
    let stack = kinds.iter().any(|kind| header.kind == *kind as u8);
    // Kernel threads have no memory to look at.
    (stack && header.flags & 1 == 0).then_some(header.tgid)
}

impl Agent {
    /// Empties the rings into the pipeline.
    pub(super) fn drain(&mut self, pipeline: &mut Pipeline) -> Found {
        self.notice_losses(pipeline);
        let samples_filled =
            self.intake.level.as_mut().map_or(0.0, |level| level.look() as f64 / SAMPLE_RING_BYTES as f64);
        let mut allowed = Vec::new();
        let recorders = &mut self.files.recorders;
        let (only, rules) = (&self.config.agent.only_services, &self.config.services);
        let (asked, older) = (&mut self.processes.asked, &mut self.processes.older);
        let (status, mut records) = (&self.status, 0u32);
        let (netns, interpreters, clock) = (&mut self.intake.netns, &mut self.profiling.interpreters, Instant::now());
        let mut take = |bytes: &[u8]| {
            records += 1;
            if records.is_multiple_of(BEAT_EVERY) {
                status.beat();
            }
            if netns.as_mut().is_some_and(|netns| netns.is_foreign(bytes)) {
                return;
            }
            if let Some(interpreters) = interpreters
                && let Some(pid) = sampled(bytes)
            {
                interpreters.sampled(pid, clock);
            }
            let mut who = Introducer {
                recorders: &mut *recorders,
                only,
                rules,
                allowed: &mut allowed,
                asked: &mut *asked,
                older: &mut *older,
            };
            // Facts of a process come before its first record, in the file too.
            pipeline.record(bytes, &mut who);
            // What programs log stays in memory.
            if bytes.first() != Some(&(EventKind::LogWrite as u8)) {
                recorders.frame(FrameKind::Record, bytes);
            }
        };
        // Samples first, and events only of the time before that: what a sample was taken in is in the other ring by then, or
        // is known from before, and nothing that followed it is.
        let now = monotonic();
        let samples = timed(&mut self.profiling.sampling.agent_nanos, || self.intake.rings.samples(BATCH, &mut take));
        let events = self.intake.rings.events(now, BATCH, &mut take);
        self.intake.drained = events < BATCH;
        if self.intake.drained {
            pipeline.catch_up(now);
        }
        let mut stirred = self.publish_contexts(pipeline);
        self.enforcing.decide(pipeline, monotonic(), self.kernel.send_priorities.as_mut());
        // Each is as late as the next drain.
        stirred |= !allowed.is_empty() || pipeline.expects_service_classes();
        for pid in allowed {
            if let Err(error) = self.kernel.policy.process(pid, true) {
                log::warn!("{error}");
            }
        }
        for pid in pipeline.take_gone().collect::<Vec<_>>() {
            // Its id may come back as another's.
            self.kernel.policy.forget_process(pid);
            self.processes.leave(pid, &mut self.kernel, &mut self.profiling, pipeline);
            self.processes.asked.remove(&pid);
            self.processes.older.forget(pid);
            if let Some(logs) = &mut self.kernel.log_lines {
                logs.remove(pid);
            }
        }
        stirred |= self.processes.follow(&mut self.kernel, &mut self.profiling, pipeline);
        if pipeline.take_unseen() {
            self.kernel.attach_deferred(Until::Spliced);
        }
        for pid in pipeline.take_wanted() {
            // One that is gone needs nothing.
            let Some([first, second, third]) = statics::read(pid) else { continue };
            let statics = Statics {
                first: first.0,
                first_end: first.1,
                second: second.0,
                second_end: second.1,
                third: third.0,
                third_end: third.1,
            };
            self.kernel.policy.handover(pid, statics);
            self.kernel.attach_deferred(Until::WakeUps);
        }
        let others = self.intake.netns.as_mut().map(OwnNetns::take_policies);
        for (cookie, ask) in pipeline.take_policies().chain(others.into_iter().flatten()) {
            self.kernel.policy.ask(cookie, ask);
            // Until its policy is set, its messages are cut.
            stirred |= ask.head_rx > 0 || ask.head_tx > 0;
        }
        self.follow_counting(pipeline);
        let filled = self.intake.rings.events_filled().max(samples_filled);
        Found { at: now, records: samples + events, filled, drained: self.intake.drained, stirred }
    }

    pub(super) fn carry_out(&mut self, command: ControlCommand) {
        match command {
            ControlCommand::Hertz(hertz, answer) => {
                // Whoever asked may be gone.
                let _ = answer.send(self.ask_for_hertz(hertz));
            }
            ControlCommand::Hindsight(answer) => {
                if let Some(hindsight) = &mut self.files.recorders.hindsight {
                    hindsight.write(Some(answer));
                } else {
                    let why = "nothing is kept: name a directory in [hindsight] dir of the configuration";
                    let _ = answer.send(Err(why.into()));
                }
            }
        }
    }
}
