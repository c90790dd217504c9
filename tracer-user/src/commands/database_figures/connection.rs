//! A connection to a database server on this host: all that happens on it takes at most five seconds and a megabyte a reply.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tracer_results::subsystems::login::Address;

/// How long connection, login and answers may take together.
const LIMIT: Duration = Duration::from_secs(5);
/// Longest reply, bytes.
pub(super) const REPLY: usize = 1 << 20;

/// A connection with a time limit for all that happens on it.
pub(super) struct Connection {
    stream: Stream,
    until: Instant,
    /// What was received and not yet used.
    pub(super) received: BytesMut,
    /// Kept open as long as this end.
    #[cfg(test)]
    _other_end: Option<UnixStream>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    pub(super) fn open(address: &Address) -> io::Result<Self> {
        let until = Instant::now() + LIMIT;
        let stream = match address {
            Address::Tcp(address) => Stream::Tcp(connect(*address)?),
            Address::Unix(path) => Stream::Unix(connect_unix(path)?),
        };
        Ok(Self {
            stream,
            until,
            received: BytesMut::new(),
            #[cfg(test)]
            _other_end: None,
        })
    }

    /// Whether it is a UNIX socket: nothing on it can be read by others.
    pub(super) fn is_unix(&self) -> bool {
        matches!(self.stream, Stream::Unix(_))
    }

    /// The process that listens at the other end of a UNIX socket.
    pub(super) fn peer(&self) -> Option<u32> {
        let Stream::Unix(stream) = &self.stream else { return None };
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the descriptor is open, and both pointers are to variables of the sizes given.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut length,
            )
        };
        // 0: a process of another process namespace.
        u32::try_from(peer.pid).ok().filter(|pid| result == 0 && *pid != 0)
    }

    /// What is left of the time.
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long to answer"))
        } else {
            Ok(left)
        }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = Some(self.left()?);
        match &mut self.stream {
            Stream::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write_all(bytes)),
            Stream::Unix(stream) => stream.set_write_timeout(left).and_then(|()| stream.write_all(bytes)),
        }
    }

    /// Receives more.
    pub(super) fn fill(&mut self) -> io::Result<()> {
        let left = Some(self.left()?);
        let mut bytes = [0; 16 << 10];
        let read = match &mut self.stream {
            Stream::Tcp(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(&mut bytes)),
            Stream::Unix(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(&mut bytes)),
        };
        match read {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(read) => {
                self.received.extend_from_slice(&bytes[..read]);
                Ok(())
            }
            // The time limit of the socket.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.left().map(drop),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next `count` bytes, which the caller has bounded.
    pub(super) fn take(&mut self, count: usize) -> io::Result<BytesMut> {
        while self.received.len() < count {
            self.fill()?;
        }
        Ok(self.received.split_to(count))
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connecting to a socket whose queue is full would wait for ever: such a server is busy, and is asked again later.
fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    // SAFETY: no pointers; the descriptor is owned from here on.
    let socket =
        unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just made, and nothing else closes it.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(socket) });
    // SAFETY: a struct of integers, for which zeros are valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long for a socket"));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is valid for `length` bytes during the call.
    if unsafe { libc::connect(socket, (&raw const address).cast(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tracer_results::subsystems::DatabaseSystem;
    use tracer_results::subsystems::login::ServerLogin;

    /// A connection to a server that sends `answers`, whatever it is asked, and closes.
    pub(in super::super) fn answered(answers: &[u8]) -> Connection {
        let (stream, mut server) = UnixStream::pair().unwrap();
        server.write_all(answers).unwrap();
        server.shutdown(std::net::Shutdown::Write).unwrap();
        let stream = Stream::Unix(stream);
        Connection { stream, until: Instant::now() + LIMIT, received: BytesMut::new(), _other_end: Some(server) }
    }

    /// A login whose address does not matter.
    pub(in super::super) fn login(system: DatabaseSystem) -> ServerLogin {
        let address = Address::Unix("/run/server".into());
        ServerLogin { system, address, user: Some("tracer".into()), database: None, password_file: None }
    }

    #[test]
    fn the_process_at_the_other_end_is_known() {
        assert_eq!(answered(b"").peer(), Some(std::process::id()));
    }

    #[test]
    fn a_server_that_is_silent_takes_no_longer_than_the_limit() {
        let mut connection = Connection { until: Instant::now(), ..answered(b"") };
        assert_eq!(connection.take(1).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
