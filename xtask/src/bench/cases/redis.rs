//! Redis: GET of a small value, at a fixed rate or at full speed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Sample, Server, Urgency, Workload, sched};
use crate::bench::agent::free_address;
use crate::bench::generator::Load;
use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;

pub(super) struct Redis {
    server: Server,
    load: Load,
}

const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$7\r\nbench:1\r\n$16\r\n0123456789abcdef\r\n";
const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$7\r\nbench:1\r\n";
const REPLY: &[u8] = b"$16\r\n0123456789abcdef\r\n";

impl Redis {
    pub(super) fn start(dir: &Path, rate: Option<u32>) -> Result<Self> {
        let address = free_address()?;
        let program = shell::find("redis-server").context("redis-server is not installed")?;
        let port = address.port().to_string();
        let args = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"];
        let args: Vec<String> = args.into_iter().map(str::to_owned).chain([dir.display().to_string()]).collect();
        let log = dir.join("log");
        let child = SupervisedChild::start(Root::Already, &program, &args, &[], &log)?;
        let server = Server::ready(child, &log, || TcpStream::connect(address).is_ok())?;
        prepare(address)?;
        // A fixed rate comes from several clients as in production; saturation from as many as redis-benchmark uses.
        let connections = if rate.is_some() { 16 } else { 50 };
        Ok(Self {
            server,
            load: Load { address, request: GET, reply: REPLY.len(), connections, rate, core: sched::load_core() },
        })
    }
}

/// Stores the value and checks that it comes back.
fn prepare(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(address).context("Redis takes no connection")?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).context("cannot set up a socket")?;
    for (request, wanted) in [(SET, &b"+OK\r\n"[..]), (GET, REPLY)] {
        stream.write_all(request).context("cannot ask Redis")?;
        let mut reply = vec![0; wanted.len()];
        stream.read_exact(&mut reply).context("Redis does not answer")?;
        if reply != wanted {
            bail!("Redis answers {:?}", String::from_utf8_lossy(&reply));
        }
    }
    Ok(())
}

impl Workload for Redis {
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
