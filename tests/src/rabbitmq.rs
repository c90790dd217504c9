//! RabbitMQ with directories, ports and a name service of its own, and its own counters.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::agent::outcome;
use crate::process::Process;
use crate::wait;

/// Where the distribution has its scripts: those on `PATH` become another user, and use the system's directories.
const SCRIPTS: &str = "/usr/lib/rabbitmq/bin";

/// A running RabbitMQ, before any connection.
#[derive(Debug)]
pub struct RabbitMq {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    /// Where it listens for STOMP, if enabled.
    pub stomp: Option<SocketAddr>,
    home: PathBuf,
    ports: [u16; 3],
    /// Its name service, which would otherwise keep running.
    _names: Process,
}

/// Whether RabbitMQ is installed.
pub fn is_there() -> bool {
    Path::new(SCRIPTS).join("rabbitmq-server").exists() && crate::find("epmd").is_some()
}

impl RabbitMq {
    /// Starts it in `dir`, for a user with this name and password.
    pub fn start(dir: &Path, user: &str, password: &str) -> Self {
        Self::start_with(dir, user, password, None)
    }

    /// The same, with STOMP enabled.
    pub fn start_with_stomp(dir: &Path, user: &str, password: &str) -> Self {
        let stomp = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        for (file, text) in [
            ("plugins", "[rabbitmq_stomp].\n".to_owned()),
            ("rabbitmq.conf", format!("stomp.listeners.tcp.1 = {stomp}\n")),
        ] {
            let file = dir.join(file);
            std::fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        Self::start_with(dir, user, password, Some(stomp))
    }

    fn start_with(dir: &Path, user: &str, password: &str, stomp: Option<SocketAddr>) -> Self {
        let ports = [(); 3].map(|()| crate::free_port());
        let epmd = crate::find("epmd").unwrap_or_else(|| panic!("no epmd"));
        let mut command = Command::new(epmd);
        command.args(["-address", "127.0.0.1", "-port", &ports[2].to_string()]);
        let names = Process::start("epmd", &mut command, &dir.join("epmd.log"));
        let mut command = script("rabbitmq-server", dir, ports);
        command.env("OTEL_SERVICE_NAME", "rabbitmq");
        let mut process = Process::start("rabbitmq", &mut command, &dir.join("rabbitmq.log"));
        let limit = Duration::from_secs(180);
        wait("rabbitmq to start", limit, || {
            assert!(process.ended().is_none(), "rabbitmq ended:\n{}", process.output());
            process.output().contains("completed with").then_some(())
        });
        let address = SocketAddr::from(([127, 0, 0, 1], ports[0]));
        let server = Self { process, address, stomp, home: dir.into(), ports, _names: names };
        server.control(&["add_user", user, password]);
        server.control(&["set_permissions", user, ".*", ".*", ".*"]);
        server
    }

    /// Runs rabbitmqctl and returns its output.
    fn control(&self, arguments: &[&str]) -> String {
        let mut command = script("rabbitmqctl", &self.home, self.ports);
        let done = outcome(command.args(arguments), "rabbitmqctl");
        assert_eq!(done.code, Some(0), "rabbitmqctl {}: {}{}", arguments[0], done.out, done.err);
        done.out
    }

    /// Its counters of these names, summed over all kinds of queues.
    pub fn counted(&self, names: &[&str]) -> Vec<u64> {
        let text = self.control(&["eval", "rabbit_global_counters:overview()."]);
        let words: Vec<&str> =
            text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty()).collect();
        let of = |name: &str| -> u64 {
            let found = words.windows(2).filter(|pair| pair.first() == Some(&name));
            let values: Vec<u64> = found.filter_map(|pair| pair.get(1)?.parse().ok()).collect();
            assert!(!values.is_empty(), "no counter {name}: {text}");
            values.iter().sum()
        };
        names.iter().map(|name| of(name)).collect()
    }
}

/// One of its scripts, with every default of the system overridden.
fn script(name: &str, home: &Path, ports: [u16; 3]) -> Command {
    let [port, distribution, names] = ports.map(|port| port.to_string());
    let mut command = Command::new(Path::new(SCRIPTS).join(name));
    command.env("HOME", home);
    for (key, value) in [
        ("RABBITMQ_NODENAME", "tracer-test@localhost"),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1"),
        ("RABBITMQ_NODE_PORT", &port),
        ("RABBITMQ_DIST_PORT", &distribution),
        ("ERL_EPMD_PORT", &names),
        ("ERL_EPMD_ADDRESS", "127.0.0.1"),
        // One scheduler that does not spin: its own load would disturb.
        (
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
        ),
    ] {
        command.env(key, value);
    }
    for (key, file) in [
        ("RABBITMQ_MNESIA_BASE", "mnesia"),
        ("RABBITMQ_LOG_BASE", "log"),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", "plugins"),
        ("RABBITMQ_CONFIG_FILE", "rabbitmq"),
        ("RABBITMQ_CONF_ENV_FILE", "none.env"),
        ("RABBITMQ_PID_FILE", "pid"),
        ("RABBITMQ_SCHEMA_DIR", "schema"),
        ("RABBITMQ_GENERATED_CONFIG_DIR", "generated"),
    ] {
        command.env(key, home.join(file));
    }
    command
}
