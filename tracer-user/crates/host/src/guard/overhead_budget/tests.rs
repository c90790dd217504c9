//! The controller against a simulated host and clock: it keeps the budget, soon and without swinging.

use proptest::prelude::*;
use tracer_common::limits::{OFF_CPU_SLICE, OFF_CPU_STACKS};

use super::*;

const MILLI: Nanos = 1_000_000;

/// A host whose samples cost as much as measured ones do: more when they are rare, because caches are cold.
struct Host {
    budget: OverheadBudget,
    cpus: usize,
    now: Nanos,
    costs: Costs,
    /// Share of the time that each CPU is busy.
    busy: f64,
    /// What a sample of a busy CPU costs at 99 Hz, nanoseconds.
    sample: f64,
    /// Threads that leave a CPU with a request, per second and CPU, and what their stack costs.
    waits: (f64, f64),
    /// Whether slow requests take all samples of their own that they may.
    slow: bool,
    /// Rests of events that come in whole numbers.
    due: [f64; 3],
    random: u64,
    /// Cost by second, as a share of the host's CPU, and the rates that were in force.
    spent: f64,
    rates: Vec<u32>,
}

impl Host {
    fn new(budget: f64, ceiling: u32) -> Self {
        let cpus = 2;
        let budget = OverheadBudget::new(budget, cpus, ceiling);
        let rates = vec![budget.plan().hertz];
        Self {
            budget,
            cpus,
            now: 1000 * MILLI,
            costs: Costs::default(),
            busy: 0.0,
            sample: 30_000.0,
            waits: (0.0, 6_000.0),
            slow: false,
            due: [0.0; 3],
            random: 1,
            spent: 0.0,
            rates,
        }
    }

    /// 0 to 1, by xorshift.
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Runs for `millis` and returns the mean cost as a share of the host's CPU.
    fn run(&mut self, millis: u64) -> f64 {
        let before = self.whole();
        for _ in 0..millis / 10 {
            let plan = self.budget.plan();
            self.now += 10 * MILLI;
            let seconds = 0.01 * self.cpus as f64;
            self.due[0] += f64::from(plan.hertz) * seconds;
            while self.due[0] >= 1.0 {
                self.due[0] -= 1.0;
                self.costs.ticks += 1;
                self.costs.interrupt_nanos += 3_000;
                if self.random() < self.busy {
                    // 99 Hz to 499 Hz: a third of the cost.
                    let warm = (99.0 / f64::from(plan.hertz.max(1))).powf(0.6).min(1.5);
                    let cost = self.sample * warm * (0.4 + 1.2 * self.random());
                    self.costs.nanos += cost as u64;
                    self.costs.agent_nanos += 2_000;
                } else {
                    self.costs.nanos += 150;
                }
            }
            let slices = seconds * SECOND / (1u64 << OFF_CPU_SLICE) as f64;
            let chosen = self.waits.0 * seconds * f64::from(plan.off_cpu_share) / f64::from(u32::MAX);
            self.due[1] += chosen.min(f64::from(OFF_CPU_STACKS) * slices);
            let stacks = self.due[1].floor();
            self.due[1] -= stacks;
            self.costs.off_cpu_stacks += stacks as u64;
            self.costs.off_cpu_stack_nanos += (stacks * self.waits.1) as u64;
            self.costs.off_cpu_nanos += (stacks * self.waits.1) as u64;
            self.due[2] += if self.slow { f64::from(self.budget.ad_hoc()) * 0.01 } else { 0.0 };
            let ad_hoc = self.due[2].floor();
            self.due[2] -= ad_hoc;
            self.costs.ad_hoc_ticks += ad_hoc as u64;
            self.costs.ad_hoc_nanos += (ad_hoc * self.sample) as u64;
            if self.budget.is_due(self.now) {
                let plan = self.budget.observe(self.now, self.costs);
                if self.rates.last() != Some(&plan.hertz) {
                    self.rates.push(plan.hertz);
                }
            }
        }
        self.spent = (self.whole() - before) / (millis as f64 * 1e6 * self.cpus as f64);
        self.spent
    }

    fn whole(&self) -> f64 {
        self.costs.parts().iter().map(|(_, nanos)| nanos).sum()
    }

    fn hertz(&self) -> u32 {
        self.budget.plan().hertz
    }

    /// How often the rate turned from falling to rising or back since the last call.
    fn turns(&mut self) -> usize {
        let now = self.hertz();
        let rates = std::mem::replace(&mut self.rates, vec![now]);
        let moves: Vec<bool> = rates.windows(2).map(|pair| pair[1] > pair[0]).collect();
        moves.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }
}

#[test]
fn the_default_leaves_the_default_rate_alone() {
    let mut host = Host::new(DEFAULT, 99);
    for busy in [0.0, 1.0, 0.3] {
        host.busy = busy;
        let spent = host.run(20_000);
        assert_eq!((host.hertz(), host.rates.len()), (99, 1), "{busy}");
        assert!(spent < DEFAULT, "{spent}");
    }
}

#[test]
fn a_step_in_load_is_within_budget_in_two_seconds() {
    for (budget, ceiling, sample) in [(0.002, 999, 30_000.0), (0.01, 999, 60_000.0), (0.001, 299, 20_000.0)] {
        let mut host = Host::new(budget, ceiling);
        host.sample = sample;
        host.run(30_000);
        let idle = host.hertz();
        assert!(idle >= ceiling.min(200), "an idle host's samples are cheap: {idle}");
        host.busy = 1.0;
        host.run(2_000);
        let after = host.run(1_000);
        assert!(after <= budget, "{after} of {budget}");
        let calm = host.run(60_000);
        assert!((0.6 * budget..=budget).contains(&calm), "{calm} of {budget}");
    }
}

#[test]
fn it_does_not_swing() {
    for (budget, busy) in [(0.002, 1.0), (0.002, 0.5), (0.005, 0.7), (0.01, 1.0)] {
        let mut host = Host::new(budget, 999);
        host.busy = busy;
        host.run(40_000);
        host.turns();
        let mut rates = Vec::new();
        for _ in 0..60 {
            host.run(1_000);
            rates.push(host.hertz());
        }
        let (least, most) = (rates.iter().min().unwrap(), rates.iter().max().unwrap());
        let turns = host.turns();
        assert!(f64::from(*most) < 1.35 * f64::from(*least), "{budget} {busy}: {least} to {most}");
        assert!(turns <= 20, "{budget} {busy}: turned {turns} times in a minute");
    }
}

#[test]
fn it_rises_slowly_and_comes_back_to_the_ceiling() {
    let mut host = Host::new(0.002, 499);
    host.busy = 1.0;
    host.run(30_000);
    let low = host.hertz();
    assert!(low < 150, "{low}");
    host.busy = 0.0;
    host.run(1_000);
    assert!(host.hertz() <= 2 * low, "{} a second after {low}", host.hertz());
    host.run(60_000);
    assert_eq!(host.hertz(), 499);
    // A short burst costs one interval, not the average of ten seconds.
    host.busy = 1.0;
    assert!(host.run(500) < 0.01);
}

#[test]
fn the_floor_and_the_ceiling_hold() {
    let mut host = Host::new(0.000_1, 99);
    host.busy = 1.0;
    host.run(20_000);
    assert_eq!(host.hertz(), FLOOR);
    assert!(host.spent > host.budget.budget() && host.budget.cost() > host.budget.budget(), "and it says so");
    // Fewer are asked for than the floor: those.
    assert_eq!(host.budget.set_ceiling(3).hertz, 3);
    host.run(5_000);
    assert_eq!(host.hertz(), 3);
    assert_eq!(host.budget.set_ceiling(0).hertz, 0);
    host.run(5_000);
    assert_eq!(host.hertz(), 0);
    // Load shedding takes its ceiling away: back at once to what the budget allows.
    let mut host = Host::new(1.0, 99);
    host.busy = 1.0;
    host.run(5_000);
    assert_eq!(host.budget.set_ceiling(19).hertz, 19);
    host.run(5_000);
    assert_eq!((host.hertz(), host.budget.set_ceiling(99).hertz), (19, 99));
}

#[test]
fn stacks_off_the_cpu_take_a_tenth_of_it_and_ten_a_second_at_least() {
    let mut host = Host::new(0.005, 999);
    (host.busy, host.waits) = (1.0, (50_000.0, 6_000.0));
    host.run(20_000);
    let (before, time) = (host.costs.off_cpu_nanos, 20e9 * host.cpus as f64);
    let spent = host.run(20_000);
    let off_cpu = (host.costs.off_cpu_nanos - before) as f64 / time;
    assert!(spent <= 0.005, "{spent}");
    assert!(off_cpu <= 0.0005 && off_cpu > 0.0002, "{off_cpu}");
    // Where they do not need it, all are taken.
    let mut host = Host::new(DEFAULT, 99);
    (host.busy, host.waits) = (0.5, (100.0, 6_000.0));
    host.run(30_000);
    assert_eq!((host.hertz(), host.budget.plan().off_cpu_share), (99, u32::MAX));
    // However dear they are, there are some; and when they are rarer, again a larger share of them.
    let mut host = Host::new(DEFAULT, 99);
    host.waits = (50_000.0, 200_000.0);
    host.run(20_000);
    let before = host.costs.off_cpu_stacks;
    host.run(10_000);
    let each = (host.costs.off_cpu_stacks - before) as f64 / 10.0 / host.cpus as f64;
    assert!((5.0..20.0).contains(&each), "{each} a second and CPU");
    host.waits.0 = 10.0;
    host.run(30_000);
    assert!(host.budget.off_cpu_share() > 0.99, "{}", host.budget.off_cpu_share());
}

#[test]
fn slow_requests_get_what_is_left_and_a_quarter_at_least() {
    // The rate of the clocks stays where the budget has room for both.
    let mut host = Host::new(0.01, 99);
    host.busy = 1.0;
    host.run(20_000);
    assert!(host.budget.ad_hoc() > 200, "{}", host.budget.ad_hoc());
    host.slow = true;
    for _ in 0..20 {
        let spent = host.run(1_000);
        assert!(spent <= 0.01 && host.hertz() == 99, "{spent} {}", host.hertz());
    }
    // Where they take all of it, it gives way to a quarter, and comes back.
    let mut host = Host::new(0.002, 999);
    host.busy = 1.0;
    host.run(30_000);
    let before = host.hertz();
    host.slow = true;
    host.run(2_000);
    let (spent, between) = (host.run(20_000), host.hertz());
    assert!(spent <= 0.002 && between < before && between > before / 2, "{spent} {before} {between}");
    host.slow = false;
    host.run(60_000);
    assert!(host.hertz() > before * 8 / 10, "{before} {}", host.hertz());
    // Nothing is sampled: nothing of theirs either.
    host.budget.set_ceiling(0);
    assert_eq!(host.budget.ad_hoc(), 0);
}

#[test]
fn clocks_that_stand_or_jump_are_harmless() {
    let mut budget = OverheadBudget::new(0.01, 4, 99);
    let plan = budget.plan();
    assert_eq!(plan.hertz, 99);
    let costs = Costs { ticks: 100, nanos: 1000, ..Costs::default() };
    for now in [5, 5, 4, 0] {
        assert_eq!(budget.observe(now, costs), plan);
    }
    // A day without an observation, and figures that fell.
    budget.observe(86_400_000 * MILLI, Costs::default());
    assert_eq!(budget.observe(86_401_000 * MILLI, costs).hertz, 99);
    assert_eq!(OverheadBudget::new(0.01, 0, 99).plan().hertz, 99);
}

proptest! {
    #[test]
    fn plans_are_within_their_bounds_whatever_is_measured(
        budget in 0.0001f64..1.0,
        ceiling in 0u32..10_000,
        steps in proptest::collection::vec((0u64..10_000_000_000, 0u64..1_000_000, 0u64..u64::MAX / 1000, 0u64..1_000_000_000), 1..50),
    ) {
        let mut controller = OverheadBudget::new(budget, 2, ceiling);
        let (mut now, mut costs) = (1u64, Costs::default());
        for (time, ticks, nanos, agent) in steps {
            now += time;
            costs.ticks += ticks;
            costs.nanos = costs.nanos.wrapping_add(nanos);
            costs.off_cpu_nanos = costs.off_cpu_nanos.wrapping_add(nanos / 2);
            costs.off_cpu_stack_nanos = costs.off_cpu_stack_nanos.wrapping_add(nanos / 3);
            costs.off_cpu_stacks += nanos & 63;
            costs.agent_nanos += agent;
            costs.interrupt_nanos = costs.interrupt_nanos.wrapping_add(nanos / 3);
            let plan = controller.observe(now, costs);
            prop_assert!(plan.hertz <= ceiling && plan.hertz >= FLOOR.min(ceiling));
            prop_assert!(plan.off_cpu_share > 0 && controller.off_cpu_share() <= 1.0);
            prop_assert!(controller.cost().is_finite());
        }
    }
}

#[test]
fn stacks_of_calls_cost_their_tenth_and_not_more() {
    // A million calls a second on two CPUs; a stack costs 15 µs in the kernel, and the agent as much four times.
    let mut budget = OverheadBudget::new(DEFAULT, 2, 99);
    let (mut now, mut costs, mut taken) = (0, Costs::default(), 0.0);
    for round in 0..400 {
        let share = f64::from(budget.plan().call_share) / f64::from(u32::MAX);
        let stacks = (250_000.0 * share).min(950.0);
        if round >= 300 {
            taken += stacks;
        }
        now += INTERVAL;
        costs.call_stacks += stacks as u64;
        costs.call_nanos += (stacks * 15_000.0) as u64;
        costs.agent_nanos += (stacks * 3_750.0) as u64;
        budget.observe(now, costs);
    }
    let spent = taken * 30_000.0 / (100.0 * INTERVAL as f64 * 2.0);
    assert!((0.05 * DEFAULT..=0.11 * DEFAULT).contains(&spent), "{spent}");
    // Few calls: all of them.
    for _ in 0..200 {
        now += INTERVAL;
        costs.call_stacks += 2;
        costs.call_nanos += 30_000;
        budget.observe(now, costs);
    }
    assert!(budget.call_share() > 0.99, "{}", budget.call_share());
}
