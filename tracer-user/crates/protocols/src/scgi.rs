//! SCGI (python.ca/scgi/protocol.txt): variables as one netstring, then the request's body. The answer is a CGI
//! script's or HTTP, after which the connection closes.

use memchr::memchr;
use tracer_model::ProtocolId;

use super::cgi::{Once, Variables};
use super::{Body, Detected, ExpectedReply, Parser, Protocol, Reply, Request, Settings, Step};

/// The first variable is always this one.
const FIRST: &[u8] = b"CONTENT_LENGTH\0";
/// Most digits of the length of all variables.
const DIGITS: usize = 6;

/// The protocol.
#[derive(Debug)]
pub struct Scgi;

impl Protocol for Scgi {
    fn id(&self) -> ProtocolId {
        ProtocolId::Scgi
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        match front(bytes) {
            Ok(Some((at, _))) if bytes.len() >= at + FIRST.len() => Detected::Request,
            Ok(_) => Detected::NeedMore,
            Err(()) => Detected::No,
        }
    }

    fn open(&self) -> Box<dyn Parser> {
        Box::new(Connection(Once::default()))
    }
}

/// Offset and length of the variables; `None` if more bytes are needed.
fn front(bytes: &[u8]) -> Result<Option<(usize, usize)>, ()> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits > DIGITS {
        return Err(());
    }
    let Some(colon) = bytes.get(digits) else { return Ok(None) };
    let text = bytes.get(..digits).unwrap_or_default();
    let len: usize = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(())?;
    let content = bytes.get(digits + 1..).unwrap_or_default();
    let n = content.len().min(FIRST.len());
    let stands = *colon == b':' && text.first() != Some(&b'0') && content.get(..n) == FIRST.get(..n);
    if stands && len > FIRST.len() { Ok(Some((digits + 1, len))) } else { Err(()) }
}

/// The zero-terminated text at the front, and the rest.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (text, rest) = bytes.split_at_checked(memchr(0, bytes)?)?;
    Some((text, rest.get(1..)?))
}

/// One connection.
#[derive(Debug)]
struct Connection(Once);

impl Parser for Connection {
    fn request(&mut self, bytes: &[u8], cut: bool, settings: &Settings) -> Step<Box<Request>> {
        let (begin, len) = match front(bytes) {
            Ok(Some(front)) => front,
            Ok(None) if !cut => return Step::NeedMore,
            _ => return Step::Invalid,
        };
        // A comma ends it.
        let end = begin + len + 1;
        let whole = bytes.len() >= end;
        if !whole && !cut {
            return Step::NeedMore;
        }
        if whole && bytes.get(end - 1) != Some(&b',') {
            return Step::Invalid;
        }
        let used = bytes.len().min(end);
        let mut rest = bytes.get(begin..used.min(end - 1)).unwrap_or_default();
        let mut seen = Variables::default();
        while let Some((name, after)) = text(rest)
            && let Some((value, after)) = text(after)
        {
            seen.see(name, value, settings);
            rest = after;
        }
        let Some(length) = seen.length() else { return Step::Invalid };
        let message = match seen.application(!whole, settings) {
            Some(message) => message,
            None if whole => return Step::Invalid,
            None => Request::unnamed(),
        };
        Step::Head { used, message, body: Body::Length(length.saturating_add((end - used) as u64)) }
    }

    fn reply(&mut self, bytes: &[u8], cut: bool, expected: &ExpectedReply) -> Step<Reply> {
        self.0.reply(bytes, cut, *expected)
    }

    fn is_unasked(&self, _: &[u8]) -> bool {
        self.0.is_over()
    }
}

#[cfg(test)]
mod tests;
