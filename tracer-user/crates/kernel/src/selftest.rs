//! The test at start: a write, a sendfile and a read on the agent's own TCP, UNIX and UDP pairs, each of which must be
//! reported exactly once, with the right byte count and payload.
//!
//! It catches what no table of kernel versions can: inlined or renamed functions, and hooks a vendor disabled.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tracer_common::event::{OP_NO_PAYLOAD, OP_TX};
use tracer_model::decode::{self, Record};

use super::loader::{Kernel, LoadError, monotonic};
use super::policy::Scope;
use super::rings::Rings;

/// Timeout of an operation on the agent's own sockets.
const PATIENCE: Duration = Duration::from_secs(2);

/// The result for one kind of socket.
#[derive(Clone, Debug)]
pub struct Finding {
    /// `tcp`, `unix` or `udp`.
    pub family: &'static str,
    /// `None` if every operation was seen exactly once; else what was wrong.
    pub fault: Option<String>,
}

/// [`Finding::family`] of datagrams.
pub const UDP: &str = "udp";

impl Finding {
    /// What to say of its fault, if it has one, and whether the agent can be ready in spite of it: only if no name servers'
    /// ports are read by UDP (`dns_ports`), because nothing else is.
    pub fn verdict(&self, dns_ports: &[u16]) -> Option<(String, bool)> {
        let fault = self.fault.as_ref()?;
        let unused = self.family == UDP && dns_ports.is_empty();
        let follows = if unused { "; nothing over UDP is read (dns_ports)" } else { "" };
        Some((format!("self-test on {} sockets: {fault}{follows}", self.family), unused))
    }
}

/// One expected or observed operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    tx: bool,
    bytes: u32,
    /// Payload prefix; empty if the bytes are not in user memory.
    front: Vec<u8>,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let way = if self.tx { "send" } else { "receive" };
        write!(f, "{way} of {} bytes {:?}", self.bytes, String::from_utf8_lossy(&self.front))
    }
}

const WRITTEN: &[u8] = b"tracer self-test: written";
const SENDFILE: &[u8] = b"tracer self-test: a page of a file";

/// Runs the test. An error is one of the test itself (such as no sockets), not a finding.
pub fn run(kernel: &mut Kernel, rings: &mut Rings) -> Result<Vec<Finding>, SelfTestError> {
    kernel.policy.scope(Scope::SelfTest)?;
    let result = exercise(rings);
    kernel.policy.scope(Scope::Nothing)?;
    // Discard the test's records.
    rings.events(monotonic(), usize::MAX, &mut |_| ());
    rings.samples(usize::MAX, &mut |_| ());
    Ok(result?)
}

/// Why the test could not run.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// The policy could not be written.
    #[error(transparent)]
    Policy(#[from] LoadError),
    /// Loopback sockets could not be created.
    #[error("the self-test needs loopback TCP and UDP, UNIX sockets and a temporary file: {0}")]
    Sockets(#[from] io::Error),
}

fn exercise(rings: &mut Rings) -> io::Result<Vec<Finding>> {
    let mut file = memory_file()?;
    file.write_all(SENDFILE)?;

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut tcp = TcpStream::connect(listener.local_addr()?)?;
    let (mut tcp_peer, _) = listener.accept()?;
    let (mut unix, mut unix_peer) = UnixStream::pair()?;
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let udp_peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    udp.connect(udp_peer.local_addr()?)?;
    for timeout in [
        tcp_peer.set_read_timeout(Some(PATIENCE)),
        unix_peer.set_read_timeout(Some(PATIENCE)),
        udp_peer.set_read_timeout(Some(PATIENCE)),
    ] {
        timeout?;
    }

    stream(&mut tcp, &mut tcp_peer, &mut file)?;
    stream(&mut unix, &mut unix_peer, &mut file)?;
    let mut buffer = [0u8; 256];
    udp.send(WRITTEN)?;
    udp_peer.recv(&mut buffer)?;

    let sockets = [
        ("tcp", cookie(&tcp)?, cookie(&tcp_peer)?, true),
        ("unix", cookie(&unix)?, cookie(&unix_peer)?, true),
        (UDP, cookie(&udp)?, cookie(&udp_peer)?, false),
    ];
    let mut seen: BTreeMap<u64, Vec<Seen>> = BTreeMap::new();
    let end = Instant::now() + Duration::from_millis(500);
    loop {
        rings.events(monotonic(), usize::MAX, &mut |bytes| {
            if let Ok(Record::Op { op, head, .. }) = decode::record(bytes) {
                // A sendfile is reported with its thread's next record, without payload.
                let front = if op.header.flags & OP_NO_PAYLOAD == 0 { head.to_vec() } else { Vec::new() };
                if let Some(sent) = op.sent_before(op.counters) {
                    let entry = Seen { tx: true, bytes: sent.bytes, front: Vec::new() };
                    seen.entry(sent.cookie).or_default().push(entry);
                }
                let entry = Seen { tx: op.header.flags & OP_TX != 0, bytes: op.bytes, front };
                seen.entry(op.cookie).or_default().push(entry);
            }
        });
        let complete = sockets.iter().all(|(_, from, to, pages)| {
            let wanted = if *pages { 2 } else { 1 };
            [from, to].into_iter().all(|cookie| seen.get(cookie).map_or(0, Vec::len) >= wanted)
        });
        if complete || Instant::now() > end {
            break;
        }
        rings.wait(5, None);
    }
    Ok(sockets.into_iter().map(|(family, from, to, pages)| judge(family, &seen, from, to, pages)).collect())
}

fn judge(family: &'static str, seen: &BTreeMap<u64, Vec<Seen>>, from: u64, to: u64, pages: bool) -> Finding {
    let entry = |tx, payload: &[u8], visible| Seen {
        tx,
        bytes: payload.len() as u32,
        front: if visible { payload.to_vec() } else { Vec::new() },
    };
    let mut faults = Vec::new();
    for (cookie, tx) in [(from, true), (to, false)] {
        let mut expected = vec![entry(tx, WRITTEN, true)];
        if pages {
            // The sender's bytes are pages of a file; the receiver reads them into a buffer.
            expected.push(entry(tx, SENDFILE, !tx));
        }
        let got = seen.get(&cookie).cloned().unwrap_or_default();
        for wanted in &expected {
            match got.iter().filter(|other| *other == wanted).count() {
                1 => {}
                n => faults.push(format!("{wanted} was seen {n} times")),
            }
        }
        for other in got.iter().filter(|other| !expected.contains(other)) {
            faults.push(format!("unexpected {other}"));
        }
    }
    Finding { family, fault: (!faults.is_empty()).then(|| faults.join("; ")) }
}

/// A write and a sendfile in one direction, each read before the next is sent.
fn stream<S: Read + Write + AsRawFd>(from: &mut S, to: &mut S, file: &mut File) -> io::Result<()> {
    let mut buffer = [0u8; 256];
    from.write_all(WRITTEN)?;
    read_all(to, &mut buffer[..WRITTEN.len()])?;
    file.rewind()?;
    // SAFETY: two valid descriptors and no offset.
    let sent = unsafe { libc::sendfile(from.as_raw_fd(), file.as_raw_fd(), std::ptr::null_mut(), SENDFILE.len()) };
    if sent != SENDFILE.len() as isize {
        return Err(io::Error::last_os_error());
    }
    read_all(to, &mut buffer[..SENDFILE.len()])
}

/// Reads exactly `buffer`; a short read counts as a second operation and shows as a fault.
fn read_all(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<()> {
    from.read_exact(buffer)
}

fn memory_file() -> io::Result<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: a valid name; the descriptor is checked.
    let fd = unsafe { libc::memfd_create(c"tracer-selftest".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created and owned by nothing else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn cookie(socket: &impl AsRawFd) -> io::Result<u64> {
    let mut value = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `value` and `len` are valid for the call.
    let refused = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut value).cast(), &raw mut len)
    };
    if refused == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_not_ready_while_a_socket_kind_that_it_reads_fails() {
        let failed = |family| Finding { family, fault: Some("seen 2 times".into()) };
        for family in ["tcp", "unix", UDP] {
            let (text, is_ready) = failed(family).verdict(&[53]).expect("a fault");
            assert!(text.contains(family) && text.ends_with("seen 2 times") && !is_ready, "{text}");
            assert!(Finding { family, fault: None }.verdict(&[53]).is_none());
        }
        // Without ports of name servers nothing over UDP is read.
        assert!(failed(UDP).verdict(&[]).is_some_and(|(text, is_ready)| is_ready && text.contains("nothing over UDP")));
        assert!(failed("tcp").verdict(&[]).is_some_and(|(_, is_ready)| !is_ready));
    }
}
