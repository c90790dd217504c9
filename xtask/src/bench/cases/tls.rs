//! A small page over TLS by HTTP/1.1: servers by their TLS library, asked by h2load; and clients by theirs, which ask nginx.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::nginx;
use super::{Sample, Server, Urgency, Workload, sched};
use crate::bench::agent::free_address;
use crate::bench::statistics::permille;
use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;
use crate::{wheels, workloads};

const CONNECTIONS: &str = "16";

/// A server, by its library.
#[derive(Clone, Copy)]
pub(super) enum ServerProgram {
    /// nginx by OpenSSL.
    Nginx,
    /// net/http by crypto/tls.
    Go,
    /// hyper by rustls.
    Rustls,
    /// OpenSSL inside Node.js.
    Node,
}

fn workload(name: &str) -> PathBuf {
    shell::root().join("tests/workloads").join(name)
}

/// Makes a certificate and its key in `dir`; their paths.
fn certificate(dir: &Path) -> Result<[String; 2]> {
    let openssl = shell::find("openssl").context("openssl is not installed; run `cargo xtask setup`")?;
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| dir.join(name).display().to_string());
    let mut command = Command::new(openssl);
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    command.args(["-days", "2", "-subj", "/CN=localhost", "-keyout", &key, "-out", &certificate]);
    shell::output(&mut command)?;
    Ok([certificate, key])
}

/// nginx with the page, in `dir`: the process of its worker, and where it listens.
fn encrypted_nginx(dir: &Path) -> Result<(Server, i32, SocketAddr)> {
    let [certificate, key] = certificate(dir)?;
    let address = free_address()?;
    let listen = format!("listen {address} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};");
    let (server, worker) = nginx::serve(dir, "", &listen, || TcpStream::connect(address).is_ok())?;
    Ok((server, worker, address))
}

/// A program that prints its port, in `dir`. Its arguments are these and its certificate, key and log.
fn printing_its_port(program: &Path, mut args: Vec<String>, dir: &Path) -> Result<(Server, i32, SocketAddr)> {
    args.extend(certificate(dir)?);
    args.push(dir.join("served.log").display().to_string());
    let log = dir.join("log");
    let child = SupervisedChild::start(Root::Already, program, &args, &[], &log)?;
    let port = || fs::read_to_string(&log).ok()?.lines().find_map(|line| line.strip_prefix("PORT ")?.parse().ok());
    let server = Server::ready(child, &log, || port().is_some())?;
    let port: u16 = port().context("a server has printed no port")?;
    let pid = server.pid;
    Ok((server, pid, SocketAddr::from(([127, 0, 0, 1], port))))
}

pub(super) struct TlsServer {
    server: Server,
    /// The process that serves.
    worker: i32,
    url: String,
    load: PathBuf,
    log: PathBuf,
}

impl TlsServer {
    pub(super) fn start(program: ServerProgram, dir: &Path) -> Result<Self> {
        let load = shell::find("h2load").context("h2load is not installed; run `cargo xtask setup`")?;
        let (server, worker, address) = match program {
            ServerProgram::Nginx => encrypted_nginx(dir)?,
            ServerProgram::Go => printing_its_port(&wheels::built_by_go(&workload("tls_serve.go"), dir)?, vec![], dir)?,
            ServerProgram::Rustls => printing_its_port(&workloads::built("tls-pair")?, vec!["serve".to_owned()], dir)?,
            ServerProgram::Node => {
                let node = shell::find("node").context("Node.js is not installed; run `cargo xtask setup`")?;
                let script = workload("tls_node.js").display().to_string();
                printing_its_port(&node, vec![script, "serve".to_owned()], dir)?
            }
        };
        let page = if matches!(program, ServerProgram::Nginx) { "index.html" } else { "now" };
        Ok(Self { server, worker, url: format!("https://{address}/{page}"), load, log: dir.join("requests.log") })
    }
}

impl Workload for TlsServer {
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample> {
        self.server.place(urgency)?;
        if self.log.exists() {
            fs::remove_file(&self.log).context("cannot remove h2load's log")?;
        }
        let before = sched::process_cpu(self.worker)?;
        let mut command = on_the_loads_core(&self.load, urgency);
        let seconds = time.as_secs().max(1);
        command.args(["--h1", "-c", CONNECTIONS, "-D", &seconds.to_string()]);
        command.arg(format!("--log-file={}", self.log.display())).arg(&self.url);
        let text = shell::output(&mut command)?;
        let cpu_ns = sched::process_cpu(self.worker)? - before;
        let log = fs::read_to_string(&self.log).context("cannot read h2load's log")?;
        let latencies: Vec<u64> = log.lines().filter_map(latency).collect();
        if latencies.is_empty() {
            bail!("h2load logged no request that was answered: {text}");
        }
        Ok(sample(latencies, 1.0, seconds as f64, cpu_ns))
    }

    fn server(&self) -> Option<i32> {
        Some(self.worker)
    }
}

/// A client by a library of libcurl's, on one connection.
pub(super) struct TlsClient {
    server: Server,
    library: &'static str,
    url: String,
}

impl TlsClient {
    pub(super) fn start(library: &'static str, dir: &Path) -> Result<Self> {
        let (server, _, address) = encrypted_nginx(dir)?;
        Ok(Self { server, library, url: format!("https://{address}/index.html") })
    }
}

impl Workload for TlsClient {
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample> {
        self.server.place(urgency)?;
        let python = shell::find("python3").context("python3 is not installed; run `cargo xtask setup`")?;
        let mut command = on_the_loads_core(&python, urgency);
        let seconds = time.as_secs_f64();
        command.arg(workload("curl_client.py")).args([self.library, &seconds.to_string(), &self.url]);
        let text = shell::output(&mut command)?;
        let mut numbers: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        let cpu_ns = numbers.pop().context("the client printed nothing")?;
        // In tenths of a microsecond.
        let latencies = numbers.iter().map(|micros| (micros * 10.0) as u64).collect();
        Ok(sample(latencies, 0.1, seconds, cpu_ns as u64))
    }
}

fn on_the_loads_core(program: &Path, urgency: Urgency) -> Command {
    let mut command = Command::new("chrt");
    command.args(if urgency == Urgency::Realtime { ["-r", "1"] } else { ["-o", "0"] });
    command.args(["taskset", "-c", &sched::load_core().to_string()]).arg(program);
    command
}

/// A run by the latencies of its requests, in units of `unit` microseconds.
fn sample(mut latencies: Vec<u64>, unit: f64, seconds: f64, cpu_ns: u64) -> Sample {
    latencies.sort_unstable();
    let [p50, p99, p999] = [500, 990, 999].map(|share| permille(&latencies, share) as f64 * unit);
    Sample { operations: latencies.len() as u64, seconds, p50, p99, p999, cpu_ns }
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
