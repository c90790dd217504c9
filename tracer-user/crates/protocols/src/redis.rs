//! RESP2 and RESP3, the protocol of Redis and its relatives (redis.io/docs: protocol specification).
//!
//! Of a request only the name of the command (and subcommand) is kept, and only if listed; of a reply only the kind of
//! its error, also from a list. Keys, values and passwords never leave this file, except the names of queues and of the jobs
//! in them (`queues.rs`).

mod bullmq;
mod commands;
mod detect;
mod login;
mod queues;
mod read;

use std::sync::Arc;

/// The kind of the error whose text begins with these bytes.
pub fn failure_by_front(front: &[u8]) -> &'static str {
    read::error_by_front(front)
}

use memchr::memchr;
use tracer_model::ProtocolId;

use self::commands::{COMMANDS, RedisCommand};
use self::detect::{ARGUMENTS, CONFIRMATIONS, PUSHES, detect_array, detect_inline};
use self::queues::{Awaited, QueueCommand};
use self::read::{OTHER_ERROR, Read, confirmed, error, header, inner_error, word};
use super::elements::Elements;
use super::jobs::JobEvent;
use super::stream::Fed;
use super::{Body, Detected, ExpectedReply, Parser, Protocol, Reply, Request, Settings, Step};

/// Longest line waited for: the server's own limit for inline commands.
const LINE_LIMIT: usize = 64 * 1024;

/// [`ExpectedReply::note`]: EXEC, whose reply contains those of the commands before it.
const NOTE_EXEC: u16 = 1;
/// [`ExpectedReply::note`]: MONITOR, whose reply is followed by unsolicited lines.
const NOTE_MONITOR: u16 = 2;
/// [`ExpectedReply::note`]: RESET, which ends all of these modes.
const NOTE_RESET: u16 = 3;
/// [`ExpectedReply::note`]: CLIENT REPLY OFF, SKIP and ON: replies stop, are skipped once, resume.
const NOTE_OFF: u16 = 4;
const NOTE_SKIP: u16 = 5;
const NOTE_ON: u16 = 6;
/// [`ExpectedReply::note`]: MULTI, which begins a transaction.
const NOTE_MULTI: u16 = 7;
/// [`ExpectedReply::note`]: SELECT, which chooses a database.
const NOTE_SELECT: u16 = 9;
/// [`ExpectedReply::note`]: from here on, the reply may contain a job. The numbers tell these requests apart: only what the
/// latest one awaits is kept ([`Awaited`]).
const NOTE_JOB: u16 = 16;
/// [`ExpectedReply::note`]: from here on, this many confirmations plus one make up the reply.
const NOTE_CONFIRMED: u16 = 4096;

/// The protocol.
#[derive(Debug)]
pub struct Redis;

impl Protocol for Redis {
    fn id(&self) -> ProtocolId {
        ProtocolId::Redis
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        match bytes.first() {
            None => Detected::NeedMore,
            Some(b'*' | b'>') => detect_array(bytes),
            Some(_) => detect_inline(bytes),
        }
    }

    fn answers(&self, request: &[u8], answer: &[u8]) -> bool {
        let first_reply = |bytes: &[u8]| match Elements::new(1).feed(bytes) {
            Fed::End(_) => true,
            Fed::More(_) => bytes.len() > 2,
            Fed::Invalid => false,
        };
        matches!(inline(request), Read::Got((words, _)) if words.command.is_some()) && first_reply(answer)
    }

    fn pipelines(&self) -> bool {
        true
    }

    fn next_request(&self, bytes: &[u8]) -> Option<usize> {
        memchr::memmem::find_iter(bytes, b"\n*")
            .map(|at| at + 1)
            .find(|at| bytes.get(*at..).is_some_and(|rest| self.detect(rest) == Detected::Request))
    }

    fn open(&self) -> Box<dyn Parser> {
        Box::new(Values::default())
    }
}

/// Content of an inline command.
struct Inline {
    command: Option<&'static RedisCommand>,
    empty: bool,
    message: Box<Request>,
}

/// Reads an inline command, words in a line; also returns its length.
fn inline(bytes: &[u8]) -> Read<(Inline, usize)> {
    let Some(end) = memchr(b'\n', bytes.get(..bytes.len().min(LINE_LIMIT)).unwrap_or_default()) else {
        return if bytes.len() < LINE_LIMIT { Read::Short } else { Read::Bad };
    };
    let line = bytes.get(..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let first = words.next();
    let command = first.and_then(|word| COMMANDS.find(word));
    let rest = words.clone().count() as u64;
    let message = named(command, words.next(), words.next(), rest);
    Read::Got((Inline { command, empty: first.is_none(), message }, end + 1))
}

/// A request, from its command, the two words after it and the number of all words after it.
fn named(command: Option<&RedisCommand>, second: Option<&[u8]>, third: Option<&[u8]>, rest: u64) -> Box<Request> {
    let name = match (command, second) {
        (None, _) => &COMMANDS.other,
        (Some(command), Some(second)) => command.with(second),
        (Some(command), None) => &command.name,
    };
    let is = |word: &str| third.is_some_and(|third| third.eq_ignore_ascii_case(word.as_bytes()));
    let mut expected = ExpectedReply::default();
    match &**name {
        "EXEC" => expected.note = NOTE_EXEC,
        "MULTI" => expected.note = NOTE_MULTI,
        "MONITOR" => expected.note = NOTE_MONITOR,
        "RESET" => expected.note = NOTE_RESET,
        "SELECT" => expected.note = NOTE_SELECT,
        "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE" | "SUNSUBSCRIBE" => {
            expected.note = NOTE_CONFIRMED + rest.clamp(1, 60_000) as u16 - 1;
        }
        // A replication stream follows.
        "SYNC" | "PSYNC" => expected.tunnel = true,
        "CLIENT REPLY" if is("OFF") => expected.note = NOTE_OFF,
        "CLIENT REPLY" if is("SKIP") => expected.note = NOTE_SKIP,
        "CLIENT REPLY" if is("ON") => expected.note = NOTE_ON,
        _ => {}
    }
    Box::new(Request {
        method: name.clone(),
        path: COMMANDS.empty.clone(),
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

/// Which requests get no reply because the client asked for silence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Muted {
    #[default]
    No,
    /// The next one.
    Next,
    /// All.
    All,
}

/// Connection state from earlier messages that later ones depend on.
#[derive(Debug, Default)]
struct Values {
    muted: Muted,
    /// Number of channels and patterns subscribed to.
    subscribed: u64,
    /// Confirmations of the oldest request so far.
    confirmations: u16,
    /// Confirmations in the transaction's reply beyond one for each of its commands: its array does not count them.
    uncounted: u64,
    monitoring: bool,
    /// A request was seen: before the first one, the subscriptions are unknown.
    expected: bool,
    /// Inline commands came before: then a line need not begin with a known command.
    inline: bool,
    /// Arrays came, and no inline command before them: then a line belongs to something else, even if it begins with
    /// `INCR`.
    arrays: bool,
    /// The number of the latest request whose reply may contain a job, and what it may contain.
    awaited: (u16, Awaited),
    /// What the latest message shows of a job.
    job: Option<JobEvent>,
    /// Commands came one after the other, with nothing missed between them.
    in_step: bool,
    /// Number of the database that was selected.
    namespace: Option<Arc<str>>,
}

/// Classification of a server message by its first word.
enum Unasked {
    /// Answers no request.
    Push,
    /// Confirms a subscription; this many are left.
    Confirmation(u64),
    /// An ordinary reply.
    No,
    NeedMore,
}

impl Values {
    /// Notes whether the request gets a reply.
    fn mute(&mut self, expected: &mut ExpectedReply) {
        let muted = match expected.note {
            NOTE_OFF => Muted::All,
            NOTE_SKIP if self.muted != Muted::All => Muted::Next,
            NOTE_ON => Muted::No,
            _ => {
                expected.silent = self.muted != Muted::No;
                if self.muted == Muted::Next {
                    self.muted = Muted::No;
                }
                return;
            }
        };
        expected.silent = expected.note != NOTE_ON;
        self.muted = muted;
    }

    fn array(&mut self, bytes: &[u8], cut: bool) -> Step<Box<Request>> {
        let short = || if cut { unnamed(bytes) } else { Step::NeedMore };
        let (count, at) = match header(bytes, 0, b'*') {
            Read::Got((Some(count), at)) if count <= ARGUMENTS => (count, at),
            Read::Got((None, at)) => (0, at),
            Read::Got(_) | Read::Bad => return Step::Invalid,
            Read::Short => return short(),
        };
        if count == 0 {
            // Redis skips it.
            return Step::Skip { used: at };
        }
        let (first, mut at) = match word(bytes, at) {
            Read::Got(found) => found,
            Read::Short => return short(),
            Read::Bad => return Step::Invalid,
        };
        let mut read = u64::from(first.is_some());
        let command = first.and_then(|first| COMMANDS.find(first));
        let mut words = [None, None];
        if let Some(command) = command
            && !command.subcommands.is_empty()
        {
            let wanted = if &*command.name == "CLIENT" { 2 } else { 1 };
            for place in words.iter_mut().take(wanted) {
                if read >= count {
                    break;
                }
                match word(bytes, at) {
                    Read::Got((Some(found), after)) => {
                        *place = Some(found);
                        (at, read) = (after, read + 1);
                    }
                    Read::Got((None, _)) => break,
                    Read::Short => return short(),
                    Read::Bad => return Step::Invalid,
                }
            }
        }
        let rest = bytes.get(at..).unwrap_or_default();
        let queue = command.map_or(QueueCommand::None, |command| command.queue);
        if queue != QueueCommand::None
            && !cut
            && bytes.len() < queues::WHOLE
            && count > read
            && matches!(Elements::new(count - read).feed(rest), Fed::More(_))
        {
            return Step::NeedMore;
        }
        let mut message = named(command, words[0], words[1], count - 1);
        // Of the commands that log in, no word after the first was read.
        message.session = command.and_then(|command| login::identity(&command.name, count - 1, bytes, at));
        if message.expected.note == NOTE_SELECT {
            self.namespace = login::selected(bytes, at);
        }
        message.namespace.clone_from(&self.namespace);
        self.arrays |= !self.inline;
        self.in_step = true;
        self.mute(&mut message.expected);
        self.queued(queue, bytes, at, (count - read, &mut message));
        if read == count {
            return Step::Head { used: at, message, body: Body::Length(0) };
        }
        match Elements::new(count - read).feed(rest) {
            Fed::End(used) => Step::Head { used: at + used, message, body: Body::Length(0) },
            Fed::More(state) => Step::Head { used: bytes.len(), message, body: body(state) },
            Fed::Invalid => Step::Invalid,
        }
    }

    /// A command was read up to `at`, where `count` words follow: notes what it does with a queue.
    fn queued(&mut self, command: QueueCommand, bytes: &[u8], at: usize, (count, message): (u64, &mut Request)) {
        if command == QueueCommand::None {
            return;
        }
        let (event, awaited) = queues::request(command, bytes, at, count);
        self.job = event;
        if !matches!(awaited, Awaited::Nothing) && message.expected.note == 0 {
            let number = (self.awaited.0 + 1) % (NOTE_CONFIRMED - NOTE_JOB);
            message.expected.note = NOTE_JOB + number;
            self.awaited = (number, awaited);
        }
    }

    fn inline(&mut self, bytes: &[u8], cut: bool) -> Step<Box<Request>> {
        if self.arrays {
            // Redis skips an empty line, which `redis-cli --pipe` sends; elsewhere it ends an array that began in uncaptured
            // bytes.
            return match bytes {
                [b'\r', b'\n', ..] if self.in_step => Step::Skip { used: 2 },
                [b'\r'] if self.in_step && !cut => Step::NeedMore,
                _ => Step::Invalid,
            };
        }
        match inline(bytes) {
            Read::Got((line, used)) if line.empty => Step::Skip { used },
            Read::Got((line, used)) => {
                let Inline { command, mut message, .. } = line;
                let text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
                if command.is_none() && !(self.inline && bytes.get(..used).unwrap_or_default().iter().all(text)) {
                    return Step::Invalid;
                }
                self.inline = true;
                if command.is_none() && !self.in_step {
                    // What is left of a command whose beginning was missed.
                    message = Request::unnamed();
                }
                self.in_step = true;
                if message.expected.note == NOTE_SELECT {
                    self.namespace = None;
                }
                message.namespace.clone_from(&self.namespace);
                self.mute(&mut message.expected);
                Step::Head { used, message, body: Body::Length(0) }
            }
            Read::Short if !cut => Step::NeedMore,
            // Among others, as an array whose end was not captured.
            Read::Short if self.inline => unnamed(bytes),
            Read::Short | Read::Bad => Step::Invalid,
        }
    }

    /// Whether a server message answers a request, judged by its first word where that matters.
    fn unasked(&self, bytes: &[u8], expected: ExpectedReply) -> Unasked {
        let kind = match bytes.first() {
            Some(b'>') => b'>',
            Some(b'*') if self.subscribed > 0 || !self.expected || expected.note >= NOTE_CONFIRMED => b'*',
            Some(b'+') if self.monitoring => {
                return match bytes.get(1) {
                    None => Unasked::NeedMore,
                    Some(byte) if byte.is_ascii_digit() => Unasked::Push,
                    Some(_) => Unasked::No,
                };
            }
            _ => return Unasked::No,
        };
        let push = if kind == b'>' { Unasked::Push } else { Unasked::No };
        let at = match header(bytes, 0, kind) {
            Read::Got((Some(1..), at)) => at,
            Read::Got(_) | Read::Bad => return push,
            Read::Short => return Unasked::NeedMore,
        };
        match word(bytes, at) {
            Read::Got((Some(word), _)) if PUSHES.contains(&word) => Unasked::Push,
            Read::Got((Some(word), after)) if CONFIRMATIONS.contains(&word) => match confirmed(bytes, after) {
                Read::Got(left) => Unasked::Confirmation(left),
                Read::Short => Unasked::NeedMore,
                Read::Bad => push,
            },
            Read::Got(_) | Read::Bad => push,
            Read::Short => Unasked::NeedMore,
        }
    }
}

/// A command begins here, but its name was not captured.
fn unnamed(bytes: &[u8]) -> Step<Box<Request>> {
    Step::Head { used: bytes.len(), message: Request::unnamed(), body: Body::UntilTurn }
}

fn body(state: Elements) -> Body {
    state.rest().map_or(Body::Elements(state), Body::Length)
}

impl Parser for Values {
    fn request(&mut self, bytes: &[u8], cut: bool, _: &Settings) -> Step<Box<Request>> {
        self.expected = true;
        self.job = None;
        let step = match bytes.first() {
            None => Step::NeedMore,
            Some(b'*') => self.array(bytes, cut),
            Some(_) => self.inline(bytes, cut),
        };
        self.in_step &= !matches!(step, Step::Head { body: Body::UntilTurn, .. });
        step
    }

    fn reply(&mut self, bytes: &[u8], cut: bool, expected: &ExpectedReply) -> Step<Reply> {
        let Some(kind) = bytes.first() else { return Step::NeedMore };
        self.job = None;
        let uncounted = match (expected.note, header(bytes, 0, b'*')) {
            (NOTE_EXEC, Read::Got((Some(1..), _))) => self.uncounted,
            (NOTE_EXEC, Read::Short) if self.uncounted > 0 && !cut => return Step::NeedMore,
            _ => 0,
        };
        let (used, body) = match Elements::new(1 + uncounted).feed(bytes) {
            Fed::End(used) => (used, Body::Length(0)),
            Fed::More(state) => (bytes.len(), body(state)),
            Fed::Invalid => return Step::Invalid,
        };
        let whole = body == Body::Length(0);
        // Everything needed is near the beginning.
        let patient = !cut && !whole && bytes.len() < LINE_LIMIT;
        let unasked = self.unasked(bytes, *expected);
        let interim = match unasked {
            Unasked::NeedMore if patient => return Step::NeedMore,
            Unasked::NeedMore | Unasked::Push => {
                self.subscribed = self.subscribed.max(u64::from(*kind == b'*'));
                true
            }
            Unasked::Confirmation(left) => {
                self.subscribed = left;
                self.confirmations += u16::from(expected.note >= NOTE_CONFIRMED);
                self.confirmations == 0 || self.confirmations < expected.note - NOTE_CONFIRMED + 1
            }
            Unasked::No => false,
        };
        if interim {
            return Step::Head { used, message: Reply { status: 0, failure: None, interim }, body };
        }
        if expected.note == NOTE_JOB + self.awaited.0 {
            if patient && bytes.len() < queues::WHOLE {
                return Step::NeedMore;
            }
            self.job = queues::reply(&std::mem::take(&mut self.awaited.1), bytes);
        }
        let failure = match kind {
            b'-' | b'!' => match error(bytes) {
                Read::Short if patient => return Step::NeedMore,
                Read::Got(kind) => Some(kind),
                Read::Short | Read::Bad => Some(OTHER_ERROR),
            },
            // The first error among the replies it contains.
            b'*' if expected.note == NOTE_EXEC => {
                if patient {
                    return Step::NeedMore;
                }
                inner_error(bytes, uncounted)
            }
            _ => None,
        };
        self.confirmations = 0;
        match (expected.note, failure) {
            (NOTE_MULTI | NOTE_EXEC, _) => self.uncounted = 0,
            // Queued: the confirmations come in the reply to EXEC, all of them.
            (NOTE_CONFIRMED.., None) if *kind == b'+' => self.uncounted += u64::from(expected.note - NOTE_CONFIRMED),
            (NOTE_MONITOR, None) => self.monitoring = true,
            // Which one it was before is not kept.
            (NOTE_SELECT, Some(_)) => self.namespace = None,
            (NOTE_RESET, None) => {
                *self = Self {
                    inline: self.inline,
                    arrays: self.arrays,
                    in_step: self.in_step,
                    expected: true,
                    awaited: (self.awaited.0, Awaited::Nothing),
                    ..Self::default()
                }
            }
            _ => {}
        }
        let body = if expected.tunnel && failure.is_none() { Body::Switch } else { body };
        Step::Head { used, message: Reply { status: 0, failure, interim }, body }
    }

    fn next_request(&self, bytes: &[u8]) -> Option<usize> {
        if !self.inline {
            return None;
        }
        let begins = |at: &usize| {
            let rest = bytes.get(*at..).unwrap_or_default();
            let end = rest.iter().position(|byte| matches!(byte, b' ' | b'\r' | b'\n'));
            rest.first() == Some(&b'*') || end.and_then(|end| COMMANDS.find(rest.get(..end)?)).is_some()
        };
        memchr::memchr_iter(b'\n', bytes).map(|at| at + 1).find(begins)
    }

    fn take_job(&mut self) -> Option<JobEvent> {
        self.job.take()
    }

    fn broken(&mut self, requests: bool) {
        self.in_step &= !requests;
        if requests {
            // A SELECT may be among what was missed.
            self.namespace = None;
        }
    }

    fn is_unasked(&self, bytes: &[u8]) -> bool {
        bytes.first() == Some(&b'>') || !matches!(self.unasked(bytes, ExpectedReply::default()), Unasked::No)
    }
}

#[cfg(test)]
mod tests;
