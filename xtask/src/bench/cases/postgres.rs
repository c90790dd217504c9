//! PostgreSQL: `pgbench -S`, a primary-key lookup per transaction, in a cluster of our own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Sample, Server, Urgency, Workload, sched};
use crate::bench::agent::free_address;
use crate::bench::statistics::permille;
use crate::postgres::Cluster;
use crate::shell;

const CLIENTS: &str = "4";

pub(super) struct Postgres {
    server: Server,
    address: SocketAddr,
    programs: PathBuf,
    dir: PathBuf,
}

impl Postgres {
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let address = free_address()?;
        let cluster = Cluster::create(dir, "bench")?;
        let log = dir.join("log");
        let server = Server::ready(cluster.start(address, &log)?, &log, || cluster.is_ready(address))?;
        let postgres = Self { server, address, programs: cluster.programs, dir: dir.to_path_buf() };
        shell::output(postgres.pgbench().args(["-i", "-q", "-s", "1"]))?;
        Ok(postgres)
    }

    fn pgbench(&self) -> Command {
        let mut command = Command::new(self.programs.join("pgbench"));
        self.connect(&mut command);
        command
    }

    fn connect(&self, command: &mut Command) {
        command.args(["-h", "127.0.0.1", "-U", "bench", "-p", &self.address.port().to_string()]);
        command.env("PGDATABASE", "postgres").current_dir(&self.dir);
    }

    /// CPU of the server: running processes, and ended sessions.
    fn cpu(&self) -> Result<u64> {
        let living: u64 = sched::tree(self.server.pid).into_iter().filter_map(|pid| sched::process_cpu(pid).ok()).sum();
        Ok(living + sched::ended_children_cpu(self.server.pid)?)
    }
}

impl Workload for Postgres {
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample> {
        self.server.place(urgency)?;
        for entry in fs::read_dir(&self.dir).context("cannot read a directory")?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("pgbench_log") {
                fs::remove_file(entry.path()).context("cannot remove a file")?;
            }
        }
        let before = self.cpu()?;
        let mut command = Command::new("chrt");
        command.args(if urgency == Urgency::Realtime { ["-r", "1"] } else { ["-o", "0"] });
        command.args(["taskset", "-c", &sched::load_core().to_string()]).arg(self.programs.join("pgbench"));
        self.connect(&mut command);
        command.args(["-S", "-n", "-l", "-c", CLIENTS, "-j", "1", "-T", &time.as_secs().max(1).to_string()]);
        let text = shell::output(&mut command)?;
        // Sessions end a moment after their client.
        let until = std::time::Instant::now() + Duration::from_secs(2);
        while sched::tree(self.server.pid).iter().any(|pid| is_session(*pid)) && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let cpu_ns = self.cpu()?.saturating_sub(before);
        let rate = rate(&text).with_context(|| format!("pgbench printed no rate: {text}"))?;
        let mut latencies = Vec::new();
        for entry in fs::read_dir(&self.dir).context("cannot read a directory")?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("pgbench_log") {
                let log = fs::read_to_string(entry.path()).context("cannot read pgbench's log")?;
                latencies.extend(log.lines().filter_map(latency));
            }
        }
        if latencies.is_empty() {
            bail!("pgbench logged nothing: {text}");
        }
        latencies.sort_unstable();
        let operations = latencies.len() as u64;
        let [p50, p99, p999] = [500, 990, 999].map(|share| permille(&latencies, share) as f64);
        Ok(Sample { operations, seconds: operations as f64 / rate, p50, p99, p999, cpu_ns })
    }

    fn server(&self) -> Option<i32> {
        Some(self.server.pid)
    }
}

/// Whether a process serves a client: its title contains the user.
fn is_session(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|title| title.starts_with(b"postgres: bench "))
}

/// Transactions per second, connection time excluded.
fn rate(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix("tps = "))?.split(' ').next()?.parse().ok()
}

/// Microseconds from a line of pgbench's log: client, transaction, time, …
fn latency(line: &str) -> Option<u64> {
    line.split(' ').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pgbench_prints_and_logs() {
        let text = "latency average = 0.1 ms\ntps = 18233.5 (without initial connection time)\n";
        assert!((rate(text).expect("rate") - 18233.5).abs() < 1e-9);
        assert_eq!(rate("pgbench: error"), None);
        assert_eq!(latency("0 199 2241 0 1175850568 995598"), Some(2241));
        assert_eq!(latency("0 199"), None);
    }
}
