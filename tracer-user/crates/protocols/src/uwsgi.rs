//! uwsgi (uwsgi-docs.readthedocs.io/en/latest/Protocol.html), as web servers speak it to uWSGI.
//!
//! A packet of variables, then the request's body; the answer is HTTP, after which the connection closes. Most other
//! requests that a packet's modifiers can express (caches, signals, spoolers) do not come from web servers: packets
//! without a web request's variables are ignored.

use tracer_model::ProtocolId;

use super::cgi::{Once, Variables};
use super::{Body, Detected, ExpectedReply, Parser, Protocol, Reply, Request, Settings, Step};

/// Bytes before the variables: a modifier, their length, another modifier.
const FRONT: usize = 4;
/// Modifiers up to this hand a request to an application in one of uWSGI's languages.
const LANGUAGES: u8 = 31;
/// Possible beginnings of the first variable's name.
const NAMES: &[&[u8]] = &[
    b"QUERY_STRING",
    b"REQUEST_",
    b"CONTENT_",
    b"PATH_INFO",
    b"DOCUMENT_",
    b"SCRIPT_",
    b"SERVER_",
    b"REMOTE_",
    b"HTTP_",
    b"HTTPS",
    b"UWSGI_",
];

/// The protocol.
#[derive(Debug)]
pub struct Uwsgi;

impl Protocol for Uwsgi {
    fn id(&self) -> ProtocolId {
        ProtocolId::Uwsgi
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        let (front, rest) = bytes.split_at(bytes.len().min(FRONT));
        if front.first().is_some_and(|modifier| *modifier > LANGUAGES) {
            return Detected::No;
        }
        let Some(len) = length(front) else { return Detected::NeedMore };
        let Some((name_len, rest)) = number(rest) else {
            return if len >= 8 { Detected::NeedMore } else { Detected::No };
        };
        let name = rest.get(..rest.len().min(name_len)).unwrap_or_default();
        let usual = NAMES.iter().any(|usual| {
            let n = usual.len().min(name.len());
            usual.get(..n) == name.get(..n) && usual.len() <= name_len
        });
        let plain = name.iter().all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_'));
        if !usual || !plain || name_len > 64 || name_len + 4 > len {
            return Detected::No;
        }
        match rest.get(name_len..).and_then(number) {
            Some((value, _)) if name_len + value + 4 <= len => Detected::Request,
            Some(_) => Detected::No,
            None => Detected::NeedMore,
        }
    }

    fn open(&self) -> Box<dyn Parser> {
        Box::new(Connection(Once::default()))
    }
}

/// Length of the variables, from the bytes before them.
fn length(front: &[u8]) -> Option<usize> {
    match front {
        [_, low, high, _] => Some(usize::from(u16::from_le_bytes([*low, *high]))),
        _ => None,
    }
}

/// The number at the front, and the rest.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<2>()?;
    Some((usize::from(u16::from_le_bytes(*number)), rest))
}

/// The name or value at the front, and the rest.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = number(bytes)?;
    rest.split_at_checked(len)
}

/// One connection.
#[derive(Debug)]
struct Connection(Once);

impl Parser for Connection {
    fn request(&mut self, bytes: &[u8], cut: bool, settings: &Settings) -> Step<Box<Request>> {
        let front = bytes.get(..bytes.len().min(FRONT)).unwrap_or_default();
        if front.first().is_some_and(|modifier| *modifier > LANGUAGES) {
            return Step::Invalid;
        }
        let Some(len) = length(front) else { return if cut { Step::Invalid } else { Step::NeedMore } };
        let end = FRONT + len;
        if bytes.len() < end && !cut {
            return Step::NeedMore;
        }
        let whole = bytes.len() >= end;
        let used = bytes.len().min(end);
        let mut rest = bytes.get(FRONT..used).unwrap_or_default();
        let mut seen = Variables::default();
        while let Some((name, after)) = text(rest)
            && let Some((value, after)) = text(after)
        {
            seen.see(name, value, settings);
            rest = after;
        }
        if whole && !rest.is_empty() {
            return Step::Invalid;
        }
        let length = seen.length();
        let Some(message) = seen.application(!whole, settings) else { return unnamed(whole, used) };
        let body = match length {
            Some(length) => Body::Length(length.saturating_add((end - used) as u64)),
            // The body's length was not captured.
            None if !whole => Body::UntilTurn,
            None => Body::Length(0),
        };
        Step::Head { used, message, body }
    }

    fn reply(&mut self, bytes: &[u8], cut: bool, expected: &ExpectedReply) -> Step<Reply> {
        self.0.reply(bytes, cut, *expected)
    }

    fn is_unasked(&self, _: &[u8]) -> bool {
        self.0.is_over()
    }
}

/// A request whose name was not captured; a complete one without a name does not come from a web server.
fn unnamed(whole: bool, used: usize) -> Step<Box<Request>> {
    if whole {
        return Step::Invalid;
    }
    Step::Head { used, message: Request::unnamed(), body: Body::UntilTurn }
}

#[cfg(test)]
mod tests;
