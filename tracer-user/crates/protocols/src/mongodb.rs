//! MongoDB's wire protocol (MongoDB's manual, "MongoDB Wire Protocol"): OP_MSG, and of its predecessors those that
//! connections begin with.
//!
//! A span is a command with its reply, paired by the request id in the reply. Of commands only known names and the
//! collection are kept (`mongodb/names.rs`), of errors the number; documents and compressed messages are skipped
//! unread.

mod bson;
mod names;

use std::sync::Arc;

use tracer_model::ProtocolId;

use self::bson::{Elements, Value, long, text};
use super::framed::{Frame, FrameMeaning, Framed, Front, Way};
use super::sql::{dotted, shared};
use super::{Detected, ExpectedReply, Protocol, Reply, Request, Settings};

/// Bytes of a message's header.
const HEADER: usize = 16;
/// Longest message: the servers' limit (`maxMessageSizeBytes`), plus what proxies add.
const MESSAGE_LIMIT: i32 = 64 << 20;
/// Bytes of a message that are read.
const LOOK: usize = 1024;

/// Longest name of a database, bytes: the servers' own limit.
const NAMESPACE_LIMIT: usize = 63;

/// Message types.
const REPLY: i32 = 1;
const UPDATE: i32 = 2001;
const INSERT: i32 = 2002;
const QUERY: i32 = 2004;
const GET_MORE: i32 = 2005;
const DELETE: i32 = 2006;
const KILL_CURSORS: i32 = 2007;
const COMPRESSED: i32 = 2012;
const MESSAGE: i32 = 2013;

/// Flag of OP_MSG: more messages follow unsolicited; in a request: no reply is wanted.
const MORE_TO_COME: i32 = 2;
/// Known flags of OP_MSG among the required ones: a checksum follows, more messages follow.
const FLAGS_KNOWN: i32 = 3;
/// Flags of OP_MSG that a receiver must understand.
const FLAGS_REQUIRED: i32 = 0xffff;

/// Name of a compressed command.
const PACKED: &str = "_COMPRESSED";
/// [`ExpectedReply::note`]: hello. Asked once, the server may report its state for as long as the connection lasts.
const NOTE_HELLO: u16 = 1;

/// The protocol.
#[derive(Debug)]
pub struct MongoDb;

impl Protocol for MongoDb {
    fn id(&self) -> ProtocolId {
        ProtocolId::MongoDb
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        let Some(header) = MongodbHeader::read(bytes) else { return front(bytes) };
        if !header.is_one() {
            return Detected::No;
        }
        match likely(header, bytes.get(HEADER..).unwrap_or_default()) {
            Some(true) if header.is_request() => Detected::Request,
            Some(true) => Detected::Reply,
            Some(false) => Detected::No,
            None => Detected::NeedMore,
        }
    }

    fn framed(&self, _: bool) -> Option<Box<dyn Framed>> {
        Some(Box::new(Messages::default()))
    }
}

/// Whether an incomplete header can be the beginning of one.
fn front(bytes: &[u8]) -> Detected {
    let len = bytes.get(..4).map_or(HEADER as i32, |_| long(bytes, 0).unwrap_or_default());
    let fits = (HEADER as i32..=MESSAGE_LIMIT).contains(&len) && bytes.get(3).is_none_or(|high| *high <= 4);
    if fits { Detected::NeedMore } else { Detected::No }
}

/// A message's header.
#[derive(Clone, Copy, Debug)]
struct MongodbHeader {
    len: i32,
    id: u32,
    /// Id of the message it answers.
    to: u32,
    kind: i32,
}

impl MongodbHeader {
    fn read(bytes: &[u8]) -> Option<Self> {
        let number = |at| long(bytes, at);
        let unsigned = |at| number(at).map(i32::cast_unsigned);
        Some(Self { len: number(0)?, id: unsigned(4)?, to: unsigned(8)?, kind: number(12)? })
    }

    /// Whether it is a plausible header.
    fn is_one(self) -> bool {
        let kind = matches!(self.kind, REPLY | UPDATE | INSERT | QUERY..=KILL_CURSORS | COMPRESSED | MESSAGE);
        kind && (HEADER as i32 + 4..=MESSAGE_LIMIT).contains(&self.len)
    }

    /// Whether a client sent it: a request answers nothing.
    fn is_request(self) -> bool {
        self.kind != REPLY && self.to == 0
    }

    fn len(self) -> u64 {
        u64::try_from(self.len).unwrap_or_default()
    }

    /// Bytes of the message needed to read it.
    fn look(self) -> usize {
        (self.len() as usize).min(LOOK)
    }
}

/// Whether the bytes after a header fit it; `None`: too few bytes.
fn likely(header: MongodbHeader, body: &[u8]) -> Option<bool> {
    let document = |at: usize| -> Option<bool> {
        let len = long(body, at)?;
        let first = body.get(at + 4)?;
        Some((5..=header.len).contains(&len) && matches!(first, 0..=0x13 | 0x7f | 0xff))
    };
    match header.kind {
        MESSAGE => {
            if long(body, 0)? & FLAGS_REQUIRED & !FLAGS_KNOWN != 0 {
                return Some(false);
            }
            match body.get(4)? {
                0 => document(5),
                1 => Some((5..=header.len).contains(&long(body, 5)?)),
                _ => Some(false),
            }
        }
        REPLY => Some(header.to != 0 && (0..16).contains(&long(body, 0)?) && long(body, 16)? >= 0),
        COMPRESSED => {
            let (kind, size, by) = (long(body, 0)?, long(body, 4)?, *body.get(8)?);
            Some(matches!(kind, REPLY | QUERY | MESSAGE) && (0..=MESSAGE_LIMIT).contains(&size) && by < 4)
        }
        KILL_CURSORS => Some(long(body, 0)? == 0 && long(body, 4)? > 0),
        _ => {
            let name = body.get(4..)?;
            let name = name.get(..name.len().min(256)).unwrap_or_default();
            let end = name.iter().position(|byte| *byte == 0);
            let text = name.get(..end.unwrap_or(name.len())).unwrap_or_default();
            // Database, dot, collection.
            let fits = std::str::from_utf8(text).is_ok_and(|text| !text.chars().any(char::is_control));
            match end {
                Some(_) => Some(fits && text.contains(&b'.') && (0..256).contains(&long(body, 0)?)),
                None if name.len() < 256 => None,
                None => Some(false),
            }
        }
    }
}

/// Connection state from earlier messages that later ones depend on.
#[derive(Debug, Default)]
struct Messages {
    /// A reply announced more, each answering the one before it: id of that message, and key of the request; key 0 if
    /// they belong to no request.
    following: Option<(u32, u64)>,
    /// The database of the latest command.
    namespace: Option<Arc<str>>,
}

/// The key of the message `id`.
fn key(id: u32) -> u64 {
    u64::from(id) + 1
}

/// A request of this name; `path` is its request class.
fn named(method: Arc<str>, path: Arc<str>, expected: ExpectedReply) -> Box<Request> {
    Box::new(Request { method, path, expected, cut: false, ..*Request::unnamed() })
}

fn plain(name: &Arc<str>, expected: ExpectedReply) -> Box<Request> {
    named(Arc::clone(name), Arc::clone(name), expected)
}

/// A command on a collection, if it names one.
fn about(name: &Arc<str>, collection: Option<&[u8]>, expected: ExpectedReply) -> Box<Request> {
    match collection.map(dotted).filter(|collection| !collection.is_empty()) {
        Some(collection) => named(Arc::clone(name), Arc::from(format!("{name} {collection}")), expected),
        None => plain(name, expected),
    }
}

/// The request described by the elements of a command.
fn command(mut elements: Elements<'_>, expected: ExpectedReply) -> Box<Request> {
    let Some((name, value)) = elements.next() else { return Box::new(Request { expected, ..*Request::unnamed() }) };
    // A command wrapped to carry a read preference.
    if let (b"$query" | b"query", Value::Document(inner)) = (name, &value) {
        return command(inner.clone(), expected);
    }
    let Some(known) = names::command(name) else { return plain(&shared(names::OTHER), expected) };
    let collection = match value {
        Value::Text(text) if known.of_collection => Some(text),
        _ if &*known.name == "getMore" => match elements.get(b"collection") {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    let note = if matches!(&*known.name, "hello" | "isMaster" | "ismaster") { NOTE_HELLO } else { 0 };
    about(&known.name, collection, ExpectedReply { note, ..expected })
}

/// The command in an OP_MSG, after the flags.
fn sections(mut body: &[u8], expected: ExpectedReply) -> Box<Request> {
    let mut named = None;
    loop {
        match body {
            [0, document @ ..] => match Elements::of(document) {
                Some(elements) => return command(elements, expected),
                None => break,
            },
            [1, sequence @ ..] => {
                // A document sequence for one of the command's arguments, whose name identifies the command.
                let Some(len) = long(sequence, 0).and_then(|len| usize::try_from(len).ok()) else { break };
                named = text(sequence, 4).map(|(name, _)| name).or(named);
                let Some(rest) = sequence.get(len.max(5)..) else { break };
                body = rest;
            }
            _ => break,
        }
    }
    let name: &[u8] = match named {
        Some(b"documents") => b"insert",
        Some(b"updates") => b"update",
        Some(b"deletes") => b"delete",
        Some(b"ops") => b"bulkWrite",
        _ => b"",
    };
    let known = names::command(name);
    known.map_or_else(|| Box::new(Request { expected, ..*Request::unnamed() }), |known| plain(&known.name, expected))
}

/// The database that a client's message names, as far as it is among the bytes.
fn database(header: MongodbHeader, body: &[u8]) -> Option<&str> {
    let name = if header.kind == MESSAGE {
        let mut sections = body.get(4..)?;
        loop {
            match sections {
                [0, document @ ..] => match Elements::of(document)?.get(b"$db")? {
                    Value::Text(name) => break name,
                    _ => return None,
                },
                // A sequence of documents.
                [1, sequence @ ..] => {
                    let len = long(sequence, 0).and_then(|len| usize::try_from(len).ok())?;
                    sections = sequence.get(len.max(5)..)?;
                }
                _ => return None,
            }
        }
    } else if matches!(header.kind, QUERY | UPDATE | INSERT | GET_MORE | DELETE) {
        let (full, _) = text(body, 4)?;
        full.split(|byte| *byte == b'.').next()?
    } else {
        return None;
    };
    std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && name.len() <= NAMESPACE_LIMIT)
}

/// The request in a client's message.
fn request(header: MongodbHeader, body: &[u8]) -> Box<Request> {
    let flags = long(body, 0).unwrap_or_default();
    let silent = match header.kind {
        MESSAGE => flags & MORE_TO_COME != 0,
        UPDATE | INSERT | DELETE | KILL_CURSORS => true,
        _ => false,
    };
    let expected = ExpectedReply { silent, ..ExpectedReply::default() };
    let after = body.get(4..).unwrap_or_default();
    let name: &[u8] = match header.kind {
        MESSAGE => return sections(after, expected),
        QUERY => b"find",
        UPDATE => b"update",
        INSERT => b"insert",
        GET_MORE => b"getMore",
        DELETE => b"delete",
        KILL_CURSORS => b"killCursors",
        _ => return plain(&shared(PACKED), expected),
    };
    let full = if header.kind == KILL_CURSORS { None } else { text(after, 0) };
    let collection =
        full.and_then(|(full, _)| full.iter().position(|byte| *byte == b'.').and_then(|at| full.get(at + 1..)));
    if let (QUERY, Some(b"$cmd"), Some((_, end))) = (header.kind, collection, full) {
        // Numbers to skip and to return, then the command.
        if let Some(elements) = after.get(end + 8..).and_then(Elements::of) {
            return command(elements, expected);
        }
    }
    let known = names::command(name);
    known.map_or_else(
        || Box::new(Request { expected, ..*Request::unnamed() }),
        |known| about(&known.name, collection, expected),
    )
}

/// The failure reported in the elements of a reply.
fn failure(elements: &Elements<'_>) -> Option<&'static str> {
    let code = |elements: &Elements<'_>| match elements.get(b"code") {
        Some(Value::Number(number)) => names::error(number),
        _ => names::OTHER,
    };
    for (name, value) in elements.clone() {
        match (name, value) {
            (b"ok", Value::Number(0)) | (b"$err", _) => return Some(code(elements)),
            (b"writeErrors", Value::Document(mut each)) => {
                if let Some((_, Value::Document(first))) = each.next() {
                    return Some(code(&first));
                }
            }
            (b"writeConcernError", Value::Document(error)) => return Some(code(&error)),
            _ => {}
        }
    }
    None
}

/// The failure reported in a server's message.
fn outcome(header: MongodbHeader, body: &[u8]) -> Option<&'static str> {
    let document = match header.kind {
        MESSAGE if body.get(4) == Some(&0) => body.get(5..),
        REPLY => body.get(20..),
        _ => None,
    };
    document.and_then(Elements::of).as_ref().and_then(failure)
}

impl Messages {
    fn reply(
        &mut self,
        header: MongodbHeader,
        body: &[u8],
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
    ) -> (u64, FrameMeaning, bool) {
        let following = self.following.filter(|(before, _)| *before == header.to);
        let key = following.map_or(key(header.to), |(_, key)| key);
        let more = header.kind == MESSAGE && long(body, 0).unwrap_or_default() & MORE_TO_COME != 0;
        let hello = expected(key).is_some_and(|expected| expected.note == NOTE_HELLO);
        let request = if hello { 0 } else { key };
        if more {
            self.following = Some((header.id, request));
        } else if following.is_some() {
            self.following = None;
        }
        if key == 0 {
            return (0, FrameMeaning::Nothing, false);
        }
        let failure = outcome(header, body);
        let meaning = match (following, failure) {
            (None, _) => FrameMeaning::Replied { reply: Reply { status: 0, failure, interim: false }, length: None },
            (Some(_), Some(_)) => FrameMeaning::Judged { status: 0, failure, protocol: None },
            (Some(_), None) => FrameMeaning::Part,
        };
        (key, meaning, !more || hello)
    }
}

impl Framed for Messages {
    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
        _: &Settings,
    ) -> Front {
        let Some(header) = MongodbHeader::read(bytes) else { return Front::Need(HEADER) };
        if !header.is_one() || way == Way::Request && !header.is_request() {
            return Front::Invalid;
        }
        if bytes.len() < header.look() && !cut {
            return Front::Need(header.look());
        }
        let body = bytes.get(HEADER..header.look().min(bytes.len())).unwrap_or_default();
        let len = header.len();
        let (key, meaning, end) = match way {
            Way::Request => {
                let mut request = request(header, body);
                request.cut = (HEADER + body.len()) < header.look();
                let namespace = database(header, body);
                if self.namespace.as_deref() != namespace {
                    self.namespace = namespace.map(Arc::from);
                }
                request.namespace.clone_from(&self.namespace);
                (key(header.id), FrameMeaning::Begun { request, protocol: ProtocolId::MongoDb, length: None }, true)
            }
            Way::Reply => self.reply(header, body, expected),
        };
        let body = if way == Way::Reply { len - HEADER as u64 } else { 0 };
        Front::Frame(Frame { len, key, body, meaning, end })
    }

    fn lost(&mut self, way: Way) {
        if way == Way::Reply {
            self.following = None;
        }
    }

    fn find(&self, way: Way, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> Option<usize> {
        (0..bytes.len().saturating_sub(HEADER)).find(|at| {
            let rest = bytes.get(*at..).unwrap_or_default();
            let Some(header) = MongodbHeader::read(rest).filter(|header| header.is_one()) else { return false };
            let fits = match way {
                Way::Request => header.is_request(),
                // A reply to no open request is only trusted at the front of an operation.
                Way::Reply => open(key(header.to)) || *at == 0,
            };
            fits && likely(header, rest.get(HEADER..).unwrap_or_default()) != Some(false)
        })
    }

    fn is_early(&self, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> bool {
        let Some(header) = MongodbHeader::read(bytes) else { return false };
        header.is_one() && !open(key(header.to)) && self.following.is_none_or(|(before, _)| before != header.to)
    }

    fn interleaves(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
