//! The sampling rate as a share of the host's CPU, as a pure controller: what profiling has cost in, the rate out.
//!
//! The rate is the budget divided by what a sample costs. That cost is smoothed twice, over a third of a second and over ten,
//! and the higher figure counts: when samples become dearer the rate falls at once, when they become cheaper it rises
//! slowly. A change must be worth it (`LOWER`, `RAISE`), because each one cuts the current period of every clock short.
//! Stacks of threads that leave the CPU do not come at a rate: of as many threads the stack is taken, by chance, as a tenth of
//! the budget pays for. Neither do stacks of calls, which get another tenth. Samples get what both leave.

use tracer_model::Nanos;

/// Default share of the host's CPU.
pub const DEFAULT: f64 = 0.01;
/// The lowest rate, samples per second and CPU, unless fewer are asked for: threads that never leave the CPU are reported
/// with their samples, so CPU by class comes this often at least. As many stacks of threads that leave it are taken, too.
pub const FLOOR: u32 = 10;
/// As many stacks of calls are taken, per second and CPU, whatever they cost: each says as much as a hundred samples.
const CALL_FLOOR: u32 = 2;
/// CPU that the agent spends on a sample altogether, as a multiple of the time it takes to read it from the ring and decode
/// it, the part that is measured; the rest is spent where samples and other records meet, and on names (measured with 999 Hz
/// against 1 Hz: 3.7 and 4.9).
pub const AGENT_FACTOR: f64 = 4.0;
/// Time between decisions, nanoseconds.
pub const INTERVAL: Nanos = 250_000_000;

/// Share of the budget that is aimed at: measurements vary.
const AIM: f64 = 0.9;
/// Part of the budget that taking stacks off the CPU may cost the program.
const OFF_CPU_PART: f64 = 0.1;
/// Part of the budget that taking stacks of calls may cost altogether.
const CALL_PART: f64 = 0.1;
/// Below this part of that, more stacks are taken at each decision, this many times as many.
const SHARE_LOW: f64 = 0.7;
/// See [`SHARE_LOW`].
const SHARE_MORE: f64 = 1.1;
/// The smallest share of waits or calls whose stack is taken: a CPU switches threads a million times a second at most.
const SHARE_LEAST: f64 = 1e-5;
/// Part of the budget that slow requests' own samples may always take; beyond it they get what the other samples leave.
const AD_HOC_PART: f64 = 0.25;
/// The rate is lowered when it should be below this part of what it is.
const LOWER: f64 = 0.95;
/// The rate is raised when it could be this many times what it is.
const RAISE: f64 = 1.25;
/// The rate is raised to its ceiling when it could be this many times that.
const AT_CEILING: f64 = 1.1;
/// Time constants of the two averages, seconds.
const FAST: f64 = 0.35;
/// See [`FAST`].
const SLOW: f64 = 10.0;
/// Time constant of what is shown, seconds.
const SHOWN: f64 = 2.0;
/// What a sample is taken to cost before any were seen, nanoseconds, and for how many seconds that counts.
const GUESS: (f64, f64) = (40_000.0, 0.5);
const SECOND: f64 = 1e9;

/// What profiling has cost so far, of all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Expiries of the sampling clocks, idle CPUs included.
    pub ticks: u64,
    /// Run time of the sampling program, nanoseconds.
    pub nanos: Nanos,
    /// What those expiries cost beyond the program, nanoseconds: the interrupt, and programming the clock again. The program
    /// cannot see it.
    pub interrupt_nanos: Nanos,
    /// Run time of the program that takes them, nanoseconds.
    pub off_cpu_nanos: Nanos,
    /// Stacks that it took.
    pub off_cpu_stacks: u64,
    /// Run time of it where it took one; the rest reports waits, whose number nothing here limits.
    pub off_cpu_stack_nanos: Nanos,
    /// Expiries of the clocks of single threads.
    pub ad_hoc_ticks: u64,
    /// Run time of the sampling program at those, and what they cost beyond it, nanoseconds.
    pub ad_hoc_nanos: Nanos,
    /// Stacks that were taken of calls.
    pub call_stacks: u64,
    /// Run time of the program that takes them, nanoseconds.
    pub call_nanos: Nanos,
    /// CPU of the agent for reading all of them, nanoseconds.
    pub agent_nanos: Nanos,
}

impl Costs {
    fn since(self, before: Self) -> Self {
        Self {
            ticks: self.ticks.saturating_sub(before.ticks),
            nanos: self.nanos.saturating_sub(before.nanos),
            interrupt_nanos: self.interrupt_nanos.saturating_sub(before.interrupt_nanos),
            off_cpu_nanos: self.off_cpu_nanos.saturating_sub(before.off_cpu_nanos),
            off_cpu_stacks: self.off_cpu_stacks.saturating_sub(before.off_cpu_stacks),
            off_cpu_stack_nanos: self.off_cpu_stack_nanos.saturating_sub(before.off_cpu_stack_nanos),
            ad_hoc_ticks: self.ad_hoc_ticks.saturating_sub(before.ad_hoc_ticks),
            ad_hoc_nanos: self.ad_hoc_nanos.saturating_sub(before.ad_hoc_nanos),
            call_stacks: self.call_stacks.saturating_sub(before.call_stacks),
            call_nanos: self.call_nanos.saturating_sub(before.call_nanos),
            agent_nanos: self.agent_nanos.saturating_sub(before.agent_nanos),
        }
    }

    /// Nanoseconds by part: the sampling program, the clock's interrupts, the program for time off the CPU, that for stacks of
    /// calls, slow requests' own samples, the agent. The second is an estimate, the last in part.
    pub fn parts(&self) -> [(&'static str, f64); 6] {
        [
            ("sample", self.nanos as f64),
            ("interrupt", self.interrupt_nanos as f64),
            ("off_cpu", self.off_cpu_nanos as f64),
            ("calls", self.call_nanos as f64),
            ("ad_hoc", self.ad_hoc_nanos as f64),
            ("agent", self.agent_nanos as f64 * AGENT_FACTOR),
        ]
    }

    /// Of each kind of stacks, nanoseconds: the agent's part is divided as the programs' run time is.
    fn split(&self) -> Split {
        let [(_, sample), (_, interrupt), (_, off_cpu), (_, calls), (_, ad_hoc), (_, agent)] = self.parts();
        let programs = sample + off_cpu + calls + ad_hoc;
        let part = |of: f64, all: f64| if programs > 0.0 { of / programs } else { all };
        Split {
            samples: sample + interrupt + agent * part(sample, 1.0),
            off_cpu: off_cpu + agent * part(off_cpu, 0.0),
            calls: calls + agent * part(calls, 0.0),
            ad_hoc: ad_hoc + agent * part(ad_hoc, 0.0),
        }
    }
}

/// Costs of samples, of stacks off the CPU, of stacks of calls, and of slow requests' own samples, nanoseconds.
struct Split {
    samples: f64,
    off_cpu: f64,
    calls: f64,
    ad_hoc: f64,
}

/// An average of what something costs; what is old counts less.
#[derive(Clone, Copy, Debug)]
struct Average {
    constant: f64,
    cost: f64,
    many: f64,
}

impl Average {
    fn new(constant: f64, (each, many): (f64, f64)) -> Self {
        Self { constant, cost: each * many, many }
    }

    fn add(&mut self, seconds: f64, cost: f64, many: f64) {
        let keep = (-seconds / self.constant).exp();
        self.cost = self.cost * keep + cost;
        self.many = self.many * keep + many;
    }

    fn each(&self) -> f64 {
        // Long after the last observation both are tiny, and their ratio still is what it was; zero by zero is not.
        if self.many > f64::MIN_POSITIVE { self.cost / self.many } else { 0.0 }
    }
}

/// What to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Stack samples per second and CPU; 0 = none.
    pub hertz: u32,
    /// Of 2^32 threads that leave the CPU with a request, how many have their stack taken.
    pub off_cpu_share: u32,
    /// The same of calls.
    pub call_share: u32,
}

/// A share of events whose stacks are taken, so that these cost a part of the budget.
#[derive(Clone, Copy, Debug)]
struct Share(f64);

impl Share {
    /// Stacks cost `part` of what they may since the last decision; the share falls to `least` times itself at most.
    fn follow(&mut self, part: f64, least: f64) {
        let change = match part {
            _ if part > 1.0 => (1.0 / part).max(least).min(SHARE_MORE),
            _ if part < SHARE_LOW => SHARE_MORE,
            _ => 1.0,
        };
        self.0 = (self.0 * change).clamp(SHARE_LEAST, 1.0);
    }

    /// Of 2^32.
    fn scaled(self) -> u32 {
        (self.0 * f64::from(u32::MAX)) as u32
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct OverheadBudget {
    /// Share of the host's CPU.
    budget: f64,
    cpus: f64,
    ceiling: u32,
    plan: Plan,
    off_cpu_share: Share,
    call_share: Share,
    last: Option<(Nanos, Costs)>,
    /// Cost of a sample.
    fast: Average,
    slow: Average,
    /// Cost of stacks off the CPU, per nanosecond of the host's CPU.
    off_cpu_fast: Average,
    off_cpu_slow: Average,
    /// The same of stacks of calls.
    calls_fast: Average,
    calls_slow: Average,
    /// Cost of slow requests' own samples, per nanosecond of the host's CPU; and of one of them.
    ad_hoc: Average,
    ad_hoc_each: Average,
    /// Everything, per nanosecond of the host's CPU.
    shown: Average,
}

impl OverheadBudget {
    /// Starts with at most `ceiling` samples per second and CPU on a host with `cpus` CPUs; `budget` is the share of their
    /// time that profiling may take.
    pub fn new(budget: f64, cpus: usize, ceiling: u32) -> Self {
        let nothing = (0.0, 0.0);
        let mut new = Self {
            budget,
            cpus: cpus.max(1) as f64,
            ceiling,
            plan: Plan { hertz: ceiling, off_cpu_share: u32::MAX, call_share: u32::MAX },
            off_cpu_share: Share(1.0),
            call_share: Share(1.0),
            last: None,
            fast: Average::new(FAST, GUESS),
            slow: Average::new(SLOW, GUESS),
            off_cpu_fast: Average::new(FAST, nothing),
            off_cpu_slow: Average::new(SLOW, nothing),
            calls_fast: Average::new(FAST, nothing),
            calls_slow: Average::new(SLOW, nothing),
            ad_hoc: Average::new(FAST, nothing),
            ad_hoc_each: Average::new(SLOW, GUESS),
            shown: Average::new(SHOWN, nothing),
        };
        new.plan.hertz = new.within(new.target());
        new
    }

    /// Share of the host's CPU that profiling may take.
    pub fn budget(&self) -> f64 {
        self.budget
    }

    /// Share of the host's CPU that profiling took over the last seconds.
    pub fn cost(&self) -> f64 {
        self.shown.each()
    }

    /// Share of the threads that leave the CPU with a request whose stack is taken.
    pub fn off_cpu_share(&self) -> f64 {
        self.off_cpu_share.0
    }

    /// Share of the calls whose stack is taken.
    pub fn call_share(&self) -> f64 {
        self.call_share.0
    }

    /// What to sample now.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// The highest rate allowed.
    pub fn ceiling(&self) -> u32 {
        self.ceiling
    }

    /// Sets the highest rate, samples per second and CPU; 0 = none. The plan follows at once.
    pub fn set_ceiling(&mut self, ceiling: u32) -> Plan {
        if ceiling != self.ceiling {
            self.ceiling = ceiling;
            self.plan.hertz = self.within(self.target());
        }
        self.plan
    }

    /// Whether an observation at `now` would be taken.
    pub fn is_due(&self, now: Nanos) -> bool {
        self.last.is_none_or(|(at, _)| now.saturating_sub(at) >= INTERVAL)
    }

    /// Takes what profiling has cost until `now`, a few times a second, and returns what to sample from now on.
    pub fn observe(&mut self, now: Nanos, costs: Costs) -> Plan {
        let Some((at, before)) = self.last.replace((now, costs)) else { return self.plan };
        let nanos = now.saturating_sub(at) as f64;
        if nanos <= 0.0 {
            return self.plan;
        }
        let (more, seconds, time) = (costs.since(before), nanos / SECOND, nanos * self.cpus);
        let Split { samples, off_cpu, calls, ad_hoc } = more.split();
        // Weighed by time and not by number: the many cheap samples of a high rate must not hide what the few now cost.
        if more.ticks > 0 {
            let each = samples / more.ticks as f64;
            for average in [&mut self.fast, &mut self.slow] {
                average.add(seconds, each * seconds, seconds);
            }
        }
        for average in [&mut self.off_cpu_fast, &mut self.off_cpu_slow] {
            average.add(seconds, off_cpu, time);
        }
        for average in [&mut self.calls_fast, &mut self.calls_slow] {
            average.add(seconds, calls, time);
        }
        self.ad_hoc.add(seconds, ad_hoc, time);
        if more.ad_hoc_ticks > 0 {
            self.ad_hoc_each.add(seconds, ad_hoc / more.ad_hoc_ticks as f64 * seconds, seconds);
        }
        self.shown.add(seconds, samples + off_cpu + calls + ad_hoc, time);
        let (target, current) = (self.target(), f64::from(self.plan.hertz));
        // What is close to the ceiling may go there: the budget would allow more.
        let to_ceiling = target > f64::from(self.ceiling) * AT_CEILING;
        if target < current * LOWER || target > current * RAISE || to_ceiling {
            self.plan.hertz = self.within(target);
        }
        // By this interval alone: stacks are many where they cost much, and what an average remembers was limited since.
        let part = |nanos: f64, part: f64| nanos / time / (self.budget * AIM * part);
        let least = |floor: u32, stacks: u64| f64::from(floor) * self.cpus * seconds / stacks as f64;
        let off_cpu = part(more.off_cpu_stack_nanos as f64, OFF_CPU_PART);
        self.off_cpu_share.follow(off_cpu, least(FLOOR, more.off_cpu_stacks));
        self.call_share.follow(part(calls, CALL_PART), least(CALL_FLOOR, more.call_stacks));
        self.plan.off_cpu_share = self.off_cpu_share.scaled();
        self.plan.call_share = self.call_share.scaled();
        self.plan
    }

    /// Cost of a sample, nanoseconds.
    fn each(&self) -> f64 {
        self.fast.each().max(self.slow.each()).max(1.0)
    }

    /// What stacks off the CPU and those of calls cost.
    fn off_cpu_and_calls(&self) -> f64 {
        self.off_cpu_fast.each().max(self.off_cpu_slow.each()) + self.calls_fast.each().max(self.calls_slow.each())
    }

    /// The rate at which the budget would be spent.
    fn target(&self) -> f64 {
        let (whole, ad_hoc) = (self.budget * AIM, self.ad_hoc.each());
        let least = whole * (1.0 - OFF_CPU_PART - CALL_PART) - ad_hoc.min(whole * AD_HOC_PART);
        (whole - self.off_cpu_and_calls() - ad_hoc).max(least) * SECOND / self.each()
    }

    /// Samples per second that all slow requests together may have of their own: what the others leave of the budget, and a
    /// quarter of it at least.
    pub fn ad_hoc(&self) -> u32 {
        if self.ceiling == 0 {
            return 0;
        }
        let whole = self.budget * AIM;
        let left = whole - self.off_cpu_and_calls() - f64::from(self.plan.hertz) * self.each() / SECOND;
        // `as` saturates.
        (left.max(whole * AD_HOC_PART) * self.cpus * SECOND / self.ad_hoc_each.each().max(1.0)) as u32
    }

    /// This rate within its bounds.
    fn within(&self, target: f64) -> u32 {
        // `as` saturates.
        (target as u32).clamp(FLOOR.min(self.ceiling), self.ceiling)
    }
}

#[cfg(test)]
mod tests;
