//! Memcached: the text protocol with its meta commands, and the binary one (github.com/memcached/memcached:
//! doc/protocol.txt, wiki BinaryProtocolRevamped).
//!
//! Of a request only the command's name is kept, and only if listed; of a reply only the kind of its error. A miss is
//! no failure. Keys, values and passwords never leave this folder.

mod binary;
mod text;

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;

use self::binary::{Binary, detect_binary};
use self::text::{Text, detect_text, is_answer};
pub use self::text::{failure_by_front, is_counted_by_front};
use tracer_model::ProtocolId;

use super::{Body, Detected, ExpectedReply, Parser, Protocol, Reply, Request, Settings, Step, Walked};

/// Name of an unlisted command.
const OTHER: &str = "_OTHER";

/// The protocol.
#[derive(Debug)]
pub struct Memcached;

impl Protocol for Memcached {
    fn id(&self) -> ProtocolId {
        ProtocolId::Memcached
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        match bytes.first() {
            None => Detected::NeedMore,
            Some(0x80 | 0x81) => detect_binary(bytes),
            Some(_) => detect_text(bytes),
        }
    }

    fn answers(&self, request: &[u8], answer: &[u8]) -> bool {
        is_answer(request, answer)
    }

    fn may_answer(&self, request: &[u8], answer: &[u8]) -> bool {
        text::may_be_answer(request, answer)
    }

    fn pipelines(&self) -> bool {
        true
    }

    fn open(&self) -> Box<dyn Parser> {
        Box::new(Connection { text: Text::default() })
    }
}

/// A connection: every message shows which of the two protocols it uses.
#[derive(Debug)]
struct Connection {
    text: Text,
}

fn is_binary(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(0x80 | 0x81))
}

/// Shared names: as many as the lists have, and the empty path.
static NAMES: LazyLock<FxHashMap<&'static str, Arc<str>>> = LazyLock::new(|| {
    let binary = (0..=u8::MAX).filter_map(|opcode| binary::command(opcode).map(|(name, ..)| name));
    let names = text::names().chain(binary).chain([OTHER, ""]);
    names.map(|name| (name, Arc::from(name))).collect()
});

/// A request of this name.
fn named(name: &'static str, expected: ExpectedReply) -> Box<Request> {
    let shared = |name: &'static str| NAMES.get(name).cloned().unwrap_or_else(|| Arc::from(name));
    Box::new(Request {
        method: shared(name),
        path: shared(""),
        target: 0,
        host: None,
        version: "",
        traceparent: None,
        carried: None,
        request_id: None,
        headers: Vec::new(),
        expected,
        session: None,
        namespace: None,
        cut: false,
    })
}

impl Parser for Connection {
    fn request(&mut self, bytes: &[u8], cut: bool, _: &Settings) -> Step<Box<Request>> {
        if is_binary(bytes) { Binary::request(bytes, cut) } else { text::request(bytes, cut) }
    }

    fn reply(&mut self, bytes: &[u8], cut: bool, expected: &ExpectedReply) -> Step<Reply> {
        if is_binary(bytes) { Binary::reply(bytes, cut) } else { self.text.reply(bytes, cut, *expected) }
    }

    fn passes(&self, bytes: &[u8], expected: &ExpectedReply) -> Option<bool> {
        if is_binary(bytes) { Binary::passes(bytes, *expected) } else { text::passes(bytes, *expected) }
    }

    fn body(&mut self, is_request: bool, bytes: &[u8]) -> Walked {
        if is_request { Walked::Lost } else { self.text.body(bytes) }
    }

    fn ends_unseen(&self, is_request: bool, len: u64, last: &[u8]) -> bool {
        !is_request && self.text.ends_unseen(len, last)
    }
}

/// A body of this many bytes.
fn length(n: u64) -> Body {
    Body::Length(n)
}

/// [`ExpectedReply::note`] that identifies a quiet request's reply; never 0.
fn mark(bytes: &[u8], more: u8) -> u16 {
    // Folded FNV-1a: it need only distinguish requests waiting on the same connection.
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = bytes.iter().chain([&more]).fold(0x811c_9dc5, step);
    ((hash >> 16) ^ (hash & 0xffff)) as u16 | 1
}

#[cfg(test)]
mod tests;
