//! The test at start of the program that writes headers, on TCP pairs of the agent's own, before any other socket is touched:
//! everything that being where the kernel shows what is sent has broken on some kernel, and every way a request is written.
//!
//! A fault means that no header is written on this kernel; a limit, that some sockets are left alone.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tracer_common::header::LEN;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the largest message.
const LARGE: usize = 3 << 20;

/// What puts a socket where the program sees what it sends.
pub(super) struct Bench<'a> {
    pub(super) join: &'a mut dyn FnMut(&dyn AsRawFd) -> Result<(), String>,
    /// Lets go of the one that was put there last.
    pub(super) leave: &'a mut dyn FnMut() -> Result<(), String>,
}

/// What the test found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// What is broken.
    pub(super) faults: Vec<String>,
    /// What is broken of some sockets, which are left alone.
    pub(super) limits: Vec<String>,
    /// Those whose reads block are left alone.
    pub(super) no_blocking: bool,
    /// Connections are let go of once their first request is acknowledged.
    pub(super) once: bool,
}

/// What is tried on a pair whose client was taken in.
type Case = (&'static str, fn(&mut Pair) -> Result<(), String>);

/// Runs the test. Errors are of the test itself.
pub(super) fn run(bench: &mut Bench<'_>) -> io::Result<Verdict> {
    let mut verdict = Verdict::default();
    let cases: [Case; 11] = [
        ("poll", wakes_pollers),
        ("MSG_PEEK", peeks),
        ("splice", splices),
        ("sendfile", sends_a_file),
        ("half close", half_closes),
        ("close with unsent data", closes_full),
        ("a reset", is_reset),
        ("3 MB untouched", large_untouched),
        ("a partial send", sends_in_part),
        ("requests", requests),
        ("a request of 3 MB", large_request),
    ];
    for (what, case) in cases {
        let mut pair = Pair::new()?;
        (bench.join)(&pair.client).map_err(io::Error::other)?;
        if let Err(why) = case(&mut pair) {
            verdict.faults.push(format!("{what}: {why}"));
        }
    }
    let mut pair = Pair::new()?;
    (bench.join)(&pair.client).map_err(io::Error::other)?;
    if let Err(why) = waiting_bytes(&mut pair) {
        verdict
            .limits
            .push(format!("FIONREAD on what is taken in ({why}): only the first request of each connection gets one"));
        verdict.once = true;
    }
    let mut pair = Pair::new()?;
    (bench.join)(&pair.client).map_err(io::Error::other)?;
    if let Err(why) = let_go(bench, &mut pair) {
        verdict.faults.push(format!("a connection that is let go of: {why}"));
    }
    if let Err(why) = untouched(bench)? {
        verdict.faults.push(why);
    }
    let blocking: [Case; 2] = [
        ("a signal ends a read that waits", interrupted),
        ("a reset does not end a read that waits as one", reset_waiting),
    ];
    for (what, case) in blocking {
        let mut pair = Pair::new()?;
        (bench.join)(&pair.client).map_err(io::Error::other)?;
        if let Err(why) = case(&mut pair) {
            verdict.limits.push(format!("{what} ({why}): sockets that block get none"));
            verdict.no_blocking = true;
        }
    }
    Ok(verdict)
}

/// A connection: `client` is what the program sees.
struct Pair {
    client: TcpStream,
    peer: TcpStream,
}

impl Pair {
    fn new() -> io::Result<Self> {
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

    /// The peer sends, and the bytes are there.
    fn arrive(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.peer.write_all(bytes).map_err(|error| format!("the peer's write: {error}"))?;
        ready(&self.client, libc::POLLIN)
    }
}

fn words(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{what}: {error}")
}

fn last(what: &'static str) -> String {
    words(what)(io::Error::last_os_error())
}

/// Bytes that are no request, each unlike its neighbours.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// Waits until `poll` says what is waited for.
fn ready(socket: &impl AsRawFd, events: i16) -> Result<(), String> {
    let mut one = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    // SAFETY: one element.
    match unsafe { libc::poll(&raw mut one, 1, PATIENCE.as_millis() as i32) } {
        1 if one.revents & events != 0 => Ok(()),
        1 => Err(format!("poll says {:#x} where {events:#x} was waited for", one.revents)),
        _ => Err("poll did not wake up".into()),
    }
}

/// Whether `poll` says so now.
fn polls(socket: &impl AsRawFd, events: i16) -> bool {
    let mut one = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    // SAFETY: one element.
    unsafe { libc::poll(&raw mut one, 1, 0) == 1 && one.revents & events != 0 }
}

fn same(got: &[u8], expected: &[u8]) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
    Err(format!("{} bytes came and {} were sent; they differ from byte {at} on", got.len(), expected.len()))
}

fn read_exactly(from: &mut TcpStream, len: usize) -> Result<Vec<u8>, String> {
    let mut got = vec![0; len];
    from.read_exact(&mut got).map_err(words("a read"))?;
    Ok(got)
}

/// Does something while everything that comes at the peer, to its end, is read.
fn drained(pair: &mut Pair, act: impl FnOnce(&mut TcpStream) -> Result<(), String>) -> Result<Vec<u8>, String> {
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

fn waiting_bytes(pair: &mut Pair) -> Result<(), String> {
    pair.arrive(b"ten bytes!")?;
    let mut bytes = -1i32;
    // SAFETY: the kernel writes an int.
    if unsafe { libc::ioctl(pair.client.as_raw_fd(), libc::FIONREAD, &raw mut bytes) } != 0 {
        return Err(last("ioctl"));
    }
    if bytes == 10 { Ok(()) } else { Err(format!("{bytes} bytes wait where there are 10")) }
}

/// A connection is let go of while its request is under way: all that was tried on the others holds of it.
fn let_go(bench: &mut Bench<'_>, pair: &mut Pair) -> Result<(), String> {
    let request = &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..];
    pair.client.write_all(request).map_err(words("a write"))?;
    (bench.leave)()?;
    injected(&read_exactly(&mut pair.peer, request.len() + LEN as usize)?, request, 1)?;
    waiting_bytes(pair)?;
    peek_at(pair, b"ten bytes!")?;
    wakes_pollers_of(pair)?;
    pair.client.write_all(request).map_err(words("a write"))?;
    same(&read_exactly(&mut pair.peer, request.len())?, request)?;
    interrupted(pair)?;
    large_untouched(pair)
}

fn wakes_pollers(pair: &mut Pair) -> Result<(), String> {
    wakes_pollers_of(pair)?;
    pair.peer.shutdown(Shutdown::Write).map_err(words("the peer's shutdown"))?;
    ready(&pair.client, libc::POLLRDHUP)?;
    ready(&pair.client, libc::POLLIN)?;
    let rest = pair.client.read(&mut [0; 8]).map_err(words("a read at the end"))?;
    if rest == 0 { Ok(()) } else { Err(format!("{rest} bytes at the end")) }
}

fn wakes_pollers_of(pair: &mut Pair) -> Result<(), String> {
    if polls(&pair.client, libc::POLLIN) || !polls(&pair.client, libc::POLLOUT) {
        return Err("an idle connection is readable, or not writable".into());
    }
    // SAFETY: makes a descriptor.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(last("epoll_create1"));
    }
    // SAFETY: nobody else has it.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 7 };
    let (of, socket) = (epoll.as_raw_fd(), pair.client.as_raw_fd());
    // SAFETY: two descriptors and an event.
    if unsafe { libc::epoll_ctl(of, libc::EPOLL_CTL_ADD, socket, &raw mut event) } != 0 {
        return Err(last("epoll_ctl"));
    }
    let wait = |expected: i32| {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let count = unsafe { libc::epoll_wait(of, &raw mut event, 1, PATIENCE.as_millis() as i32) };
        let events = event.events;
        if count == 1 && events & expected as u32 != 0 { Ok(()) } else { Err("epoll did not wake up".to_owned()) }
    };
    for _ in 0..3 {
        // A thread that waits already, and bytes that come then.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(libc::EPOLLIN));
            pair.peer.write_all(b"abc").map_err(words("the peer's write"))?;
            waiting.join().map_err(|_| "a thread ended".to_owned())?
        })?;
        same(&read_exactly(&mut pair.client, 3)?, b"abc")?;
        if polls(&pair.client, libc::POLLIN) {
            return Err("readable when everything was read".into());
        }
        // What is sent between must not change that.
        pair.client.write_all(b"\x16between").map_err(words("a write"))?;
        same(&read_exactly(&mut pair.peer, 8)?, b"\x16between")?;
    }
    Ok(())
}

fn peeks(pair: &mut Pair) -> Result<(), String> {
    pair.arrive(b"peeked at")?;
    peek_at(pair, b"peeked at")
}

/// Bytes that wait are looked at, and then read.
fn peek_at(pair: &mut Pair, bytes: &[u8]) -> Result<(), String> {
    for _ in 0..2 {
        let mut four = [0u8; 4];
        let got = pair.client.peek(&mut four).map_err(words("a peek"))?;
        same(four.get(..got).unwrap_or_default(), bytes.get(..4).unwrap_or_default())?;
    }
    same(&read_exactly(&mut pair.client, bytes.len())?, bytes)
}

fn pipe() -> Result<(OwnedFd, OwnedFd), String> {
    let mut ends = [0 as RawFd; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(last("pipe"));
    }
    let [from, to] = ends;
    // SAFETY: nobody else has them.
    Ok(unsafe { (OwnedFd::from_raw_fd(from), OwnedFd::from_raw_fd(to)) })
}

fn splice(from: RawFd, to: RawFd, len: usize) -> Result<usize, String> {
    let none = std::ptr::null_mut();
    // SAFETY: two descriptors, no offsets.
    let moved = unsafe { libc::splice(from, none, to, none, len, 0) };
    usize::try_from(moved).map_err(|_| last("splice"))
}

fn splices(pair: &mut Pair) -> Result<(), String> {
    let (from, to) = pipe()?;
    let (mut from_file, mut to_file) = (std::fs::File::from(from), std::fs::File::from(to));
    let bytes = pattern(10_000);
    pair.arrive(&bytes)?;
    let mut left = bytes.len();
    let mut got = Vec::new();
    while left > 0 {
        let moved = splice(pair.client.as_raw_fd(), to_file.as_raw_fd(), left)?;
        if moved == 0 {
            return Err("splice says that the connection is over".into());
        }
        let mut part = vec![0; moved];
        from_file.read_exact(&mut part).map_err(words("a pipe"))?;
        got.extend(part);
        left -= moved;
    }
    same(&got, &bytes)?;
    to_file.write_all(&bytes).map_err(words("a pipe"))?;
    let mut left = bytes.len();
    while left > 0 {
        left -= splice(from_file.as_raw_fd(), pair.client.as_raw_fd(), left)?;
    }
    same(&read_exactly(&mut pair.peer, bytes.len())?, &bytes)
}

fn sends_a_file(pair: &mut Pair) -> Result<(), String> {
    // SAFETY: a name that ends with a zero.
    let fd = unsafe { libc::memfd_create(c"tracer".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(last("memfd_create"));
    }
    // SAFETY: nobody else has it.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let bytes = pattern(300_000);
    file.write_all(&bytes).map_err(words("a file"))?;
    let head = b"POST /file HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n";
    let got = drained(pair, |client| {
        client.write_all(head).map_err(words("a write"))?;
        let mut offset = 0i64;
        while (offset as usize) < bytes.len() {
            let left = bytes.len() - offset as usize;
            // SAFETY: two descriptors and an offset.
            if unsafe { libc::sendfile(client.as_raw_fd(), fd, &raw mut offset, left) } <= 0 {
                return Err(last("sendfile"));
            }
        }
        Ok(())
    })?;
    injected(&got, &[head, &bytes[..]].concat(), 1)
}

fn half_closes(pair: &mut Pair) -> Result<(), String> {
    let bytes = pattern(5_000);
    let got = drained(pair, |client| client.write_all(&bytes).map_err(words("a write")))?;
    same(&got, &bytes)?;
    pair.peer.write_all(b"after").map_err(words("the peer's write"))?;
    pair.peer.shutdown(Shutdown::Write).map_err(words("the peer's shutdown"))?;
    let mut rest = Vec::new();
    pair.client.read_to_end(&mut rest).map_err(words("a read"))?;
    same(&rest, b"after")
}

fn closes_full(pair: &mut Pair) -> Result<(), String> {
    let bytes = pattern(LARGE);
    pair.client.set_nonblocking(true).map_err(words("O_NONBLOCK"))?;
    let mut sent = 0;
    while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
        match pair.client.write(rest) {
            Ok(more) => sent += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(words("a write")(error)),
        }
    }
    // Closed with all that is on its way.
    let other = Pair::new().map_err(words("a connection"))?;
    drop(std::mem::replace(&mut pair.client, other.client));
    let mut got = Vec::new();
    pair.peer.read_to_end(&mut got).map_err(words("the peer's read"))?;
    same(&got, bytes.get(..sent).unwrap_or_default())
}

/// Ends the connection by a reset.
fn reset(socket: &TcpStream) -> Result<(), String> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of::<libc::linger>() as libc::socklen_t;
    let value = (&raw const linger).cast();
    // SAFETY: as many bytes as are said to be there.
    if unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, len) } != 0 {
        return Err(last("SO_LINGER"));
    }
    Ok(())
}

/// The peer's end is closed.
fn close_peer(pair: &mut Pair) -> Result<(), String> {
    let other = Pair::new().map_err(words("a connection"))?;
    drop(std::mem::replace(&mut pair.peer, other.peer));
    Ok(())
}

fn is_reset(pair: &mut Pair) -> Result<(), String> {
    pair.client.write_all(b"\x16abc").map_err(words("a write"))?;
    same(&read_exactly(&mut pair.peer, 4)?, b"\x16abc")?;
    pair.client.set_nonblocking(true).map_err(words("O_NONBLOCK"))?;
    reset(&pair.peer)?;
    close_peer(pair)?;
    ready(&pair.client, libc::POLLERR | libc::POLLHUP)?;
    match pair.client.read(&mut [0; 8]) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        other => return Err(format!("a read gives {other:?}")),
    }
    match pair.client.write(b"x") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Err(format!("a write after it gives {other:?}")),
    }
}

fn large_untouched(pair: &mut Pair) -> Result<(), String> {
    let mut bytes = pattern(LARGE);
    // Like a handshake of TLS.
    bytes.splice(..3, [0x16, 3, 1]);
    let got = drained(pair, |client| client.write_all(&bytes).map_err(words("a write")))?;
    same(&got, &bytes)
}

/// A request whose bytes find less room than they need: what the kernel says was taken was.
fn sends_in_part(pair: &mut Pair) -> Result<(), String> {
    let small: i32 = 4096;
    let len = size_of::<i32>() as libc::socklen_t;
    let value = (&raw const small).cast();
    // SAFETY: as many bytes as are said to be there.
    if unsafe { libc::setsockopt(pair.client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value, len) } != 0 {
        return Err(last("SO_SNDBUF"));
    }
    pair.client.set_nonblocking(true).map_err(words("O_NONBLOCK"))?;
    let head = format!("POST /part HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n");
    let bytes = [head.as_bytes(), &pattern(LARGE)].concat();
    let got = drained(pair, |client| {
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            match client.write(rest) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready(client, libc::POLLOUT)?,
                Err(error) => return Err(words("a write")(error)),
            }
        }
        Ok(())
    })?;
    injected(&got, &bytes, 1)
}

/// Whether `got` is `sent` with `lines` headers behind first lines of requests, and nothing else.
fn injected(got: &[u8], sent: &[u8], lines: usize) -> Result<(), String> {
    let mut rest = got;
    let mut plain = Vec::with_capacity(sent.len());
    let mut found = 0;
    while plain.len() < sent.len() && !rest.is_empty() {
        let ends = plain.ends_with(b"\r\n");
        let own = sent.get(plain.len()..).is_some_and(|own| own.starts_with(b"traceparent: 00-"));
        if ends && !own && rest.starts_with(b"traceparent: 00-") {
            let line = rest.get(..LEN as usize).unwrap_or_default();
            let digits = |from: usize, to: usize| {
                line.get(from..to)
                    .is_some_and(|part| part.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b)))
            };
            let dashes = line.get(48) == Some(&b'-') && line.get(65) == Some(&b'-') && line.ends_with(b"\r\n");
            if !dashes || !digits(16, 48) || !digits(49, 65) || !digits(66, 68) {
                return Err(format!("{:?} was written", String::from_utf8_lossy(line)));
            }
            found += 1;
            rest = rest.get(LEN as usize..).unwrap_or_default();
            continue;
        }
        let len = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        plain.extend_from_slice(rest.get(..len).unwrap_or_default());
        rest = rest.get(len..).unwrap_or_default();
    }
    plain.extend_from_slice(rest);
    same(&plain, sent)?;
    if found == lines { Ok(()) } else { Err(format!("{found} headers where {lines} were expected")) }
}

fn requests(pair: &mut Pair) -> Result<(), String> {
    let posted = b"POST /b HTTP/1.1\r\nHost: a\r\ncontent-length:  36 \r\n\r\n";
    // A body that looks like a request.
    let body = b"GET /x HTTP/1.1\r\nHost: a\r\nA: b\r\n\r\n12";
    let posted = String::from_utf8_lossy(posted).replace(" \r\n\r\n", "\r\n\r\n");
    let many: Vec<String> = (0..20).map(|i| format!("X-{i}: {}\r\n", "v".repeat(i * 7))).collect();
    let long = format!("GET /long HTTP/1.1\r\nHost: a\r\n{}\r\n", many.concat());
    let mut sent: Vec<Vec<&[u8]>> = vec![
        vec![b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"],
        vec![posted.as_bytes(), body],
        vec![posted.as_bytes(), &body[..10], &body[10..]],
        vec![b"A / HTTP/1.0\r\n\r\n"],
        vec![long.as_bytes()],
        vec![b"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAM\r\nUpgrade: h2c\r\n\r\n"],
    ];
    for _ in 0..14 {
        sent.push(vec![b"GET /again HTTP/1.1\r\nHost: a\r\n\r\n"]);
    }
    let expected = sent.concat().concat();
    let together = [posted.as_bytes(), body].concat();
    let all = [&expected[..], &together, &expected].concat();
    let got = drained(pair, |client| {
        for piece in sent.iter().flatten() {
            client.write_all(piece).map_err(words("a write"))?;
        }
        client.write_all(&together).map_err(words("a write"))?;
        for request in &sent {
            // At once, from several buffers.
            let slices: Vec<IoSlice<'_>> = request.iter().map(|piece| IoSlice::new(piece)).collect();
            let len: usize = request.iter().map(|piece| piece.len()).sum();
            let done = client.write_vectored(&slices).map_err(words("a write"))?;
            if done != len {
                return Err(format!("{done} bytes of {len} were taken"));
            }
        }
        Ok(())
    })?;
    injected(&got, &all, 2 * sent.len() + 1)
}

/// What is written and must come as it is, or with so many headers; and something behind it that looks like a request.
fn untouched(bench: &mut Bench<'_>) -> io::Result<Result<(), String>> {
    let next = &b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n"[..];
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(5000));
    let own = &b"GET / HTTP/1.1\r\nHost: a\r\nTraceParent: 00-x\r\nA: b\r\n\r\n"[..];
    let cases: [(&str, &[&[u8]], usize); 10] = [
        ("its own", &[own, own], 0),
        ("TLS", &[b"\x16\x03\x01\x00\x05hello", next], 0),
        ("HTTP/2", &[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", next], 0),
        ("a head in two parts", &[b"GET / HTTP/1.1\r\nHost: a\r\n", b"\r\n", next], 0),
        ("a long head", &[long.as_bytes(), next], 0),
        ("WebSocket", &[b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", next], 0),
        ("CONNECT", &[b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", next], 0),
        ("two lengths", &[b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", next], 0),
        ("a chunked body", &[b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", next], 1),
        ("two at once", &[b"GET / HTTP/1.1\r\nA: b\r\n\r\nGET /2 HTTP/1.1\r\nA: b\r\n\r\n", next], 1),
    ];
    for (name, pieces, lines) in cases {
        let mut pair = Pair::new()?;
        (bench.join)(&pair.client).map_err(io::Error::other)?;
        let got = drained(&mut pair, |client| {
            pieces.iter().try_for_each(|piece| client.write_all(piece).map_err(words("a write")))
        });
        if let Err(why) = got.and_then(|got| injected(&got, &pieces.concat(), lines)) {
            return Ok(Err(format!("{name}: {why}")));
        }
    }
    Ok(Ok(()))
}

fn large_request(pair: &mut Pair) -> Result<(), String> {
    let head = format!("POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n");
    let bytes = [head.as_bytes(), &pattern(LARGE)].concat();
    let got = drained(pair, |client| client.write_all(&bytes).map_err(words("a write")))?;
    injected(&got, &bytes, 1)
}

/// What a thread in a read that waits is woken by.
static SIGNALLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: i32) {
    SIGNALLED.fetch_add(1, Ordering::SeqCst);
}

/// Does `act` with the thread that waits in a read of the client, once it waits; what that read gives.
fn while_waiting(
    pair: &mut Pair,
    act: impl FnOnce(i32, &mut TcpStream) -> Result<(), String>,
) -> Result<io::Result<usize>, String> {
    pair.client.set_read_timeout(None).map_err(words("SO_RCVTIMEO"))?;
    let tid = AtomicI32::new(0);
    let (say, hear) = mpsc::channel();
    std::thread::scope(|scope| {
        let (client, tid) = (&pair.client, &tid);
        scope.spawn(move || {
            // SAFETY: no argument.
            tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            let mut buffer = [0u8; 8];
            // Not by the standard library, which reads again after a signal.
            // SAFETY: eight bytes of room.
            let got = unsafe { libc::recv(client.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            let _ = say.send(usize::try_from(got).map_err(|_| io::Error::last_os_error()));
        });
        let end = Instant::now() + PATIENCE;
        let asleep = |tid: i32| {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
        };
        let done = loop {
            let thread = tid.load(Ordering::SeqCst);
            if thread != 0 && asleep(thread) {
                break act(thread, &mut pair.peer);
            }
            if Instant::now() > end {
                break Err("the read did not wait".into());
            }
            std::thread::yield_now();
        };
        let got = hear.recv_timeout(PATIENCE);
        if got.is_err() {
            // So that the thread ends.
            let _ = pair.client.shutdown(Shutdown::Both);
        }
        done?;
        got.map_err(|_| "the read did not end".into())
    })
}

fn interrupted(pair: &mut Pair) -> Result<(), String> {
    // SIGURG is ignored by default, and by whatever else has no use for it.
    // SAFETY: a handler that only counts; what was there is put back.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: as above.
    if unsafe { libc::sigaction(libc::SIGURG, &raw const action, &raw mut before) } != 0 {
        return Err(last("sigaction"));
    }
    let seen = SIGNALLED.load(Ordering::SeqCst);
    let got = while_waiting(pair, |tid, peer| {
        // SAFETY: a thread of this process.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGURG) };
        let end = Instant::now() + PATIENCE;
        while SIGNALLED.load(Ordering::SeqCst) == seen {
            if Instant::now() > end {
                return Err("the signal did not come".into());
            }
            std::thread::yield_now();
        }
        peer.write_all(b"on").map_err(words("the peer's write"))
    });
    // SAFETY: puts back what was there.
    unsafe { libc::sigaction(libc::SIGURG, &raw const before, std::ptr::null_mut()) };
    match got? {
        Ok(2) => Ok(()),
        Ok(other) => Err(format!("{other} bytes")),
        Err(error) => Err(error.to_string()),
    }
}

fn reset_waiting(pair: &mut Pair) -> Result<(), String> {
    reset(&pair.peer)?;
    let spare = Pair::new().map_err(words("a connection"))?;
    match while_waiting(pair, |_, peer| {
        drop(std::mem::replace(peer, spare.peer));
        Ok(())
    })? {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(bytes) => Err(format!("{bytes} bytes")),
    }
}
