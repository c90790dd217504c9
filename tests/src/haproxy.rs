//! HAProxy with a configuration of its own, in front of other servers.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::process::Process;
use crate::workload::wait_for_listener;

/// One route through it.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// `http` or `tcp`.
    pub mode: &'static str,
    /// The address it forwards to.
    pub to: SocketAddr,
    /// Further words of its `server` line.
    pub words: &'static str,
}

/// A running HAProxy.
#[derive(Debug)]
pub struct Haproxy {
    /// Its process.
    pub process: Process,
    /// Its listening addresses: one per route.
    pub addresses: Vec<SocketAddr>,
}

impl Haproxy {
    /// Starts it in `dir` with two threads.
    pub fn start(dir: &Path, ways: &[Way]) -> Self {
        let mut configuration = "global\n  nbthread 2\n  maxconn 1000\ndefaults\n  timeout connect 20s\n  \
             timeout client 60s\n  timeout server 60s\n  retries 0\n"
            .to_owned();
        let addresses: Vec<SocketAddr> =
            ways.iter().map(|_| SocketAddr::from(([127, 0, 0, 1], crate::free_port()))).collect();
        for (n, (way, address)) in ways.iter().zip(&addresses).enumerate() {
            let Way { mode, to, words } = way;
            configuration += &format!("listen way{n}\n  mode {mode}\n  bind {address}\n  server one {to} {words}\n");
        }
        let file = dir.join("haproxy.cfg");
        std::fs::write(&file, configuration).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut command = Command::new(crate::find("haproxy").unwrap_or_else(|| panic!("no haproxy")));
        command.arg("-db").arg("-f").arg(&file).current_dir(dir).env("OTEL_SERVICE_NAME", "haproxy");
        let mut process = Process::start("haproxy", &mut command, &dir.join("haproxy.log"));
        for address in &addresses {
            wait_for_listener(&mut process, *address);
        }
        Self { process, addresses }
    }
}
