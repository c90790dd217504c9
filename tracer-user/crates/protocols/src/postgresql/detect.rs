//! Recognises this protocol by a message's first bytes: at a connection's beginning, or in mid-stream.

use memchr::memchr;

use super::frames::{Frame, Front, error_field, frame, name, number};
use super::{REPLIES, REQUESTS};
use crate::Detected;

/// Codes in place of the protocol version in a connection's first message.
pub(super) const CANCEL: u32 = 80_877_102;
pub(super) const TLS: u32 = 80_877_103;
pub(super) const GSS: u32 = 80_877_104;
/// Longest first message, the server's own limit.
const STARTUP_LIMIT: u32 = 10_000;

/// Length and code of a connection's first message.
pub(super) enum Startup {
    Is(u32, u32),
    Short,
    No,
}

/// Reads the front of a message without a type.
pub(super) fn startup(bytes: &[u8]) -> Startup {
    let (Some(length), Some(code)) = (number(bytes, 0), number(bytes, 4)) else {
        return if bytes.starts_with(&[0, 0]) || matches!(bytes, [] | [0]) { Startup::Short } else { Startup::No };
    };
    let fits = match code {
        TLS | GSS => length == 8,
        CANCEL => (16..=16 + 256).contains(&length),
        _ => code >> 16 == 3 && code & 0xffff <= 0xff && (9..=STARTUP_LIMIT).contains(&length),
    };
    if fits { Startup::Is(length, code) } else { Startup::No }
}

pub(super) fn detect(bytes: &[u8]) -> Detected {
    match bytes {
        [] => return Detected::NeedMore,
        [0, ..] => {
            return match startup(bytes) {
                Startup::Is(length, code) if code >> 16 == 3 => match bytes.get(8) {
                    // Parameter names follow, or the terminating zero. The same eight bytes can begin a Kafka request,
                    // where the correlation id follows.
                    Some(b'a'..=b'z' | b'A'..=b'Z' | b'_') => Detected::Request,
                    Some(0) if length == 9 => Detected::Request,
                    Some(_) => Detected::No,
                    None => Detected::NeedMore,
                },
                Startup::Is(..) => Detected::Request,
                Startup::Short => Detected::NeedMore,
                Startup::No => Detected::No,
            };
        }
        // A mid-stream connection never starts with a message of more than 16 MiB.
        [_, high, ..] if *high != 0 => return Detected::No,
        _ => {}
    }
    let requests = side(bytes, (REQUESTS, b"SDEHCcdfpX"), is_request);
    let replies = side(bytes, (REPLIES, b"DSHGKVcdv3"), is_reply);
    match (requests, replies) {
        (Some(true), _) => Detected::Request,
        (_, Some(true)) => Detected::Reply,
        (None, _) | (_, None) => Detected::NeedMore,
        _ => Detected::No,
    }
}

/// Whether the bytes are consecutive, plausible messages of one side, and the first one's type is distinctive (not in
/// `weak`); `None`: more bytes are needed.
fn side(bytes: &[u8], (kinds, weak): (&[u8], &[u8]), fits: impl Fn(&Frame<'_>) -> bool) -> Option<bool> {
    let mut rest = bytes;
    let mut first = true;
    loop {
        let found = match frame(rest, kinds) {
            Front::Frame(found) => found,
            Front::Short if first => return None,
            Front::Short => return Some(true),
            Front::Bad => return Some(false),
        };
        if !fits(&found) || (first && memchr(found.kind, weak).is_some()) {
            return Some(false);
        }
        first = false;
        if !found.is_whole() {
            return Some(true);
        }
        rest = rest.get(found.split().0..).unwrap_or_default();
        if rest.is_empty() {
            return Some(true);
        }
    }
}

/// Whether the fields fit a client's message.
fn is_request(frame: &Frame<'_>) -> bool {
    let Frame { kind, total, fields } = *frame;
    let whole = frame.is_whole();
    match kind {
        b'Q' => {
            let text = if whole { fields.strip_suffix(&[0]) } else { Some(fields) };
            text.is_some_and(is_text)
        }
        b'P' => match name(fields) {
            Some((statement, rest)) => {
                let query = memchr(0, rest).map_or(rest, |end| rest.get(..end).unwrap_or_default());
                is_text(statement) && is_text(query)
            }
            None => !whole && is_text(fields),
        },
        // Portal, statement, then counts, that of the format codes first.
        b'B' => match name(fields).and_then(|(portal, rest)| Some((portal, name(rest)?))) {
            Some((portal, (statement, rest))) => {
                let formats = rest.get(..2).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]));
                is_text(portal) && is_text(statement) && u64::from(formats) * 2 <= total && (!whole || rest.len() >= 6)
            }
            None => !whole && is_text(fields),
        },
        b'S' | b'H' | b'X' | b'c' => total == 5,
        b'D' | b'C' => matches!(fields.first(), None | Some(b'S' | b'P')) && (!whole || fields.last() == Some(&0)),
        b'E' => total >= 10,
        _ => true,
    }
}

/// The same for the server's messages.
fn is_reply(frame: &Frame<'_>) -> bool {
    let Frame { kind, total, fields } = *frame;
    let whole = frame.is_whole();
    match kind {
        b'Z' => total == 6 && matches!(fields.first(), None | Some(b'I' | b'T' | b'E')),
        b'1' | b'2' | b'3' | b'n' | b's' | b'I' | b'c' => total == 5,
        b'C' => {
            let tag = if whole { fields.strip_suffix(&[0]) } else { Some(fields) };
            tag.is_some_and(|tag| is_text(tag) && tag.first().is_none_or(u8::is_ascii_uppercase))
        }
        b'E' | b'N' => error_field(fields, b"S").is_some() || (!whole && matches!(fields.first(), None | Some(b'S'))),
        // Columns or parameters: their number fits the length.
        b'T' | b't' | b'D' => fields.get(..2).is_none_or(|two| {
            let each = if kind == b'T' { 19 } else { 4 };
            u64::from(u16::from_be_bytes([two[0], two[1]])) * each + 7 <= total
        }),
        b'R' => number(fields, 0).is_none_or(|code| code <= 12) && total >= 9,
        b'K' => total >= 13,
        _ => true,
    }
}

/// Whether `bytes` can be the text of a query or a name.
fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte >= b' ' || matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c))
}
