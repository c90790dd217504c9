//! mosquitto with a user and a password, and its own log of messages.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::agent::outcome;
use crate::process::Process;
use crate::workload::wait_for_listener;

/// A running mosquitto, before any connection.
#[derive(Debug)]
pub struct Mosquitto {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    log: PathBuf,
}

impl Mosquitto {
    /// Starts it in `dir`, for a user with this name and password.
    pub fn start(dir: &Path, user: &str, password: &str) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], crate::free_port()));
        let find = |program: &str| crate::find(program).unwrap_or_else(|| panic!("no {program}"));
        let [passwords, log, config] = ["passwords", "messages.log", "mosquitto.conf"].map(|name| dir.join(name));
        let mut command = Command::new(find("mosquitto_passwd"));
        command.arg("-b").arg("-c").arg(&passwords).args([user, password]);
        assert_eq!(outcome(&mut command, "mosquitto_passwd").code, Some(0), "mosquitto_passwd");
        let text = format!(
            "listener {} 127.0.0.1\nuser root\nallow_anonymous false\npassword_file {}\nlog_type all\nlog_dest file {}\n",
            address.port(),
            passwords.display(),
            log.display()
        );
        std::fs::write(&config, text).unwrap_or_else(|error| panic!("{}: {error}", config.display()));
        let mut command = Command::new(find("mosquitto"));
        command.arg("-c").arg(&config).env("OTEL_SERVICE_NAME", "mosquitto");
        let mut process = Process::start("mosquitto", &mut command, &dir.join("mosquitto.log"));
        wait_for_listener(&mut process, address);
        Self { process, address, log }
    }

    /// Messages its log says it received (`Received`) or sent (`Sending`), by topic.
    pub fn counted(&self, what: &str) -> BTreeMap<String, u64> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_else(|error| panic!("{}: {error}", self.log.display()));
        let begins = format!("{what} PUBLISH ");
        let mut counts = BTreeMap::new();
        for line in text.lines().filter(|line| line.contains(&begins)) {
            let topic = line.split('\'').nth(1).unwrap_or_else(|| panic!("no topic: {line}"));
            *counts.entry(topic.to_owned()).or_default() += 1;
        }
        counts
    }
}
