//! The agent under measurement: starts it, waits for it, reads its figures.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::sched;
use crate::http;
use crate::shell::Root;
use crate::supervised_child::SupervisedChild;

/// A running agent. It has normal priority and runs on any core, as in production.
pub(super) struct Agent {
    child: SupervisedChild,
    console: SocketAddr,
    pid: i32,
}

impl Agent {
    /// Starts it for these services (all if none is named) and waits until its start-up work is done.
    pub(super) fn start(tracer: &Path, dir: &Path, services: &[&str]) -> Result<Self> {
        Self::start_with(tracer, dir, services, &[])
    }

    /// The same with more arguments.
    pub(super) fn start_with(tracer: &Path, dir: &Path, services: &[&str], more: &[String]) -> Result<Self> {
        let console = free_address()?;
        let listen = console.to_string();
        let mut args = vec!["run", "--listen", &listen];
        args.extend(services.iter().flat_map(|service| ["--service", service]));
        args.extend(more.iter().map(String::as_str));
        let log = dir.join("agent.log");
        let mut child = SupervisedChild::start(Root::Already, tracer, &args, &[], &log)?;
        let until = Instant::now() + Duration::from_secs(60);
        while !http::get(console, "/readyz").is_ok_and(|reply| reply.status == 200) {
            if child.ended()?.is_some() || Instant::now() > until {
                bail!("the agent did not become ready: {}", fs::read_to_string(&log).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = child.pid()?;
        let agent = Self { child, console, pid };
        agent.calm()?;
        Ok(agent)
    }

    /// Waits until it uses less than a twentieth of a core: it has processed all earlier events.
    pub(super) fn calm(&self) -> Result<()> {
        let mut last = self.cpu()?;
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(60));
            let now = self.cpu()?;
            if now - last < 3_000_000 {
                return Ok(());
            }
            last = now;
        }
        bail!("the agent has been busy for six seconds without load")
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// CPU used so far, nanoseconds.
    pub(super) fn cpu(&self) -> Result<u64> {
        sched::process_cpu(self.pid).context("the agent is gone")
    }

    /// Its metrics, once they include the last second.
    pub(super) fn metrics(&self) -> Result<Scrape> {
        std::thread::sleep(Duration::from_millis(1200));
        Ok(Scrape::parse(&http::get(self.console, "/metrics")?.text))
    }

    /// A field of its `/proc/PID/status`, megabytes.
    pub(super) fn memory(&self, field: &str) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).context("the agent is gone")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib: f64 = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse().ok()).context("no such field")?;
        Ok(kib * 1024.0 / 1e6)
    }

    pub(super) fn end(self) -> Result<()> {
        self.child.end().map(drop)
    }
}

/// A free loopback address above port 20000.
pub(super) fn free_address() -> Result<SocketAddr> {
    for _ in 0..50 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port on 127.0.0.1")?;
        let address = listener.local_addr().context("cannot read the address of a socket")?;
        if address.port() > 20000 {
            return Ok(address);
        }
    }
    bail!("the system gives no port above 20000")
}

/// Metrics in the Prometheus text form: name, labels, value.
pub(super) struct Scrape(Vec<(String, String, f64)>);

impl Scrape {
    pub(super) fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.split_at(series.find('{').unwrap_or(series.len()));
            Some((name.to_owned(), labels.to_owned(), value.parse().ok()?))
        };
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    pub(super) fn sum(&self, name: &str) -> f64 {
        self.0.iter().filter(|(known, _, _)| known == name).map(|(_, _, value)| value).sum()
    }

    /// The sum over series with a label, as it is written (`name="value"`).
    pub(super) fn labelled(&self, name: &str, label: &str) -> f64 {
        self.0.iter().filter(|(known, labels, _)| known == name && labels.contains(label)).map(|sample| sample.2).sum()
    }

    /// Events lost, by reason; reasons without any are left out.
    pub(super) fn lost(&self) -> BTreeMap<String, f64> {
        let reason = |labels: &str| Some(labels.split_once("reason=\"")?.1.split_once('"')?.0.to_owned());
        let lost = self.0.iter().filter(|(name, _, value)| name == "tracer_events_lost_total" && *value > 0.0);
        lost.filter_map(|(_, labels, value)| Some((reason(labels)?, *value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapes() {
        let text = "# x\na{p=\"q\"} 2\na{p=\"r\"} 3\ntracer_events_lost_total{reason=\"ring\"} 4\n\
                    tracer_events_lost_total{reason=\"none\"} 0\n";
        let scrape = Scrape::parse(text);
        assert!((scrape.sum("a") - 5.0).abs() < 1e-9 && (scrape.labelled("a", "p=\"r\"") - 3.0).abs() < 1e-9);
        assert_eq!(scrape.lost(), BTreeMap::from([("ring".to_owned(), 4.0)]));
    }
}
