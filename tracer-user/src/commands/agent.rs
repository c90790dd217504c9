//! What one turn of the agent's loop does: between the kernel, the pipeline and everything around them.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tracer_common::event::{Header, Kind as EventKind};
use tracer_common::limits::SAMPLE_RING_BYTES;
use tracer_common::policy::Statics;

use super::agent_files::AgentFiles;
use super::enforcing::Enforcing;
use super::exports::Exports;
use super::fleet_policies::FleetPolicies;
use super::loss_watch::Noticed;
use super::netns::OwnNetns;
use super::poll_interval::Found;
use super::process_watchers::ProcessWatchers;
use super::profiling::Profiling;
use super::relaying::Relaying;
use super::reloading::Reloading;
use super::sampling::timed;
use super::traced_processes::Introducer;
use crate::config::Config;
use crate::guard::loss_log::LossLog;
use crate::guard::status::Status;
use crate::host::stat::HostCpuSource;
use crate::host::statics;
use crate::http::{self, ControlCommand, Health, Job};
use crate::kernel::loader::{Kernel, monotonic};
use crate::kernel::probes::Until;
use crate::kernel::ring_occupancy::RingLevel;
use crate::kernel::rings::Rings;
use crate::kernel::skips::Skips;
use crate::kernel::trace_contexts::ThreadContext;
use crate::pipeline::Pipeline;
use crate::record::FrameKind;

/// Records taken from a ring before the other one and everything else (shedding among it) get their turn.
const BATCH: usize = 4096;

/// Everything but the pipeline.
pub(super) struct Agent {
    pub(super) config: Config,
    pub(super) kernel: Kernel,
    pub(super) rings: Rings,
    pub(super) health: Health,
    pub(super) at_start: Option<HostCpuSource>,
    /// Wall clock minus monotonic clock as times are shown, nanoseconds.
    pub(super) wall_offset: i64,
    /// Whether the last drain took all there was.
    pub(super) drained: bool,
    pub(super) status: Arc<Status>,
    /// Gauge of the ring of stacks.
    pub(super) level: Option<RingLevel>,
    pub(super) console: Arc<http::Console>,
    pub(super) jobs: mpsc::Sender<Job>,
    pub(super) skips: Skips,
    /// Losses the pipeline knows of.
    pub(super) losses: Noticed,
    pub(super) loss_log: LossLog,
    pub(super) exports: Exports,
    pub(super) files: AgentFiles,
    pub(super) profiling: Profiling,
    pub(super) processes: ProcessWatchers,
    /// Other hosts' agents.
    pub(super) relaying: Option<Relaying>,
    /// Tells own sockets from others where only those are traced.
    pub(super) netns: Option<OwnNetns>,
    /// Reads the configuration again.
    pub(super) reloading: Option<Reloading>,
    /// Looks for new policies of the fleet.
    pub(super) fleet_policies: Option<FleetPolicies>,
    /// Enforces service classes.
    pub(super) enforcing: Enforcing,
    /// Contexts of the requests that threads hold, if they are published; kept between drains for its memory.
    pub(super) thread_contexts: Vec<ThreadContext>,
    /// Ticks so far, and wishes in the kernel as counted last: counting them takes milliseconds.
    pub(super) ticks: u64,
    pub(super) asks_waiting: usize,
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
        let samples_filled = self.level.as_mut().map_or(0.0, |level| level.look() as f64 / SAMPLE_RING_BYTES as f64);
        let mut allowed = Vec::new();
        let mut recorder = self.files.recorder.as_mut();
        let (only, rules, asked) = (&self.config.only_services, &self.config.services, &mut self.processes.asked);
        let (status, mut records) = (&self.status, 0u32);
        let (netns, interpreters, clock) = (&mut self.netns, &mut self.profiling.interpreters, Instant::now());
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
                recorder: recorder.as_deref_mut(),
                only,
                rules,
                allowed: &mut allowed,
                asked: &mut *asked,
            };
            // Facts of a process come before its first record, in the file too.
            pipeline.record(bytes, &mut who);
            if let Some(recorder) = recorder.as_deref_mut() {
                recorder.frame(FrameKind::Record, bytes);
            }
        };
        // Samples first, and events only of the time before that: what a sample was taken in is in the other ring by then, or
        // is known from before, and nothing that followed it is.
        let now = monotonic();
        let samples = timed(&mut self.profiling.sampling.agent_nanos, || self.rings.samples(BATCH, &mut take));
        let events = self.rings.events(now, BATCH, &mut take);
        self.drained = events < BATCH;
        if self.drained {
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
        let others = self.netns.as_mut().map(OwnNetns::take_policies);
        for (cookie, ask) in pipeline.take_policies().chain(others.into_iter().flatten()) {
            self.kernel.policy.ask(cookie, ask);
            // Until its policy is set, its messages are cut.
            stirred |= ask.head_rx > 0 || ask.head_tx > 0;
        }
        self.follow_counting(pipeline);
        let filled = self.rings.events_filled().max(samples_filled);
        Found { at: now, records: samples + events, filled, drained: self.drained, stirred }
    }

    pub(super) fn apply_limits(&mut self, command: ControlCommand) {
        match command {
            ControlCommand::Hertz(hertz, answer) => {
                // Whoever asked may be gone.
                let _ = answer.send(self.ask_for_hertz(hertz));
            }
        }
    }
}
