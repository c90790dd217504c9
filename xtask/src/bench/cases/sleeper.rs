//! A server whose requests sleep 5 ms: only latency shows what a tracer adds.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Sample, Server, Urgency, Workload, sched};
use crate::bench::agent::free_address;
use crate::bench::generator::Load;
use crate::http;
use crate::shell::Root;
use crate::supervised_child::SupervisedChild;

/// Name the agent shows it under.
pub(super) const SERVICE: &str = "bench-sleeper";
const PAUSE: Duration = Duration::from_millis(5);
const REQUEST: &[u8] = b"GET /nap HTTP/1.1\r\nHost: localhost\r\n\r\n";
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nup\n";

pub(super) struct Sleeper {
    server: Server,
    load: Load,
}

impl Sleeper {
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let address = free_address()?;
        let program = std::env::current_exe().context("cannot find xtask's own program")?;
        let (args, log) = (["bench-sleeper".to_owned(), address.to_string()], dir.join("log"));
        let child = SupervisedChild::start(Root::Already, &program, &args, &[("OTEL_SERVICE_NAME", SERVICE)], &log)?;
        let answers = || http::get(address, "/").is_ok_and(|reply| reply.status == 200);
        let server = Server::ready(child, &log, answers)?;
        let (reply, core) = (REPLY.len(), sched::load_core());
        let load = Load { address, request: REQUEST, reply, connections: 64, rate: Some(1000), core };
        Ok(Self { server, load })
    }
}

impl Workload for Sleeper {
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample> {
        self.server.place(urgency)?;
        let before = sched::process_cpu(self.server.pid)?;
        let sample = self.load.run(time, urgency)?;
        Ok(Sample { cpu_ns: sched::process_cpu(self.server.pid)? - before, ..sample })
    }

    fn server(&self) -> Option<i32> {
        Some(self.server.pid)
    }
}

/// `cargo xtask bench-sleeper ADDRESS`: the server, until it is killed.
pub(crate) fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    for stream in listener.incoming() {
        let stream = stream.context("cannot take a connection")?;
        std::thread::Builder::new().spawn(move || answer(&stream)).context("cannot start a thread")?;
    }
    Ok(())
}

/// Answers one connection's requests, each a head without a body, until the client ends it.
fn answer(stream: &TcpStream) {
    let (mut requests, mut replies) = (BufReader::new(stream), stream);
    let mut line = String::new();
    let mut old = false;
    loop {
        line.clear();
        if !requests.read_line(&mut line).is_ok_and(|read| read > 0) {
            return;
        }
        old |= line.ends_with("HTTP/1.0\r\n");
        if line == "\r\n" {
            std::thread::sleep(PAUSE);
            if replies.write_all(REPLY).is_err() || old {
                return;
            }
        }
    }
}
