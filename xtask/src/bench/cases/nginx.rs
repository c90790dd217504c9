//! nginx with a small static file.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Sample, Server, Urgency, Workload, sched};
use crate::bench::agent::free_address;
use crate::bench::generator::Load;
use crate::http;
use crate::shell::{self, Root};
use crate::supervised_child::SupervisedChild;

pub(super) struct Nginx {
    server: Server,
    worker: i32,
    load: Load,
}

const REQUEST: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n";
const BODY: usize = 612;

impl Nginx {
    pub(super) fn start(base: &Path, connections: usize, rate: Option<u32>, core: usize) -> Result<Self> {
        let address = free_address()?;
        let listen = format!("listen {address};");
        let answers = || http::get(address, "/").is_ok_and(|reply| reply.status == 200);
        let (server, worker) = serve(base, "sendfile on; tcp_nopush on;", &listen, answers)?;
        let load = Load { address, request: REQUEST, reply: reply_length(address)?, connections, rate, core };
        Ok(Self { server, worker, load })
    }
}

/// Starts nginx with the file in `dir`; `http` and `server` are configuration inside these blocks. With the process of its
/// worker.
pub(super) fn serve(dir: &Path, http: &str, server: &str, answers: impl FnMut() -> bool) -> Result<(Server, i32)> {
    let program = shell::find("nginx").context("nginx is not installed; run `cargo xtask setup`")?;
    fs::create_dir_all(dir.join("www")).context("cannot create a directory")?;
    fs::write(dir.join("www/index.html"), "x".repeat(BODY)).context("cannot write a file")?;
    let here = dir.display().to_string();
    let configuration = format!(
        "daemon off;\nuser root;\nworker_processes 1;\npid {here}/pid;\nerror_log {here}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; {http} keepalive_requests 100000000;\n\
         server {{ {server} root {here}/www; }} }}\n"
    );
    let file = dir.join("nginx.conf");
    fs::write(&file, configuration).with_context(|| format!("cannot write {}", file.display()))?;
    let errors = dir.join("error.log");
    let args = ["-p", &here, "-e", &errors.to_string_lossy(), "-c", &file.to_string_lossy()].map(str::to_owned);
    let child = SupervisedChild::start(Root::Already, &program, &args, &[], &dir.join("log"))?;
    let server = Server::ready(child, &errors, answers)?;
    let worker = sched::tree(server.pid).get(1).copied().context("nginx has no worker")?;
    Ok((server, worker))
}

/// Length of a whole reply; its date always has the same length.
fn reply_length(address: SocketAddr) -> Result<usize> {
    let mut stream = TcpStream::connect(address).context("nginx takes no connection")?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).context("cannot set up a socket")?;
    stream.write_all(REQUEST).context("cannot ask nginx")?;
    let (mut reply, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut buffer).context("nginx does not answer")?;
        reply.extend_from_slice(buffer.get(..read).unwrap_or_default());
        if let Some(whole) = whole(&reply) {
            return Ok(whole);
        }
        if read == 0 || reply.len() > 8192 {
            bail!("nginx answers {:?}", String::from_utf8_lossy(&reply));
        }
    }
}

/// Length of a reply with our body, once all of it is there.
fn whole(reply: &[u8]) -> Option<usize> {
    let head = reply.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    (reply.starts_with(b"HTTP/1.1 200 ") && reply.len() == head + BODY).then_some(reply.len())
}

impl Workload for Nginx {
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample> {
        self.server.place(urgency)?;
        let before = sched::process_cpu(self.worker)?;
        let sample = self.load.run(time, urgency)?;
        Ok(Sample { cpu_ns: sched::process_cpu(self.worker)? - before, ..sample })
    }

    fn server(&self) -> Option<i32> {
        Some(self.worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_whole_with_its_body() {
        let reply = |status: &str, body: usize| format!("HTTP/1.1 {status} X\r\nA: b\r\n\r\n{}", "x".repeat(body));
        assert_eq!(whole(reply("200", BODY).as_bytes()), Some("HTTP/1.1 200 X\r\nA: b\r\n\r\n".len() + BODY));
        assert_eq!(whole(reply("200", BODY - 1).as_bytes()), None);
        assert_eq!(whole(reply("404", BODY).as_bytes()), None);
        assert_eq!(whole(b"HTTP/1.1 200 OK\r\n"), None);
    }
}
