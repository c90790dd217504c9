//! `cargo xtask bench`: what tracing costs, measured on this machine in one run.
//!
//! Noise decides the method. Throughput is compared in short pairs, with and without the agent, whose order alternates,
//! under real-time priority and pinned, and the median of the pairs' ratios is the result; a control of pairs without
//! any agent says how much of it is noise. Kernel statistics (`bpf_stats_enabled`) cost some 40 ns a program run: they
//! are on only while BPF time is measured, never while throughput is.

mod load;
mod report;
mod soak;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build_ebpf::Way;
use crate::http;
use crate::leash::Leash;
use crate::shell::{self, Root};
use crate::{build, build_ebpf, readme, setup};
use load::{Cores, Nginx, Wrk};
use report::{Report, median};

/// `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// Pairs of runs with and without the agent.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=99))]
    pairs: u32,
    /// Put the table into README.md.
    #[arg(long)]
    readme: bool,
    /// Measure nothing; load everything for so long (90s, 60m, 2h) and see whether anything grows or goes missing.
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "60m", value_parser = soak::duration)]
    soak: Option<Duration>,
}

/// Nanoseconds that kernel statistics add to each run of a program.
const STATISTICS_NS: f64 = 40.0;
/// Length of one run of a pair.
const RUN: Duration = Duration::from_secs(1);

/// Measures everything and prints the table.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    setup::programs()?;
    build_ebpf::ready(way)?;
    let tracer = build::tracer(way, true)?;
    let root = Root::obtain("load eBPF programs and set priorities")?;
    if root != Root::Already {
        bail!("run this as root: it sets priorities and reads kernel statistics of its own");
    }
    let dir = tempfile::Builder::new().prefix("tracer-bench-").tempdir().context("cannot create a directory")?;
    if let Some(time) = options.soak {
        return soak::run(&tracer, dir.path(), time);
    }
    let mut report = Report::new();

    let nginx = Nginx::start(dir.path(), 1)?;
    for cores in [Cores::One, Cores::Two] {
        control(&mut report, &nginx, dir.path(), cores, options.pairs)?;
        throughput(&mut report, &tracer, &nginx, dir.path(), cores, options.pairs)?;
    }
    bpf_time(&mut report, &tracer, &nginx, dir.path())?;
    agent_cost(&mut report, &tracer, &nginx, dir.path())?;
    drop(nginx);
    saturation(&mut report, &tracer, dir.path())?;
    idle(&mut report, &tracer, dir.path())?;

    let table = report.table();
    shell::print(&table);
    let json = shell::target_dir()?.join("bench.json");
    fs::write(&json, report.json()).with_context(|| format!("cannot write {}", json.display()))?;
    shell::progress(format!("machine-readable: {}", json.display()));
    if options.readme {
        readme::put("bench", &table)?;
    }
    Ok(())
}

/// Pairs of runs that do not differ: the noise.
fn control(report: &mut Report, nginx: &Nginx, dir: &Path, cores: Cores, pairs: u32) -> Result<()> {
    shell::progress(format!("control: {pairs} pairs without an agent"));
    let mut ratios = Vec::new();
    for _ in 0..pairs {
        let first = Wrk::run(nginx.address, dir, cores, 16, RUN)?.rate;
        let second = Wrk::run(nginx.address, dir, cores, 16, RUN)?.rate;
        ratios.push(second / first);
    }
    report.ratios(&format!("throughput, control without any agent, {}", cores.name()), &ratios);
    Ok(())
}

fn throughput(report: &mut Report, tracer: &Path, nginx: &Nginx, dir: &Path, cores: Cores, pairs: u32) -> Result<()> {
    shell::progress(format!("throughput: {pairs} pairs with and without the agent"));
    let (mut ratios, mut rates) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        let mut with = 0.0;
        let mut without = 0.0;
        for half in 0..2 {
            if (pair + half) % 2 == 0 {
                let agent = Agent::start(tracer, dir, &["--service", "nginx"])?;
                with = Wrk::run(nginx.address, dir, cores, 16, RUN)?.rate;
                agent.end()?;
            } else {
                without = Wrk::run(nginx.address, dir, cores, 16, RUN)?.rate;
            }
        }
        ratios.push(with / without);
        rates.push(without);
    }
    report.ratios(&format!("throughput with / without, the server traced, {}", cores.name()), &ratios);
    report.note(format!("{:.0} requests/s without", median(&mut rates)));
    Ok(())
}

/// Time of every program, per run and per request, by the kernel's own statistics.
fn bpf_time(report: &mut Report, tracer: &Path, nginx: &Nginx, dir: &Path) -> Result<()> {
    shell::progress("BPF time per request");
    let _statistics = Statistics::on()?;
    let agent = Agent::start(tracer, dir, &["--service", "nginx"])?;
    Wrk::run(nginx.address, dir, Cores::Two, 16, RUN)?;
    let before = agent.settled()?;
    let load = Wrk::run(nginx.address, dir, Cores::Two, 16, RUN * 5)?;
    let after = agent.settled()?;
    agent.end()?;
    let mut total = 0.0;
    let mut programs = Vec::new();
    for (program, seconds) in after.each("tracer_bpf_run_seconds_total", "program") {
        let runs = after.one("tracer_bpf_runs_total", "program", &program)
            - before.one("tracer_bpf_runs_total", "program", &program);
        let nanos = (seconds - before.one("tracer_bpf_run_seconds_total", "program", &program)) * 1e9;
        if runs < 1.0 {
            continue;
        }
        let own = (nanos - runs * STATISTICS_NS).max(0.0);
        total += own;
        programs.push((program, own / runs, runs / load.requests));
    }
    programs.sort_by(|a, b| (b.1 * b.2).total_cmp(&(a.1 * a.2)));
    report.add("BPF time per request on the server (all programs, sampling included)", total / load.requests, "ns");
    for (program, per_run, per_request) in programs {
        report.note(format!("{program}: {per_run:.0} ns × {per_request:.2} a request"));
    }
    Ok(())
}

fn agent_cost(report: &mut Report, tracer: &Path, nginx: &Nginx, dir: &Path) -> Result<()> {
    shell::progress("agent: CPU and memory under load");
    let agent = Agent::start(tracer, dir, &["--service", "nginx"])?;
    let start_peak = agent.memory("VmHWM")?;
    let before = agent.settled()?;
    let load = Wrk::run(nginx.address, dir, Cores::Two, 16, RUN * 10)?;
    let after = agent.settled()?;
    let cpu = after.sum("process_cpu_seconds_total") - before.sum("process_cpu_seconds_total");
    report.add("agent CPU per million requests (server side traced)", cpu / load.requests * 1e6, "s");
    report.add("agent memory: peak at start", start_peak, "MB");
    report.add("agent memory: under load", agent.memory("VmRSS")?, "MB");
    report.add("agent memory: peak", agent.memory("VmHWM")?, "MB");
    agent.end()
}

/// Both cores full, both ends traced.
fn saturation(report: &mut Report, tracer: &Path, dir: &Path) -> Result<()> {
    shell::progress("saturation: 256 connections, everything traced");
    let nginx = Nginx::start(dir, 2)?;
    let agent = Agent::start(tracer, dir, &[])?;
    let load = Wrk::run(nginx.address, dir, Cores::All, 256, RUN * 8)?;
    let metrics = agent.settled()?;
    report.add("saturation, 256 connections, both ends traced: load", load.rate, "requests/s");
    report.add("saturation: events lost", metrics.sum("tracer_events_lost_total"), "");
    report.add("saturation: events", metrics.sum("tracer_events_total"), "");
    for (reason, count) in metrics.each("tracer_events_lost_total", "reason") {
        if count > 0.0 {
            report.note(format!("lost: {count:.0} {reason}"));
        }
    }
    agent.end()
}

fn idle(report: &mut Report, tracer: &Path, dir: &Path) -> Result<()> {
    shell::progress("idle host");
    let agent = Agent::start(tracer, dir, &[])?;
    let before = agent.settled()?;
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs(10));
    let after = agent.settled()?;
    let cpu = after.sum("process_cpu_seconds_total") - before.sum("process_cpu_seconds_total");
    report.add("agent CPU on an idle host", 100.0 * cpu / begin.elapsed().as_secs_f64(), "% of a core");
    report.add("agent memory on an idle host", agent.memory("VmRSS")?, "MB");
    agent.end()
}

/// The agent under measurement.
struct Agent {
    leash: Leash,
    console: SocketAddr,
}

impl Agent {
    fn start(tracer: &Path, dir: &Path, more: &[&str]) -> Result<Self> {
        let console = load::free_address()?;
        let listen = console.to_string();
        let args: Vec<&str> = ["run", "--listen", &listen].into_iter().chain(more.iter().copied()).collect();
        let mut leash = Leash::start(Root::Already, tracer, &args, &[], &dir.join("agent.log"))?;
        let until = Instant::now() + Duration::from_secs(60);
        while !http::get(console, "/readyz").is_ok_and(|reply| reply.status == 200) {
            if leash.ended()?.is_some() || Instant::now() > until {
                bail!("the agent did not become ready: {}", fs::read_to_string(dir.join("agent.log"))?);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { leash, console })
    }

    /// Metrics, when those of the last second are in.
    fn settled(&self) -> Result<report::Scrape> {
        std::thread::sleep(Duration::from_millis(1500));
        Ok(report::Scrape::parse(&http::get(self.console, "/metrics")?.text))
    }

    /// A field of the agent's `/proc/PID/status`, megabytes.
    fn memory(&self, field: &str) -> Result<f64> {
        let listen = self.console.to_string();
        for entry in fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut words = command.split(|byte| *byte == 0);
            let is_tracer = words.next().is_some_and(|program| program.ends_with(b"/tracer"));
            if is_tracer && words.any(|word| word == listen.as_bytes()) {
                let status = fs::read_to_string(entry.path().join("status")).context("the agent is gone")?;
                let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
                let kib: f64 =
                    line.and_then(|l| l.trim().strip_suffix(" kB")?.parse().ok()).context("no such field")?;
                return Ok(kib * 1024.0 / 1e6);
            }
        }
        bail!("the agent's process is not found")
    }

    fn end(self) -> Result<()> {
        self.leash.end().map(drop)
    }
}

/// Kernel statistics of BPF programs, on while this lives.
struct Statistics;

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl Statistics {
    fn on() -> Result<Self> {
        fs::write(STATISTICS, "1").with_context(|| format!("cannot write {STATISTICS}"))?;
        Ok(Self)
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        // Left on it only costs; there is nobody to tell.
        let _ = fs::write(STATISTICS, "0");
    }
}
