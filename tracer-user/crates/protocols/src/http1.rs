//! HTTP/1.0 and 1.1 heads (RFC 9112).
//!
//! A hand-written scanner: `httparse` requires complete heads and a bound on headers, while heads here may be cut by
//! the capture limit and must still be named and framed from the captured part. It looks at the few headers that matter
//! and keeps nothing else.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use memchr::memchr;
use rustc_hash::FxHasher;
use tracer_model::ProtocolId;

use super::context::{Contexts, Which};
use super::framed::NO_STATUS;
use super::pool::recent;
use super::{Beyond, Body, Detected, ExpectedReply, Parser, Protocol, Reply, Request, Settings, Step};

/// The methods that OpenTelemetry's conventions name; every other one is `_OTHER` there.
const CONVENTIONAL: [&str; 10] =
    ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"];

/// A method in the conventions' terms.
pub fn conventional_method(method: &str) -> &'static str {
    CONVENTIONAL.into_iter().find(|known| *known == method).unwrap_or("_OTHER")
}

/// Methods recognised at the beginning of a connection, the most frequent first.
pub(super) const METHODS: &[&str] = &[
    "GET",
    "POST",
    "PUT",
    "HEAD",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "CONNECT",
    "TRACE",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "REPORT",
    "SEARCH",
    "PURGE",
    "QUERY",
    "LINK",
    "UNLINK",
    "MKCALENDAR",
    "ACL",
];
/// Most bytes of a path kept.
const PATH_LIMIT: usize = 1024;
/// Most bytes of any other value kept.
pub(super) const VALUE_LIMIT: usize = 128;

/// The protocol.
#[derive(Debug)]
pub struct Http1;

impl Protocol for Http1 {
    fn id(&self) -> ProtocolId {
        ProtocolId::Http
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        let bytes = skip_line_ends(bytes);
        if bytes.is_empty() {
            return Detected::NeedMore;
        }
        match prefix(bytes, b"HTTP/1.") {
            Some(true) => return Detected::Reply,
            Some(false) => return Detected::NeedMore,
            None => {}
        }
        for method in METHODS {
            match prefix(bytes, method.as_bytes()) {
                Some(true) => {
                    let Some(after) = bytes.get(method.len()) else { return Detected::NeedMore };
                    if *after != b' ' {
                        continue;
                    }
                    // A Redis inline command looks the same so far: a request target must follow.
                    return match bytes.get(method.len() + 1) {
                        None => Detected::NeedMore,
                        Some(b'/' | b'*' | b'h' | b'H') => Detected::Request,
                        // NATS has a JSON object there.
                        Some(b'[' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') if *method == "CONNECT" => {
                            Detected::Request
                        }
                        Some(_) => request_line_detected(bytes),
                    };
                }
                Some(false) => return Detected::NeedMore,
                None => {}
            }
        }
        request_line_detected(bytes)
    }

    fn open(&self) -> Box<dyn Parser> {
        Box::new(Heads)
    }
}

/// Detects a request by the shape of its whole first line, whatever its method: Subversion's, UPnP's, Varnish's.
fn request_line_detected(bytes: &[u8]) -> Detected {
    let line = memchr(b'\n', bytes).and_then(|end| bytes.get(..end)).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut parts = line.split(|byte| *byte == b' ');
    let (method, target, version) = (parts.next(), parts.next(), parts.next());
    let is_target = target.is_some_and(|target| !target.is_empty() && target.iter().all(|byte| *byte > b' '));
    match (method.and_then(method_name), version, parts.next()) {
        (Some(_), Some(b"HTTP/1.0" | b"HTTP/1.1"), None) if is_target => Detected::Request,
        _ => Detected::No,
    }
}

/// Whether `bytes` begin with `word`; `Some(false)`: they could, but are too short.
fn prefix(bytes: &[u8], word: &[u8]) -> Option<bool> {
    let n = bytes.len().min(word.len());
    (bytes[..n] == word[..n]).then_some(bytes.len() >= word.len())
}

fn skip_line_ends(bytes: &[u8]) -> &[u8] {
    let n = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    bytes.get(n..).unwrap_or_default()
}

/// [`ExpectedReply::note`]: the client offers to switch to HTTP/2 (RFC 7540 §3.2).
const NOTE_H2C: u16 = 1;
/// [`ExpectedReply::note`]: a request of HTTP/0.9: a line without a version. Its reply has no head and ends with the
/// connection.
const NOTE_SIMPLE: u16 = 2;

/// No state between messages.
#[derive(Debug)]
struct Heads;

/// Headers that framing depends on.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    chunked: bool,
    /// `Transfer-Encoding` whose last coding is not `chunked`, or contradictory lengths.
    odd: bool,
}

/// Calls `line` for each line of a head. Returns the head's length, or `None` if its end is not in `bytes`.
fn lines<'a>(bytes: &'a [u8], mut line: impl FnMut(usize, &'a [u8])) -> Option<usize> {
    let mut at = 0;
    let mut number = 0;
    while let Some(rest) = bytes.get(at..)
        && let Some(end) = memchr(b'\n', rest)
    {
        let text = rest.get(..end).unwrap_or_default();
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        at += end + 1;
        if text.is_empty() && number > 0 {
            return Some(at);
        }
        line(number, text);
        number += 1;
    }
    None
}

/// Whether a header line of a request may matter: by the first letter of its name, which rules out most.
fn is_read(line: &[u8], settings: &Settings) -> bool {
    match line.first().map(u8::to_ascii_lowercase) {
        // Content-Length, Transfer-Encoding, Upgrade, and those of trace contexts and request ids.
        Some(b'c' | b't' | b'u' | b'b' | b'x') => true,
        Some(b'h') if settings.host => true,
        _ => !settings.headers.is_empty(),
    }
}

/// Name and value of a header line.
fn header(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr(b':', line)?;
    let (name, rest) = line.split_at_checked(colon)?;
    Some((name, rest.get(1..)?.trim_ascii()))
}

/// Parses digits only, without overflow.
fn number(digits: &[u8]) -> Option<u64> {
    let add = |sum: u64, byte: &u8| match byte {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

impl Framing {
    /// Takes a header line that matters; all of these begin with C or T.
    fn see(&mut self, name: &[u8], value: &[u8]) {
        if name.eq_ignore_ascii_case(b"content-length") {
            for part in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                match number(part) {
                    Some(n) if self.length.is_none_or(|had| had == n) => self.length = Some(n),
                    _ => self.odd = true,
                }
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
            self.chunked = last.eq_ignore_ascii_case(b"chunked");
            self.odd |= !self.chunked;
        }
    }
}

impl Parser for Heads {
    fn request(&mut self, bytes: &[u8], cut: bool, settings: &Settings) -> Step<Box<Request>> {
        let skipped = bytes.len() - skip_line_ends(bytes).len();
        if skipped > 0 {
            return Step::Skip { used: skipped };
        }
        let mut request = None;
        let mut valid = true;
        let mut framing = Framing::default();
        let mut contexts: Option<Contexts> = None;
        let used = lines(bytes, |number, line| {
            if number == 0 {
                request = request_line(line, settings);
                valid = request.is_some();
                if let Some(simple) = request.as_mut().filter(|request| request.version.is_empty()) {
                    (simple.version, simple.expected.note) = ("0.9", NOTE_SIMPLE);
                    valid = &*simple.method == "GET";
                }
            } else if is_read(line, settings)
                && let (Some(request), Some((name, value))) = (&mut request, header(line))
            {
                framing.see(name, value);
                if let Some(which) = Which::of(name, settings) {
                    contexts.get_or_insert_default().see(which, value, settings);
                }
                request_header(request, name, value, settings);
            }
        });
        if !valid {
            return Step::Invalid;
        }
        if let (Some(request), Some(contexts)) = (&mut request, contexts) {
            (request.traceparent, request.carried) = contexts.finish();
        }
        match (used, request) {
            (Some(used), Some(request)) => {
                let body = match framing {
                    Framing { chunked: true, .. } => Body::Chunked,
                    Framing { odd: true, .. } => Body::UntilTurn,
                    Framing { length: Some(n), .. } => Body::Length(n),
                    Framing { .. } => Body::Length(0),
                };
                Step::Head { used, message: request, body }
            }
            // The reply came: nothing follows the line.
            (None, Some(request)) if cut && request.expected.note == NOTE_SIMPLE && bytes.ends_with(b"\n") => {
                Step::Head { used: bytes.len(), message: request, body: Body::Length(0) }
            }
            (None, request) if cut => {
                // Named from the captured part; its end is unknown.
                let request = request.or_else(|| request_line(without_cut_version(bytes), settings));
                let Some(mut request) = request else { return Step::Invalid };
                request.cut = true;
                let body = match framing {
                    Framing { chunked: true, .. } => Body::Chunked,
                    _ => Body::UntilTurn,
                };
                // The rest of the head comes first, so chunks cannot be followed either.
                let body = if body == Body::Chunked { Body::UntilTurn } else { body };
                Step::Head { used: bytes.len(), message: request, body }
            }
            _ => Step::NeedMore,
        }
    }

    fn reply(&mut self, bytes: &[u8], cut: bool, expected: &ExpectedReply) -> Step<Reply> {
        let skipped = bytes.len() - skip_line_ends(bytes).len();
        if skipped > 0 {
            return Step::Skip { used: skipped };
        }
        if expected.note == NOTE_SIMPLE && !bytes.starts_with(b"HTTP/1.") {
            let message = Reply { status: NO_STATUS, failure: None, interim: false };
            return Step::Head { used: 0, message, body: Body::UntilClose };
        }
        let mut status = None;
        let mut valid = true;
        let mut framing = Framing::default();
        let used = lines(bytes, |number, line| {
            if number == 0 {
                status = status_line(line);
                valid = status.is_some();
            } else if let [b'c' | b'C' | b't' | b'T', ..] = line
                && let Some((name, value)) = header(line)
            {
                // Only framing matters in a reply, and replies have many lines.
                framing.see(name, value);
            }
        });
        if !valid {
            return Step::Invalid;
        }
        let (used, whole) = match used {
            Some(used) => (used, true),
            None if cut => (bytes.len(), false),
            None => return Step::NeedMore,
        };
        let Some(status) = status.or_else(|| status_line(bytes)) else { return Step::Invalid };
        let interim = (100..200).contains(&status) && status != 101;
        let body = if status == 101 || (expected.tunnel && (200..300).contains(&status)) {
            Body::Switch
        } else if interim || expected.bodiless || matches!(status, 204 | 304) {
            if whole { Body::Length(0) } else { Body::Beyond(Beyond::Nothing) }
        } else if !whole {
            match framing {
                Framing { chunked: true, .. } => Body::Beyond(Beyond::Chunks),
                Framing { odd: false, length: Some(n), .. } => Body::Beyond(Beyond::Length(n)),
                Framing { .. } => Body::UntilTurn,
            }
        } else if framing.chunked {
            Body::Chunked
        } else if framing.odd {
            Body::UntilClose
        } else {
            framing.length.map_or(Body::UntilClose, Body::Length)
        };
        Step::Head { used, message: Reply { status, failure: None, interim }, body }
    }

    fn switched(&self, expected: &ExpectedReply) -> Option<&'static dyn Protocol> {
        (expected.note == NOTE_H2C).then_some(&super::http2::Http2 as &dyn Protocol)
    }

    fn is_whole_line(&self, line: &[u8], reply: &[u8]) -> bool {
        let is_line = memchr(b'\n', line) == line.len().checked_sub(1);
        let mut words = line.trim_ascii_end().split(|byte| *byte == b' ');
        let is_simple = (words.next(), words.next().is_some(), words.next()) == (Some(b"GET"), true, None);
        // Redis answers so, whose inline commands look alike.
        let is_redis = matches!(reply, [b'$' | b'*' | b'+' | b'-' | b':', ..]);
        is_line && is_simple && !is_redis && !reply.is_empty() && !reply.starts_with(b"HTTP/1.")
    }

    fn may_be_whole(&self, fresh: &[u8]) -> bool {
        memchr::memmem::find(fresh, b"\n\r\n").is_some() || memchr::memmem::find(fresh, b"\n\n").is_some()
    }
}

fn status_line(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let rest = rest.get(1..)?.strip_prefix(b" ")?;
    let status = number(rest.get(..3)?)?;
    (100..1000).contains(&status).then_some(status as u16)
}

/// A request line cut short, without a partial version at its end.
fn without_cut_version(line: &[u8]) -> &[u8] {
    let at = memchr::memrchr(b' ', line).unwrap_or(line.len());
    let (before, version) = line.split_at(at);
    if version.get(1..).is_some_and(|version| b"HTTP/1.".starts_with(version)) { before } else { line }
}

fn request_line(line: &[u8], settings: &Settings) -> Option<Box<Request>> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let method = parts.next()?;
    let target = parts.next()?;
    let version = match parts.next().map(<[u8]>::trim_ascii) {
        Some(b"HTTP/1.1") => "1.1",
        Some(b"HTTP/1.0") => "1.0",
        // RFC 9112: treat a later minor version as 1.1.
        Some(other) if other.starts_with(b"HTTP/1.") => "1.1",
        // Cut inside the target.
        None => "",
        Some(_) => return None,
    };
    if target.is_empty() {
        return None;
    }
    let method = method_name(method)?;
    let tunnel = method == "CONNECT";
    Some(Box::new(Request {
        method: settings.method(method),
        path: path(target, tunnel),
        // If the head was cut inside the target, the rest of the target is unknown.
        target: if version.is_empty() { 0 } else { target_number(target) },
        host: None,
        version,
        traceparent: None,
        carried: None,
        request_id: None,
        headers: Vec::new(),
        expected: ExpectedReply { bodiless: method == "HEAD", tunnel, ..ExpectedReply::default() },
        session: None,
        namespace: None,
        cut: false,
    }))
}

/// A method name, known or not.
pub(super) fn method_name(method: &[u8]) -> Option<&str> {
    let fits = !method.is_empty() && method.len() <= 32 && method.iter().all(|byte| is_token(*byte));
    if fits { std::str::from_utf8(method).ok() } else { None }
}

pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The path of a target: without query, fragment, scheme, authority and the parameters of its segments; bounded.
pub(super) fn path(target: &[u8], tunnel: bool) -> Arc<str> {
    let mut rest = target;
    if !tunnel
        && !rest.starts_with(b"/")
        && let Some(scheme) = memchr::memmem::find(rest, b"://")
    {
        let after = rest.get(scheme + 3..).unwrap_or_default();
        rest = memchr(b'/', after).and_then(|slash| after.get(slash..)).unwrap_or(b"/");
    }
    let end = memchr::memchr2(b'?', b'#', rest).unwrap_or(rest.len()).min(PATH_LIMIT);
    let path = rest.get(..end).unwrap_or_default();
    if memchr(b';', path).is_some() { recent(&without_parameters(path)) } else { recent(path) }
}

/// Path parameters are values as a query's are, and often secret: `/cart;jsessionid=4F1C/items;page=2`.
fn without_parameters(path: &[u8]) -> Vec<u8> {
    let mut inside = false;
    let is_kept = |byte: &u8| {
        inside = (inside || *byte == b';') && *byte != b'/';
        !inside
    };
    path.iter().copied().filter(is_kept).collect()
}

/// Hash that distinguishes targets without keeping them: their queries may be secret.
pub(super) fn target_number(target: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    target.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Bytes as text; invalid UTF-8 becomes replacement characters.
pub(super) fn text(bytes: &[u8]) -> Arc<str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Arc::from(text),
        Err(_) => Arc::from(String::from_utf8_lossy(bytes)),
    }
}

fn request_header(request: &mut Request, name: &[u8], value: &[u8], settings: &Settings) {
    let value_kept = || text(value.get(..value.len().min(VALUE_LIMIT)).unwrap_or_default());
    if settings.host && name.eq_ignore_ascii_case(b"host") {
        request.host = Some(value_kept());
    } else if settings.request_id && name.eq_ignore_ascii_case(b"x-request-id") {
        request.request_id = Some(value_kept());
    } else if name.eq_ignore_ascii_case(b"upgrade") {
        for offer in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if offer.eq_ignore_ascii_case(b"h2c") {
                request.expected.note = NOTE_H2C;
            }
            request.expected.websocket |= offer.eq_ignore_ascii_case(b"websocket");
        }
    }
    for (index, wanted) in settings.headers.iter().enumerate() {
        if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            request.headers.push((index as u16, Box::from(&*value_kept())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes() {
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], Detected::Request),
            (b"\r\nPOST /x HTTP/1.1", Detected::Request),
            (b"OPTIONS * HTTP/1.1", Detected::Request),
            (b"GET http://h/ HTTP/1.1", Detected::Request),
            (b"CONNECT h:443 HTTP/1.1", Detected::Request),
            (b"HTTP/1.1 200 OK", Detected::Reply),
            (b"HTTP/1.0 404", Detected::Reply),
            (b"", Detected::NeedMore),
            (b"G", Detected::NeedMore),
            (b"GET", Detected::NeedMore),
            (b"GET ", Detected::NeedMore),
            (b"HTT", Detected::NeedMore),
            (b"P", Detected::NeedMore),
            (b"PRI * HTTP/2.0\r\n", Detected::No),
            (b"GET key\r\n", Detected::No),
            (b"*1\r\n$4\r\nPING\r\n", Detected::No),
            (b"\x16\x03\x01\x02\x00", Detected::No),
            (b"HTTP/2 200", Detected::No),
            (b"SSH-2.0-x", Detected::No),
            // Subversion, UPnP, Icecast, Varnish.
            (b"MERGE /repository HTTP/1.1\r\n", Detected::Request),
            (b"VERSION-CONTROL /a HTTP/1.1\r\n", Detected::Request),
            (b"NOTIFY /event HTTP/1.1\r\nHost: h\r\n", Detected::Request),
            (b"SUBSCRIBE /event HTTP/1.1\r\n", Detected::Request),
            (b"SOURCE /live.ogg HTTP/1.0\r\n", Detected::Request),
            (b"BAN .*\\.css HTTP/1.1\n", Detected::Request),
            (b"GET index.html HTTP/1.0\r\n", Detected::Request),
            (b"SOURCE secret /live ICE/1.0\r\n", Detected::No),
            (b"DESCRIBE rtsp://h/a RTSP/1.0\r\n", Detected::No),
            (b"INVITE sip:a@b SIP/2.0\r\n", Detected::No),
            (b"set a 0 0 8\r\nHTTP/1.1\r\n", Detected::No),
            (b"MERGE /a b HTTP/1.1\r\n", Detected::No),
            (b"SUBSCRIBE a b\r\n", Detected::No),
        ] {
            assert_eq!(Http1.detect(bytes), expected, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn paths() {
        for (target, expected) in [
            ("/a/b?c=d", "/a/b"),
            ("/a#f", "/a"),
            ("http://host/a?b", "/a"),
            ("http://host", "/"),
            ("http://host?x", "/"),
            ("*", "*"),
            ("/a://b", "/a://b"),
            ("/cart;jsessionid=4F1C/items;page=2;x=/c?y", "/cart/items/c"),
            ("/;sid=1", "/"),
            ("http://host/a;v=1", "/a"),
        ] {
            assert_eq!(&*path(target.as_bytes(), false), expected, "{target}");
        }
        assert_eq!(&*path(b"h:443", true), "h:443");
        assert_eq!(path(&[b'/'; 5000], false).len(), PATH_LIMIT);
    }

    #[test]
    fn a_request_is_named_wherever_its_head_is_cut() {
        let head = b"GET /a/long/path HTTP/1.1\r\nHost: h\r\n\r\n";
        for at in b"GET /".len()..head.len() {
            let Step::Head { message, .. } = Heads.request(&head[..at], true, &Settings::default()) else {
                panic!("cut at {at}: no request");
            };
            let path = head[4..at].split(|byte| *byte == b' ').next().unwrap();
            assert_eq!((&*message.method, message.path.as_bytes(), message.cut), ("GET", path, true), "cut at {at}");
        }
        assert!(matches!(Heads.request(b"GET / FTP", true, &Settings::default()), Step::Invalid));
        assert!(matches!(Heads.request(b"GET / HTTP\r\n\r\n", false, &Settings::default()), Step::Invalid));
    }

    #[test]
    fn framing_of_requests_and_replies() {
        let request = |head: &str| match Heads.request(head.as_bytes(), false, &Settings::default()) {
            Step::Head { used, body, .. } if used == head.len() => Some(body),
            _ => None,
        };
        for (headers, expected) in [
            ("", Body::Length(0)),
            ("Content-Length: 5\r\n", Body::Length(5)),
            ("content-length:5\r\nContent-Length: 5\r\n", Body::Length(5)),
            ("Content-Length: 5, 5\r\n", Body::Length(5)),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", Body::UntilTurn),
            ("Content-Length: +5\r\n", Body::UntilTurn),
            ("Content-Length: 5\r\nTransfer-Encoding: gzip, Chunked\r\n", Body::Chunked),
        ] {
            assert_eq!(request(&format!("POST / HTTP/1.1\r\n{headers}\r\n")), Some(expected), "{headers}");
        }
        let reply = |head: &str, expected: ExpectedReply| match Heads.reply(head.as_bytes(), false, &expected) {
            Step::Head { body, .. } => Some(body),
            _ => None,
        };
        let plain = ExpectedReply::default();
        for (head, of_request, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", plain, Body::Length(9)),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
                ExpectedReply { bodiless: true, ..plain },
                Body::Length(0),
            ),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", plain, Body::Length(0)),
            ("HTTP/1.1 204 No Content\r\n\r\n", plain, Body::Length(0)),
            ("HTTP/1.0 200 OK\r\n\r\n", plain, Body::UntilClose),
            ("HTTP/1.1 200 OK\n\n", plain, Body::UntilClose),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", plain, Body::Switch),
            ("HTTP/1.1 200 OK\r\n\r\n", ExpectedReply { tunnel: true, ..plain }, Body::Switch),
            ("HTTP/1.1 100 Continue\r\n\r\n", plain, Body::Length(0)),
        ] {
            assert_eq!(reply(head, of_request), Some(expected), "{head}");
        }
    }
}
