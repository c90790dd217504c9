//! nginx with a small static file over TLS, asked by h2load in HTTP/1.1.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Sample, Server, Urgency, Workload, sched};
use crate::bench::agent::free_address;
use crate::bench::statistics::permille;
use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;

const CONNECTIONS: &str = "16";
const BODY: usize = 612;

pub(super) struct NginxTls {
    server: Server,
    worker: i32,
    address: SocketAddr,
    load: PathBuf,
    log: PathBuf,
}

impl NginxTls {
    pub(super) fn start(base: &Path) -> Result<Self> {
        let load = shell::find("h2load").context("h2load is not installed; run `cargo xtask setup`")?;
        let program = shell::find("nginx").context("nginx is not installed; run `cargo xtask setup`")?;
        let openssl = shell::find("openssl").context("openssl is not installed; run `cargo xtask setup`")?;
        let address = free_address()?;
        fs::create_dir_all(base.join("www")).context("cannot create a directory")?;
        fs::write(base.join("www/index.html"), "x".repeat(BODY)).context("cannot write a file")?;
        let (key, certificate) = (base.join("key.pem"), base.join("certificate.pem"));
        let mut command = Command::new(openssl);
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        command.args(["-days", "2", "-subj", "/CN=localhost", "-keyout"]).arg(&key).arg("-out").arg(&certificate);
        shell::output(&mut command)?;
        let here = base.display().to_string();
        let configuration = format!(
            "daemon off;\nuser root;\nworker_processes 1;\npid {here}/pid;\nerror_log {here}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; keepalive_requests 100000000;\n\
             server {{ listen {address} ssl; root {here}/www;\n\
             ssl_certificate {here}/certificate.pem; ssl_certificate_key {here}/key.pem; }} }}\n"
        );
        let file = base.join("nginx.conf");
        fs::write(&file, configuration).with_context(|| format!("cannot write {}", file.display()))?;
        let errors = base.join("error.log");
        let args = ["-p", &here, "-e", &errors.to_string_lossy(), "-c", &file.to_string_lossy()].map(str::to_owned);
        let child = SupervisedChild::start(Root::Already, &program, &args, &[], &base.join("log"))?;
        let ready = || std::net::TcpStream::connect(address).is_ok();
        let server = Server::ready(child, &errors, ready)?;
        let worker = sched::tree(server.pid).get(1).copied().context("nginx has no worker")?;
        Ok(Self { server, worker, address, load, log: base.join("requests.log") })
    }
}

impl Workload for NginxTls {
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample> {
        self.server.place(urgency)?;
        if self.log.exists() {
            fs::remove_file(&self.log).context("cannot remove h2load's log")?;
        }
        let before = sched::process_cpu(self.worker)?;
        let mut command = Command::new("chrt");
        command.args(if urgency == Urgency::Realtime { ["-r", "1"] } else { ["-o", "0"] });
        command.args(["taskset", "-c", &sched::load_core().to_string()]).arg(&self.load);
        let seconds = time.as_secs().max(1);
        command.args(["--h1", "-c", CONNECTIONS, "-D", &seconds.to_string()]);
        command.arg(format!("--log-file={}", self.log.display())).arg(format!("https://{}/index.html", self.address));
        let text = shell::output(&mut command)?;
        let cpu_ns = sched::process_cpu(self.worker)? - before;
        let log = fs::read_to_string(&self.log).context("cannot read h2load's log")?;
        let mut latencies: Vec<u64> = log.lines().filter_map(latency).collect();
        if latencies.is_empty() {
            bail!("h2load logged no request that was answered: {text}");
        }
        latencies.sort_unstable();
        let operations = latencies.len() as u64;
        let [p50, p99, p999] = [500, 990, 999].map(|share| permille(&latencies, share) as f64);
        Ok(Sample { operations, seconds: seconds as f64, p50, p99, p999, cpu_ns })
    }

    fn server(&self) -> Option<i32> {
        Some(self.worker)
    }
}

/// Microseconds from a line of h2load's log, of a request that was answered with 200: start, status, time.
fn latency(line: &str) -> Option<u64> {
    let mut columns = line.split('\t').skip(1);
    (columns.next()? == "200").then_some(columns.next()?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_h2load_logs() {
        assert_eq!(latency("1763984712345678\t200\t412"), Some(412));
        assert_eq!(latency("1763984712345678\t502\t412"), None);
        assert_eq!(latency("1763984712345678\t200"), None);
    }
}
