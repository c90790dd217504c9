//! Messages between agents and their encoding.
//!
//! A message is one byte of kind, one byte of length, and that many bytes; integers are in network byte order. A
//! receiver skips unknown kinds and trailing bytes of known ones, so later versions may add both. The session speaks
//! the smaller of the versions in both [`Hello`]s: from version 2 on `MORE` messages precede a context and hold what
//! else was propagated with its transaction. Version 3 also had contexts of UDP questions, marked by a `MORE`; the
//! decoder reads and ignores them. The next version is 4.

use std::sync::Arc;

use tracer_model::{PropagatedContext, SpanId, TraceFlags, TraceId};

use super::context_backrefs::{ReceivedContexts, SentContexts};
use super::key::RequestKey;

/// The version this agent speaks, and the oldest it understands.
pub const VERSION: u16 = 2;
/// See [`VERSION`].
pub const VERSION_LEAST: u16 = 1;
/// First bytes of a session, so that a peer that is no agent is detected at once.
pub const MAGIC: [u8; 4] = *b"TRCR";
/// Longest name (of a host, service or class), bytes; longer ones are cut.
pub const NAME_MOST: usize = 120;
/// Most names one side may introduce per session; later names are not sent.
pub const NAMES_MOST: usize = 4096;
/// Most propagated context (`tracestate`, baggage, service class) sent with one context, bytes: the receiver stores it
/// until the request arrives.
pub const CARRIED_MOST: usize = 768;
/// Longest value of a baggage member, bytes.
const VALUE_MOST: usize = 128;
/// Longest encoding of a context with the names and `MORE` messages before it, bytes: a frame takes another context
/// only if this much room is left.
pub const CONTEXT_MOST: usize = 4096;
/// Most baggage members sent with one context.
pub const MEMBERS_MOST: usize = 8;
/// First version that knows `MORE`.
const VERSION_MORE: u16 = 2;

/// The first message in each direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Newest version spoken.
    pub version: u16,
    /// Oldest version understood.
    pub least: u16,
    /// The agent's number, made at its start; an agent that meets itself hangs up.
    pub agent: u64,
    /// Its host.
    pub host: Arc<str>,
}

/// Sent for a call: what its other end should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The request.
    pub key: RequestKey,
    /// Its transaction, as far as the caller knows it.
    pub trace: TraceId,
    /// The call, which is the request's parent.
    pub parent: SpanId,
    /// Whether the transaction is final; otherwise another message of the same request follows.
    pub settled: bool,
    /// Sent to several agents: all but one of them do not see the request.
    pub broadcast: bool,
    /// Trace flags of the transaction, if its originator gave them; else its id was drawn by an agent.
    pub trace_flags: Option<TraceFlags>,
    /// The caller's service; empty if it is not sent.
    pub service: Arc<str>,
    /// Request class of the call.
    pub class: Arc<str>,
    /// What else was propagated with the transaction; `None` if nothing was, and from agents of version 1. Never empty.
    pub carried: Option<Arc<PropagatedContext>>,
    /// The first request of the transaction.
    pub root: ContextRoot,
}

/// What the caller's agent knows of the first request of a call's transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContextRoot {
    /// Nothing (yet), or it is an agent of a version that does not say.
    #[default]
    Unknown,
    /// The call is for no request: the callee is the first.
    Callee,
    /// Service and class of the first.
    Class(Arc<str>, Arc<str>),
}

/// Sent for an answered request: what its caller cannot know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The request.
    pub key: RequestKey,
    /// The server span.
    pub span: SpanId,
    /// First byte read to last byte written, nanoseconds.
    pub duration: u64,
    /// Part of `duration` that the request waited in the socket before its first byte was read; nanoseconds.
    pub queue: u64,
    /// CPU charged to it so far, nanoseconds.
    pub cpu: u64,
    /// When the first byte was read, by the callee's wall clock, nanoseconds since the epoch; 0 if it is not sent: a
    /// sample of the summaries is enough to estimate the clock offset.
    pub start: i64,
    /// Status, if its protocol has one; else 0.
    pub status: u16,
    /// Whether it failed.
    pub error: bool,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Greeting.
    Hello(Hello),
    /// A call was sent.
    Context(Context),
    /// A request was answered.
    Summary(Summary),
    /// Keep-alive.
    Alive,
    /// The sender's host forwards packets of other hosts, so connections with its addresses may be theirs. Follows the
    /// greeting.
    Forwards,
}

/// Why decoding failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    /// A message is shorter than its kind needs, or than its length says.
    #[error("a message was cut short")]
    Short,
    /// The greeting has the wrong magic.
    #[error("not an agent's greeting")]
    Magic,
    /// A name was never introduced, or there are too many names.
    #[error("a name that was not introduced")]
    Name,
    /// A value no agent sends.
    #[error("a value out of range")]
    Value,
    /// A message that only the other end of a session may send.
    #[error("a message that is not for this end of a session")]
    Turn,
}

const HELLO: u8 = 1;
const NAME: u8 = 2;
const CONTEXT: u8 = 3;
const SUMMARY: u8 = 4;
const ALIVE: u8 = 5;
const SETTLES: u8 = 6;
/// Part of what precedes the next context: a byte of type, then the value.
const MORE: u8 = 7;
const FORWARDS: u8 = 8;

/// Types in a `MORE`: the number of the service class's name; a fragment of `tracestate`; the number of a baggage
/// member's name and its value; the mark of a UDP question, whose context is ignored because its key does not name a
/// TCP request; the numbers of the names of the first request's service and class, both 0 if that is the callee.
const SERVICE_CLASS: u8 = 1;
const STATE: u8 = 2;
const MEMBER: u8 = 3;
const UDP_QUESTION: u8 = 4;
const ROOT: u8 = 5;
/// Longest [`STATE`] fragment in one message, bytes.
const PIECE: usize = 250;

const SETTLED: u8 = 1;
const BROADCAST: u8 = 2;
const SAMPLING: u8 = 4;
const SAMPLED: u8 = 8;
const RANDOM: u8 = 16;
const ERROR: u8 = 1;
const START: u8 = 2;

/// Encodes messages of one session: each name is introduced once and then referred to by number.
#[derive(Debug)]
pub struct Encoder {
    names: rustc_hash::FxHashMap<Arc<str>, u16>,
    sent: SentContexts,
    version: u16,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { names: rustc_hash::FxHashMap::default(), sent: SentContexts::default(), version: VERSION }
    }
}

impl Encoder {
    /// Sets the version for the rest of the session.
    pub fn speak(&mut self, version: u16) {
        self.version = version;
    }

    /// Appends a message, preceded by the names it needs.
    pub fn put(&mut self, message: &Message, out: &mut Vec<u8>) {
        match message {
            Message::Hello(hello) => framed(HELLO, out, |out| {
                out.extend(MAGIC);
                out.extend(hello.version.to_be_bytes());
                out.extend(hello.least.to_be_bytes());
                out.extend(hello.agent.to_be_bytes());
                out.extend(cut(&hello.host).as_bytes());
            }),
            Message::Context(context) => {
                if context.settled
                    && let Some(back) = self.sent.back(context)
                {
                    return framed(SETTLES, out, |out| {
                        out.extend(context.trace.0.to_be_bytes());
                        put_number(back, out);
                    });
                }
                if let Some(carried) = &context.carried
                    && self.version >= VERSION_MORE
                {
                    self.more(carried, out);
                }
                if self.version >= VERSION_MORE {
                    self.root(&context.root, out);
                }
                let service = self.name(&context.service, out);
                let class = self.name(&context.class, out);
                // The back reference must hold what the other end received.
                let received = |name: &Arc<str>, number| if number == 0 { Arc::from("") } else { Arc::clone(name) };
                if !context.settled {
                    let (service, class) = (received(&context.service, service), received(&context.class, class));
                    self.sent.put(&Context { service, class, ..context.clone() });
                }
                framed(CONTEXT, out, |out| {
                    put_key(context.key, out);
                    out.extend(context.trace.0.to_be_bytes());
                    out.extend(context.parent.0.to_be_bytes());
                    let mut flags = 0;
                    for (set, flag) in [
                        (context.settled, SETTLED),
                        (context.broadcast, BROADCAST),
                        (context.trace_flags.is_some(), SAMPLING),
                        (context.trace_flags.is_some_and(TraceFlags::is_sampled), SAMPLED),
                        (context.trace_flags.is_some_and(TraceFlags::is_random), RANDOM),
                    ] {
                        flags |= if set { flag } else { 0 };
                    }
                    out.push(flags);
                    put_number(u64::from(service), out);
                    put_number(u64::from(class), out);
                });
            }
            Message::Summary(summary) => framed(SUMMARY, out, |out| {
                put_key(summary.key, out);
                out.extend(summary.span.0.to_be_bytes());
                out.extend(summary.status.to_be_bytes());
                let tells = summary.start != 0;
                out.push((u8::from(summary.error) * ERROR) | (u8::from(tells) * START));
                if tells {
                    out.extend(summary.start.to_be_bytes());
                }
                for number in [summary.duration, summary.queue, summary.cpu] {
                    put_number(number, out);
                }
            }),
            Message::Alive => framed(ALIVE, out, |_| ()),
            Message::Forwards => framed(FORWARDS, out, |_| ()),
        }
    }

    /// Writes the `MORE` messages before a context: as many complete parts as fit.
    fn more(&mut self, carried: &PropagatedContext, out: &mut Vec<u8>) {
        let mut room = CARRIED_MOST;
        let mut fits = |len: usize| {
            let left = room.checked_sub(len);
            room = left.unwrap_or(room);
            left.is_some()
        };
        let class = &carried.service_class;
        if !class.is_empty() && fits(class.len()) {
            let number = self.name(class, out);
            framed(MORE, out, |out| {
                out.push(SERVICE_CLASS);
                put_number(u64::from(number), out);
            });
        }
        if !carried.state.is_empty() && fits(carried.state.len()) {
            for piece in carried.state.as_bytes().chunks(PIECE) {
                framed(MORE, out, |out| {
                    out.push(STATE);
                    out.extend(piece);
                });
            }
        }
        for (name, value) in carried.baggage.iter().take(MEMBERS_MOST) {
            let value = bounded(value, VALUE_MOST);
            if !name.is_empty() && fits(name.len().min(NAME_MOST) + value.len()) {
                let number = self.name(name, out);
                framed(MORE, out, |out| {
                    out.push(MEMBER);
                    put_number(u64::from(number), out);
                    out.extend(value.as_bytes());
                });
            }
        }
    }

    /// Writes what is known of the transaction's first request.
    fn root(&mut self, root: &ContextRoot, out: &mut Vec<u8>) {
        let (service, class) = match root {
            ContextRoot::Unknown => return,
            ContextRoot::Callee => (0, 0),
            ContextRoot::Class(service, class) => {
                let (service, class) = (self.name(service, out), self.name(class, out));
                // A name that finds no number leaves the root unknown.
                if service == 0 || class == 0 {
                    return;
                }
                (service, class)
            }
        };
        framed(MORE, out, |out| {
            out.push(ROOT);
            put_number(u64::from(service), out);
            put_number(u64::from(class), out);
        });
    }

    /// The number of a name, introducing a new one; 0 for an empty name and when the table is full.
    fn name(&mut self, name: &Arc<str>, out: &mut Vec<u8>) -> u16 {
        if name.is_empty() {
            return 0;
        }
        if let Some(number) = self.names.get(name) {
            return *number;
        }
        if self.names.len() >= NAMES_MOST {
            return 0;
        }
        // Numbers start at 1 and are assigned in order, so they need not be sent.
        let number = self.names.len() as u16 + 1;
        self.names.insert(Arc::clone(name), number);
        framed(NAME, out, |out| out.extend(cut(name).as_bytes()));
        number
    }
}

/// Decodes messages of one session.
#[derive(Debug, Default)]
pub struct Decoder {
    names: Vec<Arc<str>>,
    received: ReceivedContexts,
    /// What precedes the next context.
    more: More,
    /// Number of ignored contexts of UDP questions.
    ignored: u64,
}

/// What preceded a context.
#[derive(Debug, Default)]
struct More {
    /// Its size in bytes.
    len: usize,
    service_class: Arc<str>,
    state: Vec<u8>,
    baggage: Vec<(Arc<str>, Box<str>)>,
    is_udp_question: bool,
    root: ContextRoot,
}

impl More {
    /// Takes all of it for the context that follows.
    fn take(&mut self) -> Result<(Option<Arc<PropagatedContext>>, ContextRoot), Garbage> {
        let Self { len, service_class, state, baggage, root, .. } = std::mem::take(self);
        if len == 0 {
            return Ok((None, root));
        }
        let state: Box<str> = plain(&state, CARRIED_MOST).into();
        let members: usize = baggage.iter().map(|(name, value)| name.len() + value.len()).sum();
        if service_class.len() + state.len() + members > CARRIED_MOST {
            return Err(Garbage::Value);
        }
        let carried = PropagatedContext { state, baggage, service_class };
        Ok(((carried != PropagatedContext::default()).then(|| Arc::new(carried)), root))
    }
}

/// Number of messages in `bytes`, stopping at garbage.
fn count(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let [_, len, rest @ ..] = bytes
        && let Some(rest) = rest.get(usize::from(*len)..)
    {
        bytes = rest;
        count += 1;
    }
    count
}

impl Decoder {
    /// Number of contexts of UDP questions ignored since the last call.
    pub fn take_ignored(&mut self) -> u64 {
        std::mem::take(&mut self.ignored)
    }

    /// Decodes `bytes`, which hold complete messages; on an error `found` has the messages before it.
    pub fn read(&mut self, mut bytes: &[u8], found: &mut Vec<Message>) -> Result<(), Garbage> {
        // Reserve once: a frame of a hundred messages would otherwise reallocate six times.
        found.reserve(count(bytes));
        while !bytes.is_empty() {
            let [kind, len, rest @ ..] = bytes else { return Err(Garbage::Short) };
            let (body, rest) = rest.split_at_checked(usize::from(*len)).ok_or(Garbage::Short)?;
            bytes = rest;
            if let Some(message) = self.message(*kind, Fields(body))? {
                found.push(message);
            }
        }
        Ok(())
    }

    fn message(&mut self, kind: u8, mut fields: Fields<'_>) -> Result<Option<Message>, Garbage> {
        Ok(Some(match kind {
            HELLO => {
                if fields.take()? != MAGIC {
                    return Err(Garbage::Magic);
                }
                let version = u16::from_be_bytes(fields.take()?);
                let least = u16::from_be_bytes(fields.take()?);
                let agent = u64::from_be_bytes(fields.take()?);
                if least > version {
                    return Err(Garbage::Value);
                }
                Message::Hello(Hello { version, least, agent, host: text(fields.0) })
            }
            NAME => {
                if self.names.len() >= NAMES_MOST || fields.0.len() > NAME_MOST {
                    return Err(Garbage::Name);
                }
                self.names.push(text(fields.0));
                return Ok(None);
            }
            CONTEXT => {
                let key = fields.key()?;
                let trace = TraceId(u128::from_be_bytes(fields.take()?));
                let parent = SpanId(u64::from_be_bytes(fields.take()?));
                let [flags] = fields.take()?;
                let service = self.name(fields.number()?)?;
                let class = self.name(fields.number()?)?;
                if trace.0 == 0 || parent.0 == 0 {
                    // Invalid in W3C trace context.
                    return Err(Garbage::Value);
                }
                let is_udp_question = std::mem::take(&mut self.more.is_udp_question);
                let (carried, root) = self.more.take()?;
                let context = Context {
                    key,
                    trace,
                    parent,
                    settled: flags & SETTLED != 0,
                    broadcast: flags & BROADCAST != 0,
                    trace_flags: (flags & SAMPLING != 0)
                        .then_some(TraceFlags::of(flags & SAMPLED != 0, flags & RANDOM != 0)),
                    service,
                    class,
                    carried,
                    root,
                };
                if !context.settled {
                    // Ignored contexts count too: the sender numbers all of them.
                    self.received.put((!is_udp_question).then(|| context.clone()));
                }
                if is_udp_question {
                    self.ignored += 1;
                    return Ok(None);
                }
                Message::Context(context)
            }
            SETTLES => {
                let trace = TraceId(u128::from_be_bytes(fields.take()?));
                let known = self.received.of(fields.number()?)?;
                if trace.0 == 0 {
                    return Err(Garbage::Value);
                }
                let Some(known) = known else {
                    self.ignored += 1;
                    return Ok(None);
                };
                Message::Context(Context { trace, settled: true, ..known.clone() })
            }
            SUMMARY => {
                let key = fields.key()?;
                let span = SpanId(u64::from_be_bytes(fields.take()?));
                let status = u16::from_be_bytes(fields.take()?);
                let [flags] = fields.take()?;
                let start = if flags & START == 0 { 0 } else { i64::from_be_bytes(fields.take()?) };
                let (duration, queue, cpu) = (fields.number()?, fields.number()?, fields.number()?);
                Message::Summary(Summary { key, span, duration, queue, cpu, start, status, error: flags & ERROR != 0 })
            }
            MORE => {
                let [what] = fields.take()?;
                self.more(what, fields)?;
                return Ok(None);
            }
            ALIVE => Message::Alive,
            FORWARDS => Message::Forwards,
            _ => return Ok(None),
        }))
    }

    fn more(&mut self, what: u8, mut fields: Fields<'_>) -> Result<(), Garbage> {
        match what {
            SERVICE_CLASS => {
                self.more.service_class = self.name(fields.number()?)?;
                self.more.len += self.more.service_class.len();
            }
            STATE => {
                self.more.len += fields.0.len();
                self.more.state.extend(fields.0);
            }
            MEMBER => {
                let (name, value) = (self.name(fields.number()?)?, plain(fields.0, VALUE_MOST));
                let twice = self.more.baggage.iter().any(|(known, _)| *known == name);
                if !name.is_empty() && !twice {
                    self.more.len += name.len() + value.len();
                    self.more.baggage.push((name, Box::from(&*value)));
                }
            }
            UDP_QUESTION => self.more.is_udp_question = true,
            ROOT => {
                let names = (self.name(fields.number()?)?, self.name(fields.number()?)?);
                self.more.root = match names {
                    (service, class) if service.is_empty() && class.is_empty() => ContextRoot::Callee,
                    (service, class) if service.is_empty() || class.is_empty() => return Err(Garbage::Value),
                    (service, class) => ContextRoot::Class(service, class),
                };
            }
            // Types of later versions.
            _ => {}
        }
        if self.more.len > CARRIED_MOST || self.more.baggage.len() > MEMBERS_MOST {
            Err(Garbage::Value)
        } else {
            Ok(())
        }
    }

    fn name(&self, number: u64) -> Result<Arc<str>, Garbage> {
        match number.checked_sub(1) {
            None => Ok(Arc::from("")),
            Some(index) => self.names.get(index as usize).cloned().ok_or(Garbage::Name),
        }
    }
}

fn framed(kind: u8, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let at = out.len();
    out.push(0);
    fill(out);
    let len = out.len() - at - 1;
    if let Some(place) = out.get_mut(at) {
        *place = len as u8;
    }
}

fn put_key(key: RequestKey, out: &mut Vec<u8>) {
    for part in [key.opener, key.accepting, key.seq] {
        out.extend(part.to_be_bytes());
    }
}

/// LEB128: seven bits per byte, least significant first.
fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The part of a name that is sent.
pub(super) fn cut(name: &str) -> &str {
    bounded(name, NAME_MOST)
}

/// The longest prefix of a text of at most `most` bytes that ends at a character boundary.
fn bounded(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// A name from outside, safe to display: without control characters, and bounded like a name that is sent, because each
/// invalid byte becomes three.
pub(super) fn text(bytes: &[u8]) -> Arc<str> {
    Arc::from(&*plain(bytes, NAME_MOST))
}

/// Text from outside, without control characters and at most `most` bytes long.
fn plain(bytes: &[u8], most: usize) -> String {
    let mut text: String = String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect();
    text.truncate(bounded(&text, most).len());
    text
}

/// The unread rest of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Garbage> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Garbage::Short)?;
        self.0 = rest;
        Ok(*field)
    }

    fn key(&mut self) -> Result<RequestKey, Garbage> {
        let mut part = || self.take().map(u32::from_be_bytes);
        Ok(RequestKey { opener: part()?, accepting: part()?, seq: part()? })
    }

    fn number(&mut self) -> Result<u64, Garbage> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Garbage::Value)
    }
}

#[cfg(test)]
mod tests;
