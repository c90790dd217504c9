//! Sampling keeps its share of the host's CPU: the rate falls within two seconds of a step in load, the cost that the agent
//! states is the kernel's own figure, and seconds in profiles stay right while the rate changes.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::http;
use tracer_tests::metrics::Metrics;
use tracer_tests::stat::HostCpuSource;
use tracer_tests::workload::Server;
use tracer_tests::{begin, bpf, figure, load, say, scale, scratch, wait};

/// Share of the host's CPU that is allowed.
const BUDGET: f64 = 0.005;
/// Highest rate: an idle host's samples cost little, so that it is much higher than a busy host's.
const HERTZ: f64 = 999.0;
/// How long a step in load may take to be within budget.
const SETTLED: Duration = Duration::from_secs(2);

/// Runs until it is dropped, also where a check panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keeps `clients` connections busy until `over`.
fn busy(address: SocketAddr, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        load::until(address, 2, &["/alpha"], Instant::now() + Duration::from_millis(200));
    }
}

/// Figures of one moment. The agent refreshes them once a second.
#[derive(Clone, Copy, Debug)]
struct Now {
    at: Instant,
    hertz: f64,
    ratio: f64,
    /// CPU seconds of all parts, and of the program at the clock alone.
    seconds: f64,
    sample: f64,
    samples: f64,
}

impl Now {
    fn of(metrics: &Metrics) -> Self {
        let name = "tracer_profiler_cpu_seconds_total";
        Self {
            at: Instant::now(),
            hertz: metrics.sum("tracer_sampling_hertz", &[]),
            ratio: metrics.sum("tracer_profiler_cost_ratio", &[]),
            seconds: metrics.sum(name, &[]),
            sample: metrics.sum(name, &[("part", "sample")]),
            samples: metrics.sum("tracer_events_total", &[("kind", "sample")]),
        }
    }

    /// Figures just after the agent refreshed them.
    fn fresh(agent: &Agent) -> Self {
        let cpu = |metrics: &Metrics| metrics.sum("process_cpu_seconds_total", &[]);
        let before = cpu(&agent.metrics());
        wait("figures of a new second", Duration::from_secs(10), || {
            let metrics = agent.metrics();
            (cpu(&metrics) > before).then(|| Self::of(&metrics))
        })
    }
}

/// CPU seconds of a process and of its threads that ended, by the kernel.
fn cpu_of(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let rest = stat.rsplit_once(')').expect("a name").1;
    let ticks: f64 = rest.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    // SAFETY: takes a number, returns one.
    ticks / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64
}

#[test]
fn a_step_in_load_is_within_budget_in_two_seconds() {
    let Some(_turn) = begin("overhead_budget", &["cc"]) else { return };
    if scale() < 1.0 {
        // Each sample of an emulated processor costs more than the budget.
        return;
    }
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    // Off: nothing but samples is compared here.
    let config = dir.path().join("tracer.toml");
    fs::write(&config, "[sampling]\noff_cpu_microseconds = 0\ncall_stacks = false\n").expect("a configuration");
    let arguments = [
        "--config",
        config.to_str().expect("a path"),
        "--nice=-10",
        &format!("--hertz={HERTZ}"),
        &format!("--overhead-budget={}%", BUDGET * 100.0),
    ];
    let agent = Agent::start(dir.path(), &arguments);
    let cpus = std::thread::available_parallelism().expect("the number of CPUs").get() as f64;
    // Asking is a load of its own, so only what is read after quiet seconds is compared; an agent that has just started, and
    // what another test has left behind, are none.
    let mut before = 0.0;
    let idle = wait("the rate of an idle host", Duration::from_secs(60), || {
        let host = HostCpuSource::now();
        std::thread::sleep(Duration::from_secs(3));
        let host = HostCpuSource::now().since(host);
        let now = Now::fresh(&agent);
        let busy = host.busy + host.stolen;
        let quiet = busy < 0.1 * (busy + host.idle);
        let settled = quiet && (now.hertz - before).abs() < 0.25 * before && now.ratio < BUDGET;
        before = now.hertz;
        settled.then_some(now)
    });
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Over(&over);
        // Programs are timed by the kernel as well from here on.
        let _statistics = bpf::statistics();
        scope.spawn(|| busy(server.address, &over));
        std::thread::sleep(SETTLED);
        let kernel = |metrics: &Metrics| {
            let of = |name: &str| metrics.sum(name, &[("program", "sample")]);
            (of("tracer_bpf_run_seconds_total"), of("tracer_bpf_runs_total"))
        };
        let (first, kernel_first) = (Now::fresh(&agent), kernel(&agent.metrics()));
        let mut rates = vec![first.hertz];
        let end = Instant::now() + Duration::from_secs(6);
        let mut last = first;
        while Instant::now() < end {
            last = Now::fresh(&agent);
            rates.push(last.hertz);
        }
        let kernel_last = kernel(&agent.metrics());
        let seconds = (last.at - first.at).as_secs_f64();
        let share = (last.seconds - first.seconds) / (seconds * cpus);
        let samples = (last.samples - first.samples) / (seconds * cpus);
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let turns = {
            let moves: Vec<bool> =
                rates.windows(2).filter(|pair| (pair[0] - pair[1]).abs() > 0.5).map(|pair| pair[1] > pair[0]).collect();
            moves.windows(2).filter(|pair| pair[0] != pair[1]).count()
        };
        let own = last.sample - first.sample;
        let (stated, runs) = (kernel_last.0 - kernel_first.0, kernel_last.1 - kernel_first.1);
        // The kernel's own clock reads are in its figure, some 40 ns a run.
        let of_kernel = own / (stated - runs * 40e-9);
        say(&format!(
            "overhead budget: idle {:.0} Hz, busy {rates:?} Hz ({samples:.1} samples a second and CPU); {:.3} % of the host's CPU, of {:.3} %; \
             the program's own clock says {own:.4} s, the kernel {stated:.4} s in {runs:.0} runs",
            idle.hertz,
            100.0 * share,
            100.0 * BUDGET,
        ));
        figure("overhead budget", &format!("{:.3} % of {:.3} %, {mean:.0} Hz", 100.0 * share, 100.0 * BUDGET));
        assert!(share <= BUDGET * 1.1, "{share} of {BUDGET}");
        assert!(mean < 1.1 * idle.hertz && mean >= 10.0, "{mean} Hz busy, {} Hz idle", idle.hertz);
        assert!(turns <= 6, "swings: {rates:?}");
        // The clocks run at the rate that is shown: idle CPUs have no samples.
        assert!(samples < 1.15 * mean && samples > 0.5 * mean, "{samples} samples at {mean} Hz");
        assert!((0.85..=1.15).contains(&of_kernel), "{own} s by the program, {stated} s by the kernel");
    });
    agent.stop();
}

/// Asks for another rate.
fn set_hertz(agent: &Agent, token: &str, hertz: u32) {
    agent.change("PUT", "/api/v1/sampling", token, &format!("{{\"hertz\": {hertz}}}"));
}

#[test]
fn seconds_are_right_while_the_rate_changes() {
    let Some(_turn) = begin("overhead_budget_weights", &["cc"]) else { return };
    if scale() < 1.0 {
        return;
    }
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let token_file = dir.path().join("token");
    let token_path = token_file.to_str().expect("a path");
    let arguments = ["--nice=-10", "--hertz=499", "--overhead-budget=100%", "--token-file", token_path];
    let agent = Agent::start(dir.path(), &arguments);
    let token = fs::read_to_string(&token_file).expect("a token");
    // The service must be known, and its first stacks have names.
    http::get(server.address, "/alpha").expect("a reply");
    let micros = || {
        let folded = agent.text("/profile.folded?service=burn");
        folded.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>()
    };
    let over = AtomicBool::new(false);
    let (mut profiled, mut used) = (0.0, 0.0);
    std::thread::scope(|scope| {
        let _end = Over(&over);
        scope.spawn(|| busy(server.address, &over));
        wait("samples of the service", Duration::from_secs(30), || (micros() > 1e5).then_some(()));
        // In this order: the agent counts at once and then looks names up, which may take seconds.
        let used_before = cpu_of(server.process.pid());
        let before = micros();
        // Low rates most of the time: as many samples at each, and changes at every phase of a period.
        for hertz in [499, 49, 499, 19, 299, 11, 499, 97].into_iter().cycle().take(24) {
            set_hertz(&agent, token.trim(), hertz);
            std::thread::sleep(Duration::from_millis(370));
        }
        set_hertz(&agent, token.trim(), 499);
        std::thread::sleep(Duration::from_millis(500));
        used = cpu_of(server.process.pid()) - used_before;
        profiled = (micros() - before) / 1e6;
    });
    let ratio = profiled / used;
    say(&format!(
        "overhead budget: rates from 11 to 499 Hz: {profiled:.3} s in the profile, {used:.3} s used: {ratio:.3}"
    ));
    figure("seconds in profiles while the rate changes", &format!("{ratio:.3} of those used"));
    assert!((0.9..=1.1).contains(&ratio), "{profiled} s in the profile, {used} s used");
    agent.stop();
}
