//! nginx with a directory and configuration of its own, and its access log.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Process;
use crate::workload::wait_for_listener;

/// A running nginx.
#[derive(Debug)]
pub struct Nginx {
    /// Its master process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its access log.
    pub access_log: PathBuf,
}

/// One line of the access log.
#[derive(Clone, Debug, PartialEq)]
pub struct Logged {
    /// When it was written, seconds since the epoch.
    pub at: f64,
    /// `$request_time`, seconds, in steps of a millisecond.
    pub duration_s: f64,
    /// Status; 499 if the client closed first.
    pub status: u16,
    /// Bytes of the reply's body that were sent.
    pub body: u64,
    /// Method.
    pub method: String,
    /// Target as sent.
    pub uri: String,
    /// Whether the reply was sent to its end.
    pub complete: bool,
}

impl Logged {
    /// Path without the query.
    pub fn path(&self) -> &str {
        self.uri.split('?').next().unwrap_or_default()
    }
}

impl Nginx {
    /// Starts it in `dir` with two workers; `http` and `server` are configuration inside these blocks.
    ///
    /// `epoll_events 1` makes nginx read the clock before each event it handles: `$request_time` uses its cached time,
    /// which would otherwise be as old as its last wait.
    pub fn start(dir: &Path, http: &str, server: &str) -> Self {
        Self::with_priority(dir, -10, http, server)
    }

    /// As [`Self::start`], its workers at this nice value: one that waits for a CPU between two events logs a time that
    /// has passed.
    pub fn with_priority(dir: &Path, nice: i32, http: &str, server: &str) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        let access_log = dir.join("access.log");
        let base = dir.display();
        let configuration = format!(
            r"user root;
worker_processes 2;
worker_priority {nice};
pid {base}/nginx.pid;
error_log {base}/error.log warn;
events {{ worker_connections 1024; use epoll; epoll_events 1; }}
http {{
    log_format truth '$msec $request_time $status $body_bytes_sent [$request_completion] $request_method $request_uri';
    access_log {base}/access.log truth;
    client_body_temp_path {base}/body;
    proxy_temp_path {base}/proxy;
    fastcgi_temp_path {base}/fastcgi;
    uwsgi_temp_path {base}/uwsgi;
    scgi_temp_path {base}/scgi;
    default_type text/plain;
    sendfile on;
    tcp_nodelay on;
    keepalive_requests 1000000;
    {http}
    server {{
        listen {address} backlog=1024;
        root {base}/www;
        {server}
    }}
}}
"
        );
        let file = dir.join("nginx.conf");
        std::fs::write(&file, configuration).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let program = crate::find("nginx").unwrap_or_else(|| panic!("no nginx"));
        let mut command = Command::new(program);
        command
            .arg("-p")
            .arg(dir)
            .arg("-c")
            .arg(&file)
            .arg("-e")
            .arg(dir.join("error.log"))
            .args(["-g", "daemon off;"]);
        let mut process = Process::start("nginx", &mut command, &dir.join("nginx.log"));
        wait_for_listener(&mut process, address);
        Self { process, address, access_log }
    }

    /// Every line logged so far.
    pub fn logged(&self) -> Vec<Logged> {
        let text = std::fs::read_to_string(&self.access_log).unwrap_or_default();
        let whole = text.rfind('\n').and_then(|at| text.get(..at)).unwrap_or_default();
        whole.lines().map(|line| parse(line).unwrap_or_else(|| panic!("access log: {line}"))).collect()
    }
}

fn parse(line: &str) -> Option<Logged> {
    let mut fields = line.splitn(7, ' ');
    Some(Logged {
        at: fields.next()?.parse().ok()?,
        duration_s: fields.next()?.parse().ok()?,
        status: fields.next()?.parse().ok()?,
        body: fields.next()?.parse().ok()?,
        complete: fields.next()? == "[OK]",
        method: fields.next()?.to_owned(),
        uri: fields.next()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log() {
        let logged = parse("1700000000.123 0.045 200 1048576 [OK] GET /u/1/f?q=1").unwrap();
        assert_eq!(logged.path(), "/u/1/f");
        assert_eq!((logged.status, logged.body, logged.complete), (200, 1048576, true));
        assert!(!parse("1700000000.123 0.000 400 0 [] - -").unwrap().complete);
        assert_eq!(parse("1 2 3"), None);
    }
}
