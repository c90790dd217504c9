//! Pairs of connected sockets for the header self-test, and its system calls.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::PATIENCE;

/// A connection: `client` is the side the program handles.
pub(super) struct Pair {
    pub(super) client: TcpStream,
    pub(super) peer: TcpStream,
}

impl Pair {
    pub(super) fn new() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let (peer, _) = listener.accept()?;
        for end in [&client, &peer] {
            end.set_read_timeout(Some(PATIENCE))?;
            end.set_write_timeout(Some(PATIENCE))?;
            end.set_nodelay(true)?;
        }
        Ok(Self { client, peer })
    }

    /// The peer sends `bytes`; waits until they arrive.
    pub(super) fn arrive(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.peer.write_all(bytes).map_err(|error| format!("the peer's write: {error}"))?;
        ready(&self.client, libc::POLLIN)
    }
}

pub(super) fn words(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{what}: {error}")
}

pub(super) fn last(what: &'static str) -> String {
    words(what)(io::Error::last_os_error())
}

/// Bytes that are no request, each different from its neighbours.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// Waits until `poll` reports `events`.
pub(super) fn ready(socket: &impl AsRawFd, events: i16) -> Result<(), String> {
    let mut one = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    // SAFETY: one element.
    match unsafe { libc::poll(&raw mut one, 1, PATIENCE.as_millis() as i32) } {
        1 if one.revents & events != 0 => Ok(()),
        1 => Err(format!("poll says {:#x} where {events:#x} was waited for", one.revents)),
        _ => Err("poll did not wake up".into()),
    }
}

/// Whether `poll` reports `events` now.
pub(super) fn polls(socket: &impl AsRawFd, events: i16) -> bool {
    let mut one = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    // SAFETY: one element.
    unsafe { libc::poll(&raw mut one, 1, 0) == 1 && one.revents & events != 0 }
}

pub(super) fn same(got: &[u8], expected: &[u8]) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
    Err(format!("{} bytes came and {} were sent; they differ from byte {at} on", got.len(), expected.len()))
}

pub(super) fn read_exactly(from: &mut TcpStream, len: usize) -> Result<Vec<u8>, String> {
    let mut got = vec![0; len];
    from.read_exact(&mut got).map_err(words("a read"))?;
    Ok(got)
}

/// Runs an action on the client while reading everything the peer receives, to the end.
pub(super) fn drained(
    pair: &mut Pair,
    act: impl FnOnce(&mut TcpStream) -> Result<(), String>,
) -> Result<Vec<u8>, String> {
    let mut peer = pair.peer.try_clone().map_err(words("a descriptor"))?;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut got = Vec::new();
            peer.read_to_end(&mut got).map(|_| got).map_err(words("the peer's read"))
        });
        let done = act(&mut pair.client);
        let shut = pair.client.shutdown(Shutdown::Write).map_err(words("shutdown"));
        let got = reader.join().map_err(|_| "the peer's thread ended".to_owned())?;
        done?;
        shut?;
        got
    })
}

pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd), String> {
    let mut ends = [0 as RawFd; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(last("pipe"));
    }
    let [from, to] = ends;
    // SAFETY: nothing else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(from), OwnedFd::from_raw_fd(to)) })
}

pub(super) fn splice(from: RawFd, to: RawFd, len: usize) -> Result<usize, String> {
    let none = std::ptr::null_mut();
    // SAFETY: two descriptors, no offsets.
    let moved = unsafe { libc::splice(from, none, to, none, len, 0) };
    usize::try_from(moved).map_err(|_| last("splice"))
}

/// Closes the connection with a reset.
pub(super) fn reset(socket: &TcpStream) -> Result<(), String> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of::<libc::linger>() as libc::socklen_t;
    let value = (&raw const linger).cast();
    // SAFETY: the value has the given length.
    if unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, len) } != 0 {
        return Err(last("SO_LINGER"));
    }
    Ok(())
}

/// Closes the peer's end.
pub(super) fn close_peer(pair: &mut Pair) -> Result<(), String> {
    let other = Pair::new().map_err(words("a connection"))?;
    drop(std::mem::replace(&mut pair.peer, other.peer));
    Ok(())
}
