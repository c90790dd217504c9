//! What agents tell each other, and its form in bytes.
//!
//! A message is one byte of kind, one of length, and that many bytes, integers in network order. A receiver skips kinds it
//! does not know and bytes behind those it knows: later versions may add both. Which version is spoken is the smaller of
//! what both [`Hello`]s say: from 2 on messages of `MORE` go before a context, with what else came down its transaction; from 3
//! on contexts of lookups by UDP are told, with a `MORE` that makes them that.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::key::Key;
use super::lookups::{Asker, Lookup};
use super::recent::{Heard, Sent};
use crate::model::{Carried, TraceId, UnitId};

/// The version this agent speaks, and the least it understands.
pub const VERSION: u16 = 3;
/// See [`VERSION`].
pub const VERSION_LEAST: u16 = 1;
/// What a conversation begins with, so that whoever is no agent is known at once.
pub const MAGIC: [u8; 4] = *b"TRCR";
/// Longest name (of a host, service or class), bytes; longer ones are cut.
pub const NAME_MOST: usize = 120;
/// Names one side may introduce on one session; later ones are not told.
pub const NAMES_MOST: usize = 4096;
/// Most of what else came down a transaction that is told with one context, bytes: whoever waits for its request keeps it.
pub const CARRIED_MOST: usize = 768;
/// Most of one member's value, bytes.
const VALUE_MOST: usize = 128;
/// Most bytes of a context, with the names and all else before it: more is added to a frame only where as much is left.
pub const CONTEXT_MOST: usize = 4096;
/// Most members of baggage told with one context.
pub const MEMBERS_MOST: usize = 8;
/// First version that knows `MORE`.
const VERSION_MORE: u16 = 2;
/// First version that knows [`LOOKUP`].
const VERSION_LOOKUPS: u16 = 3;

/// The first message each way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Newest version spoken.
    pub version: u16,
    /// Oldest version understood.
    pub least: u16,
    /// The agent, by a number it made at its start: whoever meets itself hangs up.
    pub agent: u64,
    /// Its host.
    pub host: Arc<str>,
}

/// A call was sent: what its other end should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The request.
    pub key: Key,
    /// Its transaction, as far as the caller knows.
    pub trace: TraceId,
    /// The call, which is the request's parent.
    pub parent: UnitId,
    /// Whether the caller knows the transaction for good; else another message of the same request follows.
    pub settled: bool,
    /// Sent to several agents: all but one of them will not know the request.
    pub broadcast: bool,
    /// Whether the transaction is sampled, where whoever began it said so.
    pub sampled: Option<bool>,
    /// The caller's service; empty when it is not told.
    pub service: Arc<str>,
    /// Request class of the call.
    pub class: Arc<str>,
    /// What else came down its transaction; `None` where nothing did, and from agents of version 1. Never empty.
    pub carried: Option<Arc<Carried>>,
    /// Of a lookup by UDP, whose key is not TCP's ([`Key::of_lookup`]); not told to agents before version 3.
    pub lookup: Option<Lookup>,
}

/// A request was answered: what its caller cannot know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The request.
    pub key: Key,
    /// The unit at the far end.
    pub unit: UnitId,
    /// First byte read to last byte written, nanoseconds.
    pub duration: u64,
    /// Of it before the first byte was read, in the socket; nanoseconds.
    pub queue: u64,
    /// CPU charged to it so far, nanoseconds.
    pub cpu: u64,
    /// When its first byte was read by the callee's wall clock, nanoseconds since the epoch; 0 when that is not told: some
    /// tell how far clocks are apart for all.
    pub start: i64,
    /// Status, where its protocol has one; else 0.
    pub status: u16,
    /// Whether it failed.
    pub error: bool,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Who speaks.
    Hello(Hello),
    /// A call was sent.
    Context(Context),
    /// A request was answered.
    Summary(Summary),
    /// Still there.
    Alive,
    /// Its host forwards packets of others, so that connections with its addresses may be theirs. With the greeting.
    Forwards,
}

/// Why bytes are no messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    /// A message is shorter than its kind, or than it says.
    #[error("a message was cut short")]
    Short,
    /// It begins with something else.
    #[error("not an agent's greeting")]
    Magic,
    /// It names what was never introduced, or introduces out of turn.
    #[error("a name that was not introduced")]
    Name,
    /// A number no agent would send.
    #[error("a value out of range")]
    Value,
    /// What only the other end of a session says.
    #[error("a message that is not for this end of a session")]
    Turn,
}

const HELLO: u8 = 1;
const NAME: u8 = 2;
const CONTEXT: u8 = 3;
const SUMMARY: u8 = 4;
const ALIVE: u8 = 5;
const SETTLES: u8 = 6;
/// Something of the next context: a byte says what, the rest is that.
const MORE: u8 = 7;
const FORWARDS: u8 = 8;

/// What `MORE` holds: the number of the service class's name; a piece of `tracestate`; the number of a member's name and
/// its value; what makes it a lookup: times asked, when it was answered (8 bytes), and the client's address (4 or 16, or none).
const SERVICE_CLASS: u8 = 1;
const STATE: u8 = 2;
const MEMBER: u8 = 3;
const LOOKUP: u8 = 4;
/// Most of [`STATE`] in one message, bytes.
const PIECE: usize = 250;

const SETTLED: u8 = 1;
const BROADCAST: u8 = 2;
const SAMPLING: u8 = 4;
const SAMPLED: u8 = 8;
const ERROR: u8 = 1;
const START: u8 = 2;

/// Writes messages of one session: names are introduced once and then go by number.
#[derive(Debug)]
pub struct Encoder {
    names: rustc_hash::FxHashMap<Arc<str>, u16>,
    sent: Sent,
    version: u16,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { names: rustc_hash::FxHashMap::default(), sent: Sent::default(), version: VERSION }
    }
}

impl Encoder {
    /// The version spoken on this session from here on.
    pub fn speak(&mut self, version: u16) {
        self.version = version;
    }

    /// Whether the other end takes a message for what it is; others are not sent.
    pub fn is_understood(&self, message: &Message) -> bool {
        let lookup = matches!(message, Message::Context(Context { lookup: Some(_), .. }));
        !lookup || self.version >= VERSION_LOOKUPS
    }

    /// Appends a message, with the names it needs before it.
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
                if !self.is_understood(message) {
                    return;
                }
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
                if let Some(lookup) = &context.lookup {
                    framed(MORE, out, |out| put_lookup(lookup, out));
                }
                let service = self.name(&context.service, out);
                let class = self.name(&context.class, out);
                // What the other end hears of it is what the other end remembers.
                let told = |name: &Arc<str>, number| if number == 0 { Arc::from("") } else { Arc::clone(name) };
                if !context.settled {
                    let (service, class) = (told(&context.service, service), told(&context.class, class));
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
                        (context.sampled.is_some(), SAMPLING),
                        (context.sampled == Some(true), SAMPLED),
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
                out.extend(summary.unit.0.to_be_bytes());
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

    /// What goes before a context: as much as fits, each thing as a whole.
    fn more(&mut self, carried: &Carried, out: &mut Vec<u8>) {
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

    /// The number of a name, introduced where it is new; 0 for none and for those there is no room for.
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
        // From 1, in order: the number need not be sent.
        let number = self.names.len() as u16 + 1;
        self.names.insert(Arc::clone(name), number);
        framed(NAME, out, |out| out.extend(cut(name).as_bytes()));
        number
    }
}

/// Reads messages of one session.
#[derive(Debug, Default)]
pub struct Decoder {
    names: Vec<Arc<str>>,
    heard: Heard,
    /// Of the next context.
    more: More,
}

/// What came before a context.
#[derive(Debug, Default)]
struct More {
    /// Bytes of it.
    len: usize,
    service_class: Arc<str>,
    state: Vec<u8>,
    baggage: Vec<(Arc<str>, Box<str>)>,
    lookup: Option<Lookup>,
}

impl More {
    /// All of it, for the context it was before.
    fn take(&mut self) -> Result<Option<Arc<Carried>>, Garbage> {
        if self.len == 0 {
            return Ok(None);
        }
        let Self { service_class, state, baggage, .. } = std::mem::take(self);
        let state: Box<str> = plain(&state, CARRIED_MOST).into();
        let members: usize = baggage.iter().map(|(name, value)| name.len() + value.len()).sum();
        if service_class.len() + state.len() + members > CARRIED_MOST {
            return Err(Garbage::Value);
        }
        let carried = Carried { state, baggage, service_class };
        Ok((carried != Carried::default()).then(|| Arc::new(carried)))
    }
}

/// How many messages there are in `bytes`, garbage left out.
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
    /// Reads all messages of `bytes`, which hold whole ones; what was read before garbage is in `found`.
    pub fn read(&mut self, mut bytes: &[u8], found: &mut Vec<Message>) -> Result<(), Garbage> {
        // At once: a frame of a hundred would make the allocator find six places, one after the other.
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
                let parent = UnitId(u64::from_be_bytes(fields.take()?));
                let [flags] = fields.take()?;
                let service = self.name(fields.number()?)?;
                let class = self.name(fields.number()?)?;
                if trace.0 == 0 || parent.0 == 0 {
                    // Invalid in W3C trace context.
                    return Err(Garbage::Value);
                }
                let lookup = self.more.lookup.take();
                let context = Context {
                    key,
                    trace,
                    parent,
                    settled: flags & SETTLED != 0,
                    broadcast: flags & BROADCAST != 0,
                    sampled: (flags & SAMPLING != 0).then_some(flags & SAMPLED != 0),
                    service,
                    class,
                    carried: self.more.take()?,
                    lookup,
                };
                if !context.settled {
                    self.heard.put(&context);
                }
                Message::Context(context)
            }
            SETTLES => {
                let trace = TraceId(u128::from_be_bytes(fields.take()?));
                let known = self.heard.of(fields.number()?).ok_or(Garbage::Name)?;
                if trace.0 == 0 {
                    return Err(Garbage::Value);
                }
                Message::Context(Context { trace, settled: true, ..known.clone() })
            }
            SUMMARY => {
                let key = fields.key()?;
                let unit = UnitId(u64::from_be_bytes(fields.take()?));
                let status = u16::from_be_bytes(fields.take()?);
                let [flags] = fields.take()?;
                let start = if flags & START == 0 { 0 } else { i64::from_be_bytes(fields.take()?) };
                let (duration, queue, cpu) = (fields.number()?, fields.number()?, fields.number()?);
                Message::Summary(Summary { key, unit, duration, queue, cpu, start, status, error: flags & ERROR != 0 })
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
                if !name.is_empty() {
                    self.more.len += name.len() + value.len();
                    self.more.baggage.push((name, Box::from(&*value)));
                }
            }
            LOOKUP => {
                let [sent] = fields.take()?;
                let told = u64::from_be_bytes(fields.take()?);
                let asker = match *fields.0 {
                    [] => Asker::Unknown,
                    [a, b, c, d] => Asker::Known(Ipv4Addr::new(a, b, c, d).into()),
                    ref long => {
                        let octets: [u8; 16] = long.try_into().map_err(|_| Garbage::Value)?;
                        Asker::Known(Ipv6Addr::from(octets).into())
                    }
                };
                self.more.lookup = Some(Lookup { asker, told, sent });
            }
            // Of a later version.
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

fn put_lookup(lookup: &Lookup, out: &mut Vec<u8>) {
    out.extend([LOOKUP, lookup.sent]);
    out.extend(lookup.told.to_be_bytes());
    match lookup.asker {
        Asker::Known(IpAddr::V4(v4)) => out.extend(v4.octets()),
        Asker::Known(IpAddr::V6(v6)) => out.extend(v6.octets()),
        Asker::In(_) | Asker::Unknown => {}
    }
}

fn put_key(key: Key, out: &mut Vec<u8>) {
    for part in [key.opener, key.accepting, key.seq] {
        out.extend(part.to_be_bytes());
    }
}

/// LEB128: seven bits a byte, least first.
fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// As much of a name as is told.
pub(super) fn cut(name: &str) -> &str {
    bounded(name, NAME_MOST)
}

/// The first characters of a text, at most so many bytes.
fn bounded(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// A name from outside: shown to people, so without what steers terminals, and no longer than one that is told: each byte
/// that is no text becomes three.
pub(super) fn text(bytes: &[u8]) -> Arc<str> {
    Arc::from(&*plain(bytes, NAME_MOST))
}

/// Text from outside, likewise; at most so many bytes.
fn plain(bytes: &[u8], most: usize) -> String {
    let mut text: String = String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect();
    text.truncate(bounded(&text, most).len());
    text
}

/// What is left of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Garbage> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Garbage::Short)?;
        self.0 = rest;
        Ok(*field)
    }

    fn key(&mut self) -> Result<Key, Garbage> {
        let mut part = || self.take().map(u32::from_be_bytes);
        Ok(Key { opener: part()?, accepting: part()?, seq: part()? })
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
#[path = "message_tests.rs"]
mod tests;
