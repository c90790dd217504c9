//! Joins the stages; the only file that may see them all. Read this first.
//!
//! ```text
//! record ─► decode ─► transactions (protocols inside) ─► classes ─► metrics · profiles · store · transactions file
//! ```
//!
//! [`Pipeline`] is pure but for its sinks' memory: a record and the facts of its process in, sums and answers out. It
//! has no clock (time comes with records) and no locks; whoever drives it (`commands/run.rs`, `commands/replay.rs`)
//! does the input and output.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tracer_common::event::{Books, Kind};
use tracer_common::policy::Ask;

use crate::classes::{self, Classifier};
use crate::config::Config;
use crate::decode::{self, Malformed, Record};
use crate::guard::room::Room;
use crate::guard::shed::Level;
use crate::host::process::ProcessFacts;
use crate::http::{Health, View};
use crate::metrics::{ClassStats, Metrics};
use crate::model::{ClassId, Cost, Names, Nanos, Owner, ServiceId, Sink, Unit};
use crate::profiles::{self, Profiles};
use crate::protocols::Settings;
use crate::relay::Outgoing;
use crate::store::{Store, UnitView};
use crate::transactions::engine::{Engine, Output};
use crate::transactions::limits::Limits;
use crate::transactions::live::Slot;

#[path = "pipeline_classes.rs"]
mod classing;
#[path = "pipeline_finished.rs"]
mod finished;
#[path = "pipeline_levels.rs"]
mod levels;
#[path = "pipeline_relay.rs"]
mod relayed;
#[path = "pipeline_services.rs"]
mod serving;

use classing::{classify, classify_late};

/// Finished units are looked for whenever this much time has passed in the records.
const REPORT_EVERY: Nanos = 10_000_000;

/// Says who a process is. Live: reads the system. Replay: the recording has said it.
pub trait Introduce {
    /// Facts of the process, or `None` when it is gone or unknown.
    fn introduce(&mut self, tgid: u32) -> Option<ProcessFacts>;
}

/// Receives finished units as they are reported (the transactions file).
pub trait UnitWriter {
    /// One finished unit.
    fn unit(&mut self, names: &Names, unit: &Unit);
    /// About once a second: whoever reads along wants what there is.
    fn flush(&mut self);
    /// The wall clock was set: wall clock minus `CLOCK_MONOTONIC` from now on, nanoseconds.
    fn clock(&mut self, wall_offset: i64);
    /// Units that could not be written.
    fn dropped(&self) -> u64;
    /// There are no more: writes what is left, and waits for that.
    fn finish(&mut self);
}

/// How long a process whose first thread ended is remembered, nanoseconds.
const FORGET: Nanos = 5_000_000_000;
/// Most such processes; beyond it they are forgotten earlier. The same for those that were forked and run no other
/// program.
const LEAVING: usize = 65_536;

/// Everything between records and answers.
pub struct Pipeline {
    engine: Engine,
    classifier: Classifier,
    names: Names,
    rules: crate::host::services::NamingRules,
    services: HashMap<Arc<str>, ServiceId>,
    /// Processes whose first thread ended, by the time they are forgotten: what they did last is still on its way.
    leaving: VecDeque<(Nanos, u32)>,
    /// Those that were forgotten since last asked.
    gone: Vec<u32>,
    /// Those that run another program since last asked.
    replaced: Vec<u32>,
    /// Processes that were forked and run no other program yet, with their parent's service: some end before anybody can
    /// ask who they are.
    forked: HashMap<u32, ServiceId>,
    forked_refused: u64,
    /// Numeric metrics, for `/metrics`.
    pub metrics: Metrics,
    /// Rolling figures per class.
    pub stats: ClassStats,
    /// Recent transactions.
    pub store: Store,
    /// Stacks.
    pub profiles: Profiles,
    writers: Vec<Box<dyn UnitWriter>>,
    /// Units that writers which are gone could not write.
    not_written: u64,
    outputs: Vec<Output>,
    /// What other agents are to be told.
    outgoing: Vec<Outgoing>,
    wall_offset: i64,
    reported: Nanos,
    /// CPU charged so far: to requests, to overhead; nanoseconds.
    charged: (u64, u64),
    events: [u64; Kind::ALL.len()],
    malformed: [u64; Malformed::ALL.len()],
    services_refused: u64,
    /// Processes forgotten early because too many had ended.
    left_early: u64,
    /// Detail given up now, and at most so far.
    level: Level,
    shed_most: Level,
}

/// CPU charged so far, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Charged {
    /// To request classes.
    pub requests: u64,
    /// To services, for no request.
    pub overhead: u64,
}

impl Pipeline {
    /// A pipeline for `config`. `wall_offset` is wall clock minus `CLOCK_MONOTONIC`, nanoseconds; ids follow `seed`.
    pub fn new(config: &Config, seed: u64, wall_offset: i64, host: &str) -> Self {
        let settings = Settings {
            headers: config.classes.header_names(),
            request_id: config.transactions.request_id,
            timed_ports: config.timed_ports.clone(),
            baggage: config.transactions.baggage.clone(),
            host: config.classes.wants_host(),
            ..Settings::default()
        };
        let memory = config.ceilings.memory;
        let limits = Limits {
            grace: config.transactions.grace.as_nanos() as u64,
            handover: config.transactions.handover.as_nanos() as u64,
            ..Limits::for_memory(memory)
        };
        Self {
            engine: Engine::new(settings, limits, seed),
            classifier: Classifier::new(&config.classes).within(classes::Bounds::for_memory(memory)),
            names: Names::default(),
            rules: config.services.clone(),
            services: HashMap::new(),
            leaving: VecDeque::new(),
            gone: Vec::new(),
            replaced: Vec::new(),
            forked: HashMap::new(),
            forked_refused: 0,
            metrics: Metrics::new().for_memory(memory),
            stats: ClassStats::new(),
            store: Store::new(wall_offset, host, config.transactions.keep).for_memory(memory),
            profiles: Profiles::new().within(profiles::Bounds::for_memory(memory)),
            writers: Vec::new(),
            not_written: 0,
            outputs: Vec::new(),
            outgoing: Vec::new(),
            wall_offset,
            reported: 0,
            charged: (0, 0),
            events: [0; Kind::ALL.len()],
            malformed: [0; Malformed::ALL.len()],
            services_refused: 0,
            left_early: 0,
            level: Level::Full,
            shed_most: Level::Full,
        }
    }

    /// Finished units also go to `writer`, beside those before it.
    pub fn write_units(&mut self, writer: Box<dyn UnitWriter>) {
        self.writers.push(writer);
    }

    /// The wall clock was set: `wall_offset` is wall clock minus `CLOCK_MONOTONIC` from now on, nanoseconds.
    pub fn clock(&mut self, wall_offset: i64) {
        self.wall_offset = wall_offset;
        self.store.clock(wall_offset);
        for writer in &mut self.writers {
            writer.clock(wall_offset);
        }
    }

    /// What may have ended unreported; see [`Engine::silent`].
    pub fn silent(&self, before: Nanos) -> Vec<(u32, u32)> {
        self.engine.silent(before)
    }

    /// Books of a thread that is followed, and when it was last heard of.
    pub fn followed(&self, tid: u32, tgid: u32) -> Option<(Books, Nanos)> {
        self.engine.followed(tid, tgid)
    }

    /// Whether a process is known.
    pub fn knows(&self, tgid: u32) -> bool {
        self.engine.knows(tgid)
    }

    /// Names behind ids.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Time of the newest record.
    pub fn now(&self) -> Nanos {
        self.engine.now
    }

    /// The next transaction that is to be saved; see [`Store::settled`].
    pub fn settled(&mut self, over: bool) -> Option<Vec<UnitView>> {
        self.store.settled(&self.names, over)
    }

    /// What handlers may look at.
    pub fn view<'a>(&'a self, health: &'a Health) -> View<'a> {
        View { names: &self.names, stats: &self.stats, store: &self.store, profiles: &self.profiles, health }
    }

    /// CPU charged so far.
    pub fn charged(&self) -> Charged {
        Charged { requests: self.charged.0, overhead: self.charged.1 }
    }

    /// Whether bytes left a socket by a way no attached hook shows, since last asked.
    pub fn take_unseen(&mut self) -> bool {
        std::mem::take(&mut self.engine.unseen)
    }

    /// Processes whose wake-ups between threads are wanted, since last taken.
    pub fn take_wanted(&mut self) -> std::vec::Drain<'_, u32> {
        self.engine.take_wanted()
    }

    /// Processes that began to serve requests since last taken.
    pub fn take_serving(&mut self) -> std::vec::Drain<'_, u32> {
        self.engine.take_serving()
    }

    /// Wishes for the kernel since last taken.
    pub fn take_asks(&mut self) -> std::vec::Drain<'_, (u64, Ask)> {
        self.engine.take_asks()
    }

    /// Takes the bytes of one record, in the order of the ring.
    pub fn record(&mut self, bytes: &[u8], who: &mut dyn Introduce) {
        let record = match decode::record(bytes) {
            Ok(record) => record,
            Err(why) => {
                self.malformed[why as usize] += 1;
                return;
            }
        };
        self.identify(&record, who);
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engine.record(&record, &mut outputs);
        self.give(&mut outputs);
        if self.engine.now.saturating_sub(self.reported) >= REPORT_EVERY {
            self.reported = self.engine.now;
            self.engine.report(self.engine.now, &mut outputs);
            self.give(&mut outputs);
        }
        self.outputs = outputs;
    }

    /// Records of operations were lost after `since`, which matters up to `until`.
    pub fn lost(&mut self, since: Nanos, until: Nanos) {
        self.engine.lost(since, until);
    }

    /// Counts the record and makes sure its process has a service.
    fn identify(&mut self, record: &Record<'_>, who: &mut dyn Introduce) {
        let (kind, header) = match record {
            Record::Op { op, .. } => (Kind::Op, &op.header),
            Record::Open(open) => (Kind::Open, &open.header),
            Record::State(state) => (Kind::State, &state.header),
            Record::Tick(tick) => (Kind::Tick, &tick.header),
            Record::Fork(fork) => (Kind::Fork, &fork.header),
            Record::Exec(exec) => (Kind::Exec, &exec.header),
            Record::Sample { sample, .. } => (Kind::Sample, &sample.header),
            Record::Wake(wake) => (Kind::Wake, &wake.header),
            Record::Kin(kin) => (Kind::Kin, &kin.header),
            Record::Tag(tag) => (Kind::Tag, &tag.header),
        };
        self.events[kind as usize - 1] += 1;
        let tgid = header.tgid;
        match record {
            Record::Exec(_) => {
                // Another program: whoever it was is no longer known.
                self.engine.forget_process(tgid);
                self.forked.remove(&tgid);
                self.profiles.process_gone(tgid);
                if self.replaced.len() < LEAVING {
                    self.replaced.push(tgid);
                }
                return;
            }
            Record::Fork(fork) => {
                if fork.child_tgid != tgid {
                    // The id may have been another's; events of its end may have been lost.
                    self.engine.forget_process(fork.child_tgid);
                    self.forked(tgid, fork.child_tgid);
                }
                return;
            }
            Record::Tick(tick) => {
                let gone = header.flags & tracer_common::event::TICK_DEAD != 0 && header.tid == tgid;
                if gone {
                    self.leaving.push_back((header.nanos + FORGET, tgid));
                }
                if !self.engine.knows(tgid) {
                    if gone {
                        // A short life has a name, and that is enough to book it.
                        self.stand_in(tgid, Some(&decode::comm(&tick.comm)));
                    } else {
                        self.introduce(tgid, Some(&decode::comm(&tick.comm)), who);
                    }
                }
                return;
            }
            Record::Sample { sample, .. } if sample.header.flags & 1 != 0 => return,
            _ => {}
        }
        if tgid != 0 && !self.engine.knows(tgid) {
            self.introduce(tgid, None, who);
        }
    }

    fn introduce(&mut self, tgid: u32, comm: Option<&str>, who: &mut dyn Introduce) {
        if let Some(facts) = who.introduce(tgid) {
            self.forked.remove(&tgid);
            self.process(tgid, &facts);
        } else {
            self.stand_in(tgid, comm);
        }
    }

    /// The service of a process nobody can be asked about any more: that of whoever forked it, if it ran no other program;
    /// else what its thread was called.
    fn stand_in(&mut self, tgid: u32, comm: Option<&str>) {
        let service = match self.forked.get(&tgid) {
            Some(service) => *service,
            None => self.service(comm.unwrap_or("unknown")),
        };
        self.engine.process(tgid, service);
    }

    /// A process was forked.
    fn forked(&mut self, parent: u32, child: u32) {
        self.forked.remove(&child);
        let Some(service) = self.engine.service_of(parent).or_else(|| self.forked.get(&parent).copied()) else {
            return;
        };
        if self.forked.len() >= LEAVING {
            // Most of them were introduced long ago, or their ends were not seen.
            self.forked_refused += 1;
            self.forked.clear();
        }
        self.forked.insert(child, service);
    }

    /// Forgets the processes whose time has come. One that still runs is introduced again by its next record.
    fn forget(&mut self, now: Nanos) {
        while let Some((due, tgid)) = self.leaving.front().copied()
            && (due <= now || self.leaving.len() > LEAVING)
        {
            self.leaving.pop_front();
            self.left_early += u64::from(due > now);
            self.engine.forget_process(tgid);
            self.forked.remove(&tgid);
            self.profiles.process_gone(tgid);
            self.gone.push(tgid);
        }
    }

    /// Processes forgotten since last asked.
    pub fn take_gone(&mut self) -> std::vec::Drain<'_, u32> {
        self.gone.drain(..)
    }

    /// Processes that run another program since last asked.
    pub fn take_replaced(&mut self) -> std::vec::Drain<'_, u32> {
        self.replaced.drain(..)
    }

    /// Classes and sinks.
    fn give(&mut self, outputs: &mut Vec<Output>) {
        for output in outputs.drain(..) {
            match output {
                Output::Begun(slot) => {
                    if !self.classifier.has_status_rules() {
                        self.classify_early(slot);
                    }
                    self.tell(slot);
                }
                Output::Settled(slot) => self.tell(slot),
                Output::Answered(slot) => self.answer(slot),
                Output::Late { unit, was, parent, trace } => self.store.adopt(unit, was, parent, trace),
                Output::Finished(live, verdicts) => self.finished(live, verdicts),
                Output::Sample(sample) => self.profiles.sample(&self.names, &sample),
            }
        }
    }

    fn classify_early(&mut self, slot: Slot) {
        if let Some(live) = self.engine.unit(slot) {
            let class = classify(&mut self.classifier, &mut self.names, live, None);
            self.engine.classify(slot, class, self.classifier.service_class(class));
        }
    }

    /// About once a second, at `now` of `CLOCK_MONOTONIC`: expiry, sums to the sinks.
    pub fn tick(&mut self, now: Nanos) {
        self.engine.now = self.engine.now.max(now);
        self.expire(false);
        for writer in &mut self.writers {
            writer.flush();
        }
    }

    /// The end: everything that is open is reported as it stands.
    pub fn finish(&mut self) {
        self.expire(true);
        // Whoever waits for what they have left sees that no more comes.
        for mut writer in std::mem::take(&mut self.writers) {
            writer.finish();
            self.not_written += writer.dropped();
        }
    }

    fn expire(&mut self, finish: bool) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engine.expire(finish, &mut outputs);
        self.give(&mut outputs);
        outputs.give_back();
        self.leaving.give_back();
        self.gone.give_back();
        self.forked.give_back();
        self.outputs = outputs;
        let (classes, overhead) = self.engine.take_costs();
        for (class, cost) in classes {
            self.charged.0 += cost.cpu;
            self.spend(Owner::Class(ClassId(class)), cost);
        }
        for (service, cost) in overhead {
            self.charged.1 += cost.cpu;
            self.spend(Owner::Overhead(service), cost);
        }
        let now = self.engine.now;
        self.forget(now);
        self.metrics.tick(now);
        self.stats.tick(now);
        self.store.tick(now);
        self.profiles.tick(now);
        self.publish();
    }

    fn spend(&mut self, owner: Owner, cost: Cost) {
        self.metrics.cost(&self.names, owner, cost);
        self.stats.cost(&self.names, owner, cost);
    }
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
