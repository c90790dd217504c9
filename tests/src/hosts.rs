//! Hosts of a test: the namespaces of a [`Star`], and agents on them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use crate::agent::{Agent, binary};
pub use crate::star::Nat;
use crate::star::Star;

/// Port the agents of hosts speak to each other on.
pub const RELAY: u16 = 19465;

/// The hosts; gone when dropped.
#[derive(Debug)]
pub struct Hosts {
    star: Star,
    count: u8,
}

impl Hosts {
    /// Makes `count` hosts around a router.
    pub fn new(count: u8, nat: Nat) -> Self {
        let star = Star::new("trt", count, nat, RELAY).unwrap_or_else(|error| panic!("{error}"));
        Self { star, count }
    }

    /// Agents do not reach each other any more, or do again.
    pub fn cut(&self, cut: bool) {
        self.star.cut(cut).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The router loses so many percent of all packets.
    pub fn lose(&self, percent: u8) {
        self.star.lose(percent).unwrap_or_else(|error| panic!("{error}"));
    }

    /// A host's own address.
    pub fn own(&self, host: u8) -> Ipv4Addr {
        self.star.own(host)
    }

    /// The address others call it by.
    pub fn address(&self, host: u8) -> Ipv4Addr {
        self.star.address(host)
    }

    /// What runs `program` on a host.
    pub fn command(&self, host: u8, program: &Path) -> Command {
        let [nsenter, net, end] = self.star.enter(host).unwrap_or_else(|error| panic!("{error}"));
        let mut command = Command::new(nsenter);
        command.args([net, end]).arg(program);
        command
    }

    /// Does something on a host, in a thread of its own. Must not start processes: they end with the thread.
    pub fn inside<T: Send>(&self, host: u8, act: impl FnOnce() -> T + Send) -> T {
        self.star.inside(host, act).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts an agent on a host, with a key all of them share; `named`: it is told where the others are.
    pub fn agent(&self, host: u8, name: &str, dir: &Path, named: bool, arguments: &[&str]) -> Agent {
        use std::os::unix::fs::PermissionsExt;
        let key = dir.join("key");
        if !key.exists() {
            std::fs::write(&key, "5a".repeat(32)).unwrap_or_else(|error| panic!("{}: {error}", key.display()));
            std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap_or_else(|error| panic!("{error}"));
        }
        let key = key.display().to_string();
        let listen = SocketAddr::from((self.own(host), RELAY)).to_string();
        let config = dir.join(format!("{name}.toml"));
        let text = format!("[relay]\nport = {RELAY}\n");
        std::fs::write(&config, text).unwrap_or_else(|error| panic!("{}: {error}", config.display()));
        let config = config.display().to_string();
        let mut all = vec!["--own-netns", "--config", &config, "--relay", &listen, "--relay-key", &key];
        let others: Vec<String> = (1..=self.count)
            .filter(|other| named && *other != host)
            .map(|other| SocketAddr::from((self.own(other), RELAY)).to_string())
            .collect();
        for other in &others {
            all.extend(["--relay-peer", other]);
        }
        all.extend(arguments);
        let transactions = dir.join(format!("{name}.ndjson"));
        let agent = Agent::launch_by(self.command(host, &binary()), name, dir, &transactions, &all);
        self.inside(host, || agent.ready())
    }
}
