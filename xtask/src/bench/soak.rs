//! The soak: a mixed load for a long time; checks that nothing grows.
//!
//! Every ten seconds it samples the agent from outside (`/proc`) and by its metrics. At the end it fits a straight line
//! through the second half of the samples: the line's rise over that half is the verdict on memory and descriptors. The
//! first half is left out because tables (recent transactions, classes, symbol tables) fill up to their limits there.
//! Stacks are kept for an hour: their additional memory is subtracted, because it is no leak. Memory is the agent's
//! own: the kernel maps and drops pages of files (symbol tables) as it likes. Requests are conserved: the agent must
//! have reported, or counted as lost, every request whose reply the load received.

mod load;

use std::cell::Cell;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::agent::free_address;
use crate::build_ebpf::{self, Way};
use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;
use crate::{build, http, setup};
use load::{Load, PATH};

/// Time between two samples.
const EVERY: Duration = Duration::from_secs(10);
/// How often to ask the console again if it did not answer in time.
const TRIES: u32 = 5;
/// Shortest soak that has halves.
const SHORTEST: Duration = Duration::from_secs(60);
/// Bytes of one kept stack, and of one period's count of it, approximately: names by frame, and entries of three
/// tables.
const STACK_BYTES: f64 = 640.0;
const COUNT_BYTES: f64 = 64.0;
/// Most that memory may rise over the second half, by the line through its samples, bytes.
const RISE_BYTES: f64 = 4e6;
/// Most that open descriptors may rise.
const RISE_FDS: f64 = 4.0;

/// Parses a time: `90s`, `60m`, `2h`, or seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..).unwrap_or_default() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        other => return Err(format!("expected s, m or h and not '{other}'")),
    };
    let count: u64 = digits.parse().map_err(|_| "expected a time as 90s, 60m or 2h".to_owned())?;
    let time = Duration::from_secs(count.saturating_mul(unit));
    if time < SHORTEST { Err(format!("expected at least {} s", SHORTEST.as_secs())) } else { Ok(time) }
}

/// The agent at one moment.
#[derive(Clone, Debug, Default)]
struct Sample {
    at: f64,
    rss: f64,
    anonymous: f64,
    /// The part of it that the history of stacks takes.
    history: f64,
    fds: f64,
    threads: f64,
    cpu: f64,
    lost: f64,
    levels: String,
}

/// Runs the load for `time`, prints samples and the verdict; fails if something grows or a request is missing.
pub(super) fn run(way: Option<Way>, time: Duration) -> Result<()> {
    setup::programs()?;
    build_ebpf::ready(way)?;
    let tracer = build::tracer(way, true)?;
    if Root::obtain("load eBPF programs")? != Root::Already {
        bail!("run this as root: it starts programs that root must own");
    }
    let dir = tempfile::Builder::new().prefix("tracer-soak-").tempdir().context("cannot create a directory")?;
    soak(&tracer, dir.path(), time)
}

fn soak(tracer: &Path, dir: &Path, time: Duration) -> Result<()> {
    let nginx = load::Nginx::start(dir)?;
    let mut agent = Agent::start(tracer, dir)?;
    let before = agent.reported()?;
    shell::progress(format!("soak: {} minutes, a sample every {} s", time.as_secs() / 60, EVERY.as_secs()));
    shell::print("| s | RSS MB | anonymous MB | descriptors | threads | CPU % | lost | levels |");
    shell::print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |");
    let load = Load::start(nginx.address, agent.console);
    let begin = Instant::now();
    let mut samples: Vec<Sample> = Vec::new();
    while begin.elapsed() < time {
        std::thread::sleep(EVERY.min(time.saturating_sub(begin.elapsed())));
        let sample = agent.sample(begin)?;
        let cpu = samples.last().map_or(0.0, |last| (sample.cpu - last.cpu) / (sample.at - last.at).max(0.1));
        shell::print(format!(
            "| {:.0} | {:.1} | {:.1} | {:.0} | {:.0} | {:.1} | {:.0} | {} |",
            sample.at,
            sample.rss / 1e6,
            sample.anonymous / 1e6,
            sample.fds,
            sample.threads,
            100.0 * cpu,
            sample.lost,
            sample.levels
        ));
        samples.push(sample);
    }
    let done = load.end()?;
    let settled = agent.settled(before + done.good as f64)?;
    let lost = agent.operations_lost()?;
    let late = agent.late.get();
    let last = samples.last().cloned().unwrap_or_default();
    agent.child.end()?;
    drop(nginx);

    let half = samples.get(samples.len() / 2..).unwrap_or_default();
    let rise = |what: fn(&Sample) -> f64| rise(&half.iter().map(|s| (s.at, what(s))).collect::<Vec<_>>());
    let (bytes, fds) = (rise(|s| s.anonymous - s.history), rise(|s| s.fds));
    let missing = done.good as f64 - (settled - before);
    shell::print(format!(
        "\nsoak of {:.0} s: {} requests answered, {} failed; {} connections aborted, {} processes, {} pages of the console \
         read, {late} late; reported {:.0}, missing {missing:.0}, operations counted as lost {lost:.0}; \
         over the second half memory {:+.2} MB (bound {:.1}; {:+.2} with the history of stacks, {:+.2} with pages of files), descriptors {fds:+.1} (bound {RISE_FDS:.0}); agent's CPU {:.1} s",
        last.at,
        done.good,
        done.bad,
        done.aborted,
        done.processes,
        done.pages,
        settled - before,
        bytes / 1e6,
        RISE_BYTES / 1e6,
        rise(|s| s.anonymous) / 1e6,
        rise(|s| s.rss) / 1e6,
        last.cpu
    ));
    let mut faults = Vec::new();
    if bytes > RISE_BYTES {
        faults.push(format!("memory rose by {:.2} MB", bytes / 1e6));
    }
    if fds > RISE_FDS {
        faults.push(format!("descriptors rose by {fds:.1}"));
    }
    if done.bad > 0 {
        faults.push(format!("{} requests failed {:?}", done.bad, done.why));
    }
    if missing > lost || missing < -0.5 {
        faults.push(format!("{missing:.0} requests are missing, {lost:.0} operations were counted as lost"));
    }
    if faults.is_empty() {
        shell::print("verdict: flat, and every request accounted for");
        return Ok(());
    }
    bail!("the soak failed: {}", faults.join("; "))
}

/// The rise of the least-squares line through `points` from the first to the last.
fn rise(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return 0.0 };
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let spread: f64 = points.iter().map(|p| (p.0 - mx).powi(2)).sum();
    if spread == 0.0 {
        return 0.0;
    }
    points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum::<f64>() / spread * (last.0 - first.0)
}

/// The agent, seen from outside.
struct Agent {
    child: SupervisedChild,
    console: SocketAddr,
    pid: u32,
    /// Replies that came too late.
    late: Cell<u32>,
}

impl Agent {
    fn start(tracer: &Path, dir: &Path) -> Result<Self> {
        let console = free_address()?;
        let listen = console.to_string();
        let log = dir.join("soak-agent.log");
        let mut child = SupervisedChild::start(Root::Already, tracer, &["run", "--listen", &listen], &[], &log)?;
        let until = Instant::now() + Duration::from_secs(60);
        while !http::get(console, "/readyz").is_ok_and(|reply| reply.status == 200) {
            if child.ended()?.is_some() || Instant::now() > until {
                bail!("the agent did not become ready: {}", fs::read_to_string(&log)?);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let pid = pid_of(&listen).context("the agent's process is not found")?;
        Ok(Self { child, console, pid, late: Cell::new(0) })
    }

    fn metrics(&self) -> Result<Vec<(String, f64)>> {
        // On a busy host a reply may take longer than a reader waits; one that never comes ends the soak.
        let mut tries = 0;
        let text = loop {
            match http::get(self.console, "/metrics") {
                Ok(reply) => break reply.text,
                Err(error) if tries == TRIES => return Err(error.context("the console does not answer")),
                Err(_) => tries += 1,
            }
        };
        self.late.set(self.late.get() + tries);
        let series = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        Ok(series.filter_map(|(series, value)| Some((series.to_owned(), value.parse().ok()?))).collect())
    }

    fn sum(&self, name: &str, label: &str) -> Result<f64> {
        let prefix = format!("{name}{{");
        Ok(self.metrics()?.iter().filter(|(s, _)| s.starts_with(&prefix) && s.contains(label)).map(|(_, v)| v).sum())
    }

    /// Requests of the load reported as served so far.
    fn reported(&self) -> Result<f64> {
        self.sum("tracer_requests_total", &format!("request_class=\"GET {PATH}\""))
    }

    /// The same, once it reaches `wanted` or stops rising.
    fn settled(&self, wanted: f64) -> Result<f64> {
        let mut before = -1.0;
        loop {
            let now = self.reported()?;
            if now >= wanted || now <= before {
                return Ok(now);
            }
            before = now;
            std::thread::sleep(Duration::from_millis(2500));
        }
    }

    fn operations_lost(&self) -> Result<f64> {
        let mut lost = 0.0;
        for reason in ["ring_full_op", "socket_storage_refused", "thread_storage_refused", "hook_"] {
            lost += self.sum("tracer_events_lost_total", reason)?;
        }
        Ok(lost + self.sum("tracer_attribution_gaps_total", "_evicted")?)
    }

    fn sample(&mut self, begin: Instant) -> Result<Sample> {
        if let Some(status) = self.child.ended()? {
            bail!("the agent ended: {status}");
        }
        let proc = Path::new("/proc").join(self.pid.to_string());
        let status = fs::read_to_string(proc.join("status")).context("the agent is gone")?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0)
        };
        let metrics = self.metrics()?;
        let level = |(series, value): &(String, f64)| {
            let used = ["tracer_table_entries{", "tracer_table_bytes{"];
            let table = used.iter().find_map(|family| series.strip_prefix(family))?.split('"').nth(1)?;
            (*value > 0.0).then(|| format!("{table} {value:.0}"))
        };
        let entries = |table: &str| {
            let label = format!("tracer_table_entries{{table=\"{table}\"}}");
            metrics.iter().find(|(series, _)| *series == label).map_or(0.0, |(_, value)| *value)
        };
        let history = STACK_BYTES * entries("stacks") + COUNT_BYTES * entries("stack_counts");
        let levels: Vec<String> = metrics.iter().filter_map(level).collect();
        let cpu = metrics.iter().find(|(series, _)| series == "process_cpu_seconds_total");
        Ok(Sample {
            at: begin.elapsed().as_secs_f64(),
            rss: field("VmRSS") * 1024.0,
            anonymous: field("RssAnon") * 1024.0,
            history,
            fds: fs::read_dir(proc.join("fd")).map_or(0, Iterator::count) as f64,
            threads: field("Threads"),
            cpu: cpu.map_or(0.0, |(_, seconds)| *seconds),
            lost: self.operations_lost()?,
            levels: levels.join(", "),
        })
    }
}

/// The process `tracer` that listens on this address.
fn pid_of(listen: &str) -> Option<u32> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        let mut words = command.split(|byte| *byte == 0);
        let is_tracer = words.next()?.ends_with(b"/tracer");
        (is_tracer && words.any(|word| word == listen.as_bytes())).then(|| entry.file_name().to_str()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [("60", 60), ("90s", 90), ("60m", 3600), ("2h", 7200)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in ["", "m", "10", "5 minutes", "-1m", "1d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_rise() {
        let line = |slope: f64| -> Vec<(f64, f64)> {
            (0..10).map(|i| (f64::from(i) * 10.0, 5.0 + slope * f64::from(i) + f64::from(i % 2))).collect()
        };
        assert!((rise(&line(2.0)) - 18.0).abs() < 1.0 && rise(&line(0.0)).abs() < 1.0);
        assert!(rise(&[]).abs() < 1e-9 && rise(&[(1.0, 1.0)]).abs() < 1e-9);
    }
}
