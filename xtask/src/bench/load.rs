//! The server and the load: nginx with a small static file, wrk, each on a core of its own and in real time.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::http;
use crate::leash::Leash;
use crate::shell::{self, Root};

/// A running nginx.
pub(super) struct Nginx {
    pub(super) address: SocketAddr,
    _leash: Leash,
}

impl Nginx {
    /// Starts it with so many workers; a single one is pinned to the first core.
    pub(super) fn start(dir: &Path, workers: u32) -> Result<Self> {
        let address = free_address()?;
        let base = dir.join(format!("nginx-{workers}"));
        fs::create_dir_all(base.join("www")).context("cannot create a directory")?;
        fs::write(base.join("www/index.html"), "x".repeat(612)).context("cannot write a file")?;
        let affinity = if workers == 1 { "worker_cpu_affinity 01;" } else { "worker_cpu_affinity auto;" };
        let base_text = base.display();
        let configuration = format!(
            "daemon off;\nuser root;\nworker_processes {workers};\n{affinity}\npid {base_text}/pid;\n\
             error_log {base_text}/error.log;\nevents {{ worker_connections 1024; }}\n\
             http {{ access_log off; sendfile on; keepalive_requests 100000000;\n\
             server {{ listen {address}; root {base_text}/www; }} }}\n"
        );
        let file = base.join("nginx.conf");
        fs::write(&file, configuration).with_context(|| format!("cannot write {}", file.display()))?;
        let program = shell::find("nginx").context("nginx is not installed; run `cargo xtask setup`")?;
        let args = [
            "-p".to_owned(),
            base_text.to_string(),
            "-e".to_owned(),
            format!("{base_text}/error.log"),
            "-c".to_owned(),
            file.display().to_string(),
        ];
        let leash = Leash::start(Root::Already, &program, &args, &[], &base.join("log"))?;
        let until = Instant::now() + Duration::from_secs(10);
        while !http::get(address, "/").is_ok_and(|reply| reply.status == 200) {
            if Instant::now() > until {
                bail!("nginx does not answer: {}", fs::read_to_string(base.join("error.log")).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if workers == 1 {
            // Other work on this machine must not be taken for the agent's.
            for pid in pids_of(&base)? {
                shell::output(Command::new("chrt").args(["-r", "-p", "1", &pid]))?;
            }
        }
        Ok(Self { address, _leash: leash })
    }
}

/// Processes of the nginx whose configuration is in `base`: the master and its workers.
fn pids_of(base: &Path) -> Result<Vec<String>> {
    let master = fs::read_to_string(base.join("pid")).context("nginx wrote no pid")?.trim().to_owned();
    let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
    Ok(children.split_whitespace().map(str::to_owned).chain([master.clone()]).collect())
}

/// Where the load runs; the server is on the first core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cores {
    /// On the server's core: throughput is then what CPU both use, and nobody waits to be woken on another core.
    One,
    /// On the last core.
    Two,
    /// Anywhere, as a usual process.
    All,
}

impl Cores {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::One => "nginx and its load on one core",
            Self::Two => "nginx and its load on a core each",
            Self::All => "not pinned",
        }
    }
}

/// What one run of wrk achieved.
pub(super) struct Wrk {
    pub(super) requests: f64,
    pub(super) rate: f64,
}

impl Wrk {
    /// Loads `address` for a while, in real time where it is pinned.
    pub(super) fn run(address: SocketAddr, dir: &Path, cores: Cores, connections: u32, time: Duration) -> Result<Self> {
        let url = format!("http://{address}/");
        let seconds = format!("-d{}", time.as_secs().max(1));
        let mut command = Command::new("chrt");
        let last = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) - 1;
        match cores {
            Cores::One => command.args(["-r", "1", "taskset", "-c", "0"]),
            Cores::Two => command.args(["-r", "1", "taskset", "-c", &last.to_string()]),
            Cores::All => command.args(["-o", "0"]),
        };
        command.args(["wrk", "-t1", &format!("-c{connections}"), &seconds, &url]).current_dir(dir);
        let text = shell::output(&mut command)?;
        let number = |line: Option<&str>| line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
        let requests = number(text.lines().find(|line| line.contains(" requests in ")));
        let rate = number(text.lines().find_map(|line| line.strip_prefix("Requests/sec:")));
        match (requests, rate) {
            (Some(requests), Some(rate)) if requests > 0.0 => Ok(Self { requests, rate }),
            _ => bail!("wrk printed no figures: {text}"),
        }
    }
}

/// A loopback address nobody uses now.
pub(super) fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port on 127.0.0.1")?;
    listener.local_addr().context("cannot read the address of a socket")
}
