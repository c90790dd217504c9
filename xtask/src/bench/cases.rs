//! The cases: which program does what under which load.

mod local;
mod nginx;
mod pairs;
mod postgres;
mod redis;
mod sleeper;
mod tls;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::results::Sample;
use super::sched::{self, Urgency};
use crate::supervised_child::SupervisedChild;

use pairs::Pair;
pub(crate) use sleeper::serve as sleeper;
use tls::ServerProgram;

/// A case and its properties.
pub(super) struct Case {
    /// As `--case` takes it; the first letter alone selects all cases that share it.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) operation: &'static str,
    /// Services the agent traces, which excludes load generators; everything when empty.
    pub(super) services: &'static [&'static str],
    /// The load does not depend on the server's speed.
    pub(super) fixed_rate: bool,
    /// Peers are measured here too.
    pub(super) peers: bool,
    kind: CaseKind,
}

enum CaseKind {
    Nginx {
        connections: usize,
        rate: Option<u32>,
        one_core: bool,
    },
    Redis {
        rate: Option<u32>,
    },
    Sleeper,
    Postgres,
    Idle,
    Calls,
    Switches,
    Pair(Pair),
    TlsServer(ServerProgram),
    /// By a shared library of libcurl's.
    TlsClient(&'static str),
}

const NGINX: Case = Case {
    name: "",
    title: "",
    operation: "request",
    services: &["nginx"],
    fixed_rate: false,
    peers: false,
    kind: CaseKind::Idle,
};
// Some distributions name its program's file so.
const REDIS: Case = Case { operation: "command", services: &["redis-server", "redis-check-rdb"], ..NGINX };
const ALL: Case = Case { services: &[], ..NGINX };

/// Every case, in the order of the list.
pub(super) const CASES: &[Case] = &[
    Case { name: "a1", title: "nginx, 1 connection", kind: nginx(1, false), ..NGINX },
    Case { name: "a16", title: "nginx, 16 connections", peers: true, kind: nginx(16, false), ..NGINX },
    Case { name: "a16s", title: "nginx, 16 connections, server and load on one core", kind: nginx(16, true), ..NGINX },
    Case { name: "a256", title: "nginx, 256 connections", kind: nginx(256, false), ..NGINX },
    Case {
        name: "a10k",
        title: "nginx, 10 000 a second",
        fixed_rate: true,
        kind: CaseKind::Nginx { connections: 16, rate: Some(10_000), one_core: false },
        ..NGINX
    },
    Case {
        name: "b10k",
        title: "Redis GET, 10 000 a second",
        fixed_rate: true,
        kind: CaseKind::Redis { rate: Some(10_000) },
        ..REDIS
    },
    Case { name: "bmax", title: "Redis GET, saturated", kind: CaseKind::Redis { rate: None }, ..REDIS },
    Case {
        name: "c",
        title: "HTTP server that sleeps 5 ms, 1000 a second",
        services: &[sleeper::SERVICE],
        fixed_rate: true,
        kind: CaseKind::Sleeper,
        ..NGINX
    },
    Case {
        name: "d",
        title: "PostgreSQL, pgbench -S",
        operation: "query",
        services: &["postgres"],
        kind: CaseKind::Postgres,
        ..NGINX
    },
    Case { name: "e", title: "idle host", operation: "second", kind: CaseKind::Idle, ..ALL },
    Case { name: "f", title: "system calls without a network", operation: "call", kind: CaseKind::Calls, ..ALL },
    Case { name: "g", title: "context switches (pipe ping-pong)", operation: "round", kind: CaseKind::Switches, ..ALL },
    Case {
        name: "h",
        title: "Redis, one client, PING",
        operation: "round",
        kind: CaseKind::Pair(Pair::Requests),
        ..ALL
    },
    Case {
        name: "i",
        title: "SMTP, timed by turns, NOOP",
        operation: "round",
        kind: CaseKind::Pair(Pair::Turns),
        ..ALL
    },
    Case { name: "j", title: "UDP that is no DNS", operation: "round", kind: CaseKind::Pair(Pair::Datagrams), ..ALL },
    Case {
        name: "knginx",
        title: "nginx over TLS, 16 connections",
        kind: CaseKind::TlsServer(ServerProgram::Nginx),
        ..NGINX
    },
    Case {
        name: "kgo",
        title: "net/http over Go's crypto/tls, 16 connections",
        services: &["tls_serve"],
        kind: CaseKind::TlsServer(ServerProgram::Go),
        ..NGINX
    },
    Case {
        name: "krustls",
        title: "hyper over rustls, 16 connections",
        services: &["tls-pair"],
        kind: CaseKind::TlsServer(ServerProgram::Rustls),
        ..NGINX
    },
    Case {
        name: "knode",
        title: "Node.js over TLS, 16 connections",
        services: &["tls_node"],
        kind: CaseKind::TlsServer(ServerProgram::Node),
        ..NGINX
    },
    Case {
        name: "kgnutls",
        title: "a client by GnuTLS, of nginx, 1 connection",
        kind: CaseKind::TlsClient("libcurl-gnutls.so.4"),
        ..ALL
    },
    Case {
        name: "knss",
        title: "a client by NSS, of nginx, 1 connection",
        kind: CaseKind::TlsClient("libcurl-nss.so.4"),
        ..ALL
    },
];

const fn nginx(connections: usize, one_core: bool) -> CaseKind {
    CaseKind::Nginx { connections, rate: None, one_core }
}

/// A program under load.
pub(super) trait Workload {
    /// One run.
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample>;

    /// The process whose cost is measured, if the workload runs one of its own.
    fn server(&self) -> Option<i32> {
        None
    }
}

impl Case {
    /// The cases named in a list, in the order of all; all if it is empty.
    pub(super) fn selected(names: &[String]) -> Result<Vec<&'static Self>> {
        let fits = |case: &Self, name: &str| case.name == name || (name.len() == 1 && case.name.starts_with(name));
        for name in names {
            if !CASES.iter().any(|case| fits(case, name)) {
                let all: Vec<_> = CASES.iter().map(|case| case.name).collect();
                bail!("there is no case `{name}`: they are {} (a letter alone takes all it begins)", all.join(", "));
            }
        }
        Ok(CASES.iter().filter(|case| names.is_empty() || names.iter().any(|name| fits(case, name))).collect())
    }

    /// Names of all, in order.
    pub(super) fn names() -> Vec<&'static str> {
        CASES.iter().map(|case| case.name).collect()
    }

    /// Whether throughput or latency can be compared: an idle host has neither.
    pub(super) fn paired(&self) -> bool {
        !matches!(self.kind, CaseKind::Idle)
    }

    /// Whether text of TLS is traced, by probes that attach to a program's files once it runs.
    pub(super) fn has_text(&self) -> bool {
        matches!(self.kind, CaseKind::TlsServer(_) | CaseKind::TlsClient(_))
    }

    /// Starts the program, in a directory of its own.
    pub(super) fn start(&self, dir: &Path) -> Result<Box<dyn Workload>> {
        let dir = dir.join(self.name);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(match self.kind {
            CaseKind::Nginx { connections, rate, one_core } => {
                let core = if one_core { sched::SERVER } else { sched::load_core() };
                Box::new(nginx::Nginx::start(&dir, connections, rate, core)?)
            }
            CaseKind::Redis { rate } => Box::new(redis::Redis::start(&dir, rate)?),
            CaseKind::Sleeper => Box::new(sleeper::Sleeper::start(&dir)?),
            CaseKind::Postgres => Box::new(postgres::Postgres::start(&dir)?),
            CaseKind::Idle => Box::new(Idle),
            CaseKind::Calls => Box::new(local::Calls::new(&dir)?),
            CaseKind::Switches => Box::new(local::Switches),
            CaseKind::Pair(pair) => Box::new(pair),
            CaseKind::TlsServer(by) => Box::new(tls::TlsServer::start(by, &dir)?),
            CaseKind::TlsClient(library) => Box::new(tls::TlsClient::start(library, &dir)?),
        })
    }
}

/// No load.
struct Idle;

impl Workload for Idle {
    fn run(&mut self, time: Duration, _: Urgency) -> Result<Sample> {
        std::thread::sleep(time);
        // Costs per operation are costs per second here.
        Ok(Sample { operations: time.as_secs().max(1), seconds: time.as_secs_f64(), ..Sample::default() })
    }
}

/// A server in a process of its own (and its children), pinned to the server's core.
struct Server {
    child: SupervisedChild,
    pid: i32,
    urgency: Option<Urgency>,
}

impl Server {
    /// Waits until `answers` returns true; shows `log` if it never does.
    fn ready(mut child: SupervisedChild, log: &Path, mut answers: impl FnMut() -> bool) -> Result<Self> {
        let until = Instant::now() + Duration::from_secs(20);
        while !answers() {
            if child.ended()?.is_some() || Instant::now() > until {
                bail!("a server does not answer: {}", std::fs::read_to_string(log).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = child.pid()?;
        Ok(Self { child, pid, urgency: None })
    }

    /// Gives it the run's urgency.
    fn place(&mut self, urgency: Urgency) -> Result<()> {
        if let Some(status) = self.child.ended()? {
            bail!("the server has ended: {status}");
        }
        if self.urgency != Some(urgency) {
            sched::place_processes(&sched::tree(self.pid), urgency, Some(sched::SERVER))?;
            self.urgency = Some(urgency);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_selected_by_letter_and_by_name() {
        let names = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(ToString::to_string).collect();
            Case::selected(&list).map(|cases| cases.iter().map(|case| case.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["a"]).expect("a"), ["a1", "a16", "a16s", "a256", "a10k"]);
        assert_eq!(names(&["g", "a16"]).expect("g"), ["a16", "g"]);
        assert_eq!(names(&[]).expect("all").len(), CASES.len());
        assert!(names(&["z"]).expect_err("z").to_string().contains("a16, "));
        assert!(names(&["a2"]).is_err());
    }
}
