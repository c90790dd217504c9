//! A load of our own: many connections, one thread, requests and replies of fixed size.
//!
//! At a given rate it is an open loop: a request is due at its time whether or not earlier ones were answered, and its
//! latency counts from then. So a stalling server also pays for the requests it delayed (Tene's "coordinated
//! omission"). Without a rate it is a closed loop, and latencies count from the actual send.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::results::Sample;
use super::sched::{self, Urgency};
use super::statistics::permille;

/// A load: its target, request and rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) address: SocketAddr,
    pub(super) request: &'static [u8],
    /// Length of every reply.
    pub(super) reply: usize,
    pub(super) connections: usize,
    /// Requests per second; without it, as fast as replies come.
    pub(super) rate: Option<u32>,
    /// The core it runs on.
    pub(super) core: usize,
}

/// How long replies may take after the last request.
const PATIENCE: Duration = Duration::from_secs(5);

struct Connection {
    stream: TcpStream,
    /// When the current request was due, and the bytes of its reply so far.
    due: Option<u64>,
    got: usize,
}

impl Load {
    /// Runs it on its core; the caller measures what the server used.
    pub(super) fn run(self, time: Duration, urgency: Urgency) -> Result<Sample> {
        // A thread of its own: its priority ends with it.
        let made = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                sched::place(0, urgency, Some(self.core))?;
                self.generate(time)
            });
            thread.join()
        });
        made.unwrap_or_else(|_| bail!("the load generator panicked"))
    }

    fn generate(self, time: Duration) -> Result<Sample> {
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            // Connect without blocking: blocking sockets get no headers.
            let stream = TcpStream::connect_timeout(&self.address, PATIENCE)
                .with_context(|| format!("cannot connect to {}", self.address))?;
            stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).context("cannot set up a socket")?;
            connections.push(Connection { stream, due: None, got: 0 });
        }
        let mut polls: Vec<libc::pollfd> = connections
            .iter()
            .map(|c| libc::pollfd { fd: c.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        let mut free: Vec<usize> = (0..connections.len()).collect();
        let mut latencies: Vec<u64> = Vec::new();
        let mut waiting: VecDeque<u64> = VecDeque::new();
        let mut made = 0u64;
        let begin = Instant::now();
        let now = || begin.elapsed().as_nanos() as u64;
        let end = time.as_nanos() as u64;
        let due = |n: u64| self.rate.map(|rate| n * 1_000_000_000 / u64::from(rate));
        loop {
            let moment = now();
            match due(made) {
                Some(_) => {
                    while let Some(next) = due(made).filter(|next| *next <= moment && *next < end) {
                        waiting.push_back(next);
                        made += 1;
                    }
                }
                None if moment < end => waiting.resize(free.len(), moment),
                None => waiting.clear(),
            }
            while let Some(index) = free.last().copied() {
                let (Some(due), Some(connection)) = (waiting.pop_front(), connections.get_mut(index)) else { break };
                free.pop();
                let sent = connection.stream.write(self.request).context("cannot send a request")?;
                if sent != self.request.len() {
                    bail!("a request of {} bytes does not fit into a socket", self.request.len());
                }
                connection.due = Some(due);
            }
            let next = due(made).filter(|next| *next < end);
            let idle = free.len() == connections.len();
            if idle && next.is_none() && moment >= end {
                break;
            }
            if moment > end + PATIENCE.as_nanos() as u64 {
                bail!("{} requests were not answered", connections.len() - free.len() + waiting.len());
            }
            let until = next.unwrap_or(if moment < end { end } else { moment + 20_000_000 });
            poll(&mut polls, until.saturating_sub(now()))?;
            for (index, entry) in polls.iter().enumerate() {
                if entry.revents == 0 {
                    continue;
                }
                let Some(connection) = connections.get_mut(index) else { continue };
                if connection.receive(self.reply)? {
                    latencies.push(now().saturating_sub(connection.due.take().unwrap_or(0)));
                    free.push(index);
                }
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        latencies.sort_unstable();
        let micros = |share| permille(&latencies, share) as f64 / 1e3;
        Ok(Sample {
            operations: latencies.len() as u64,
            seconds,
            p50: micros(500),
            p99: micros(990),
            p999: micros(999),
            cpu_ns: 0,
        })
    }
}

impl Connection {
    /// Whether the reply is complete.
    fn receive(&mut self, whole: usize) -> Result<bool> {
        let mut buffer = [0u8; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(_) if self.due.is_none() => bail!("the server answers more than it was asked"),
            Ok(read) => self.got += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot receive a reply"),
        }
        if self.got > whole {
            bail!("a reply is longer than the {whole} bytes it should have");
        }
        let done = self.got == whole;
        if done {
            self.got = 0;
        }
        Ok(done)
    }
}

fn poll(polls: &mut [libc::pollfd], nanos: u64) -> Result<()> {
    let time = libc::timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
    // SAFETY: the length matches the array, and no signal mask is given.
    let ready = unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as u64, &raw const time, std::ptr::null()) };
    if ready < 0 && std::io::Error::last_os_error().kind() != ErrorKind::Interrupted {
        return Err(std::io::Error::last_os_error()).context("cannot wait for replies");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Answers every four bytes with two, each `pause` late.
    fn server(pause: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
        let address = listener.local_addr().expect("address");
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut request = [0; 4];
                    while stream.read_exact(&mut request).is_ok() {
                        thread::sleep(pause);
                        if stream.write_all(b"ok").is_err() {
                            break;
                        }
                    }
                });
            }
        });
        address
    }

    fn load(address: SocketAddr, connections: usize, rate: Option<u32>) -> Load {
        Load { address, request: b"ping", reply: 2, connections, rate, core: 0 }
    }

    #[test]
    fn a_rate_is_kept_and_waiting_counts() {
        // One connection, 10 ms per request, 200 due per second: half of them wait, the last ones for long.
        let late = load(server(Duration::from_millis(10)), 1, Some(200)).generate(Duration::from_millis(400));
        let late = late.expect("answers");
        assert_eq!(late.operations, 80);
        assert!(late.p50 > 100_000.0 && late.p999 > 300_000.0, "{late:?}");
        let many = load(server(Duration::ZERO), 4, Some(500)).generate(Duration::from_millis(400)).expect("answers");
        assert_eq!(many.operations, 200);
    }

    #[test]
    fn without_a_rate_every_connection_is_busy() {
        let sample = load(server(Duration::from_millis(5)), 8, None).generate(Duration::from_millis(300));
        let sample = sample.expect("answers");
        assert!(sample.operations >= 8 * 5 && sample.p50 >= 5000.0, "{sample:?}");
    }

    #[test]
    fn a_reply_that_is_too_long_is_an_error() {
        let mut load = load(server(Duration::ZERO), 1, None);
        load.reply = 1;
        assert!(load.generate(Duration::from_millis(100)).is_err());
    }
}
