//! How a case is measured: pairs of short runs side by side, then the agent's own cost.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::agent::Agent;
use super::bpf;
use super::cases::{Case, Workload};
use super::floor::{Floor, Hooks};
use super::peers::{PEERS, Peer};
use super::results::{self, AGENT, Cost, FLOOR, NOTHING, Pair, Program, Sample, Slice, without_statistics};
use super::sched::Urgency;
use crate::shell;

/// What every measurement needs.
#[derive(Clone, Copy)]
pub(super) struct Bench<'a> {
    pub(super) tracer: &'a Path,
    pub(super) dir: &'a Path,
    pub(super) hooks: &'a Hooks,
    pub(super) pairs: u32,
    pub(super) slices: u32,
    pub(super) peers: bool,
    pub(super) began: Instant,
}

/// Length of one run. Short, so that both runs of a pair see the same machine.
const RUN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Peer(Peer),
    Floor,
    Agent,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Peer(peer) => peer.name(),
            Self::Floor => FLOOR,
            Self::Agent => AGENT,
        }
    }
}

impl Bench<'_> {
    /// Measures one case.
    pub(super) fn case(&self, case: &Case) -> Result<results::Case> {
        self.say(format!("{}: {}", case.name, case.title));
        let mut workload = case.start(self.dir)?;
        let mut result = results::Case {
            name: case.name.into(),
            title: case.title.into(),
            operation: case.operation.into(),
            fixed_rate: case.fixed_rate,
            ..results::Case::default()
        };
        let hooks = self.hooks_of(case, workload.as_mut())?;
        if case.paired() {
            // Warms caches, page tables and the server's own state.
            workload.run(RUN, Urgency::Realtime)?;
            self.pairs(case, workload.as_mut(), &hooks, &mut result)?;
        }
        self.say(format!("{}: agent and BPF time", case.name));
        result.cost = Some(self.cost(case, workload.as_mut(), &hooks)?);
        Ok(result)
    }

    /// An agent that has done all that it does for this case before it traces requests.
    fn agent(&self, case: &Case, workload: &mut dyn Workload) -> Result<Agent> {
        let agent = Agent::start(self.tracer, self.dir, case.services)?;
        warm(&agent, case, workload)?;
        Ok(agent)
    }

    /// The hooks that an agent has in this case.
    fn hooks_of(&self, case: &Case, workload: &mut dyn Workload) -> Result<Hooks> {
        if !case.has_text() {
            return Ok(self.hooks.clone());
        }
        let agent = self.agent(case, workload)?;
        let hooks = self.hooks.with_probes_of(agent.pid());
        agent.end()?;
        hooks
    }

    /// Rounds of pairs. Every second round mirrors the one before, so that the order alternates, and the agent, last in
    /// one and first in the next, starts once for two runs.
    fn pairs(&self, case: &Case, workload: &mut dyn Workload, hooks: &Hooks, result: &mut results::Case) -> Result<()> {
        let mut variants = Vec::new();
        if case.peers && self.peers {
            variants.extend(PEERS.map(Variant::Peer));
        }
        variants.extend([Variant::Floor, Variant::Agent]);
        let mut agent = None;
        for round in 0..self.pairs {
            let forward = round % 2 == 0;
            let mut order = variants.clone();
            if !forward {
                order.reverse();
            }
            let mut bases: Vec<(Variant, Sample)> = Vec::new();
            for variant in order {
                if result.refused.contains_key(variant.name()) {
                    continue;
                }
                let mut with = None;
                let mut base = None;
                for half in 0..2 {
                    if (half == 0) == forward {
                        base = Some(urgent(workload)?);
                        continue;
                    }
                    with = match variant {
                        Variant::Floor => {
                            let floor = Floor::attach(hooks)?;
                            let sample = urgent(workload)?;
                            drop(floor);
                            Some(sample)
                        }
                        Variant::Agent => {
                            let running = match agent.take() {
                                Some(running) => running,
                                None => self.agent(case, workload)?,
                            };
                            let sample = urgent(workload)?;
                            if forward && round + 1 < self.pairs {
                                agent = Some(running);
                            } else {
                                for (reason, count) in running.metrics()?.lost() {
                                    *result.lost_in_pairs.entry(reason).or_default() += count;
                                }
                                running.end()?;
                            }
                            Some(sample)
                        }
                        Variant::Peer(peer) => match self.peer(peer, workload) {
                            Ok(sample) => Some(sample),
                            Err(error) => {
                                result.refused.insert(peer.name().into(), format!("{error:#}"));
                                None
                            }
                        },
                    };
                }
                if let (Some(base), Some(with)) = (base, with) {
                    bases.push((variant, base.clone()));
                    result.pairs.push(Pair { variant: variant.name().into(), base_first: forward, base, with });
                }
            }
            let base = |wanted| bases.iter().find(|(variant, _)| *variant == wanted).map(|(_, base)| base.clone());
            if let (Some(base), Some(with)) = (base(Variant::Floor), base(Variant::Agent)) {
                result.pairs.push(Pair { variant: NOTHING.into(), base_first: forward, base, with });
            }
            self.say(format!("{}: pair {} of {}: {}", case.name, round + 1, self.pairs, brief(result)));
        }
        Ok(())
    }

    fn peer(&self, peer: Peer, workload: &mut dyn Workload) -> Result<Sample> {
        let Some(server) = workload.server() else { bail!("there is no server to look at") };
        let running = peer.start(self.dir, server)?;
        let sample = urgent(workload)?;
        running.end()?;
        Ok(sample)
    }

    /// The agent's own cost, with kernel statistics on: ignore throughput here.
    fn cost(&self, case: &Case, workload: &mut dyn Workload, hooks: &Hooks) -> Result<Cost> {
        let _statistics = bpf::statistics()?;
        let mut cost = Cost { floor_ns: floor(workload, hooks)?, ..Cost::default() };
        let agent = Agent::start(self.tracer, self.dir, case.services)?;
        cost.start_peak_mb = agent.memory("VmHWM")?;
        cost.steady_mb = agent.memory("VmRSS")?;
        warm(&agent, case, workload)?;
        let events = agent.metrics()?.sum("tracer_events_total");
        let first = bpf::held_by(agent.pid())?;
        let mut before = first.clone();
        for _ in 0..self.slices {
            let cpu = agent.cpu()?;
            let begin = Instant::now();
            let run = workload.run(RUN, Urgency::Usual)?;
            let seconds = if case.paired() { run.seconds } else { begin.elapsed().as_secs_f64() };
            // Events still in the rings belong to this slice; an agent without load has none.
            if case.paired() {
                agent.calm()?;
            }
            let after = bpf::held_by(agent.pid())?;
            let sum = |of: fn(&bpf::Usage) -> u64| -> u64 {
                after.iter().map(of).sum::<u64>().saturating_sub(before.iter().map(of).sum())
            };
            cost.slices.push(Slice {
                operations: run.operations,
                seconds,
                agent_cpu_ns: agent.cpu()? - cpu,
                bpf_ns: sum(|usage| usage.nanos),
                bpf_runs: sum(|usage| usage.runs),
            });
            before = after;
        }
        for last in before {
            let old = first.iter().find(|usage| usage.id == last.id).cloned().unwrap_or_default();
            let (runs, nanos) = (last.runs.saturating_sub(old.runs), last.nanos.saturating_sub(old.nanos));
            if runs > 0 {
                cost.programs.push(Program { name: last.name, runs, nanos });
            }
        }
        cost.programs.sort_by_key(|program| std::cmp::Reverse(program.nanos));
        cost.load_mb = agent.memory("VmRSS")?;
        cost.load_peak_mb = agent.memory("VmHWM")?;
        let metrics = agent.metrics()?;
        cost.events = metrics.sum("tracer_events_total") - events;
        cost.lost = metrics.lost();
        agent.end()?;
        Ok(cost)
    }

    pub(super) fn say(&self, what: impl std::fmt::Display) {
        shell::progress(format!("[{:4} s] {what}", self.began.elapsed().as_secs()));
    }
}

/// Lets an agent find the TLS of the case's programs: it looks for it in a program's files when the program first encrypts.
fn warm(agent: &Agent, case: &Case, workload: &mut dyn Workload) -> Result<()> {
    if case.has_text() {
        workload.run(RUN, Urgency::Usual)?;
        agent.calm()?;
    }
    Ok(())
}

/// Time of empty programs on these hooks, nanoseconds per operation.
fn floor(workload: &mut dyn Workload, hooks: &Hooks) -> Result<f64> {
    let floor = Floor::attach(hooks)?;
    let operations = workload.run(RUN, Urgency::Usual)?.operations;
    let time: f64 = floor.usage()?.iter().map(|usage| without_statistics(usage.nanos, usage.runs)).sum();
    Ok(time / operations as f64)
}

/// One real-time run, from an idle host: right after another run the same load is some per cent slower here.
fn urgent(workload: &mut dyn Workload) -> Result<Sample> {
    settle();
    workload.run(RUN, Urgency::Realtime)
}

/// Waits briefly until the host is idle: the kernel goes on freeing what a program left.
fn settle() {
    for _ in 0..5 {
        let before = idle_ticks();
        std::thread::sleep(Duration::from_millis(60));
        let cores = super::sched::cores() as u64;
        // 6 ticks of 10 ms per core; one may be missing.
        if idle_ticks().saturating_sub(before) + 1 >= 6 * cores {
            return;
        }
    }
}

/// Idle time of all CPUs, in ticks of 10 ms.
fn idle_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.split_whitespace().nth(4).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Throughput of the newest pairs with and without.
fn brief(case: &results::Case) -> String {
    let mut newest = BTreeMap::new();
    for pair in &case.pairs {
        newest.insert(pair.variant.as_str(), pair.with.rate() / pair.base.rate());
    }
    let words: Vec<String> = newest.iter().map(|(variant, ratio)| format!("{variant} {ratio:.3}")).collect();
    words.join(", ")
}

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Checks that no other process has kernel statistics on: they would distort throughput.
pub(super) fn statistics_off() -> Result<()> {
    let state = fs::read_to_string(STATISTICS).with_context(|| format!("cannot read {STATISTICS}"))?;
    if state.trim() != "0" {
        shell::progress("kernel.bpf_stats_enabled was on, which costs some 40 ns a program run: turning it off");
        fs::write(STATISTICS, "0").with_context(|| format!("cannot write {STATISTICS}"))?;
    }
    Ok(())
}
