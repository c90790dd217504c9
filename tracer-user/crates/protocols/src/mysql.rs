//! The protocol of MySQL and MariaDB (MySQL's internals manual, "Client/Server Protocol"; MariaDB's knowledge base).
//!
//! A span is a command with all of its results. Of statements only summaries are kept ([`super::sql`]), of errors the
//! number; parameters, rows, passwords and files are skipped unread.

mod detect;
mod login;
mod packets;
mod replies;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_model::ProtocolId;

use self::packets::{Packet, integer, long, packet};
use self::replies::Progress;
use super::sql::{Dialect, SQL_LIMIT, Summary, shared, summarize};
use super::{Body, Detected, ExpectedReply, Parser, Protocol, Reply, ReplyEnd, Request, Settings, Step};

/// Commands, by the first byte of their packet.
const QUIT: u8 = 0x01;
const USE: u8 = 0x02;
const QUERY: u8 = 0x03;
const FIELD_LIST: u8 = 0x04;
const STATISTICS: u8 = 0x09;
const PING: u8 = 0x0e;
const CHANGE_USER: u8 = 0x11;
const BINLOG_DUMP: u8 = 0x12;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;
const LONG_DATA: u8 = 0x18;
const CLOSE: u8 = 0x19;
const STATEMENT_RESET: u8 = 0x1a;
const FETCH: u8 = 0x1c;
const BINLOG_DUMP_GTID: u8 = 0x1e;
const RESET: u8 = 0x1f;
/// MariaDB's EXECUTE for many rows.
const BULK: u8 = 0xfa;

/// Capability flags, exchanged at login.
const TLS: u32 = 1 << 11;
const COMPRESS: u32 = 1 << 5;
const DEPRECATE_EOF: u32 = 1 << 24;
const COMPRESS_ZSTD: u32 = 1 << 26;
const ATTRIBUTES: u32 = 1 << 27;

/// [`ExpectedReply::note`]: one packet answers.
const NOTE_ONE: u16 = 1;
/// [`ExpectedReply::note`]: results answer.
const NOTE_RESULT: u16 = 2;
/// [`ExpectedReply::note`]: the reply to PREPARE.
const NOTE_PREPARE: u16 = 3;
/// [`ExpectedReply::note`]: rows.
const NOTE_FETCH: u16 = 4;
/// [`ExpectedReply::note`]: columns, up to their end.
const NOTE_FIELDS: u16 = 5;
/// [`ExpectedReply::note`]: the reply to a login.
const NOTE_AUTH: u16 = 6;

/// Most prepared statements remembered per connection.
const STATEMENTS: usize = 1024;
/// Approximate size of one, in bytes.
const EACH: usize = 96;
/// Most PREPAREs that wait for their statement id.
const PREPARING: usize = 64;
/// Stands for the latest prepared statement (MariaDB).
const LAST: u32 = u32::MAX;

/// MySQL.
#[derive(Debug)]
pub struct MySql;

/// MariaDB: the same protocol, another name.
#[derive(Debug)]
pub struct MariaDb;

impl Protocol for MySql {
    fn id(&self) -> ProtocolId {
        ProtocolId::MySql
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        detect::detect(bytes, false)
    }

    fn trails(&self) -> bool {
        true
    }

    fn open(&self) -> Box<dyn Parser> {
        Box::new(Session::default())
    }
}

impl Protocol for MariaDb {
    fn id(&self) -> ProtocolId {
        ProtocolId::MariaDb
    }

    fn looks_like(&self) -> ProtocolId {
        ProtocolId::MySql
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        detect::detect(bytes, true)
    }

    fn trails(&self) -> bool {
        true
    }

    fn open(&self) -> Box<dyn Parser> {
        Box::new(Session::default())
    }
}

/// Prepared statements; most connections have none.
#[derive(Debug, Default)]
struct Statements {
    known: FxHashMap<u32, Arc<Summary>>,
    /// Statements that wait for their id.
    preparing: VecDeque<Arc<Summary>>,
}

/// What the request now open does to the connection's database, if it succeeds.
#[derive(Debug, Default)]
enum NextNamespace {
    #[default]
    Same,
    /// Another one; `None`: which is not known.
    To(Option<Arc<str>>),
}

/// Connection state from earlier messages that later ones depend on.
#[derive(Debug, Default)]
struct Session {
    /// The server's capabilities.
    server: Option<u32>,
    /// The capabilities agreed on.
    agreed: u32,
    /// Number of the packet that may be the login: the client's next after the greeting.
    login: Option<u8>,
    statements: Option<Box<Statements>>,
    last: Option<Arc<Summary>>,
    /// The database of the connection.
    namespace: Option<Arc<str>>,
    next_namespace: NextNamespace,
    progress: Progress,
    refused: u32,
}

impl Session {
    /// Reads the client's answer to the greeting.
    fn login(&mut self, packet: &Packet<'_>, cut: bool) -> Step<Box<Request>> {
        let Some(client) = long(packet.payload, 0) else {
            return if cut { Step::Invalid } else { Step::NeedMore };
        };
        let (used, rest) = packet.split();
        self.agreed = client & self.server.unwrap_or(u32::MAX);
        self.progress.lean = self.agreed & DEPRECATE_EOF != 0;
        // A client asks for encryption with the same packet without its rest; the whole one follows inside TLS.
        if client & TLS != 0 && packet.length == 32 {
            self.login = Some(packet.number.wrapping_add(1));
            return Step::Tls;
        }
        self.login = None;
        let mut message = plain("CONNECT", NOTE_AUTH);
        message.session = login::identity(packet.payload);
        self.namespace = message.session.as_ref().and_then(|session| session.namespace());
        Step::Head { used, message, body: Body::Length(rest) }
    }

    /// The text of a query, after its attributes; `None` if it has some.
    fn text<'a>(&self, payload: &'a [u8]) -> Option<&'a [u8]> {
        let after = payload.get(1..)?;
        if self.agreed & ATTRIBUTES == 0 {
            return Some(after);
        }
        let (count, at) = integer(after, 0)?;
        let (_, at) = integer(after, at)?;
        if count == 0 { after.get(at..) } else { None }
    }

    fn command(&mut self, packet: &Packet<'_>, cut: bool) -> Step<Box<Request>> {
        let Some(command) = packet.payload.first().copied() else {
            return if cut { Step::Invalid } else { Step::NeedMore };
        };
        // Including the bytes before the text, and one byte beyond the part read.
        let wanted = match command {
            QUERY | PREPARE => SQL_LIMIT + 32,
            CHANGE_USER | USE => login::LIMIT,
            _ => 16,
        };
        if !cut && !packet.is_whole() && packet.payload.len() < wanted {
            return Step::NeedMore;
        }
        let (used, rest) = packet.split();
        let front = packet.payload.get(..packet.payload.len().min(wanted)).unwrap_or_default();
        let statement = |text: &[u8]| summarize(text, (front.len() as u64) < packet.length, Dialect::MySql);
        let prepared = || match long(front, 1) {
            Some(LAST) => self.last.clone(),
            Some(number) => self.statements.as_ref().and_then(|all| all.known.get(&number)).cloned(),
            None => None,
        };
        self.next_namespace = NextNamespace::Same;
        let mut message = match command {
            QUERY => match self.text(front).map(statement) {
                Some(Summary { operation, text }) => {
                    // Its text is not read for a name.
                    if &*operation == "USE" {
                        self.next_namespace = NextNamespace::To(None);
                    }
                    named(operation, text, NOTE_RESULT)
                }
                None => unnamed(NOTE_RESULT),
            },
            PREPARE => {
                let summary = statement(front.get(1..).unwrap_or_default()).prepared();
                let text = Arc::from(format!("PREPARE {}", summary.text));
                let preparing = &mut self.statements.get_or_insert_default().preparing;
                if preparing.len() < PREPARING {
                    preparing.push_back(Arc::clone(&summary));
                } else {
                    self.refused += 1;
                }
                self.last = Some(summary);
                named(shared("PREPARE"), text, NOTE_PREPARE)
            }
            EXECUTE | BULK => match prepared() {
                Some(summary) => named(Arc::clone(&summary.operation), Arc::clone(&summary.text), NOTE_RESULT),
                None => unnamed(NOTE_RESULT),
            },
            CLOSE => {
                if let Some(number) = long(front, 1) {
                    self.statements.as_mut().and_then(|all| all.known.remove(&number));
                }
                return Step::Pass { used, rest };
            }
            LONG_DATA | QUIT => return Step::Pass { used, rest },
            FETCH => plain("FETCH", NOTE_FETCH),
            FIELD_LIST => plain("FIELD LIST", NOTE_FIELDS),
            CHANGE_USER => {
                let mut message = plain("CHANGE USER", NOTE_AUTH);
                message.session = login::changed(packet.payload);
                self.next_namespace =
                    NextNamespace::To(message.session.as_ref().and_then(|session| session.namespace()));
                message
            }
            // A replication stream follows.
            BINLOG_DUMP | BINLOG_DUMP_GTID => return Step::Leave,
            PING => plain("PING", NOTE_ONE),
            USE => {
                self.next_namespace = NextNamespace::To(login::database(packet.payload).filter(|_| packet.is_whole()));
                plain("USE", NOTE_ONE)
            }
            STATISTICS => plain("STATISTICS", NOTE_ONE),
            STATEMENT_RESET | RESET => plain("RESET", NOTE_ONE),
            0..=0x1f => plain(super::sql::OTHER, NOTE_ONE),
            _ => return Step::Invalid,
        };
        message.cut = rest > 0 && packet.payload.len() < wanted;
        Step::Head { used, message, body: Body::Length(rest) }
    }
}

fn named(method: Arc<str>, path: Arc<str>, note: u16) -> Box<Request> {
    Request::named(method, path, ExpectedReply { note, ..ExpectedReply::default() })
}

fn plain(method: &str, note: u16) -> Box<Request> {
    named(shared(method), shared(method), note)
}

fn unnamed(note: u16) -> Box<Request> {
    let mut request = Request::unnamed();
    (request.expected.note, request.cut) = (note, false);
    request
}

impl Parser for Session {
    fn request(&mut self, bytes: &[u8], cut: bool, _: &Settings) -> Step<Box<Request>> {
        let Some(packet) = packet(bytes) else {
            return if cut { Step::Invalid } else { Step::NeedMore };
        };
        let (used, rest) = packet.split();
        let mut step = match packet.number {
            0 if packet.length > 0 => {
                self.login = None;
                self.command(&packet, cut)
            }
            0 => Step::Invalid,
            number if self.login == Some(number) => self.login(&packet, cut),
            // The rest of a login, a file or a long packet.
            _ => Step::Pass { used, rest },
        };
        if let Step::Head { message, .. } = &mut step {
            message.namespace.clone_from(&self.namespace);
        }
        step
    }

    fn reply(&mut self, bytes: &[u8], cut: bool, expected: &ExpectedReply) -> Step<Reply> {
        if self.server.is_none()
            && expected.note == 0
            && let Some(packet) = packet(bytes)
            && packet.number == 0
        {
            if !packet.is_whole() && !cut {
                return Step::NeedMore;
            }
            self.server = capabilities(&packet);
            self.login = self.server.map(|_| 1);
            let (used, rest) = packet.split();
            return if self.server.is_some() { Step::Pass { used, rest } } else { Step::Invalid };
        }
        let step = self.progress.reply(bytes, cut, expected.note);
        if let Step::Head { message, .. } = &step
            && let NextNamespace::To(namespace) = std::mem::take(&mut self.next_namespace)
            && message.failure.is_none()
        {
            self.namespace = namespace;
        }
        if let Step::Head { message, .. } = &step
            && expected.note == NOTE_PREPARE
        {
            let summary = self.statements.as_mut().and_then(|all| all.preparing.pop_front());
            if let (Some(number), Some(summary), None) = (self.progress.prepared.take(), summary, message.failure) {
                let statements = &mut self.statements.get_or_insert_default().known;
                if statements.len() < STATEMENTS || statements.contains_key(&number) {
                    statements.insert(number, summary);
                } else {
                    self.refused += 1;
                }
            }
        }
        match step {
            // The connection is compressed from here on.
            Step::Head { used, message, .. }
                if expected.note == NOTE_AUTH
                    && message.failure.is_none()
                    && self.agreed & (COMPRESS | COMPRESS_ZSTD) != 0 =>
            {
                Step::Head { used, message, body: Body::Switch }
            }
            step => step,
        }
    }

    fn is_unasked(&self, bytes: &[u8]) -> bool {
        packet(bytes).is_some_and(|packet| matches!(detect::greeting(&packet), Ok(Some(_))))
    }

    fn last(&mut self, bytes: &[u8]) -> ReplyEnd {
        self.progress.last(bytes)
    }

    fn ended(&mut self, bytes: &[u8]) -> Option<Reply> {
        self.progress.ended(bytes)
    }

    fn broken(&mut self, requests: bool) {
        if requests {
            // Another database may have been chosen in what was missed.
            (self.namespace, self.next_namespace) = (None, NextNamespace::Same);
        } else {
            self.progress.restart();
            // Which of them a later reply answers is unknown.
            if let Some(all) = &mut self.statements {
                all.preparing.clear();
            }
        }
    }

    fn kept_bytes(&self) -> usize {
        let namespace = self.namespace.as_ref().map_or(0, |name| name.len());
        namespace + self.statements.as_ref().map_or(0, |all| all.known.len() * EACH)
    }

    fn forget(&mut self) {
        (self.statements, self.namespace) = (None, None);
    }

    fn rest(&mut self) {
        self.statements = self.statements.take().filter(|all| !(all.known.is_empty() && all.preparing.is_empty()));
        if let Some(all) = &mut self.statements {
            all.known.shrink_to_fit();
            all.preparing.shrink_to_fit();
        }
    }

    fn take_refused(&mut self) -> u64 {
        u64::from(std::mem::take(&mut self.refused))
    }
}

/// The server's capabilities, from its greeting.
fn capabilities(packet: &Packet<'_>) -> Option<u32> {
    let version = detect::greeting(packet).ok()??;
    // Version and terminator, the connection id, eight bytes and a zero.
    let at = 1 + version.len() + 1 + detect::CONNECTION_ID + detect::SALT + 1;
    let low = u32::from(packets::short(packet.payload, at)?);
    let high = u32::from(packets::short(packet.payload, at + 5).unwrap_or_default());
    Some(low | high << 16)
}

#[cfg(test)]
mod tests;
