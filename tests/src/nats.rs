//! nats-server with a user and a password, and its own counters.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::process::Process;
use crate::workload::wait_for_listener;

/// A running nats-server, before any connection.
#[derive(Debug)]
pub struct Nats {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    monitoring: SocketAddr,
}

/// Its client counters since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Messages it received.
    pub received: u64,
    /// Messages it sent.
    pub sent: u64,
}

impl Nats {
    /// Starts it in `dir`, for a user with this name and password.
    pub fn start(dir: &Path, user: &str, password: &str) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        let monitoring = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        let program = crate::find("nats-server").unwrap_or_else(|| panic!("no nats-server"));
        let mut command = Command::new(program);
        command.args(["--addr", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--http_port", &monitoring.port().to_string(), "--user", user, "--pass", password]);
        command.env("OTEL_SERVICE_NAME", "nats-server");
        let mut process = Process::start("nats-server", &mut command, &dir.join("nats-server.log"));
        wait_for_listener(&mut process, monitoring);
        wait_for_listener(&mut process, address);
        Self { process, address, monitoring }
    }

    /// Its counters.
    pub fn counted(&self) -> Counted {
        let reply = crate::http::get(self.monitoring, "/varz").unwrap_or_else(|error| panic!("/varz: {error}"));
        let text = reply.text();
        let values: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("/varz: {error}: {text}"));
        let number = |name: &str| values[name].as_u64().unwrap_or_else(|| panic!("/varz has no {name}"));
        Counted { received: number("in_msgs"), sent: number("out_msgs") }
    }
}
