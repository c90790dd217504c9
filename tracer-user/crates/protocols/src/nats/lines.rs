//! Single lines, and the header of messages before the payload.

use crate::Detected;
use crate::framed::Way;

/// Longest message a server can be configured to accept, in bytes.
const LONGEST: usize = 64 << 20;
/// First words of lines, by sender.
const FROM_CLIENT: &[&[u8]] = &[b"CONNECT", b"PUB", b"HPUB", b"SUB", b"UNSUB", b"PING", b"PONG"];
const FROM_SERVER: &[&[u8]] = &[b"INFO", b"MSG", b"HMSG", b"+OK", b"-ERR", b"PING", b"PONG"];

/// A message's line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent<'a> {
    pub(super) subject: &'a [u8],
    pub(super) reply: Option<&'a [u8]>,
    /// Bytes of its header, and of everything after the line except the final line end.
    pub(super) header: usize,
    pub(super) total: usize,
}

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Sent(Sent<'a>),
    Connect(&'a [u8]),
    Subscribe(&'a [u8]),
    Unsubscribe,
    Pong,
    Confirmed,
    Refused(&'a [u8]),
    Other,
}

impl<'a> Line<'a> {
    /// Reads a line including its end; `None` if `way` has no such line.
    pub(super) fn read(bytes: &'a [u8], way: Way) -> Option<Self> {
        let bytes = bytes.strip_suffix(b"\n")?;
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let end = bytes.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(bytes.len());
        let (word, rest) = bytes.split_at(end);
        let known = if way == Way::Request { FROM_CLIENT } else { FROM_SERVER };
        let word = known.iter().find(|known| known.eq_ignore_ascii_case(word))?;
        let mut fields = rest.split(|byte| matches!(byte, b' ' | b'\t')).filter(|field| !field.is_empty());
        match *word {
            b"PUB" => sent(rest, 0, 1),
            b"HPUB" => sent(rest, 0, 2),
            b"MSG" => sent(rest, 1, 1),
            b"HMSG" => sent(rest, 1, 2),
            b"SUB" => fields.next().map(Self::Subscribe),
            b"UNSUB" => Some(Self::Unsubscribe),
            b"CONNECT" => rest.trim_ascii().starts_with(b"{").then_some(Self::Connect(rest)),
            b"INFO" => rest.trim_ascii().starts_with(b"{").then_some(Self::Other),
            b"-ERR" => Some(Self::Refused(rest)),
            b"+OK" => Some(Self::Confirmed),
            b"PONG" => Some(Self::Pong),
            _ => Some(Self::Other),
        }
    }
}

/// A message's line: `subject`, `skipped` fields, an optional reply subject, then `sizes` numbers.
fn sent(rest: &[u8], skipped: usize, sizes: usize) -> Option<Line<'_>> {
    let mut fields: [&[u8]; 5] = [&[]; 5];
    let mut count = 0;
    for field in rest.split(|byte| matches!(byte, b' ' | b'\t')).filter(|field| !field.is_empty()) {
        *fields.get_mut(count)? = field;
        count += 1;
    }
    let fields = fields.get(..count)?;
    let subject = *fields.first()?;
    let has_reply = match count.checked_sub(1 + skipped + sizes)? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let reply = if has_reply { fields.get(1 + skipped).copied() } else { None };
    let mut numbers = fields.get(count - sizes..)?.iter().map(|field| number(field));
    let first = numbers.next()??;
    let (header, total) = match numbers.next() {
        Some(total) => (first, total?),
        None => (0, first),
    };
    let plain = subject.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
    (plain && header <= total && total <= LONGEST).then_some(Line::Sent(Sent { subject, reply, header, total }))
}

fn number(field: &[u8]) -> Option<usize> {
    if field.len() > 9 || !field.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Whether an incomplete line can be one that `way` has.
pub(super) fn may_begin(way: Way, bytes: &[u8]) -> bool {
    let known = if way == Way::Request { FROM_CLIENT } else { FROM_SERVER };
    known.iter().any(|word| {
        let n = bytes.len().min(word.len());
        let same =
            bytes.get(..n).is_some_and(|bytes| word.get(..n).is_some_and(|word| word.eq_ignore_ascii_case(bytes)));
        same && bytes.get(word.len()).is_none_or(|next| matches!(next, b' ' | b'\t' | b'\r'))
    })
}

/// Classifies the first bytes of a message.
pub(super) fn detect(bytes: &[u8]) -> Detected {
    // Only distinctive lines: INFO and CONNECT, and consistent lines of messages.
    let begins = |word: &[u8]| {
        let n = bytes.len().min(word.len());
        bytes.get(..n) == word.get(..n)
    };
    for (word, detected) in [(&b"INFO {"[..], Detected::Reply), (b"CONNECT {", Detected::Request)] {
        if begins(word) {
            return if bytes.len() < word.len() { Detected::NeedMore } else { detected };
        }
    }
    let mut more = false;
    for (word, way) in [
        (&b"PUB "[..], Way::Request),
        (b"HPUB ", Way::Request),
        (b"MSG ", Way::Reply),
        (b"HMSG ", Way::Reply),
        (b"-ERR '", Way::Reply),
    ] {
        if !begins(word) {
            continue;
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        match end {
            None if bytes.len() < 512 => more = true,
            Some(end) if stands(bytes.get(..=end).unwrap_or_default(), bytes, way) => {
                return if way == Way::Request { Detected::Request } else { Detected::Reply };
            }
            _ => {}
        }
    }
    if more { Detected::NeedMore } else { Detected::No }
}

/// Whether a complete line is at the front of `bytes`, followed by the bytes it requires as far as they are there.
fn stands(line: &[u8], bytes: &[u8], way: Way) -> bool {
    if !line.ends_with(b"\r\n") {
        return false;
    }
    match Line::read(line, way) {
        Some(Line::Sent(sent)) => {
            let rest = bytes.get(line.len()..).unwrap_or_default();
            let header = rest.get(..9.min(sent.header)).is_none_or(|front| b"NATS/1.0\r".starts_with(front));
            header && rest.get(sent.total..sent.total + 2).is_none_or(|end| end == b"\r\n")
        }
        Some(Line::Refused(text)) => text.trim_ascii().ends_with(b"'"),
        _ => false,
    }
}

/// Offset of a line's beginning when line boundaries are unknown.
pub(super) fn find(way: Way, bytes: &[u8]) -> Option<usize> {
    let after = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    [0].into_iter().chain(after).find(|at| {
        let rest = bytes.get(*at..).unwrap_or_default();
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return false };
        let line = rest.get(..=end).unwrap_or_default();
        stands(line, rest, way) || (line.len() == rest.len() && matches!(line, b"PING\r\n" | b"PONG\r\n"))
    })
}

/// Whether a client uses verbose mode, which is the default. Its other options, including passwords, are not read.
pub(super) fn is_verbose(options: &[u8]) -> bool {
    const NAME: &[u8] = b"\"verbose\"";
    let Some(at) = options.windows(NAME.len()).position(|window| window == NAME) else { return true };
    let value = options.get(at + NAME.len()..).unwrap_or_default().trim_ascii_start();
    let value = value.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
    !value.starts_with(b"false")
}

/// The value of a field in a message's header (`NATS/1.0`, then lines as in HTTP).
pub(super) fn header<'a>(head: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let mut lines = head.split(|byte| *byte == b'\n').skip(1);
    lines.find_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(at);
        name.eq_ignore_ascii_case(wanted).then(|| value.get(1..).unwrap_or_default().trim_ascii())
    })
}

/// Whether a header begins with a status, which only servers send.
pub(super) fn is_status(head: &[u8]) -> bool {
    matches!(head.strip_prefix(b"NATS/1.0 "), Some([b'1'..=b'5', ..]))
}

/// The failure reported in an answer.
pub(super) fn status(head: &[u8]) -> Option<&'static str> {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let code = line.strip_prefix(b"NATS/1.0").unwrap_or_default().trim_ascii();
    let failure = match code.get(..3) {
        Some(b"503") => Some("NO_RESPONDERS"),
        Some(b"408") => Some("TIMEOUT"),
        Some(b"404") => Some("NO_MESSAGES"),
        Some(b"409") => Some("CONFLICT"),
        Some([b'4' | b'5', ..]) => Some("_OTHER"),
        _ => None,
    };
    failure.or_else(|| header(head, b"Nats-Service-Error-Code").map(|_| "SERVICE_ERROR"))
}

/// The kind of negative acknowledgement to JetStream, if it is one.
pub(super) fn refusal(payload: &[u8]) -> Option<&'static str> {
    match payload {
        [b'-', b'N', b'A', b'K', ..] => Some("NAK"),
        [b'+', b'T', b'E', b'R', b'M', ..] => Some("TERM"),
        _ => None,
    }
}

/// The kind of an `-ERR`, from a list, because the text quotes subjects.
pub(super) fn error(text: &[u8]) -> &'static str {
    let text = text.trim_ascii();
    let text = text.strip_prefix(b"'").unwrap_or(text).to_ascii_lowercase();
    for (begins, word) in [
        (&b"authorization violation"[..], "AUTHORIZATION_VIOLATION"),
        (b"authentication timeout", "AUTHENTICATION_TIMEOUT"),
        (b"user authentication", "AUTHENTICATION_EXPIRED"),
        (b"permissions violation", "PERMISSIONS_VIOLATION"),
        (b"maximum payload", "MAXIMUM_PAYLOAD_VIOLATION"),
        (b"maximum connections", "MAXIMUM_CONNECTIONS_EXCEEDED"),
        (b"maximum subscriptions", "MAXIMUM_SUBSCRIPTIONS_EXCEEDED"),
        (b"maximum control line", "MAXIMUM_CONTROL_LINE_EXCEEDED"),
        (b"invalid", "INVALID_SUBJECT"),
        (b"secure connection", "TLS_REQUIRED"),
        (b"slow consumer", "SLOW_CONSUMER"),
        (b"stale connection", "STALE_CONNECTION"),
        (b"parser error", "PARSER_ERROR"),
        (b"unknown protocol", "UNKNOWN_PROTOCOL_OPERATION"),
    ] {
        if text.starts_with(begins) {
            return word;
        }
    }
    "_OTHER"
}
