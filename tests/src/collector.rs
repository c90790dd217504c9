//! An OpenTelemetry collector that prints what it receives.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::Process;
use crate::{find, free_port, wait};

/// Starts one that prints a signal (`traces`, `metrics`, `logs`); returns where it listens for gRPC and for HTTP.
pub fn start(dir: &Path, signal: &str) -> (Process, [String; 2]) {
    let endpoint = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)).to_string());
    let program = find("rotel-agent").unwrap_or_else(|| panic!("no rotel-agent"));
    let mut command = Command::new(program);
    command.args(["start", "--exporter", "blackhole", "--debug-log", signal, "--debug-log-verbosity", "detailed"]);
    command.args(["--otlp-grpc-endpoint", &endpoint[0], "--otlp-http-endpoint", &endpoint[1]]);
    let collector = Process::start("rotel", &mut command, &dir.join("rotel.log"));
    wait("the collector", Duration::from_secs(20), || {
        endpoint.iter().all(|endpoint| TcpStream::connect(endpoint).is_ok()).then_some(())
    });
    (collector, endpoint)
}
