//! uWSGI with a Python application, and its request log.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::Process;
use crate::workload::wait_for_listener;

/// A running uWSGI that listens in both of its protocols, over TCP and UNIX sockets.
#[derive(Debug)]
pub struct Uwsgi {
    /// Its master process.
    pub process: Process,
    /// Where it listens for uwsgi.
    pub address: SocketAddr,
    /// The same on a UNIX socket.
    pub socket: PathBuf,
    /// Where it listens for SCGI.
    pub scgi_address: SocketAddr,
    /// The same on a UNIX socket.
    pub scgi_socket: PathBuf,
    log: PathBuf,
}

/// One line of its log.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Method.
    pub method: String,
    /// Path.
    pub path: String,
    /// Status.
    pub status: u16,
    /// Seconds.
    pub duration_s: f64,
}

/// Prefix of request lines in the log: all its output goes to one file.
const MARK: &str = "served:";

impl Uwsgi {
    /// Starts it in `dir` with `application`, a Python file.
    pub fn start(dir: &Path, application: &Path) -> Self {
        let [address, scgi_address] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], crate::free_port())));
        let (socket, scgi_socket, log) = (dir.join("uwsgi.sock"), dir.join("scgi.sock"), dir.join("uwsgi.log"));
        let program = crate::find("uwsgi").unwrap_or_else(|| panic!("no uwsgi"));
        let mut command = Command::new(program);
        command.args(["--plugin", "python3", "--need-app", "--master", "--workers", "4", "--die-on-term"]);
        for (kind, place) in [
            ("--uwsgi-socket", address.to_string()),
            ("--uwsgi-socket", socket.display().to_string()),
            ("--scgi-socket", scgi_address.to_string()),
            ("--scgi-socket", scgi_socket.display().to_string()),
        ] {
            command.args([kind, &place]);
        }
        command.args(["--chmod-socket=666", "--listen", "100", "--wsgi-file"]).arg(application);
        command.args(["--log-format", &format!("{MARK} %(method) %(var.PATH_INFO) %(status) %(micros)")]);
        let mut process = Process::start("uwsgi", &mut command, &log);
        wait_for_listener(&mut process, address);
        crate::wait("uWSGI's sockets", Duration::from_secs(20), || {
            (socket.exists() && scgi_socket.exists()).then_some(())
        });
        Self { process, address, socket, scgi_address, scgi_socket, log }
    }

    /// Every request logged so far.
    pub fn served(&self) -> Vec<Served> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let whole = text.rfind('\n').and_then(|at| text.get(..at)).unwrap_or_default();
        let lines = whole.lines().filter_map(|line| line.strip_prefix(MARK));
        lines.map(|line| parse(line.trim_start()).unwrap_or_else(|| panic!("uWSGI's log: {line}"))).collect()
    }
}

fn parse(line: &str) -> Option<Served> {
    let mut fields = line.split(' ');
    let served = Served {
        method: fields.next()?.to_owned(),
        path: fields.next()?.to_owned(),
        status: fields.next()?.parse().ok()?,
        duration_s: fields.next()?.parse::<f64>().ok()? / 1e6,
    };
    fields.next().is_none().then_some(served)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log() {
        let served = parse("GET /u/ok 404 1250").unwrap();
        assert_eq!((served.status, served.path.as_str()), (404, "/u/ok"));
        assert!((served.duration_s - 0.00125).abs() < 1e-9);
        assert_eq!(parse("GET /u/ok"), None);
    }
}
