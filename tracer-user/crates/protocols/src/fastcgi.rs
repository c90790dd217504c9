//! FastCGI 1.0 (fastcgi-archives.github.io/FastCGI_Specification.html), as web servers speak it to PHP-FPM and others.
//!
//! On paper several requests with different ids share a connection; in practice web servers and PHP-FPM send one at a
//! time. Ids are checked anyway, so that records of another request are not mistaken for this one's. Of a request its
//! method and script are kept, and what rules and linking need; other variables and everything after them are skipped.

mod records;

use std::borrow::Cow;

use tracer_model::ProtocolId;

use self::records::{ABORT, BEGIN, END, FastcgiHeader, PARAMS, QUESTION, STDERR, STDOUT, Walk, pairs};
use super::cgi::{self, Variables};
use super::{Body, Detected, ExpectedReply, Parser, Protocol, Reply, Request, Settings, Step, Walked, http1::is_token};

/// Failure of a reply that ended before the script sent anything.
const SILENT: &str = "no_output";

/// The protocol.
#[derive(Debug)]
pub struct FastCgi;

impl Protocol for FastCgi {
    fn id(&self) -> ProtocolId {
        ProtocolId::FastCgi
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        let Some(header) = FastcgiHeader::read(bytes) else {
            let could = bytes.is_empty()
                || bytes.first() == Some(&1)
                    && bytes.get(1).is_none_or(|kind| matches!(*kind, BEGIN | STDOUT | QUESTION));
            return if could { Detected::NeedMore } else { Detected::No };
        };
        let content = bytes.get(FastcgiHeader::LEN..).unwrap_or_default();
        match header {
            FastcgiHeader { kind: BEGIN, id: 1.., len: 8, padding: 0 } => match content {
                [0, 1..=3, 0 | 1, 0, 0, 0, 0, 0, ..] => Detected::Request,
                _ if content.len() < 8 => Detected::NeedMore,
                _ => Detected::No,
            },
            FastcgiHeader { kind: QUESTION, id: 0, .. } => match content.get(2..7) {
                Some(b"FCGI_") => Detected::Request,
                Some(_) => Detected::No,
                None => Detected::NeedMore,
            },
            // A script's answer begins with a header line.
            FastcgiHeader { kind: STDOUT, id: 1.., len: 4.., .. } => {
                let name = content.iter().take_while(|byte| is_token(**byte)).count();
                match content.get(name) {
                    Some(b':') if name > 0 => Detected::Reply,
                    None if content.len() < 64 => Detected::NeedMore,
                    _ => Detected::No,
                }
            }
            _ => Detected::No,
        }
    }

    fn open(&self) -> Box<dyn Parser> {
        Box::new(Connection::default())
    }
}

/// Position of both directions in their records.
#[derive(Debug, Default)]
struct Connection {
    request: Walk,
    reply: Walk,
}

/// Skips a whole record between messages.
fn between(bytes: &[u8], header: FastcgiHeader) -> Step<Box<Request>> {
    match header.end() {
        used if used <= bytes.len() => Step::Skip { used },
        // Longer ones do not occur.
        used if used <= 1024 => Step::NeedMore,
        _ => Step::Invalid,
    }
}

impl Parser for Connection {
    fn request(&mut self, bytes: &[u8], cut: bool, settings: &Settings) -> Step<Box<Request>> {
        let Some(first) = FastcgiHeader::read(bytes) else {
            return if cut || bytes.first().is_some_and(|version| *version != 1) {
                Step::Invalid
            } else {
                Step::NeedMore
            };
        };
        let role = bytes.get(FastcgiHeader::LEN + 1).copied();
        match first {
            FastcgiHeader { kind: BEGIN, id: 1.., len: 8, .. } => {}
            // Queries about the server; an abort of a request already sent.
            FastcgiHeader { kind: QUESTION, id: 0, .. } | FastcgiHeader { kind: ABORT, .. } if !cut => {
                return between(bytes, first);
            }
            _ => return Step::Invalid,
        }
        let mut variables = Cow::Borrowed(&[][..]);
        let mut at = first.end();
        let mut whole = false;
        while let Some(rest) = bytes.get(at..)
            && let Some(header) = FastcgiHeader::read(rest)
        {
            let content = rest.get(FastcgiHeader::LEN..).unwrap_or_default();
            let content = content.get(..header.len).unwrap_or(content);
            match header {
                FastcgiHeader { id, .. } if id != first.id => return Step::Invalid,
                FastcgiHeader { kind: PARAMS, len: 0, .. } => whole = header.end() <= rest.len(),
                FastcgiHeader { kind: PARAMS, .. } if variables.is_empty() => variables = Cow::Borrowed(content),
                FastcgiHeader { kind: PARAMS, .. } => variables.to_mut().extend_from_slice(content),
                _ => return Step::Invalid,
            }
            at += header.end();
            if header.len == 0 {
                break;
            }
        }
        if !whole && !cut {
            return Step::NeedMore;
        }
        let mut seen = Variables::default();
        pairs(&variables, |name, value| seen.see(name, value, settings));
        let mut message = seen.request(!whole, settings).unwrap_or_else(|| {
            let mut unnamed = Request::unnamed();
            unnamed.cut = !whole;
            unnamed
        });
        // The id identifies the request's records.
        message.expected = ExpectedReply { note: first.id, ..ExpectedReply::default() };
        self.request = Walk::request(first.id, role == Some(3));
        let used = if whole { at } else { bytes.len() };
        match self.request.feed(bytes.get(first.end()..used).unwrap_or_default()) {
            Walked::More(unread) => Step::Head { used, message, body: Body::Own(unread) },
            Walked::End(_) | Walked::Lost => Step::Invalid,
        }
    }

    fn reply(&mut self, bytes: &[u8], cut: bool, expected: &ExpectedReply) -> Step<Reply> {
        let mut output = Cow::Borrowed(&[][..]);
        let mut at = 0;
        let mut id = expected.note;
        while let Some(rest) = bytes.get(at..)
            && let Some(header) = FastcgiHeader::read(rest)
        {
            let content = rest.get(FastcgiHeader::LEN..).unwrap_or_default();
            let content = content.get(..header.len).unwrap_or(content);
            if header.id == 0 {
                // Answers to queries about the server.
                if at > 0 || header.end() > rest.len() {
                    return if cut || header.end() > 1024 { Step::Invalid } else { Step::NeedMore };
                }
                return Step::Skip { used: header.end() };
            }
            if id != 0 && id != header.id {
                return Step::Invalid;
            }
            id = header.id;
            match header.kind {
                STDERR => {}
                STDOUT => {
                    let before = output.len();
                    if output.is_empty() {
                        output = Cow::Borrowed(content);
                    } else {
                        output.to_mut().extend_from_slice(content);
                    }
                    if let Some((end, status)) = cgi::answer(&output) {
                        let used = at + FastcgiHeader::LEN + end.saturating_sub(before);
                        return self.answered(bytes, used, id, status, None);
                    }
                }
                END => {
                    if rest.len() < header.end() {
                        break;
                    }
                    let failure = match content.get(4).copied().unwrap_or_default() {
                        0 => SILENT,
                        1 => "cant_mpx_conn",
                        2 => "overloaded",
                        _ => "unknown_role",
                    };
                    return self.answered(bytes, at + header.end(), id, 0, Some(failure));
                }
                _ => return Step::Invalid,
            }
            at += header.end();
        }
        let begins = FastcgiHeader::read(bytes);
        if begins.is_none() && bytes.first().is_some_and(|version| *version != 1) {
            return Step::Invalid;
        }
        match begins {
            _ if !cut => Step::NeedMore,
            // The answer's status was not captured.
            Some(_) => self.answered(bytes, bytes.len(), id, 0, None),
            None => Step::Invalid,
        }
    }

    fn body(&mut self, is_request: bool, bytes: &[u8]) -> Walked {
        if is_request { self.request.feed(bytes) } else { self.reply.feed(bytes) }
    }

    fn ends_unseen(&self, is_request: bool, len: u64, last: &[u8]) -> bool {
        if is_request { self.request.ends_unseen(len, last) } else { self.reply.ends_unseen(len, last) }
    }
}

impl Connection {
    /// A reply to `id` whose head ends after `used` bytes.
    fn answered(
        &mut self,
        bytes: &[u8],
        used: usize,
        id: u16,
        status: u16,
        failure: Option<&'static str>,
    ) -> Step<Reply> {
        self.reply = Walk::reply(id);
        let message = Reply { status, failure, interim: false };
        match self.reply.feed(bytes.get(..used).unwrap_or_default()) {
            Walked::More(unread) => Step::Head { used, message, body: Body::Own(unread) },
            Walked::End(used) => Step::Head { used, message, body: Body::Length(0) },
            Walked::Lost => Step::Invalid,
        }
    }
}

#[cfg(test)]
mod tests;
