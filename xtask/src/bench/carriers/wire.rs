//! Two namespaces on a virtual link: a server at one, the loads at the other.
//!
//! Clients never block: blocking sockets get no headers on some kernels.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tracer_tests::star::{Nat, Star};

use crate::bench::generator::Load;
use crate::bench::sched::{self, Urgency};

/// Connections kept at the same time.
pub(super) const KEPT: usize = 16;
/// Bytes of a long body.
pub(super) const LONG: usize = 100_000_000;
/// Port of the server.
pub(super) const PORT: u16 = 18_620;
/// Relay port of agents; there is only one agent here.
const RELAY: u16 = 9465;
/// Bytes of a short reply's body.
const SHORT: usize = 612;
const GET: &[u8] = b"GET /612 HTTP/1.1\r\nHost: bench\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n";
/// Bytes of a read or write of a long body.
const PIECE: usize = 256 << 10;
/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The namespaces, and a server in the second.
pub(super) struct Wire {
    star: Star,
    address: SocketAddr,
}

impl Wire {
    pub(super) fn new() -> Result<Self> {
        let star = Star::new("trb", 2, Nat { destination: false, source: false }, RELAY)?;
        let address = SocketAddr::from((star.own(2), PORT));
        let listener = star.inside(2, || TcpListener::bind(address))?.context("cannot listen")?;
        // One more than are kept: each serves one connection at a time. They end with this process.
        for _ in 0..=KEPT {
            let listener = listener.try_clone().context("no descriptor")?;
            std::thread::spawn(move || -> Result<()> {
                sched::place(0, Urgency::Usual, Some(sched::SERVER))?;
                loop {
                    let (stream, _) = listener.accept().context("cannot accept")?;
                    // The client reports what is wrong with a connection that ended.
                    let _ = serve(stream);
                }
            });
        }
        Ok(Self { star, address })
    }

    /// The destination that gets headers.
    pub(super) fn destination(&self) -> String {
        self.address.to_string()
    }

    /// Runs a load; returns operations per second (bytes, for long bodies), and the number of requests.
    pub(super) fn run(&self, load: Kind, time: Duration) -> Result<(f64, u64)> {
        let address = self.address;
        self.star.inside(1, move || match load {
            Kind::Kept => {
                let reply = head(SHORT).len() + SHORT;
                let core = sched::load_core();
                let load = Load { address, request: GET, reply, connections: KEPT, rate: None, core };
                let sample = load.run(time, Urgency::Usual)?;
                Ok((sample.rate(), sample.operations))
            }
            Kind::Fresh => fresh(address, time),
            Kind::Up => long(address, LONG, 2),
            Kind::Down => long(address, 0, LONG),
        })?
    }
}

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Short requests on kept connections.
    Kept,
    /// One connection per request.
    Fresh,
    /// A long body in a request.
    Up,
    /// A long body in a reply.
    Down,
}

/// Answers `/NUMBER` with that many bytes, until the connection ends.
fn serve(mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut piece = vec![0u8; PIECE];
    let mut have = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = have.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let got = stream.read(&mut piece).ok().filter(|got| *got > 0)?;
            have.extend_from_slice(piece.get(..got)?);
        };
        let text = String::from_utf8_lossy(have.get(..end)?).into_owned();
        let wanted: usize = text.split(['/', ' ']).nth(2)?.parse().ok()?;
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let mut left = length.map_or(Some(0), |length| length.parse().ok())? + end - have.len();
        have.clear();
        while left > 0 {
            left = left.checked_sub(stream.read(&mut piece).ok().filter(|got| *got > 0)?)?;
        }
        let mut reply = head(wanted);
        reply.resize(reply.len() + wanted.min(PIECE), b'x');
        stream.write_all(&reply).ok()?;
        let mut sent = wanted.min(PIECE);
        while sent < wanted {
            let part = piece.get(..PIECE.min(wanted - sent))?;
            stream.write_all(part).ok()?;
            sent += part.len();
        }
    }
}

fn head(body: usize) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {body}\r\n\r\n").into_bytes()
}

/// A connection that never blocks, not even while it connects.
fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).context("cannot connect")?;
    stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).context("cannot set up a socket")?;
    Ok(stream)
}

fn wait(stream: &TcpStream, events: i16) -> Result<()> {
    let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 };
    // SAFETY: one entry, as the call says.
    match unsafe { libc::poll(&raw mut poll, 1, PATIENCE.as_millis() as i32) } {
        1 => Ok(()),
        0 => bail!("no answer"),
        _ => Err(std::io::Error::last_os_error()).context("cannot wait"),
    }
}

fn send(stream: &mut TcpStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(stream, libc::POLLOUT)?,
            Err(error) => return Err(error).context("cannot send"),
        }
    }
    Ok(())
}

/// Reads a reply's bytes.
fn receive(stream: &mut TcpStream, mut left: usize, piece: &mut [u8]) -> Result<()> {
    while left > 0 {
        match stream.read(piece) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(got) => left = left.checked_sub(got).context("a reply is too long")?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(stream, libc::POLLIN)?,
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
    Ok(())
}

/// Runs the timed part on the load's core.
fn pinned<T: Send>(run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            sched::place(0, Urgency::Usual, Some(sched::load_core()))?;
            run()
        });
        thread.join().unwrap_or_else(|_| bail!("a thread panicked"))
    })
}

fn fresh(address: SocketAddr, time: Duration) -> Result<(f64, u64)> {
    pinned(|| {
        let (begin, mut count) = (Instant::now(), 0u64);
        let mut piece = vec![0u8; 4096];
        while begin.elapsed() < time {
            let mut stream = connect(address)?;
            send(&mut stream, GET)?;
            receive(&mut stream, head(SHORT).len() + SHORT, &mut piece)?;
            reset(&stream)?;
            count += 1;
        }
        Ok((count as f64 / begin.elapsed().as_secs_f64(), count))
    })
}

/// Closes the connection by a reset when dropped: its port is free at once.
fn reset(stream: &TcpStream) -> Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let (value, len) = ((&raw const linger).cast(), size_of_val(&linger) as libc::socklen_t);
    // SAFETY: the pointer and length describe `linger`.
    if unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, len) } != 0 {
        return Err(std::io::Error::last_os_error()).context("SO_LINGER");
    }
    Ok(())
}

/// Sends and fetches this many bytes in one request; returns bytes per second.
fn long(address: SocketAddr, up: usize, down: usize) -> Result<(f64, u64)> {
    pinned(|| {
        let mut piece = vec![b'y'; PIECE];
        let begin = Instant::now();
        let mut stream = connect(address)?;
        let method = if up > 0 { "POST" } else { "GET" };
        let head_of = format!("{method} /{down} HTTP/1.1\r\nHost: bench\r\nContent-Length: {up}\r\n\r\n");
        send(&mut stream, head_of.as_bytes())?;
        let mut sent = 0;
        while sent < up {
            let part = piece.get(..PIECE.min(up - sent)).unwrap_or_default();
            send(&mut stream, part)?;
            sent += part.len();
        }
        receive(&mut stream, head(down).len() + down, &mut piece)?;
        Ok(((up + down) as f64 / begin.elapsed().as_secs_f64(), 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn loads_are_served_to_the_byte() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listener");
        let address = listener.local_addr().expect("address");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream));
            }
        });
        for (up, down) in [(0, 0), (0, 612), (700_001, 2), (3, 1_000_003)] {
            assert_eq!(long(address, up, down).map(|(_, count)| count).expect("an answer"), 1);
        }
        let (rate, count) = fresh(address, Duration::from_millis(100)).expect("answers");
        assert!(rate > 1.0 && count > 0);
    }
}
