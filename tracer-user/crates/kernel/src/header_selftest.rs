//! The test at start of the header-writing program, on the agent's own TCP pairs and before any other socket is
//! touched: everything that hooking sent messages has broken on some kernel, and every way of writing a request.
//!
//! After a fault no header is written on this kernel; a limit excludes some sockets.

mod pair;
mod waiting;
mod zero_copy;

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use pair::{Pair, close_peer, drained, last, pattern, pipe, polls, read_exactly, ready, reset, same, splice, words};
use tracer_common::header::LEN;
use waiting::{interrupted, reset_waiting};

/// Timeout of every operation.
const PATIENCE: Duration = Duration::from_secs(5);
/// Size of the largest message, bytes.
const LARGE: usize = 3 << 20;

/// Adds and removes sockets that the program handles.
pub(super) struct Bench<'a> {
    pub(super) join: &'a mut dyn FnMut(&dyn AsRawFd) -> Result<(), String>,
    /// Removes the socket added last.
    pub(super) leave: &'a mut dyn FnMut() -> Result<(), String>,
}

/// The test's result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Faults.
    pub(super) faults: Vec<String>,
    /// Faults that concern only some sockets, which are excluded.
    pub(super) limits: Vec<String>,
    /// Exclude sockets with blocking reads.
    pub(super) no_blocking: bool,
    /// Remove a connection once its first request is acknowledged.
    pub(super) once: bool,
}

/// A case, run on a pair whose client was added.
type Case = (&'static str, fn(&mut Pair) -> Result<(), String>);

/// Runs the test. An error is one of the test itself.
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
    // Where the kernel has no `MSG_ZEROCOPY` at all, no program uses it.
    if zero_copy::completes(&mut Pair::new()?).is_ok() {
        let mut pair = Pair::new()?;
        (bench.join)(&pair.client).map_err(io::Error::other)?;
        if let Err(why) = zero_copy::completes(&mut pair) {
            verdict.limits.push(format!(
                "MSG_ZEROCOPY on what is taken in ({why}): name no destination that programs send to by it, unless they set SO_ZEROCOPY before they connect"
            ));
        }
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

fn waiting_bytes(pair: &mut Pair) -> Result<(), String> {
    pair.arrive(b"ten bytes!")?;
    let mut bytes = -1i32;
    // SAFETY: the kernel writes an int.
    if unsafe { libc::ioctl(pair.client.as_raw_fd(), libc::FIONREAD, &raw mut bytes) } != 0 {
        return Err(last("ioctl"));
    }
    if bytes == 10 { Ok(()) } else { Err(format!("{bytes} bytes wait where there are 10")) }
}

/// Removes a connection while its request is under way; the other cases must hold for the removed socket too.
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
    // SAFETY: creates a descriptor.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(last("epoll_create1"));
    }
    // SAFETY: nothing else owns it.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 7 };
    let (of, socket) = (epoll.as_raw_fd(), pair.client.as_raw_fd());
    // SAFETY: two valid descriptors and an event.
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
        // The thread already waits when the bytes arrive.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(libc::EPOLLIN));
            pair.peer.write_all(b"abc").map_err(words("the peer's write"))?;
            waiting.join().map_err(|_| "a thread ended".to_owned())?
        })?;
        same(&read_exactly(&mut pair.client, 3)?, b"abc")?;
        if polls(&pair.client, libc::POLLIN) {
            return Err("readable when everything was read".into());
        }
        // Sending in between must not change that.
        pair.client.write_all(b"\x16between").map_err(words("a write"))?;
        same(&read_exactly(&mut pair.peer, 8)?, b"\x16between")?;
    }
    Ok(())
}

fn peeks(pair: &mut Pair) -> Result<(), String> {
    pair.arrive(b"peeked at")?;
    peek_at(pair, b"peeked at")
}

/// Peeks at waiting bytes, then reads them.
fn peek_at(pair: &mut Pair, bytes: &[u8]) -> Result<(), String> {
    for _ in 0..2 {
        let mut four = [0u8; 4];
        let got = pair.client.peek(&mut four).map_err(words("a peek"))?;
        same(four.get(..got).unwrap_or_default(), bytes.get(..4).unwrap_or_default())?;
    }
    same(&read_exactly(&mut pair.client, bytes.len())?, bytes)
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
    // SAFETY: nothing else owns it.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let bytes = pattern(300_000);
    file.write_all(&bytes).map_err(words("a file"))?;
    let head = b"POST /file HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n";
    let got = drained(pair, |client| {
        client.write_all(head).map_err(words("a write"))?;
        let mut offset = 0i64;
        while (offset as usize) < bytes.len() {
            let left = bytes.len() - offset as usize;
            // SAFETY: two valid descriptors and an offset.
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
    // Close with everything still in flight.
    let other = Pair::new().map_err(words("a connection"))?;
    drop(std::mem::replace(&mut pair.client, other.client));
    let mut got = Vec::new();
    pair.peer.read_to_end(&mut got).map_err(words("the peer's read"))?;
    same(&got, bytes.get(..sent).unwrap_or_default())
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
    // Looks like a TLS handshake.
    bytes.splice(..3, [0x16, 3, 1]);
    let got = drained(pair, |client| client.write_all(&bytes).map_err(words("a write")))?;
    same(&got, &bytes)
}

/// A request that does not fit into the send buffer: what the kernel reports as sent must have been sent.
fn sends_in_part(pair: &mut Pair) -> Result<(), String> {
    let small: i32 = 4096;
    let len = size_of::<i32>() as libc::socklen_t;
    let value = (&raw const small).cast();
    // SAFETY: the value has the given length.
    if unsafe { libc::setsockopt(pair.client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value, len) } != 0 {
        return Err(last("SO_SNDBUF"));
    }
    pair.client.set_nonblocking(true).map_err(words("O_NONBLOCK"))?;
    let head = format!("POST /part HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n");
    // One more request follows it.
    let next = b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    let posted = [head.as_bytes(), &pattern(LARGE)].concat();
    let bytes = [&posted[..], next].concat();
    let got = drained(pair, |client| {
        let mut sent = 0;
        while let Some(rest) = posted.get(sent..).filter(|rest| !rest.is_empty()) {
            match client.write(rest) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready(client, libc::POLLOUT)?,
                Err(error) => return Err(words("a write")(error)),
            }
        }
        // Now there is room for all of it.
        zero_copy::acknowledged(client)?;
        client.write_all(next).map_err(words("a write"))
    })?;
    injected(&got, &bytes, 2)
}

/// Whether `got` is `sent` with `lines` headers behind request lines, and nothing else.
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
            // In one call, from several buffers.
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

/// Writes that must arrive unchanged, or with a given number of headers; each is followed by something that looks like
/// a request.
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
    for (name, fragments, lines) in cases {
        let mut pair = Pair::new()?;
        (bench.join)(&pair.client).map_err(io::Error::other)?;
        let got = drained(&mut pair, |client| {
            fragments.iter().try_for_each(|piece| client.write_all(piece).map_err(words("a write")))
        });
        if let Err(why) = got.and_then(|got| injected(&got, &fragments.concat(), lines)) {
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
