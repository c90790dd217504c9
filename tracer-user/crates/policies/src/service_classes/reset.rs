//! Resets connections of other processes, as `ss --kill` does: the kernel ends the socket, its reader and writer get an error,
//! and the other end a reset. On a thread of its own, which enters the network namespace of the process for it.
//!
//! A socket is known by its cookie, which no other one ever has: a connection that was closed and whose ports are in use
//! again is left alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::limits::{ConnectionId, EndReason, RequestToEnd};

/// Ends that may wait.
const QUEUE: usize = 1024;
/// Longest answer of the kernel that is read at once, and most of them for one question.
const ANSWER: usize = 32 << 10;
const ANSWERS: usize = 4096;

// include/uapi/linux/{netlink,sock_diag,inet_diag}.h
const NLMSG_HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// `struct inet_diag_sockid`, and where its cookie is.
const SOCKET_ID: usize = 48;
const COOKIE: usize = 40;
/// In `struct inet_diag_msg`: where that is.
const ID_IN_ANSWER: usize = 4;

/// Why a request was not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResetRefusal {
    /// Other requests may be on its connection.
    SharedConnection,
    /// It is no TCP connection.
    NotTcp,
    /// The connection, or its process, was gone.
    Gone,
    /// The system refused.
    Permission,
    /// Too many waited.
    Limit,
}

impl ResetRefusal {
    /// Every reason.
    pub const ALL: [Self; 5] = [Self::SharedConnection, Self::NotTcp, Self::Gone, Self::Permission, Self::Limit];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::SharedConnection => "shared_connection",
            Self::NotTcp => "not_tcp",
            Self::Gone => "gone",
            Self::Permission => "permission",
            Self::Limit => "limit",
        }
    }
}

/// What was done for one service class since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndActions {
    /// Requests that were ended, by [`EndReason::ALL`].
    pub ended: [u64; EndReason::ALL.len()],
    /// Those that a dry run would have ended.
    pub would_end: [u64; EndReason::ALL.len()],
    /// Those that were not, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default)]
struct Count {
    ended: [AtomicU64; EndReason::ALL.len()],
    refused: [AtomicU64; ResetRefusal::ALL.len()],
}

/// The thread that resets.
#[derive(Clone, Debug)]
pub struct Resetter {
    ends: SyncSender<RequestToEnd>,
    counts: Arc<Vec<Count>>,
}

impl Resetter {
    /// Starts the thread, for classes with numbers below `classes`. The error says why connections cannot be reset here.
    pub fn start(classes: usize) -> Result<Self, String> {
        let (ends, orders) = sync_channel(QUEUE);
        let counts: Arc<Vec<Count>> = Arc::new((0..classes).map(|_| Count::default()).collect());
        let its_counts = Arc::clone(&counts);
        let (ready, tested) = sync_channel(1);
        std::thread::Builder::new()
            .name("tracer-reset".into())
            .spawn(move || {
                // Whoever started it may be gone.
                let _ = ready.send(selftest());
                follow(&orders, &its_counts);
            })
            .map_err(|error| format!("no thread: {error}"))?;
        tested.recv().unwrap_or_else(|_| Err("its thread ended".into()))?;
        Ok(Self { ends, counts })
    }

    /// Has a request ended; never waits.
    pub fn end(&self, end: RequestToEnd) {
        if let Err(why) = endable(&end).and_then(|()| self.ends.try_send(end).map_err(|_| ResetRefusal::Limit)) {
            refuse(&self.counts, end.class, why);
        }
    }

    /// What was done, by number of the class.
    pub fn actions(&self) -> Vec<EndActions> {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let actions = |count: &Count| EndActions {
            ended: [of(&count.ended[0]), of(&count.ended[1])],
            would_end: [0; EndReason::ALL.len()],
            refused: ResetRefusal::ALL
                .iter()
                .zip(&count.refused)
                .map(|(why, count)| (why.name(), of(count)))
                .filter(|(_, count)| *count > 0)
                .collect(),
        };
        self.counts.iter().map(actions).collect()
    }
}

/// Whether a reset would end this request and nothing else.
pub fn endable(end: &RequestToEnd) -> Result<(), ResetRefusal> {
    if end.shared {
        return Err(ResetRefusal::SharedConnection);
    }
    if end.connection.ports.0 == 0 || end.connection.ports.1 == 0 {
        return Err(ResetRefusal::NotTcp);
    }
    Ok(())
}

fn refuse(counts: &[Count], class: usize, why: ResetRefusal) {
    if let Some(count) = counts.get(class).and_then(|count| count.refused.get(why as usize)) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn follow(orders: &Receiver<RequestToEnd>, counts: &[Count]) {
    for end in orders {
        match enter(end.connection.pid).and_then(|()| reset(&end.connection)) {
            Ok(()) => {
                if let Some(count) = counts.get(end.class).and_then(|count| count.ended.get(end.reason as usize)) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound) => {
                refuse(counts, end.class, ResetRefusal::Gone);
            }
            Err(error) => {
                log::debug!("a connection of process {} is not reset: {error}", end.connection.pid);
                refuse(counts, end.class, ResetRefusal::Permission);
            }
        }
    }
}

/// Enters the network namespace of a process.
fn enter(pid: u32) -> io::Result<()> {
    let its = File::open(format!("/proc/{pid}/ns/net"))?;
    let own = File::open("/proc/thread-self/ns/net")?;
    if its.metadata()?.ino() == own.metadata()?.ino() {
        return Ok(());
    }
    // SAFETY: a plain system call with an open descriptor; it is about this thread only.
    if unsafe { libc::setns(its.as_raw_fd(), libc::CLONE_NEWNET) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Resets a connection of the namespace of this thread. `NotFound`: there is none with this cookie.
fn reset(connection: &ConnectionId) -> io::Result<()> {
    let socket = socket()?;
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        let Some(id) = find(&socket, family, connection)? else { continue };
        send(&socket, &question(SOCK_DESTROY, NLM_F_ACK, family, &id))?;
        let mut outcome = Err(io::ErrorKind::UnexpectedEof.into());
        receive(&socket, |kind, body| {
            if kind == NLMSG_ERROR {
                outcome = error_of(body);
            }
            kind != NLMSG_ERROR
        })?;
        return outcome;
    }
    Err(io::ErrorKind::NotFound.into())
}

/// The identity of the socket with this cookie, as the kernel has it.
fn find(socket: &OwnedFd, family: u8, connection: &ConnectionId) -> io::Result<Option<[u8; SOCKET_ID]>> {
    let mut id = [0; SOCKET_ID];
    id[0..2].copy_from_slice(&connection.ports.0.to_be_bytes());
    id[2..4].copy_from_slice(&connection.ports.1.to_be_bytes());
    send(socket, &question(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, &id))?;
    let cookie = connection.cookie.to_ne_bytes();
    let (mut found, mut failed) = (None, None);
    receive(socket, |kind, body| {
        let id = body.get(ID_IN_ANSWER..ID_IN_ANSWER + SOCKET_ID).and_then(|id| <[u8; SOCKET_ID]>::try_from(id).ok());
        match kind {
            NLMSG_DONE => return false,
            NLMSG_ERROR => {
                failed = error_of(body).err();
                return false;
            }
            SOCK_DIAG_BY_FAMILY => found = found.or(id.filter(|id| id[COOKIE..] == cookie)),
            _ => {}
        }
        true
    })?;
    failed.map_or(Ok(found), Err)
}

/// A message with a `struct inet_diag_req_v2`.
fn question(kind: u16, flags: u16, family: u8, id: &[u8; SOCKET_ID]) -> Vec<u8> {
    let len = (NLMSG_HEADER + 8 + SOCKET_ID) as u32;
    let mut message = Vec::with_capacity(len as usize);
    message.extend(len.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend([family, libc::IPPROTO_TCP as u8, 0, 0]);
    // Every state.
    message.extend(u32::MAX.to_ne_bytes());
    message.extend(id);
    message
}

/// The error of a `struct nlmsgerr`.
fn error_of(body: &[u8]) -> io::Result<()> {
    let code = body.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Splits what was received into messages: kind and body. `each` says whether more are expected; whether there are.
fn messages(mut bytes: &[u8], each: &mut impl FnMut(u16, &[u8]) -> bool) -> bool {
    while let (Some(len), Some(kind)) = (bytes.get(..4), bytes.get(4..6)) {
        let len = u32::from_ne_bytes([len[0], len[1], len[2], len[3]]) as usize;
        let kind = u16::from_ne_bytes([kind[0], kind[1]]);
        let Some(body) = bytes.get(NLMSG_HEADER..len) else { return false };
        if !each(kind, body) {
            return false;
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    true
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened and owned by nothing else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let patience = libc::timeval { tv_sec: 1, tv_usec: 0 };
    // SAFETY: the value has the length that is passed with it.
    let done = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const patience).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

fn send(socket: &impl AsFd, message: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer has the length that is passed with it.
    let sent = unsafe { libc::send(socket.as_fd().as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent == message.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn receive(socket: &impl AsFd, mut each: impl FnMut(u16, &[u8]) -> bool) -> io::Result<()> {
    let mut bytes = vec![0u8; ANSWER];
    for _ in 0..ANSWERS {
        // SAFETY: the buffer has the length that is passed with it.
        let got = unsafe { libc::recv(socket.as_fd().as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        if !messages(bytes.get(..got as usize).unwrap_or_default(), &mut each) {
            return Ok(());
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Resets a connection of its own; why the kernel cannot (`CONFIG_INET_DIAG_DESTROY`), or does not let this process.
pub fn selftest() -> Result<(), String> {
    let failed = |error: io::Error| format!("no connection to try it with: {error}");
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let client = TcpStream::connect(address).map_err(failed)?;
    let local = client.local_addr().map_err(failed)?;
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the value has the length that is passed with it.
    let done = unsafe {
        libc::getsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut len)
    };
    if done != 0 {
        return Err(format!("SO_COOKIE: {}", io::Error::last_os_error()));
    }
    let connection = ConnectionId { cookie, pid: std::process::id(), ports: (local.port(), address.port()) };
    reset(&connection).map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "the kernel cannot (CONFIG_INET_DIAG_DESTROY)".into(),
        Some(libc::EPERM) => "CAP_NET_ADMIN is missing".into(),
        _ => format!("SOCK_DESTROY: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn questions_are_as_long_as_they_say() {
        let message = question(SOCK_DESTROY, NLM_F_ACK, 2, &[7; SOCKET_ID]);
        assert_eq!(message.len(), 72);
        let mut seen = Vec::new();
        assert!(messages(&[message.clone(), message].concat(), &mut |kind, body| {
            seen.push((kind, body.len()));
            true
        }));
        assert_eq!(seen, [(SOCK_DESTROY, 56), (SOCK_DESTROY, 56)]);
    }

    #[test]
    fn only_a_connection_of_its_own_is_reset() {
        let connection = ConnectionId { cookie: 1, pid: 1, ports: (80, 1234) };
        let end = RequestToEnd { connection, class: 0, reason: EndReason::TooLong, shared: false };
        assert_eq!(endable(&end), Ok(()));
        assert_eq!(endable(&RequestToEnd { shared: true, ..end }), Err(ResetRefusal::SharedConnection));
        let unix = ConnectionId { ports: (0, 0), ..connection };
        assert_eq!(endable(&RequestToEnd { connection: unix, ..end }), Err(ResetRefusal::NotTcp));
    }

    proptest! {
        /// Whatever the kernel says.
        #[test]
        fn never_panics_on_arbitrary_input(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut count = 0;
            messages(&bytes, &mut |_, body| {
                let _ = error_of(body);
                count += 1;
                count < 100
            });
        }
    }
}
