//! A shop of three tiers, simulated event by event: `front` and `app` on one host, `db` on another. Fourteen classes of
//! request (those of TPC-W), three mixes. CPUs serve by processor sharing, so queueing comes out by itself.
//!
//! [`World`] holds what scenarios change, window by window; [`World::run`] makes the windows a tracer on each host
//! would make.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::random::Random;
use super::{ClassWindow, STRATA, ServiceWindow, Window};

/// Seconds a window.
pub(crate) const LENGTH: f64 = 10.0;
/// Request classes.
pub(crate) const CLASSES: [&str; 14] = [
    "home",
    "new_products",
    "best_sellers",
    "product_detail",
    "search_request",
    "search_results",
    "cart",
    "registration",
    "buy_request",
    "buy_confirm",
    "order_inquiry",
    "order_display",
    "admin_request",
    "admin_confirm",
];
/// Browsing, shopping, ordering: per cent of the requests.
pub(crate) const MIXES: [[f64; 14]; 3] = [
    [29.0, 11.0, 11.0, 21.0, 12.0, 11.0, 2.0, 0.82, 0.75, 0.69, 0.30, 0.25, 0.10, 0.09],
    [16.0, 5.0, 5.0, 17.0, 20.0, 17.0, 11.6, 3.0, 2.6, 1.2, 0.75, 0.66, 0.10, 0.09],
    [9.12, 0.46, 0.46, 12.35, 14.53, 13.08, 13.53, 12.86, 12.73, 10.18, 0.25, 0.22, 0.12, 0.11],
];
/// Costs are so many times those of the note's simulator: fewer requests, the same utilisation.
const SCALE: f64 = 2.5;
/// Milliseconds of CPU and of locks and disk in `app`.
const APP_MS: [f64; 14] = [3.0, 6.0, 18.0, 3.0, 1.5, 9.0, 5.0, 1.0, 6.0, 9.0, 0.8, 6.0, 3.0, 20.0];
const BLOCK_MS: [f64; 14] = [0.5, 1.0, 2.0, 1.0, 0.2, 3.0, 1.0, 2.0, 2.0, 12.0, 1.0, 2.0, 1.0, 8.0];
/// Milliseconds of CPU in `front`.
const FRONT_MS: f64 = 0.35;
/// Statements a request sends to `db`, and what they take there.
const CALLS: [[u8; QUERIES]; 14] = [
    [1, 0, 0, 1, 0, 0],
    [0, 2, 0, 0, 0, 0],
    [0, 0, 2, 0, 0, 0],
    [1, 1, 0, 0, 0, 0],
    [1, 0, 0, 0, 0, 0],
    [0, 1, 0, 1, 0, 0],
    [1, 0, 0, 0, 2, 0],
    [0, 0, 0, 0, 1, 0],
    [1, 0, 0, 0, 2, 0],
    [0, 0, 0, 0, 2, 2],
    [1, 0, 0, 0, 0, 0],
    [1, 0, 0, 0, 1, 0],
    [1, 0, 0, 0, 0, 0],
    [0, 0, 1, 0, 0, 1],
];
const QUERIES: usize = 6;
const DB_MS: [f64; QUERIES] = [0.3, 0.8, 4.0, 1.0, 0.4, 1.5];
const DB_BLOCK_MS: [f64; QUERIES] = [0.2, 0.5, 2.0, 0.5, 0.6, 3.0];
/// Cost by payload size, and how requests are divided.
const SIZE_COST: [f64; STRATA] = [0.7, 1.0, 2.4];
pub(crate) const SIZE_MIX: [f64; STRATA] = [0.35, 0.55, 0.10];

/// What scenarios change, by window.
pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) windows: usize,
    pub(crate) cores: [f64; 2],
    /// Requests a second, and shares of the classes.
    pub(crate) rate: Vec<f64>,
    pub(crate) mix: Vec<[f64; 14]>,
    /// Factors of CPU and calls in `app`; seconds of blocked time more.
    pub(crate) app_cpu: Vec<[f64; 14]>,
    pub(crate) app_calls: Vec<[f64; 14]>,
    pub(crate) app_block_more: Vec<[f64; 14]>,
    /// Factor of blocked time in `db`.
    pub(crate) db_block: Vec<f64>,
    /// Shares of payload sizes.
    pub(crate) size: Vec<[[f64; STRATA]; 14]>,
    /// Misses of the application's cache, and what they cost each class.
    pub(crate) miss: Vec<f64>,
    miss_cost: [f64; 14],
    /// Factor of all CPU of a host; cores that others burn; cores that the hypervisor takes.
    pub(crate) host_factor: [Vec<f64>; 2],
    pub(crate) foreign: [Vec<f64>; 2],
    pub(crate) steal: [Vec<f64>; 2],
    /// CPU of `app` outside requests, as a share of theirs.
    pub(crate) app_overhead: Vec<f64>,
    /// Share of requests lost to the tracer; share of a class's CPU that loses its owner.
    pub(crate) loss: Vec<f64>,
    pub(crate) unowned: Vec<[f64; 14]>,
    pub(crate) identity: Vec<u64>,
    pub(crate) starts: Vec<u32>,
    pub(crate) db_seen: bool,
    /// No requests of the last class before this window.
    pub(crate) new_class: usize,
    cv: [f64; 14],
    noise: Vec<[f64; 14]>,
    ambiguous: Vec<f64>,
    /// CPU grows by this share of the utilisation; chance of a collector's pause in a window.
    kappa: f64,
    collector: f64,
}

impl World {
    /// An ordinary day.
    pub(crate) fn new(mut random: Random, windows: usize) -> Self {
        let r = &mut random;
        let cores = [[2.0, 4.0, 8.0][r.below(3)], [2.0, 4.0][r.below(2)]];
        let mix = MIXES[r.below(3)].map(|per_cent| per_cent / 100.0);
        let mean: f64 = MIXES[1].iter().zip(APP_MS).map(|(share, ms)| share / 100.0 * ms * SCALE * 1e-3).sum();
        let base = r.between(0.12, 0.33) * cores[0] / mean;
        let (swing, period, phase) = (r.between(0.1, 0.35), r.between(300.0, 700.0), r.uniform());
        let jitter = r.correlated(windows, 0.04, 0.7);
        let day = |t: usize| 1.0 + swing * (std::f64::consts::TAU * (t as f64 / period + phase)).sin();
        let rate = (0..windows).map(|t| base * day(t) * jitter[t].exp()).collect();
        let phi = r.between(0.3, 0.6);
        let common_sd = r.between(0.005, 0.015);
        let common = r.correlated(windows, common_sd, 0.6);
        let per_class: Vec<Vec<f64>> = (0..14)
            .map(|_| {
                let sd = r.between(0.01, 0.04);
                r.correlated(windows, sd, phi)
            })
            .collect();
        let noise = (0..windows).map(|t| std::array::from_fn(|i| (per_class[i][t] + common[t]).exp())).collect();
        let miss = r.correlated(windows, 0.015, 0.8).into_iter().map(|x| (0.1 + x).clamp(0.02, 0.9)).collect();
        let foreign = [0, 1].map(|host: usize| {
            let jitter = r.correlated(windows, 0.3, 0.3);
            jitter.into_iter().map(|x| 0.02 * cores[host] * x.exp()).collect()
        });
        let ones = || vec![[1.0; 14]; windows];
        let zeros = || vec![[0.0; 14]; windows];
        Self {
            windows,
            cores,
            rate,
            mix: vec![mix; windows],
            app_cpu: ones(),
            app_calls: ones(),
            app_block_more: zeros(),
            db_block: vec![1.0; windows],
            size: vec![[SIZE_MIX; 14]; windows],
            miss,
            miss_cost: std::array::from_fn(|_| if r.uniform() < 0.5 { r.between(0.2, 0.6) } else { 0.0 }),
            host_factor: [0, 1].map(|_| vec![1.0; windows]),
            foreign,
            steal: [0, 1].map(|_| vec![0.0; windows]),
            app_overhead: r.correlated(windows, 0.1, 0.5).into_iter().map(|x| 0.04 * x.exp()).collect(),
            loss: vec![0.0; windows],
            unowned: zeros(),
            identity: vec![1; windows],
            starts: vec![0; windows],
            db_seen: true,
            new_class: 0,
            cv: std::array::from_fn(|_| r.between(0.3, 1.2)),
            noise,
            ambiguous: r.correlated(windows, 0.004, 0.5).into_iter().map(f64::abs).collect(),
            kappa: r.between(0.0, 0.12),
            collector: r.between(0.02, 0.08),
            random,
        }
    }

    /// A class with at least two per cent of the requests.
    pub(crate) fn frequent_class(&mut self) -> usize {
        let many: Vec<usize> = (0..14).filter(|i| self.mix[0][*i] > 0.02).collect();
        many[self.random.below(many.len())]
    }

    /// A restart in window `t`: few requests for a window, and code that is cold for a while.
    pub(crate) fn restart(&mut self, t: usize, new_build: bool) {
        self.rate[t] *= self.random.between(0.2, 0.7);
        self.starts[t] = 1;
        for at in t..self.windows {
            self.identity[at] += u64::from(new_build);
            let cold = 1.0 + 0.6 * (-((at - t) as f64) / 4.0).exp();
            self.app_cpu[at].iter_mut().for_each(|factor| *factor *= cold);
        }
    }

    /// The windows of both hosts.
    pub(crate) fn run(self) -> Vec<[Window; 2]> {
        Simulation::new(self).run()
    }
}

/// What a host's CPUs do: processor sharing. A job is ready when the service that each job got reaches its mark.
struct Cpus {
    cores: f64,
    /// Cores taken by the hypervisor, threads of others that always run, and of the service beside its requests.
    steal: f64,
    foreign: f64,
    background: f64,
    /// Nothing of the service runs until then: a collector's pause.
    paused_until: f64,
    paused: f64,
    clock: f64,
    service: f64,
    jobs: BinaryHeap<At>,
    busy: f64,
    foreign_used: f64,
    background_used: f64,
}

impl Cpus {
    fn new(cores: f64) -> Self {
        Self {
            cores,
            steal: 0.0,
            foreign: 0.0,
            background: 0.0,
            paused_until: 0.0,
            paused: 0.0,
            clock: 0.0,
            service: 0.0,
            jobs: BinaryHeap::new(),
            busy: 0.0,
            foreign_used: 0.0,
            background_used: 0.0,
        }
    }

    /// Share of a CPU that each runnable thread gets.
    fn share(&self, jobs: f64) -> f64 {
        ((self.cores - self.steal) / (jobs + self.foreign + self.background).max(1e-9)).min(1.0)
    }

    fn advance(&mut self, now: f64) {
        while self.clock < now {
            let paused = self.clock < self.paused_until;
            let to = if paused { now.min(self.paused_until) } else { now };
            let (dt, jobs) = (to - self.clock, if paused { 0.0 } else { self.jobs.len() as f64 });
            let share = self.share(jobs);
            if paused {
                self.paused += dt;
            } else {
                self.service += share * dt;
            }
            self.busy += share * dt * (jobs + self.foreign + self.background);
            self.foreign_used += share * dt * self.foreign;
            self.background_used += share * dt * self.background;
            self.clock = to;
        }
    }

    /// When the next job is ready.
    fn next(&self) -> f64 {
        let Some(job) = self.jobs.peek() else { return f64::INFINITY };
        let from = self.clock.max(self.paused_until);
        from + (job.time - self.service).max(0.0) / self.share(self.jobs.len() as f64).max(1e-9)
    }
}

/// Something at a time; the earliest is the greatest.
#[derive(Clone, Copy, PartialEq)]
struct At {
    time: f64,
    request: usize,
}

impl Eq for At {}

impl Ord for At {
    fn cmp(&self, other: &Self) -> Ordering {
        other.time.total_cmp(&self.time).then(other.request.cmp(&self.request))
    }
}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leg {
    Arrives,
    Front,
    FirstHalf,
    Blocked,
    Query,
    QueryBlocked,
    SecondHalf,
}

/// A request on its way, and what it took so far. Seconds.
#[derive(Clone, Copy)]
struct Request {
    class: usize,
    size: usize,
    leg: Leg,
    /// When this leg began, the pauses so far, and the CPU it takes.
    since: f64,
    paused: f64,
    takes: f64,
    front_cpu: f64,
    front_wait: f64,
    front_blocked: f64,
    app_since: f64,
    app_cpu: f64,
    app_wait: f64,
    app_blocked: f64,
    calls: usize,
    downstream: f64,
    call_since: f64,
    /// Statements still to send, by kind.
    left: [u8; QUERIES],
    query: usize,
    query_cpu: f64,
    query_wait: f64,
    query_blocked: f64,
}

struct Simulation {
    world: World,
    t: usize,
    cpus: [Cpus; 2],
    events: BinaryHeap<At>,
    requests: Vec<Request>,
    free: Vec<usize>,
    /// Sums of this window: `front`, `app`, `db`.
    tiers: [Vec<ClassWindow>; 3],
    /// CPU of requests of `app`, seen or not.
    app_used: f64,
    front_used: f64,
    db_used: f64,
    utilisation: [f64; 2],
}

impl Simulation {
    fn new(world: World) -> Self {
        let names = |names: &[&str]| -> Vec<ClassWindow> {
            let class = |name: &&str| ClassWindow { request_class: (*name).to_owned(), ..ClassWindow::default() };
            names.iter().map(class).collect()
        };
        let queries = ["q0", "q1", "q2", "q3", "q4", "q5"];
        Self {
            t: 0,
            cpus: world.cores.map(Cpus::new),
            events: BinaryHeap::new(),
            requests: Vec::new(),
            free: Vec::new(),
            tiers: [names(&CLASSES), names(&CLASSES), names(&queries)],
            app_used: 0.0,
            front_used: 0.0,
            db_used: 0.0,
            utilisation: [0.2; 2],
            world,
        }
    }

    fn run(mut self) -> Vec<[Window; 2]> {
        (0..self.world.windows).map(|t| self.window(t)).collect()
    }

    fn window(&mut self, t: usize) -> [Window; 2] {
        let end = (t + 1) as f64 * LENGTH;
        self.t = t;
        for (host, cpus) in self.cpus.iter_mut().enumerate() {
            (cpus.foreign, cpus.steal) = (self.world.foreign[host][t], self.world.steal[host][t]);
        }
        // Of the CPU that requests used in the window before.
        let background = self.app_used * self.world.app_overhead[t] / LENGTH + 0.01;
        self.cpus[0].background = background;
        (self.app_used, self.front_used, self.db_used) = (0.0, 0.0, 0.0);
        let before = [0, 1].map(|host: usize| {
            let cpus = &self.cpus[host];
            (cpus.busy, cpus.foreign_used, cpus.background_used)
        });
        let mut pause = None;
        if self.world.random.uniform() < self.world.collector {
            let length = self.world.random.between(0.03, 0.25);
            pause = Some((t as f64 * LENGTH + self.world.random.between(0.0, LENGTH - 0.3), length));
        }
        self.arrivals(t);
        loop {
            let (a, b) = (self.cpus[0].next(), self.cpus[1].next());
            let event = self.events.peek().map_or(f64::INFINITY, |event| event.time);
            let collect = pause.map_or(f64::INFINITY, |(at, _)| at);
            let next = a.min(b).min(event).min(collect);
            if next >= end {
                break;
            }
            if collect <= next {
                if let Some((at, length)) = pause.take() {
                    self.cpus[0].advance(at);
                    self.cpus[0].paused_until = at + length;
                    // It runs on two CPUs meanwhile.
                    self.cpus[0].busy += 2.0 * length;
                    self.cpus[0].background_used += 2.0 * length;
                }
            } else if event <= next {
                if let Some(At { time, request }) = self.events.pop() {
                    self.step(request, time);
                }
            } else {
                let host = usize::from(b < a);
                self.cpus[host].advance(next);
                if let Some(job) = self.cpus[host].jobs.pop() {
                    self.served(job.request, next, host);
                }
            }
        }
        self.cpus.iter_mut().for_each(|cpus| cpus.advance(end));
        self.finish(t, before)
    }

    fn arrivals(&mut self, t: usize) {
        let w = &mut self.world;
        for class in 0..14 {
            if class == 13 && t < w.new_class {
                continue;
            }
            let jitter = (0.05 * w.random.normal()).exp();
            let n = w.random.poisson(w.rate[t] * w.mix[t][class] * LENGTH * jitter);
            for _ in 0..n {
                let dice = w.random.uniform();
                let [small, middle, _] = w.size[t][class];
                let size = if dice < small { 0 } else { 1 + usize::from(dice >= small + middle) };
                let time = (t as f64 + w.random.uniform()) * LENGTH;
                let request = Request {
                    class,
                    size,
                    leg: Leg::Arrives,
                    since: time,
                    paused: 0.0,
                    takes: 0.0,
                    front_cpu: 0.0,
                    front_wait: 0.0,
                    front_blocked: 0.0,
                    app_since: 0.0,
                    app_cpu: 0.0,
                    app_wait: 0.0,
                    app_blocked: 0.0,
                    calls: 0,
                    downstream: 0.0,
                    call_since: 0.0,
                    left: [0; QUERIES],
                    query: 0,
                    query_cpu: 0.0,
                    query_wait: 0.0,
                    query_blocked: 0.0,
                };
                let request = if let Some(id) = self.free.pop() {
                    self.requests[id] = request;
                    id
                } else {
                    self.requests.push(request);
                    self.requests.len() - 1
                };
                self.events.push(At { time, request });
            }
        }
    }

    /// Factor of CPU on a host now.
    fn factor(&self, host: usize) -> f64 {
        let grown = if host == 0 { self.world.kappa * (self.utilisation[0] - 0.2) } else { 0.0 };
        self.world.host_factor[host][self.t] * (1.0 + grown)
    }

    fn compute(&mut self, id: usize, now: f64, host: usize, takes: f64, leg: Leg) {
        let cpus = &mut self.cpus[host];
        cpus.advance(now);
        let r = &mut self.requests[id];
        (r.leg, r.since, r.paused, r.takes) = (leg, now, cpus.paused, takes);
        cpus.jobs.push(At { time: cpus.service + takes, request: id });
    }

    /// A request arrives, or stops being blocked.
    fn step(&mut self, id: usize, now: f64) {
        let r = self.requests[id];
        match r.leg {
            Leg::Arrives => {
                let mean = FRONT_MS * SCALE * 1e-3 * size_cost(r.size) * self.factor(0);
                let takes = self.world.random.gamma(mean, 0.5);
                self.compute(id, now, 0, takes, Leg::Front);
            }
            Leg::Blocked => {
                self.requests[id].app_blocked += now - r.since;
                self.call_or_finish(id, now);
            }
            _ => {
                self.requests[id].query_blocked += now - r.since;
                self.query_ends(id, now);
            }
        }
    }

    fn block(&mut self, id: usize, now: f64, leg: Leg, seconds: f64) {
        (self.requests[id].leg, self.requests[id].since) = (leg, now);
        self.events.push(At { time: now + seconds, request: id });
    }

    /// A request got its CPU.
    fn served(&mut self, id: usize, now: f64, host: usize) {
        let r = self.requests[id];
        let paused = self.cpus[host].paused - r.paused;
        let wait = (now - r.since - r.takes - paused).max(0.0);
        match r.leg {
            Leg::Front => {
                let own = &mut self.requests[id];
                (own.front_cpu, own.front_wait, own.front_blocked) = (r.takes, wait, paused);
                own.app_since = now;
                self.front_used += r.takes;
                let takes = 0.5 * self.app_demand(r.class, r.size);
                self.compute(id, now, 0, takes, Leg::FirstHalf);
            }
            Leg::FirstHalf => {
                self.charge_app(id, wait, paused);
                let more = self.world.app_block_more[self.t][r.class];
                let w = &mut self.world;
                let mut seconds = w.random.gamma(BLOCK_MS[r.class] * SCALE * 1e-3, 1.5);
                if more > 0.0 {
                    seconds += w.random.gamma(more, 0.7);
                }
                let missing = if w.miss_cost[r.class] > 0.0 { 2.0 * (w.miss[self.t] - 0.1).max(-0.1) } else { 0.0 };
                let factor = w.app_calls[self.t][r.class] * (1.0 + missing);
                let left = CALLS[r.class].map(|calls| w.random.whole(f64::from(calls) * factor).min(200) as u8);
                self.requests[id].left = left;
                self.block(id, now, Leg::Blocked, seconds);
            }
            Leg::Query => {
                let own = &mut self.requests[id];
                (own.query_cpu, own.query_wait, own.query_blocked) = (r.takes, wait, paused);
                self.db_used += r.takes;
                let mean = DB_BLOCK_MS[r.query] * SCALE * 1e-3 * self.world.db_block[self.t];
                let seconds = self.world.random.gamma(mean, 1.5);
                self.block(id, now, Leg::QueryBlocked, seconds);
            }
            _ => {
                self.charge_app(id, wait, paused);
                self.request_ends(id, now);
            }
        }
    }

    fn app_demand(&mut self, class: usize, size: usize) -> f64 {
        let factor = self.factor(0);
        let w = &mut self.world;
        let missed = 1.0 + w.miss_cost[class] * (w.miss[self.t] - 0.1) / 0.5;
        let mean = APP_MS[class] * SCALE * 1e-3 * w.app_cpu[self.t][class] * w.noise[self.t][class] * missed * factor;
        w.random.gamma(mean * size_cost(size), w.cv[class])
    }

    fn charge_app(&mut self, id: usize, wait: f64, paused: f64) {
        let r = &mut self.requests[id];
        r.app_cpu += r.takes;
        r.app_wait += wait;
        r.app_blocked += paused;
        self.app_used += r.takes;
    }

    fn call_or_finish(&mut self, id: usize, now: f64) {
        let r = self.requests[id];
        if let Some(query) = r.left.iter().position(|left| *left > 0) {
            let own = &mut self.requests[id];
            own.left[query] -= 1;
            (own.query, own.call_since) = (query, now);
            own.calls += 1;
            let mean = DB_MS[query] * SCALE * 1e-3 * self.factor(1);
            let takes = self.world.random.gamma(mean, 0.6);
            return self.compute(id, now, 1, takes, Leg::Query);
        }
        // The second half costs what the first did.
        let takes = r.app_cpu;
        self.compute(id, now, 0, takes, Leg::SecondHalf);
    }

    fn query_ends(&mut self, id: usize, now: f64) {
        let r = self.requests[id];
        let class = &mut self.tiers[2][r.query];
        class.count[1] += 1.0;
        class.cpu_s[1] += r.query_cpu;
        class.cpu_s_squared += r.query_cpu * r.query_cpu;
        class.queue_s += r.query_wait;
        class.blocked_s += r.query_blocked;
        self.requests[id].downstream += now - r.call_since;
        self.call_or_finish(id, now);
    }

    fn request_ends(&mut self, id: usize, now: f64) {
        let r = self.requests[id];
        self.free.push(id);
        let front = &mut self.tiers[0][r.class];
        front.count[r.size] += 1.0;
        front.cpu_s[r.size] += r.front_cpu;
        front.cpu_s_squared += r.front_cpu * r.front_cpu;
        front.queue_s += r.front_wait;
        front.blocked_s += r.front_blocked;
        front.calls += 1.0;
        front.downstream_s += now - r.app_since;
        // What the tracer loses: whole requests, and pieces of others' CPU.
        let w = &mut self.world;
        let loss = w.loss[self.t];
        if loss > 0.0 && w.random.uniform() < loss {
            return;
        }
        let piece = if loss > 0.0 { 1.0 - loss * w.random.between(0.0, 0.6) } else { 1.0 };
        let seen = r.app_cpu * piece * (1.0 + 0.003 * w.random.normal()) * (1.0 - w.unowned[self.t][r.class]);
        let app = &mut self.tiers[1][r.class];
        app.count[r.size] += 1.0;
        app.cpu_s[r.size] += seen;
        app.cpu_s_squared += seen * seen;
        app.queue_s += r.app_wait;
        app.blocked_s += r.app_blocked;
        app.calls += r.calls as f64;
        app.downstream_s += r.downstream;
    }

    fn finish(&mut self, t: usize, before: [(f64, f64, f64); 2]) -> [Window; 2] {
        let take = |tier: &mut Vec<ClassWindow>| -> Vec<ClassWindow> {
            let all = tier
                .iter_mut()
                .map(|class| {
                    let request_class = class.request_class.clone();
                    std::mem::replace(class, ClassWindow { request_class, ..ClassWindow::default() })
                })
                .collect::<Vec<_>>();
            all.into_iter().filter(|class| class.count.iter().sum::<f64>() > 0.0).collect()
        };
        let [front, app, db] = self.tiers.each_mut().map(take);
        let seen = |classes: &[ClassWindow]| classes.iter().flat_map(|class| class.cpu_s).sum::<f64>();
        let used = [0, 1].map(|host: usize| {
            let (cpus, (busy, foreign, background)) = (&self.cpus[host], before[host]);
            (cpus.busy - busy, cpus.foreign_used - foreign, cpus.background_used - background)
        });
        let w = &self.world;
        let unowned = w.unowned[t].iter().sum::<f64>() / 14.0;
        let service = |name: &str, classes: Vec<ClassWindow>, overhead_s: f64, ambiguous: f64| ServiceWindow {
            service_name: name.to_owned(),
            identity: 1,
            starts: 0,
            entry: name != "app",
            callees: if name == "front" { vec!["app".to_owned()] } else { Vec::new() },
            overhead_s,
            ambiguous,
            classes,
        };
        let jitter = (0.1 * self.world.random.normal()).exp();
        let w = &self.world;
        let mut app_service =
            service("app", app.clone(), used[0].2 + (self.app_used - seen(&app)).max(0.0), w.ambiguous[t] + unowned);
        (app_service.identity, app_service.starts) = (w.identity[t], w.starts[t]);
        let front_overhead = 0.05 * self.front_used + 0.005 * LENGTH;
        let front_service = service("front", front, front_overhead, w.ambiguous[t]);
        let db_overhead = 0.08 * self.db_used * jitter + 0.01 * LENGTH;
        let db_service = service("db", db, db_overhead, w.ambiguous[t]);
        let window = |host: usize, services: Vec<ServiceWindow>, more: f64| {
            let (busy, foreign, _) = used[host];
            Window {
                start_ns: (t as f64 * LENGTH * 1e9) as u64,
                length_s: LENGTH,
                cores: w.cores[host],
                busy_s: (busy + more).min(w.cores[host] * LENGTH),
                foreign_s: foreign,
                steal_s: w.steal[host][t] * LENGTH,
                loss: if host == 0 { w.loss[t] } else { 0.0 },
                services,
            }
        };
        let windows = [
            window(0, vec![app_service, front_service], front_overhead),
            window(1, if w.db_seen { vec![db_service] } else { Vec::new() }, db_overhead),
        ];
        self.utilisation = [0, 1].map(|host: usize| (used[host].0 / LENGTH / w.cores[host]).clamp(0.0, 0.97));
        windows
    }
}

fn size_cost(size: usize) -> f64 {
    let mean: f64 = SIZE_MIX.iter().zip(SIZE_COST).map(|(share, cost)| share * cost).sum();
    SIZE_COST[size] / mean
}
