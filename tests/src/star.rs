//! Network namespaces as hosts: a star around a router that can translate addresses. `cargo xtask demo --hosts` uses it
//! too, so nothing here panics.
//!
//! Host `n` is 10.211.`n`.2; the router is 10.211.`n`.1 there (fd00:d3:`n`::2 and ::1, if wanted). With destination
//! translation, host `n` is also reachable as 10.211.100.`n`; with source translation the router appears as every
//! caller. One port is never translated: the agents' relay port.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::find;

/// Removes namespaces when its input ends: when the star is dropped, or when we die for any reason.
const BROOM: &str = r#"
trap '' INT TERM HUP
ip=$1; shift
read -r _
for name in "$@"; do "$ip" netns del "$name"; done
"#;

/// The router's address translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat {
    /// Callers use another address of a service than its own.
    pub destination: bool,
    /// Services see another address than their caller's.
    pub source: bool,
}

/// The namespaces; removed when dropped, and when this process dies.
#[derive(Debug)]
pub struct Star {
    prefix: String,
    nat: Nat,
    relay: u16,
    broom: Child,
}

fn needed(program: &str) -> io::Result<std::path::PathBuf> {
    find(program).ok_or_else(|| io::Error::other(format!("{program} is not installed")))
}

fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let out = Command::new(needed(program)?).args(arguments).stdin(Stdio::null()).output()?;
    if out.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    Err(io::Error::other(format!("`{program} {}` failed: {why}", arguments.join(" "))))
}

impl Star {
    /// Makes `count` hosts around a router. Their names begin with `word` and this process's id; connections to port
    /// `relay` are never translated.
    pub fn new(word: &str, count: u8, nat: Nat, relay: u16) -> io::Result<Self> {
        let prefix = format!("{word}{}h", std::process::id());
        let names = (0..=count).map(|host| format!("{prefix}{host}"));
        let mut broom = Command::new("sh");
        broom.args(["-c", BROOM, "broom"]).arg(needed("ip")?).args(names);
        // In its own group: Ctrl-C is for us.
        broom.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        // From here on an error drops the star, which removes what exists of it.
        let star = Self { prefix, nat, relay, broom: broom.spawn()? };
        let router = star.name(0);
        run("ip", &["netns", "add", &router])?;
        run("ip", &["-n", &router, "link", "set", "lo", "up"])?;
        for host in 1..=count {
            let (name, near, far) = (star.name(host), format!("v{host}"), "eth0");
            run("ip", &["netns", "add", &name])?;
            run("ip", &["-n", &router, "link", "add", &near, "type", "veth", "peer", "name", far, "netns", &name])?;
            run("ip", &["-n", &router, "addr", "add", &format!("10.211.{host}.1/24"), "dev", &near])?;
            run("ip", &["-n", &router, "link", "set", &near, "up"])?;
            run("ip", &["-n", &name, "link", "set", "lo", "up"])?;
            run("ip", &["-n", &name, "addr", "add", &format!("10.211.{host}.2/24"), "dev", far])?;
            run("ip", &["-n", &name, "link", "set", far, "up"])?;
            run("ip", &["-n", &name, "route", "add", "default", "via", &format!("10.211.{host}.1")])?;
        }
        star.inside(0, || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
        let mut rules = "table ip t {\n".to_owned();
        if nat.destination && count > 0 {
            // Unassigned addresses are routed before they are translated.
            run("ip", &["-n", &router, "route", "add", "10.211.100.0/24", "via", "10.211.1.2"])?;
            // The router's own calls, too: a demo's client runs there.
            for (chain, hook) in [("d", "prerouting"), ("o", "output")] {
                rules += &format!("chain {chain} {{ type nat hook {hook} priority -100;\n");
                for host in 1..=count {
                    for what in [format!("tcp dport != {relay}"), "meta l4proto udp".to_owned()] {
                        rules += &format!("ip daddr 10.211.100.{host} {what} dnat to 10.211.{host}.2\n");
                    }
                }
                rules += "}\n";
            }
        }
        if nat.source {
            rules += &format!(
                "chain s {{ type nat hook postrouting priority 100;\ntcp dport != {relay} masquerade random\n\
                 meta l4proto udp masquerade random\n}}\n"
            );
        }
        // Filled while agents are cut off from each other.
        rules += "chain f { type filter hook forward priority 0;\n}\n}\n";
        star.nft(&rules)?;
        Ok(star)
    }

    /// Gives the first `count` hosts IPv6 addresses, too; they are never translated.
    pub fn six(&self, count: u8) -> io::Result<()> {
        let router = self.name(0);
        for host in 1..=count {
            let (name, near, net) = (self.name(host), format!("v{host}"), format!("fd00:d3:{host:x}::"));
            run("ip", &["-n", &router, "addr", "add", &format!("{net}1/64"), "dev", &near, "nodad"])?;
            run("ip", &["-n", &name, "addr", "add", &format!("{net}2/64"), "dev", "eth0", "nodad"])?;
            run("ip", &["-n", &name, "-6", "route", "add", "default", "via", &format!("{net}1")])?;
        }
        self.inside(0, || std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1"))?
    }

    /// Cuts the agents off from each other, or reconnects them.
    pub fn cut(&self, cut: bool) -> io::Result<()> {
        let relay = self.relay;
        let mut rules = "flush chain ip t f\n".to_owned();
        if cut {
            rules += &format!("table ip t {{\nchain f {{\ntcp dport {relay} drop\ntcp sport {relay} drop\n}}\n}}\n");
        }
        self.nft(&rules)
    }

    /// The router drops this percentage of all packets.
    pub fn lose(&self, percent: u8) -> io::Result<()> {
        self.nft(&format!(
            "flush chain ip t f\ntable ip t {{\nchain f {{\nnumgen random mod 100 < {percent} drop\n}}\n}}\n"
        ))
    }

    fn nft(&self, rules: &str) -> io::Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), rules)?;
        let nft = needed("nft")?.display().to_string();
        run("ip", &["netns", "exec", &self.name(0), &nft, "-f", &file.path().display().to_string()])
    }

    /// The name of a host's namespace; 0 is the router's.
    pub fn name(&self, host: u8) -> String {
        format!("{}{host}", self.prefix)
    }

    /// A host's own address.
    pub fn own(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 211, host, 2)
    }

    /// A host's own IPv6 address.
    pub fn own_six(&self, host: u8) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0xd3, u16::from(host), 0, 0, 0, 0, 2)
    }

    /// The address other hosts use for it.
    pub fn address(&self, host: u8) -> Ipv4Addr {
        if self.nat.destination { Ipv4Addr::new(10, 211, 100, host) } else { self.own(host) }
    }

    /// Command prefix that runs a command on a host.
    pub fn enter(&self, host: u8) -> io::Result<[String; 3]> {
        let nsenter = needed("nsenter")?.display().to_string();
        Ok([nsenter, format!("--net=/run/netns/{}", self.name(host)), "--".to_owned()])
    }

    /// Runs `act` on a host, in a thread of its own. It must not start processes that outlive it.
    pub fn inside<T: Send>(&self, host: u8, act: impl FnOnce() -> T + Send) -> io::Result<T> {
        let path = format!("/run/netns/{}", self.name(host));
        std::thread::scope(|scope| {
            let done = scope.spawn(move || {
                let wrong = |error: io::Error| io::Error::other(format!("{path}: {error}"));
                let file = File::open(&path).map_err(wrong)?;
                // SAFETY: a plain system call; only this thread changes its namespace, and ends with it.
                if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                    return Err(wrong(io::Error::last_os_error()));
                }
                Ok(act())
            });
            done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Star {
    fn drop(&mut self) {
        self.broom.stdin = None;
        // Bounded: a few short commands.
        let _ = self.broom.wait();
    }
}
