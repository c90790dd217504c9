//! Asks the database servers that `[[subsystems.server]]` names for their own figures, on a thread of its own: a connection,
//! a login, a question, every 15 seconds. No other server is ever connected to.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use crate::files;
use crate::subsystems::login::{Address, ServerLogin};
use crate::subsystems::own_figures::{self, OwnFigures};

/// Between two questions to a server.
const EVERY: Duration = Duration::from_secs(15);
/// How long connection, login and answers may take together.
const LIMIT: Duration = Duration::from_secs(5);
/// Longest reply, bytes.
const REPLY: usize = 1 << 20;
/// Longest password, bytes.
const PASSWORD: u64 = 4096;

/// What servers reported of themselves.
#[derive(Debug)]
pub(super) struct DatabaseFigures {
    read: Receiver<OwnFigures>,
    /// Dropped, it ends the thread.
    _alive: std::sync::mpsc::Sender<()>,
}

impl DatabaseFigures {
    /// Starts the thread; `None` without a server to ask.
    pub(super) fn start(logins: &[ServerLogin]) -> io::Result<Option<Self>> {
        if logins.is_empty() {
            return Ok(None);
        }
        let (send, read) = sync_channel(logins.len());
        let (alive, ended) = channel();
        let mut servers: Vec<_> = logins.iter().cloned().map(|login| (login, None)).collect();
        std::thread::Builder::new().name("tracer-databases".into()).spawn(move || {
            loop {
                if !ask_all(&mut servers, &send) || ended.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Some(Self { read, _alive: alive }))
    }

    /// What was read since the last call.
    pub(super) fn take(&self) -> impl Iterator<Item = OwnFigures> + '_ {
        self.read.try_iter()
    }
}

/// Asks each server once; reports a failure when it is another than before. False: the agent ends.
fn ask_all(servers: &mut [(ServerLogin, Option<String>)], send: &SyncSender<OwnFigures>) -> bool {
    for (login, failure) in servers {
        let failed = match ask(login) {
            Ok(figures) => match send.try_send(figures) {
                // The pipeline is late; newer figures follow.
                Ok(()) | Err(TrySendError::Full(_)) => None,
                Err(TrySendError::Disconnected(_)) => return false,
            },
            Err(error) => Some(error.to_string()),
        };
        match &failed {
            Some(why) if *failure != failed => log::warn!("[[subsystems.server]] {}: {why}", login.address),
            None if failure.is_some() => log::info!("[[subsystems.server]] {} answers again", login.address),
            _ => {}
        }
        *failure = failed;
    }
    true
}

/// A connection with a time limit for all that happens on it.
struct Connection {
    stream: Stream,
    until: Instant,
    /// What was received and not yet used.
    received: Vec<u8>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    fn open(address: &Address) -> io::Result<Self> {
        let until = Instant::now() + LIMIT;
        let stream = match address {
            Address::Tcp(address) => Stream::Tcp(connect(*address)?),
            Address::Unix(path) => Stream::Unix(connect_unix(path)?),
        };
        Ok(Self { stream, until, received: Vec::new() })
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

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = Some(self.left()?);
        match &mut self.stream {
            Stream::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write_all(bytes)),
            Stream::Unix(stream) => stream.set_write_timeout(left).and_then(|()| stream.write_all(bytes)),
        }
    }

    /// Receives more.
    fn fill(&mut self) -> io::Result<()> {
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

    /// A line without its end.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.received.windows(2).position(|two| two == b"\r\n") {
                let line = self.received[..end].to_vec();
                self.received.drain(..end + 2);
                return Ok(line);
            }
            if self.received.len() > REPLY {
                return Err(unexpected());
            }
            self.fill()?;
        }
    }

    fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.received.len() < count {
            self.fill()?;
        }
        Ok(self.received.drain(..count).collect())
    }

    /// Sends a command of Redis; its reply, which is a line or a text.
    fn command(&mut self, words: &[&str]) -> io::Result<String> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        self.send(&bytes)?;
        let line = self.line()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match line.split_first() {
            Some((b'+', rest)) => Ok(text(rest)),
            // The first word only: the rest may repeat what was sent.
            Some((b'-', rest)) => {
                let word = text(rest).split(' ').next().map(|word| crate::text::printable(word).into_owned());
                Err(io::Error::other(format!("it refuses {}: {}", words[0], word.unwrap_or_default())))
            }
            Some((b'$', rest)) => {
                let length: usize = text(rest).parse().map_err(|_| unexpected())?;
                if length > REPLY {
                    return Err(unexpected());
                }
                let mut bytes = self.take(length + 2)?;
                bytes.truncate(length);
                Ok(text(&bytes))
            }
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not answer as Redis does")
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connecting to a socket whose queue is full would wait for ever: such a server is busy, and is asked again later.
fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::ffi::OsStrExt;
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
    let length = std::mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is valid for `length` bytes during the call.
    if unsafe { libc::connect(socket, (&raw const address).cast(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn ask(login: &ServerLogin) -> io::Result<OwnFigures> {
    let password = login.password_file.as_deref().map(|path| files::read_secret(path, PASSWORD)).transpose()?;
    let mut connection = Connection::open(&login.address)?;
    if let Some(password) = &password {
        let password = password.trim_end_matches(['\r', '\n']);
        let words = [login.user.as_deref(), Some(password)];
        let words: Vec<&str> = std::iter::once("AUTH").chain(words.into_iter().flatten()).collect();
        connection.command(&words)?;
    }
    let mut info = String::new();
    for section in ["server", "cpu", "commandstats"] {
        info += &connection.command(&["INFO", section])?;
    }
    own_figures::redis(&info).ok_or_else(unexpected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    /// Answers each command of one connection with the next of `replies`; returns the words it received.
    fn server(replies: Vec<Vec<u8>>) -> (ServerLogin, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut words = Vec::new();
            for reply in replies {
                let mut line = String::new();
                if stream.read_line(&mut line).unwrap_or(0) == 0 {
                    break;
                }
                let count: usize = line[1..].trim().parse().unwrap();
                for _ in 0..count {
                    let mut lines = [String::new(), String::new()];
                    for line in &mut lines {
                        stream.read_line(line).unwrap();
                    }
                    words.push(lines[1].trim().to_owned());
                }
                stream.get_mut().write_all(&reply).unwrap();
            }
            words
        });
        (ServerLogin { address, user: None, password_file: None }, thread)
    }

    fn text(text: &str) -> Vec<u8> {
        format!("${}\r\n{text}\r\n", text.len()).into_bytes()
    }

    #[test]
    fn a_server_is_asked_after_a_login() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        std::fs::write(&path, "planted\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let cpu = text("used_cpu_sys:1.5\r\nused_cpu_user:0.5\r\n");
        let (login, thread) =
            server(vec![b"+OK\r\n".to_vec(), text("process_id:7\r\n"), cpu, text("cmdstat_get:calls=1,usec=9\r\n")]);
        let login = ServerLogin { user: Some("tracer".into()), password_file: Some(path), ..login };
        let figures = ask(&login).unwrap();
        assert_eq!((figures.pid, figures.cpu, figures.commands.len()), (7, 2_000_000_000, 1));
        let words = thread.join().unwrap().join(" ");
        assert_eq!(words, "AUTH tracer planted INFO server INFO cpu INFO commandstats");
    }

    #[test]
    fn what_is_no_redis_is_refused_and_nothing_is_repeated() {
        for (reply, expected) in [
            (b"-NOAUTH planted secret\r\n".to_vec(), "it refuses INFO: NOAUTH"),
            (b"HTTP/1.1 400\r\n".to_vec(), "does not answer as Redis"),
            (b"$99999999999\r\n".to_vec(), "does not answer as Redis"),
            (b"$-1\r\n".to_vec(), "does not answer as Redis"),
            (vec![b'x'; REPLY + 10], "does not answer as Redis"),
            (b"$5\r\nab".to_vec(), "closed the connection"),
        ] {
            let (login, thread) = server(vec![reply]);
            let error = ask(&login).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("planted"), "{error}");
            thread.join().unwrap();
        }
    }
}
