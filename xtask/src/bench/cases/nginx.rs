//! nginx with a small static file, wrk as its load.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Sample, Server, Urgency, Workload, sched};
use crate::bench::agent::free_address;
use crate::http;
use crate::leash::Leash;
use crate::shell::{self, Root};

pub(super) struct Nginx {
    server: Server,
    worker: i32,
    address: SocketAddr,
    connections: u32,
    /// wrk is on the server's core: throughput is then what CPU both use, and nobody is woken on another core.
    one_core: bool,
    script: PathBuf,
}

/// wrk itself prints no 99.9th percentile.
const SCRIPT: &str = r#"
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format("FIGURES %d %d %d %d %d %d\n", summary.requests, summary.duration,
    e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
"#;

impl Nginx {
    pub(super) fn start(base: &Path, connections: u32, one_core: bool) -> Result<Self> {
        let address = free_address()?;
        fs::create_dir_all(base.join("www")).context("cannot create a directory")?;
        fs::write(base.join("www/index.html"), "x".repeat(612)).context("cannot write a file")?;
        let script = base.join("figures.lua");
        fs::write(&script, SCRIPT).context("cannot write a file")?;
        let here = base.display();
        let configuration = format!(
            "daemon off;\nuser root;\nworker_processes 1;\npid {here}/pid;\nerror_log {here}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;\n\
             server {{ listen {address}; root {here}/www; }} }}\n"
        );
        let file = base.join("nginx.conf");
        fs::write(&file, configuration).with_context(|| format!("cannot write {}", file.display()))?;
        let program = shell::find("nginx").context("nginx is not installed; run `cargo xtask setup`")?;
        let (errors, here) = (base.join("error.log"), base.display().to_string());
        let args = ["-p", &here, "-e", &errors.to_string_lossy(), "-c", &file.to_string_lossy()].map(str::to_owned);
        let leash = Leash::start(Root::Already, &program, &args, &[], &base.join("log"))?;
        let server = Server::ready(leash, &errors, || http::get(address, "/").is_ok_and(|reply| reply.status == 200))?;
        let worker = sched::tree(server.pid).get(1).copied().context("nginx has no worker")?;
        Ok(Self { server, worker, address, connections, one_core, script })
    }
}

impl Workload for Nginx {
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample> {
        self.server.place(urgency)?;
        let core = if self.one_core { sched::SERVER } else { sched::load_core() };
        let mut command = Command::new("chrt");
        command.args(if urgency == Urgency::Realtime { ["-r", "1"] } else { ["-o", "0"] });
        command.args(["taskset", "-c", &core.to_string(), "wrk", "-t1", &format!("-c{}", self.connections)]);
        command.arg(format!("-d{}", time.as_secs().max(1))).arg("-s").arg(&self.script);
        command.arg(format!("http://{}/", self.address));
        let before = sched::process_cpu(self.worker)?;
        let text = shell::output(&mut command)?;
        let cpu_ns = sched::process_cpu(self.worker)? - before;
        let sample = figures(&text).with_context(|| format!("wrk printed no figures: {text}"))?;
        if sample.operations == 0 {
            bail!("nginx answered nothing");
        }
        Ok(Sample { cpu_ns, ..sample })
    }

    fn server(&self) -> Option<i32> {
        Some(self.worker)
    }
}

/// Understands what the script prints; refuses runs with errors.
fn figures(text: &str) -> Option<Sample> {
    let line = text.lines().find_map(|line| line.strip_prefix("FIGURES "))?;
    let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let [requests, micros, 0, p50, p99, p999] = numbers[..] else { return None };
    let seconds = micros as f64 / 1e6;
    Some(Sample { operations: requests, seconds, p50: p50 as f64, p99: p99 as f64, p999: p999 as f64, cpu_ns: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_wrk() {
        let sample = figures("Running 1s test\nFIGURES 61000 1001000 0 210 380 900\n").expect("figures");
        assert_eq!((sample.operations, sample.p999 as u64), (61000, 900));
        assert!((sample.rate() - 60939.06).abs() < 0.1);
        assert!(figures("FIGURES 61000 1001000 3 210 380 900\n").is_none(), "errors");
        assert!(figures("FIGURES 61000 1001000\n").is_none() && figures("").is_none());
    }
}
