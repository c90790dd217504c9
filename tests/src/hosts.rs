//! Hosts of a test: the namespaces of a [`Star`], and the agents on them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use crate::agent::{Agent, binary};
pub use crate::star::Nat;
use crate::star::Star;

/// The tests' agents keep a member of baggage of each transaction; and a service class set by the application's agent.
const LADEN: &str = "[transactions]\nbaggage = [\"tenant\"]\n\
    [[class]]\nname = \"laden\"\nservice_class = \"gold\"\nservice = \"application\"\npath = \"/hop/laden*\"\n";

/// Relay port of the hosts' agents.
pub const RELAY: u16 = 19465;

/// The hosts; removed when dropped.
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

    /// Gives all hosts IPv6 addresses, too.
    pub fn six(&self) {
        self.star.six(self.count).unwrap_or_else(|error| panic!("{error}"));
    }

    /// A host's own IPv6 address, after [`Self::six`].
    pub fn own_six(&self, host: u8) -> Ipv6Addr {
        self.star.own_six(host)
    }

    /// Cuts the agents off from each other, or reconnects them.
    pub fn cut(&self, cut: bool) {
        self.star.cut(cut).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The router drops this percentage of all packets.
    pub fn lose(&self, percent: u8) {
        self.star.lose(percent).unwrap_or_else(|error| panic!("{error}"));
    }

    /// A host's own address.
    pub fn own(&self, host: u8) -> Ipv4Addr {
        self.star.own(host)
    }

    /// The address other hosts use for it.
    pub fn address(&self, host: u8) -> Ipv4Addr {
        self.star.address(host)
    }

    /// The command that runs `program` on a host.
    pub fn command(&self, host: u8, program: &Path) -> Command {
        let [nsenter, net, end] = self.star.enter(host).unwrap_or_else(|error| panic!("{error}"));
        let mut command = Command::new(nsenter);
        command.args([net, end]).arg(program);
        command
    }

    /// Runs `act` on a host, in a thread of its own. It must not start processes: they would end with the thread.
    pub fn inside<T: Send>(&self, host: u8, act: impl FnOnce() -> T + Send) -> T {
        self.star.inside(host, act).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts an agent on a host, with a key all of them share; `named` configures the others' addresses.
    pub fn agent(&self, host: u8, name: &str, dir: &Path, named: bool, arguments: &[&str]) -> Agent {
        let others: Vec<SocketAddr> =
            (1..=self.count).filter(|other| named && *other != host).map(|other| self.relay(other)).collect();
        let key = key(dir).display().to_string();
        self.speaking(host, name, dir, (&["--relay-key", &key], &others), arguments)
    }

    /// The relay address of a host's agent.
    pub fn relay(&self, host: u8) -> SocketAddr {
        SocketAddr::from((self.own(host), RELAY))
    }

    /// Starts an agent on a host; the options `trust` authenticate other agents, and `others` are their addresses.
    pub fn speaking(
        &self,
        host: u8,
        name: &str,
        dir: &Path,
        trust: (&[&str], &[SocketAddr]),
        arguments: &[&str],
    ) -> Agent {
        self.configured(host, name, dir, trust, "", arguments)
    }

    /// The same, with additional lines under `[relay]`.
    pub fn configured(
        &self,
        host: u8,
        name: &str,
        dir: &Path,
        (trust, others): (&[&str], &[SocketAddr]),
        relay: &str,
        arguments: &[&str],
    ) -> Agent {
        let listen = self.relay(host).to_string();
        let config = dir.join(format!("{name}.toml"));
        let text = format!("[relay]\nport = {RELAY}\n{relay}\n{LADEN}");
        std::fs::write(&config, text).unwrap_or_else(|error| panic!("{}: {error}", config.display()));
        let config = config.display().to_string();
        let mut all = vec!["--own-netns", "--config", &config, "--relay", &listen];
        let others: Vec<String> = others.iter().map(ToString::to_string).collect();
        for other in &others {
            all.extend(["--relay-peer", other]);
        }
        all.extend(trust);
        all.extend(arguments);
        let transactions = dir.join(format!("{name}.ndjson"));
        let agent = Agent::launch_by(self.command(host, &binary()), name, dir, &transactions, &all);
        self.inside(host, || agent.ready())
    }
}

/// The file with the key [`KEY`].
fn key(dir: &Path) -> std::path::PathBuf {
    secret(&dir.join("key"), &format!("{KEY:02x}").repeat(32))
}

/// Each byte of the tests' shared key.
pub const KEY: u8 = 0x5a;

/// Writes a file that only its owner can read, unless it exists.
pub fn secret(path: &Path, text: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    if !path.exists() {
        std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap_or_else(|error| panic!("{error}"));
    }
    path.to_owned()
}
