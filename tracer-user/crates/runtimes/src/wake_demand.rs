//! Decides in which processes wake-ups between tasks are watched on demand: where many calls have no parent without them, or much CPU
//! is no request's, and as long as that costs little of the process's CPU. Where it turns out that wake-ups do not show whose that CPU is,
//! they are watched no longer. Pure: what is counted and the time come from the caller.

use rustc_hash::FxHashMap;
use tracer_host::guard::tables::TableUse;

/// How often it is decided, seconds.
const WINDOW: u64 = 5;
/// Least calls without a parent in a window, and their least share of all, as one in so many.
const ORPHANS: u64 = 32;
const SHARE: u64 = 20;
/// Least requests in a window, and least percent of the CPU that is no request's, where that is the reason.
const REQUESTS: u64 = 32;
const UNATTRIBUTED: u64 = 25;
/// Windows after which less than a quarter of that share has gone, and so does the watching.
const PROBATION: u32 = 3;
/// CPU that a hit of a probe costs the process, nanoseconds: the trap, and the record.
const HIT: u64 = 2_000;
/// Hits a call, or a request where these are more, where nothing was counted yet.
const HITS: u64 = 6;
/// Most of a process's CPU that its probes may take, percent: half the share of its calls that have no parent, so that few such calls may
/// cost little, and never more than this.
const AFFORDABLE: u64 = 10;
/// Windows for which a process is left alone where they took more.
const PAUSE: u32 = 120;
/// Most processes that are watched at once, and known.
const WATCHED: usize = 16;
const PROCESSES: usize = 1024;

/// Whether a process is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not: it has not needed it, or it would cost too much.
    Unwatched,
    /// It is, and cost too much in so many windows in a row: one and a half times what was affordable (percent) when that began.
    Watched { costly: u32, affordable: u64, trial: Option<Trial> },
    /// It cost too much, or showed nothing: not for so many windows more.
    Paused(u32),
}

/// Whether wake-ups show whose the CPU is that was no request's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    /// Its share when it began, percent.
    before: u64,
    /// Windows left.
    windows: u32,
}

/// A process whose wake-ups can be watched.
#[derive(Debug)]
struct Process {
    state: State,
    /// Calls since the last decision, and those of them without a parent.
    calls: u64,
    orphans: u64,
    /// Requests since then; CPU that is a request's and that is none's, nanoseconds.
    requests: u64,
    charged: u64,
    unattributed: u64,
    /// Its CPU at the last decision, nanoseconds.
    cpu: u64,
}

/// What a process lacks without its wake-ups, percent; 0: too little to watch them.
#[derive(Clone, Copy, Debug)]
struct Lacking {
    calls: u64,
    cpu: u64,
}

impl Process {
    /// What its probes' hits go by.
    fn work(&self) -> u64 {
        self.calls.max(self.requests)
    }

    /// Share of its CPU that is no request's, percent.
    fn unattributed_percent(&self) -> u64 {
        self.unattributed.saturating_mul(100) / self.unattributed.saturating_add(self.charged).max(1)
    }

    fn lacking(&self) -> Lacking {
        let is_many = self.orphans >= ORPHANS && self.orphans * SHARE >= self.calls;
        let calls = if is_many { self.orphans.saturating_mul(100) / self.calls.max(1) } else { 0 };
        let unattributed = self.unattributed_percent();
        Lacking { calls, cpu: if self.requests >= REQUESTS && unattributed >= UNATTRIBUTED { unattributed } else { 0 } }
    }
}

/// What is to be done in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeDecision {
    /// Watch its wake-ups.
    Watch,
    /// Stop watching: it costs too much.
    Stop,
    /// Stop watching: it does not show whose the CPU is.
    Useless,
    /// It needs watching, which would cost too much.
    TooCostly,
}

/// All processes whose wake-ups can be watched.
#[derive(Debug, Default)]
pub struct WakeDemand {
    processes: FxHashMap<u32, Process>,
    seconds: u64,
    /// Hits of all their probes at the last decision.
    hits: u64,
    refused: u64,
}

impl WakeDemand {
    /// A process that can be watched; `cpu`: nanoseconds it has used.
    pub fn follow(&mut self, pid: u32, cpu: u64) {
        if self.processes.len() >= PROCESSES {
            self.refused += 1;
            return;
        }
        let (calls, orphans, requests, charged, unattributed) = (0, 0, 0, 0, 0);
        let process = Process { state: State::Unwatched, calls, orphans, requests, charged, unattributed, cpu };
        self.processes.entry(pid).or_insert(process);
    }

    /// The process is gone or runs another program.
    pub fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// A call of a process ended.
    pub fn call(&mut self, pid: u32, has_parent: bool) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.calls += 1;
            process.orphans += u64::from(!has_parent);
        }
    }

    /// A process answered a request.
    pub fn request(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.requests += 1;
        }
    }

    /// A process used so many nanoseconds of CPU, for a request that it serves or for none.
    pub fn used(&mut self, pid: u32, is_requests: bool, cpu: u64) {
        if let Some(process) = self.processes.get_mut(&pid) {
            *(if is_requests { &mut process.charged } else { &mut process.unattributed }) += cpu;
        }
    }

    /// Once a second: what is to be done in which processes. `hits`: of the probes in all of them so far; `cpu`: what a process has
    /// used, nanoseconds.
    pub fn tick(&mut self, hits: u64, cpu: impl Fn(u32) -> Option<u64>) -> Vec<(u32, WakeDecision)> {
        self.seconds += 1;
        if !self.seconds.is_multiple_of(WINDOW) {
            return Vec::new();
        }
        let hit = hits.saturating_sub(std::mem::replace(&mut self.hits, hits));
        let is_watched = |process: &Process| matches!(process.state, State::Watched { .. });
        let calls: u64 = self.processes.values().filter(|process| is_watched(process)).map(Process::work).sum();
        let mut watched = self.processes.values().filter(|process| is_watched(process)).count();
        let mut decisions = Vec::new();
        for (pid, process) in &mut self.processes {
            let Some(now) = cpu(*pid) else { continue };
            let used = now.saturating_sub(std::mem::replace(&mut process.cpu, now));
            let made = process.work();
            let lacking = process.lacking();
            let lacks_calls = lacking.calls != 0;
            let lacks = lacking.calls.max(lacking.cpu);
            let unattributed = process.unattributed_percent();
            (process.calls, process.orphans, process.requests) = (0, 0, 0);
            (process.charged, process.unattributed) = (0, 0);
            let nanos = |hits: u64| hits.saturating_mul(HIT).saturating_mul(100);
            match process.state {
                State::Unwatched if lacks != 0 => {
                    let affordable = (lacks / 2).min(AFFORDABLE);
                    if nanos(made.saturating_mul(HITS)) > used.saturating_mul(affordable) {
                        if lacks_calls {
                            decisions.push((*pid, WakeDecision::TooCostly));
                        }
                    } else if watched < WATCHED {
                        watched += 1;
                        let trial = (!lacks_calls).then_some(Trial { before: unattributed, windows: PROBATION });
                        process.state = State::Watched { costly: 0, affordable, trial };
                        decisions.push((*pid, WakeDecision::Watch));
                    } else {
                        self.refused += 1;
                    }
                }
                State::Unwatched => {}
                State::Watched { trial: Some(Trial { before, windows: 0 }), .. } if unattributed * 4 > before * 3 => {
                    decisions.push((*pid, WakeDecision::Useless));
                    process.state = State::Paused(PAUSE);
                }
                State::Watched { costly, affordable, trial } => {
                    let trial = trial.filter(|trial| trial.windows > 0 && !lacks_calls);
                    let trial = trial.map(|trial| Trial { windows: trial.windows - 1, ..trial });
                    let own =
                        if calls == 0 { hit } else { (u128::from(hit) * u128::from(made) / u128::from(calls)) as u64 };
                    let costs = own.saturating_mul(HIT);
                    let most = used.saturating_sub(costs).saturating_mul(affordable) / 2 * 3;
                    let is_costly = nanos(own) > most;
                    process.state = match costly {
                        0 if is_costly => State::Watched { costly: 1, affordable, trial },
                        _ if is_costly => {
                            decisions.push((*pid, WakeDecision::Stop));
                            State::Paused(PAUSE)
                        }
                        _ => State::Watched { costly: 0, affordable, trial },
                    };
                }
                State::Paused(windows) => {
                    process.state = if windows == 0 { State::Unwatched } else { State::Paused(windows - 1) };
                }
            }
        }
        decisions
    }

    /// Table use of the processes.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.processes.len(), PROCESSES, self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 7;

    /// Counts `calls` of a process, some without a parent, and ends a window in which it used so much CPU (milliseconds) and its probes
    /// were hit so often.
    fn window(demand: &mut WakeDemand, (calls, orphans): (u64, u64), cpu: u64, hits: u64) -> Vec<(u32, WakeDecision)> {
        for call in 0..calls {
            demand.call(PID, call >= orphans);
        }
        let before = demand.processes.get(&PID).map_or(0, |process| process.cpu);
        let all = demand.hits + hits;
        (0..WINDOW).flat_map(|_| demand.tick(all, |_| Some(before + cpu * 1_000_000))).collect()
    }

    fn demand() -> WakeDemand {
        let mut demand = WakeDemand::default();
        demand.follow(PID, 0);
        demand
    }

    #[test]
    fn many_calls_without_a_parent_are_needed() {
        let mut demand = demand();
        assert_eq!(window(&mut demand, (100, ORPHANS - 1), 1000, 0), []);
        assert_eq!(window(&mut demand, (1000, 49), 5000, 0), [], "less than a twentieth");
        assert_eq!(window(&mut demand, (100, 50), 1000, 0), [(PID, WakeDecision::Watch)]);
        assert_eq!(window(&mut demand, (100, 50), 1000, 600), [], "once");
    }

    #[test]
    fn what_would_cost_too_much_is_not_begun() {
        let mut demand = demand();
        // 6 hits of 2 microseconds a call: 12 % of 100 microseconds.
        assert_eq!(window(&mut demand, (1000, 1000), 100, 0), [(PID, WakeDecision::TooCostly)]);
        assert_eq!(window(&mut demand, (1000, 1000), 130, 0), [(PID, WakeDecision::Watch)]);
    }

    #[test]
    fn where_few_calls_need_it_it_may_cost_little() {
        // 2.5 percent of calls, as a whole number: 12 milliseconds of hits in 500 are too much, in 600 not.
        let mut demand = demand();
        assert_eq!(window(&mut demand, (1000, 50), 500, 0), [(PID, WakeDecision::TooCostly)]);
        assert_eq!(window(&mut demand, (1000, 50), 600, 0), [(PID, WakeDecision::Watch)]);
        // Three percent at most while it is watched.
        assert_eq!(window(&mut demand, (1000, 0), 600, 8_000), []);
        assert_eq!(window(&mut demand, (1000, 0), 600, 10_000), []);
        assert_eq!(window(&mut demand, (1000, 0), 600, 10_000), [(PID, WakeDecision::Stop)]);
    }

    #[test]
    fn what_costs_too_much_ends_and_comes_back_later() {
        let mut demand = demand();
        assert_eq!(window(&mut demand, (1000, 1000), 1000, 0), [(PID, WakeDecision::Watch)]);
        // 100 ms of hits in 600 ms.
        assert_eq!(window(&mut demand, (1000, 0), 600, 50_000), []);
        assert_eq!(window(&mut demand, (1000, 0), 1200, 50_000), [], "less in between");
        assert_eq!(window(&mut demand, (1000, 0), 600, 50_000), []);
        assert_eq!(window(&mut demand, (1000, 0), 600, 50_000), [(PID, WakeDecision::Stop)]);
        let again =
            (0..=PAUSE + 1).map(|_| window(&mut demand, (1000, 1000), 1000, 0)).position(|found| !found.is_empty());
        assert_eq!(again, Some(PAUSE as usize + 1));
    }

    #[test]
    fn processes_and_those_watched_are_bounded() {
        let mut demand = WakeDemand::default();
        for pid in 0..2 * PROCESSES as u32 {
            demand.follow(pid, 0);
            (0..ORPHANS).for_each(|_| demand.call(pid, false));
        }
        assert_eq!(demand.processes.len(), PROCESSES);
        let decided: Vec<_> = (0..WINDOW).flat_map(|_| demand.tick(0, |_| Some(1_000_000_000))).collect();
        assert_eq!(decided.len(), WATCHED);
        demand.forget(decided[0].0);
        assert_eq!(demand.processes.len(), PROCESSES - 1);
    }

    /// A window with requests but without calls; CPU in milliseconds, and how much of it is no request's.
    fn serving(demand: &mut WakeDemand, requests: u64, cpu: u64, unattributed: u64) -> Vec<(u32, WakeDecision)> {
        (0..requests).for_each(|_| demand.request(PID));
        demand.used(PID, true, (cpu - unattributed) * 1_000_000);
        demand.used(PID, false, unattributed * 1_000_000);
        window(demand, (0, 0), cpu, 0)
    }

    #[test]
    fn much_cpu_that_is_no_requests_is_a_reason_as_long_as_that_shows_whose() {
        let mut demand = demand();
        assert_eq!(serving(&mut demand, REQUESTS - 1, 1000, 900), [], "few requests");
        assert_eq!(serving(&mut demand, 500, 1000, 240), [], "little of it");
        // 12 % of that CPU; no call lacks a parent.
        assert_eq!(serving(&mut demand, 10_000, 1000, 900), []);
        assert_eq!(serving(&mut demand, 500, 1000, 600), [(PID, WakeDecision::Watch)]);
        for _ in 0..2 * PROBATION {
            assert_eq!(serving(&mut demand, 500, 1000, 50), []);
        }
        assert_eq!(serving(&mut demand, 500, 1000, 900), [], "once it showed something, it goes on");

        let mut demand = self::demand();
        assert_eq!(serving(&mut demand, 500, 1000, 600), [(PID, WakeDecision::Watch)]);
        for _ in 0..PROBATION {
            assert_eq!(serving(&mut demand, 500, 1000, 500), []);
        }
        assert_eq!(serving(&mut demand, 500, 1000, 500), [(PID, WakeDecision::Useless)]);
        assert_eq!(serving(&mut demand, 500, 1000, 600), [], "not again for a while");
    }
}
