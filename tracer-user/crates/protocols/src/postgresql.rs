//! PostgreSQL's protocol, version 3 (PostgreSQL's manual, "Frontend/Backend Protocol").
//!
//! A span is a query, or the messages that lead to one execution of a prepared statement, with the Sync directly after
//! it. Of queries only summaries are kept ([`super::sql`]), of errors the SQLSTATE if it is a known one; parameters,
//! rows, passwords and COPY data are skipped unread.

mod detect;
mod frames;
mod identity;
mod replies;
mod sqlstate;
mod statements;

use std::sync::Arc;

use tracer_model::ProtocolId;

use self::detect::{CANCEL, GSS, Startup, TLS, startup};
use self::frames::{Frame, Front, HEADER, executes, frame, name};
use self::identity::identity;
use self::replies::Progress;
use self::statements::{NAME, Named};
use super::sql::{Dialect, SQL_LIMIT, Summary, shared, summarize};
use super::{Body, Detected, ExpectedReply, Parser, Protocol, Reply, ReplyEnd, Request, Settings, Step};

/// Message types that clients send.
const REQUESTS: &[u8] = b"QPBEDSCHFXpdcf";
/// Message types that servers send.
const REPLIES: &[u8] = b"TDC12ntsIEZNASRKGHWVcdv3";

/// [`ExpectedReply::note`]: nothing is known about the request.
const NOTE_UNKNOWN: u16 = 0;
/// [`ExpectedReply::note`]: the reply ends with ReadyForQuery.
const NOTE_READY: u16 = 1;
/// [`ExpectedReply::note`]: a lone Sync, answered by ReadyForQuery.
const NOTE_SYNC: u16 = 2;
/// [`ExpectedReply::note`]: from here on, the reply ends once the server has answered the note minus this many messages.
const NOTE_ANSWERS: u16 = 16;

/// The protocol.
#[derive(Debug)]
pub struct PostgreSql;

impl Protocol for PostgreSql {
    fn id(&self) -> ProtocolId {
        ProtocolId::PostgreSql
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        detect::detect(bytes)
    }

    fn pipelines(&self) -> bool {
        true
    }

    fn trails(&self) -> bool {
        true
    }

    fn open(&self) -> Box<dyn Parser> {
        Box::new(Session::default())
    }
}

/// The group of messages read so far: those from one answered message to the next.
#[derive(Debug, Default)]
struct MessageGroup {
    /// Its purpose, by its most significant message.
    purpose: Purpose,
    /// The statement it runs or prepares, if known.
    summary: Option<Arc<Summary>>,
    /// It has bound a portal, which runs `runs`, if known.
    bound: bool,
    runs: Option<Arc<Summary>>,
    /// Number of its messages that get an answer.
    answers: u16,
}

/// Purpose of a group; the greatest one names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    #[default]
    Nothing,
    Close,
    Describe,
    Bind,
    Prepare,
    Execute,
}

/// Connection state from earlier messages that later ones depend on.
#[derive(Debug, Default)]
struct Session {
    statements: Named,
    portals: Named,
    group: MessageGroup,
    /// The end of a COPY from the client was seen: a Sync after it belongs to it.
    copied: bool,
    /// The client asked for encryption: one byte answers.
    negotiating: bool,
    /// The client listens for notifications.
    listens: bool,
    /// The database of the connection.
    namespace: Option<Arc<str>>,
    progress: Progress,
}

impl Session {
    /// Ends the group after `used` bytes; `ready`: ReadyForQuery answers it.
    fn finish(&mut self, used: usize, ready: bool, body: Body) -> Step<Box<Request>> {
        let MessageGroup { purpose, summary, answers, .. } = std::mem::take(&mut self.group);
        let note = if ready { NOTE_READY } else { NOTE_ANSWERS.saturating_add(answers) };
        let message = match (purpose, summary) {
            (Purpose::Execute, Some(summary)) => named(Arc::clone(&summary.operation), Arc::clone(&summary.text), note),
            (Purpose::Execute, None) => {
                let mut request = Request::unnamed();
                (request.expected.note, request.cut) = (note, false);
                request
            }
            (Purpose::Prepare, Some(summary)) => {
                named(shared("PREPARE"), Arc::from(format!("PREPARE {}", summary.text)), note)
            }
            (Purpose::Prepare, None) => plain("PREPARE", note),
            (Purpose::Bind, _) => plain("BIND", note),
            (Purpose::Describe, _) => plain("DESCRIBE", note),
            (Purpose::Close, _) => plain("CLOSE", note),
            (Purpose::Nothing, _) => plain("SYNC", NOTE_SYNC),
        };
        Step::Head { used, message, body }
    }

    /// The rest of a group was not captured.
    fn cut(&mut self, used: usize) -> Step<Box<Request>> {
        if self.group.purpose == Purpose::Nothing {
            return Step::Head { used, message: Request::unnamed(), body: Body::UntilTurn };
        }
        // A client that binds also executes.
        if self.group.bound && self.group.purpose < Purpose::Execute {
            (self.group.purpose, self.group.summary) = (Purpose::Execute, self.group.runs.take());
        }
        let executes = self.group.purpose == Purpose::Execute;
        let mut step = self.finish(used, true, Body::UntilTurn);
        if let Step::Head { message, .. } = &mut step {
            message.cut = true;
            if executes {
                // Others may have followed, answered by the same ReadyForQuery.
                message.expected.note = NOTE_UNKNOWN;
            }
        }
        step
    }

    fn counts_as(&mut self, purpose: Purpose) {
        self.group.purpose = self.group.purpose.max(purpose);
        self.group.answers = self.group.answers.saturating_add(1).min(u16::MAX / 2);
    }

    /// A message without a type: a connection begins.
    fn begin(&mut self, bytes: &[u8], cut: bool) -> Step<Box<Request>> {
        let (length, code) = match startup(bytes) {
            Startup::Is(length, code) => (u64::from(length), code),
            Startup::Short if !cut => return Step::NeedMore,
            Startup::Short | Startup::No => return Step::Invalid,
        };
        if matches!(code, TLS | GSS) {
            self.negotiating = true;
            return Step::Part { used: 8, rest: 0 };
        }
        let used = bytes.len().min(usize::try_from(length).unwrap_or(usize::MAX));
        let mut message = plain(if code == CANCEL { "CANCEL" } else { "CONNECT" }, NOTE_READY);
        message.expected.silent = code == CANCEL;
        if code != CANCEL {
            let parameters = bytes.get(8..used).unwrap_or_default();
            message.session = identity(parameters);
            self.namespace = identity::database(parameters);
        }
        Step::Head { used, message, body: Body::Length(length - used as u64) }
    }

    fn query(&mut self, frame: &Frame<'_>, cut: bool) -> Step<Box<Request>> {
        // Plus the byte after them, which may be the terminator.
        if waits(frame, SQL_LIMIT + 1, cut) {
            return Step::NeedMore;
        }
        let text = frame.fields.strip_suffix(&[0]).filter(|_| frame.is_whole());
        let summary = summarize(text.unwrap_or(frame.fields), text.is_none(), Dialect::PostgreSql);
        self.group = MessageGroup::default();
        self.listens |= summary.text.contains("LISTEN");
        let mut message = named(summary.operation, summary.text, NOTE_READY);
        let (used, rest) = frame.split();
        message.cut = rest > 0 && frame.fields.len() < SQL_LIMIT;
        Step::Head { used, message, body: Body::Length(rest) }
    }

    /// Parse, Bind, Describe, Execute, Close: reads the names in them.
    fn extended(&mut self, frame: &Frame<'_>, cut: bool) -> Step<Box<Request>> {
        let limit = if frame.kind == b'P' { SQL_LIMIT } else { 2 * NAME + 2 };
        if waits(frame, limit, cut) {
            return Step::NeedMore;
        }
        let fields = frame.fields.get(..frame.fields.len().min(limit)).unwrap_or_default();
        match frame.kind {
            b'P' => {
                let found = name(fields).map(|(statement, rest)| {
                    let (query, is_cut) = name(rest).map_or((rest, true), |(query, _)| (query, false));
                    (statement, summarize(query, is_cut, Dialect::PostgreSql).prepared())
                });
                if let Some((statement, summary)) = found {
                    self.listens |= summary.text.contains("LISTEN");
                    self.group.summary = Some(summary.clone());
                    self.statements.set(statement, Some(summary));
                } else {
                    self.group.summary = None;
                }
                self.counts_as(Purpose::Prepare);
            }
            b'B' => {
                let names = name(fields).and_then(|(portal, rest)| Some((portal, name(rest)?.0)));
                let summary = names.and_then(|(_, statement)| self.statements.get(statement));
                self.portals.set(names.map_or(b"", |(portal, _)| portal), summary.clone());
                (self.group.bound, self.group.runs) = (true, summary);
                self.counts_as(Purpose::Bind);
            }
            b'E' => {
                self.group.summary = name(fields).and_then(|(portal, _)| self.portals.get(portal));
                self.counts_as(Purpose::Execute);
            }
            b'C' => {
                match fields.split_first().map(|(which, rest)| (which, name(rest))) {
                    Some((b'S', Some((statement, _)))) => self.statements.remove(statement),
                    Some((b'P', Some((portal, _)))) => self.portals.remove(portal),
                    _ => {}
                }
                self.counts_as(Purpose::Close);
            }
            _ => self.counts_as(Purpose::Describe),
        }
        let (used, rest) = frame.split();
        Step::Part { used, rest }
    }

    fn next_request(&mut self, bytes: &[u8], cut: bool) -> Step<Box<Request>> {
        let begun = self.group.purpose != Purpose::Nothing;
        match bytes.first() {
            None if cut => return self.cut(0),
            // The server sends errors at once, and rows once there are many.
            None if self.group.purpose == Purpose::Execute => return self.finish(0, false, Body::Length(0)),
            None => return Step::NeedMore,
            Some(0) if !begun => return self.begin(bytes, cut),
            // Clients send an Execute together with what follows it, if that can end the group.
            Some(kind) if self.group.purpose == Purpose::Execute && !matches!(kind, b'S' | b'H') => {
                return self.finish(0, false, Body::Length(0));
            }
            Some(_) => {}
        }
        let frame = match frame(bytes, REQUESTS) {
            Front::Frame(frame) => frame,
            Front::Short if cut => return self.cut(bytes.len()),
            Front::Short => return Step::NeedMore,
            Front::Bad => return Step::Invalid,
        };
        let copied = std::mem::replace(&mut self.copied, matches!(frame.kind, b'c' | b'f'));
        let (used, rest) = frame.split();
        match frame.kind {
            b'Q' => {
                self.copied = false;
                self.query(&frame, cut)
            }
            b'P' | b'B' | b'D' | b'E' | b'C' => self.extended(&frame, cut),
            b'S' | b'H' if frame.total != HEADER as u64 => Step::Invalid,
            b'S' if copied && !begun => Step::Pass { used, rest },
            b'S' => self.finish(used, true, Body::Length(0)),
            b'H' if begun => self.finish(used, false, Body::Length(0)),
            b'F' => Step::Head { used, message: plain("FUNCTION CALL", NOTE_READY), body: Body::Length(rest) },
            // COPY data, passwords, termination.
            _ if begun => Step::Part { used, rest },
            _ => Step::Pass { used, rest },
        }
    }
}

/// Whether to wait for more of a message's fields, whose first `limit` bytes count.
fn waits(frame: &Frame<'_>, limit: usize, cut: bool) -> bool {
    !cut && !frame.is_whole() && frame.fields.len() < limit
}

fn named(method: Arc<str>, path: Arc<str>, note: u16) -> Box<Request> {
    Request::named(method, path, ExpectedReply { note, ..ExpectedReply::default() })
}

fn plain(method: &str, note: u16) -> Box<Request> {
    named(shared(method), shared(method), note)
}

impl Parser for Session {
    fn request(&mut self, bytes: &[u8], cut: bool, _: &Settings) -> Step<Box<Request>> {
        let mut step = self.next_request(bytes, cut);
        if let Step::Head { message, .. } = &mut step {
            message.namespace.clone_from(&self.namespace);
        }
        step
    }

    fn request_ends_with(&mut self, bytes: &[u8], last: &[u8]) -> Option<Box<Request>> {
        let prepares = self.group.purpose != Purpose::Nothing && self.group.purpose < Purpose::Execute;
        if !prepares || !matches!(frame(bytes, REQUESTS), Front::Short) || !executes(last) {
            return None;
        }
        // The Bind was not captured: assume the statement prepared just before.
        if self.group.bound {
            self.group.summary = self.group.runs.take();
        }
        self.group.purpose = Purpose::Execute;
        match self.finish(0, true, Body::Length(0)) {
            Step::Head { mut message, .. } => {
                message.namespace.clone_from(&self.namespace);
                Some(message)
            }
            _ => None,
        }
    }

    fn reply(&mut self, bytes: &[u8], cut: bool, expected: &ExpectedReply) -> Step<Reply> {
        if self.negotiating {
            self.negotiating = false;
            match bytes {
                [b'N'] => return Step::Pass { used: 1, rest: 0 },
                [b'S'] => return Step::Tls,
                [b'G'] => return Step::Leave,
                _ => {}
            }
        }
        self.progress.reply(bytes, cut, expected.note)
    }

    fn is_unasked(&self, bytes: &[u8]) -> bool {
        match bytes {
            [b'N' | b'S' | b'G'] => self.negotiating,
            _ => replies::are_unasked(bytes),
        }
    }

    fn last(&mut self, bytes: &[u8]) -> ReplyEnd {
        self.progress.last(bytes, self.listens)
    }

    fn broken(&mut self, requests: bool) {
        if requests {
            self.group = MessageGroup::default();
            self.copied = false;
        } else {
            self.progress.broken();
        }
    }

    fn kept_bytes(&self) -> usize {
        self.statements.bytes() + self.portals.bytes() + self.namespace.as_ref().map_or(0, |name| name.len())
    }

    fn forget(&mut self) {
        self.statements.clear();
        self.portals.clear();
        self.namespace = None;
    }

    fn rest(&mut self) {
        self.statements.rest();
        self.portals.rest();
    }

    fn take_refused(&mut self) -> u64 {
        self.statements.take_refused() + self.portals.take_refused()
    }
}

#[cfg(test)]
mod tests;
