//! Two threads on one core that exchange requests and replies over loopback: round trips of a protocol that is only
//! timed, requests of one that is decoded, and datagrams that the agent ignores.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::local::{pinned, timed};
use super::{Sample, Urgency, Workload, sched};

/// What the threads send.
#[derive(Clone, Copy)]
pub(super) enum Pair {
    /// Lines of SMTP: recognised, and timed by round trips.
    Turns,
    /// Redis, in the same number of bytes.
    Requests,
    /// Datagrams between ports that do not resolve names.
    Datagrams,
}

impl Pair {
    /// A connection's greeting and its reply, a request and its reply.
    fn words(self) -> [&'static [u8]; 4] {
        match self {
            Self::Turns => [b"EHLO bench\r\n", b"250 bench\r\n", b"NOOP\r\n", b"250 OK\r\n"],
            Self::Requests | Self::Datagrams => [b"PING\r\n", b"+PONG\r\n", b"PING\r\n", b"+PONG\r\n"],
        }
    }
}

impl Workload for Pair {
    fn run(&mut self, time: Duration, urgency: Urgency) -> Result<Sample> {
        match self {
            Self::Datagrams => datagrams(time, urgency, self.words()),
            Self::Turns | Self::Requests => stream(time, urgency, self.words()),
        }
    }
}

/// Runs `serve` beside `ask`, on one core; the CPU time is the sum of both.
fn both(
    urgency: Urgency,
    serve: impl FnOnce() -> Result<()> + Send,
    ask: impl FnOnce() -> Result<Sample> + Send,
) -> Result<Sample> {
    std::thread::scope(|scope| {
        let other = scope.spawn(move || -> Result<u64> {
            sched::place(0, urgency, Some(sched::SERVER))?;
            serve()?;
            Ok(sched::thread_cpu())
        });
        let sample = pinned(urgency, ask);
        let others = other.join().unwrap_or_else(|_| bail!("a thread panicked"));
        sample.and_then(|sample| Ok(Sample { cpu_ns: sample.cpu_ns + others?, ..sample }))
    })
}

fn stream(time: Duration, urgency: Urgency, words: [&'static [u8]; 4]) -> Result<Sample> {
    let [hello, welcome, request, reply] = words;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
    let mut client = TcpStream::connect(listener.local_addr().context("no address")?).context("cannot connect")?;
    let (mut server, _) = listener.accept().context("cannot accept")?;
    for end in [&client, &server] {
        end.set_nodelay(true).context("cannot set up a socket")?;
    }
    let serve = move || -> Result<()> {
        let (mut buffer, mut answer) = ([0; 64], welcome);
        while server.read(&mut buffer).context("cannot read")? > 0 {
            server.write_all(answer).context("cannot answer")?;
            answer = reply;
        }
        Ok(())
    };
    both(urgency, serve, move || {
        let mut buffer = [0; 64];
        let mut ask = |request: &[u8], reply: &[u8]| -> Result<()> {
            client.write_all(request).context("cannot ask")?;
            client.read_exact(buffer.get_mut(..reply.len()).unwrap_or_default()).context("no answer")
        };
        ask(hello, welcome)?;
        timed(time, 1, || ask(request, reply))
    })
}

fn datagrams(time: Duration, urgency: Urgency, [hello, _, request, reply]: [&'static [u8]; 4]) -> Result<Sample> {
    let socket = || -> Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("no socket")?;
        // With one datagram under way at a time, none gets lost.
        socket.set_read_timeout(Some(Duration::from_secs(10))).context("cannot set up a socket")?;
        Ok(socket)
    };
    let (client, server) = (socket()?, socket()?);
    let (near, far) = (client.local_addr().context("no address")?, server.local_addr().context("no address")?);
    client.connect(far).context("cannot connect")?;
    let serve = move || -> Result<()> {
        let mut buffer = [0; 64];
        // An empty datagram marks the end.
        while server.recv_from(&mut buffer).context("cannot read")?.0 > 0 {
            server.send_to(reply, near).context("cannot answer")?;
        }
        Ok(())
    };
    both(urgency, serve, move || {
        let mut buffer = [0; 64];
        let mut ask = |request: &[u8]| -> Result<()> {
            client.send(request).context("cannot ask")?;
            client.recv(&mut buffer).context("no answer").map(drop)
        };
        ask(hello)?;
        let sample = timed(time, 1, || ask(request));
        client.send(b"").context("cannot end it")?;
        sample
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ask_and_are_answered() {
        for mut pair in [Pair::Turns, Pair::Requests, Pair::Datagrams] {
            let sample = pair.run(Duration::from_millis(50), Urgency::Usual).expect("runs");
            assert!(sample.operations > 10 && sample.seconds >= 0.05 && sample.cpu_ns > 0, "{sample:?}");
        }
    }
}
