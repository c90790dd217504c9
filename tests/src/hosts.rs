//! Network namespaces as hosts: a star around a router that can translate addresses.
//!
//! Host `n` is 10.211.`n`.2; the router is 10.211.`n`.1 there. With translation of destinations, host `n` is also
//! reached as 10.211.100.`n`; with translation of sources the router calls for everybody. Ports of agents are left alone.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use crate::agent::{Agent, binary};
use crate::find;

/// Port the agents of hosts speak to each other on.
pub const RELAY: u16 = 19465;

/// What the router does to addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat {
    /// Services are called by another address than their own.
    pub destination: bool,
    /// Services see another address than their callers'.
    pub source: bool,
}

/// The hosts; gone when dropped.
#[derive(Debug)]
pub struct Hosts {
    prefix: String,
    count: u8,
    nat: Nat,
}

fn run(program: &str, arguments: &[&str]) {
    let path = find(program).unwrap_or_else(|| panic!("no {program}"));
    let out = Command::new(path).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
}

impl Hosts {
    /// Makes `count` hosts around a router.
    pub fn new(count: u8, nat: Nat) -> Self {
        let hosts = Self { prefix: format!("trt{}", std::process::id()), count, nat };
        let router = hosts.name(0);
        run("ip", &["netns", "add", &router]);
        run("ip", &["-n", &router, "link", "set", "lo", "up"]);
        for host in 1..=count {
            let (name, near, far) = (hosts.name(host), format!("v{host}"), "eth0".to_owned());
            run("ip", &["netns", "add", &name]);
            run("ip", &["-n", &router, "link", "add", &near, "type", "veth", "peer", "name", &far, "netns", &name]);
            run("ip", &["-n", &router, "addr", "add", &format!("10.211.{host}.1/24"), "dev", &near]);
            run("ip", &["-n", &router, "link", "set", &near, "up"]);
            run("ip", &["-n", &name, "link", "set", "lo", "up"]);
            run("ip", &["-n", &name, "addr", "add", &format!("10.211.{host}.2/24"), "dev", &far]);
            run("ip", &["-n", &name, "link", "set", &far, "up"]);
            run("ip", &["-n", &name, "route", "add", "default", "via", &format!("10.211.{host}.1")]);
        }
        hosts
            .inside(0, || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))
            .unwrap_or_else(|error| panic!("{error}"));
        let mut rules = "table ip t {\n".to_owned();
        if nat.destination {
            rules += "chain d { type nat hook prerouting priority -100;\n";
            for host in 1..=count {
                rules += &format!("ip daddr 10.211.100.{host} tcp dport != {RELAY} dnat to 10.211.{host}.2\n");
            }
            rules += "}\n";
        }
        if nat.source {
            rules += &format!(
                "chain s {{ type nat hook postrouting priority 100;\ntcp dport != {RELAY} masquerade random\n}}\n"
            );
        }
        // Filled while a test cuts agents off from each other.
        rules += "chain f { type filter hook forward priority 0;\n}\n}\n";
        hosts.nft(&rules);
        hosts
    }

    fn nft(&self, rules: &str) {
        let dir = crate::scratch();
        let file = dir.path().join("rules");
        std::fs::write(&file, rules).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let router = self.name(0);
        run("ip", &["netns", "exec", &router, "nft", "-f", &file.display().to_string()]);
    }

    fn name(&self, host: u8) -> String {
        format!("{}h{host}", self.prefix)
    }

    /// A host's own address.
    pub fn own(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 211, host, 2)
    }

    /// The address others call it by.
    pub fn address(&self, host: u8) -> Ipv4Addr {
        if self.nat.destination { Ipv4Addr::new(10, 211, 100, host) } else { self.own(host) }
    }

    /// Agents do not reach each other any more, or do again.
    pub fn cut(&self, cut: bool) {
        self.nft("flush chain ip t f\n");
        if cut {
            self.nft(&format!("table ip t {{\nchain f {{\ntcp dport {RELAY} drop\ntcp sport {RELAY} drop\n}}\n}}\n"));
        }
    }

    /// What runs `program` on a host.
    pub fn command(&self, host: u8, program: &Path) -> Command {
        let mut command = Command::new(find("nsenter").unwrap_or_else(|| panic!("no nsenter")));
        command.arg(format!("--net=/run/netns/{}", self.name(host))).arg("--").arg(program);
        command
    }

    /// Does something on a host, in a thread of its own. Must not start processes: they end with the thread.
    pub fn inside<T: Send>(&self, host: u8, act: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.name(host));
        std::thread::scope(|scope| {
            let done = scope.spawn(move || {
                let file = File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
                // SAFETY: a plain system call; only this thread changes its namespace, and ends with it.
                let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(entered, 0, "{path}: {}", std::io::Error::last_os_error());
                act()
            });
            done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
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

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in 0..=self.count {
            // One that was not made is not there.
            let _ = Command::new("ip").args(["netns", "del", &self.name(host)]).output();
        }
    }
}
