//! Bytes of connections to exchanges: a request and its reply.
//!
//! A protocol is one file here ([`Protocol`] and [`Parser`]), one line in [`PROTOCOLS`] and fixtures in its tests. What
//! every protocol needs stands once: positions, gaps and resynchronisation in `stream.rs`, matching replies to
//! requests in `pair.rs`, both joined in `conversation.rs`. Pure: no clock, no I/O; time comes with the bytes.

pub mod amqp;
mod bodies;
pub mod cassandra;
mod cgi;
mod changes;
mod chunk;
pub mod closing;
pub mod context;
mod conversation;
pub mod dns;
mod early;
mod elements;
pub mod fastcgi;
pub mod framed;
pub mod grpc;
pub mod http1;
pub mod http2;
pub mod kafka;
pub mod memcached;
pub mod messaging;
mod missing;
pub mod mongodb;
pub mod mqtt;
mod multiplex;
pub mod mysql;
pub mod nats;
mod pair;
mod parts;
mod pool;
pub mod postgresql;
mod proxy;
pub mod recognised;
pub mod redis;
mod rest;
pub mod scgi;
mod session;
pub mod sql;
pub mod stomp;
mod stream;
pub mod tls;
mod turns;
pub mod uwsgi;
pub mod websocket;

use std::fmt;
use std::sync::{Arc, LazyLock};

use tracer_common::limits::HEAD_COLLECTED;

pub use chunk::{Chunk, Stamp};
pub use closing::{Closed, Totals};
pub use conversation::Conversation;
pub use elements::Elements;
pub use rest::Talk;

use crate::model::{Carried, Direction, Linked, Nanos, Outcome, Side};
use context::TraceParent;

/// Every protocol the tracer knows, in the order they are tried. This is the only list.
pub static PROTOCOLS: &[&dyn Protocol] = &[
    &http1::Http1,
    &http2::Http2,
    &redis::Redis,
    &postgresql::PostgreSql,
    &mysql::MySql,
    &mysql::MariaDb,
    &fastcgi::FastCgi,
    &uwsgi::Uwsgi,
    &scgi::Scgi,
    &memcached::Memcached,
    &nats::Nats,
    &stomp::Stomp,
    &mqtt::Mqtt,
    &amqp::Amqp,
    &mongodb::MongoDb,
    &kafka::Kafka,
    &cassandra::Cassandra,
    &websocket::WebSocket,
    &tls::Tls,
    &dns::Dns,
    &recognised::Ssh,
    &recognised::Smtp,
    &recognised::Ldap,
    &recognised::Unknown,
];

/// Which semantic conventions describe the requests of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conventions {
    /// HTTP: a method, a path, a status.
    Http,
    /// Remote procedure calls: a method, a status.
    Rpc,
    /// Databases: an operation, a kind of failure.
    Database,
    /// Messaging: an operation, a destination, a kind of failure.
    Messaging,
    /// None: named like HTTP's requests, and counted as work only.
    Session,
    /// The resolution of names: a question, a kind of failure.
    Names,
    /// None: turns of a connection of which nothing else is known.
    Turns,
}

/// The conventions for the protocol of this name.
pub fn conventions(name: &str) -> Conventions {
    if name == grpc::NAME {
        return Conventions::Rpc;
    }
    let known = PROTOCOLS.iter().find(|protocol| protocol.name() == name);
    known.map_or(Conventions::Database, |protocol| protocol.conventions())
}

/// One protocol.
pub trait Protocol: Sync + fmt::Debug {
    /// Lower case; also the file name, the config key and the metric label.
    fn name(&self) -> &'static str;
    /// Which semantic conventions describe its requests.
    fn conventions(&self) -> Conventions {
        Conventions::Database
    }
    /// What `bytes`, the first of a message, are.
    fn detect(&self, bytes: &[u8]) -> Detected;
    /// Whether `asked`, of which alone nothing could be said, and `answer`, which came the other way, are this
    /// protocol's together.
    fn answers(&self, asked: &[u8], answer: &[u8]) -> bool {
        let _ = (asked, answer);
        false
    }
    /// Whether clients usually send requests before earlier ones are answered.
    fn pipelines(&self) -> bool {
        false
    }
    /// Where in `bytes`, whose beginning is the rest of something, a request begins; `None` where that cannot be told.
    fn next_request(&self, bytes: &[u8]) -> Option<usize> {
        let _ = bytes;
        None
    }
    /// Whether the end of a reply whose messages cannot be told apart any more shows in the last bytes of an operation
    /// ([`Parser::last`]).
    fn trails(&self) -> bool {
        false
    }
    /// Whether its connections are only timed, by turns.
    fn turns(&self) -> bool {
        false
    }
    /// Begins one connection of a protocol that answers in order. Those that do not are opened by [`Protocol::framed`].
    fn open(&self) -> Box<dyn Parser> {
        Box::new(NotInOrder)
    }
    /// Begins one connection of a protocol whose messages carry the number of their exchange; `joined`: in its middle.
    fn framed(&self, joined: bool) -> Option<Box<dyn framed::Framed>> {
        let _ = joined;
        None
    }
}

/// Reads nothing: the protocol's messages are read by a [`framed::Framed`].
#[derive(Debug)]
struct NotInOrder;

impl Parser for NotInOrder {
    fn request(&mut self, _: &[u8], _: bool, _: &Settings) -> Step<Box<Request>> {
        Step::Invalid
    }

    fn reply(&mut self, _: &[u8], _: bool, _: &Asked) -> Step<Reply> {
        Step::Invalid
    }
}

/// What the first bytes of a message are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detected {
    /// A request of this protocol.
    Request,
    /// A reply of it.
    Reply,
    /// It could become one: more bytes are needed.
    NeedMore,
    /// Something else.
    No,
    /// Of this protocol, from either end: which one asks is not known yet. Of protocols that are timed by turns it is who
    /// connected.
    Either,
    /// Certainly something else, for good: the whole connection.
    Never,
}

/// Reads the heads of one connection's messages. How bodies are delimited comes back with them; the rest is done once
/// for all protocols.
pub trait Parser: Send + fmt::Debug {
    /// Reads a request's head off the front of `bytes`. `cut`: what follows `bytes` was not captured, so make do. No
    /// bytes, and nothing cut: a head of several parts goes on, and the server speaks already.
    fn request(&mut self, bytes: &[u8], cut: bool, settings: &Settings) -> Step<Box<Request>>;
    /// Reads a reply's head off the front of `bytes`; `asked` is the request it answers.
    fn reply(&mut self, bytes: &[u8], cut: bool, asked: &Asked) -> Step<Reply>;
    /// Whether `bytes`, at a reply's beginning, pass over the oldest request, which need not be answered
    /// ([`Asked::optional`]); `None` when more of them are needed.
    fn passes(&self, bytes: &[u8], asked: &Asked) -> Option<bool> {
        let _ = (bytes, asked);
        Some(false)
    }
    /// The protocol that [`Body::Switch`] leads to, where it is a known one; `asked` is the request that led there.
    fn switched(&self, asked: &Asked) -> Option<&'static dyn Protocol> {
        let _ = asked;
        None
    }
    /// Whether `bytes`, from the server, answer no request.
    fn is_unasked(&self, bytes: &[u8]) -> bool {
        let _ = bytes;
        false
    }
    /// Follows a body that was given as [`Body::Own`]: `bytes` are its next ones.
    fn body(&mut self, is_request: bool, bytes: &[u8]) -> Walked {
        let _ = (is_request, bytes);
        Walked::Lost
    }
    /// Whether such a body ends with an operation of whose rest, `len` bytes, only the last were captured.
    fn ends_unseen(&self, is_request: bool, len: u64, last: &[u8]) -> bool {
        let _ = (is_request, len, last);
        false
    }
    /// Whether a head that comes in pieces can be over, by `fresh`, the newest of them and a few bytes before it.
    fn may_be_whole(&self, fresh: &[u8]) -> bool {
        let _ = fresh;
        true
    }
    /// The reply that ends with `bytes`, an operation's last ones, if one does: [`Protocol::trails`].
    fn last(&mut self, bytes: &[u8]) -> Option<Reply> {
        let _ = bytes;
        None
    }
    /// The message that was being read does not go on: of requests, or of replies.
    fn broken(&mut self, requests: bool) {
        let _ = requests;
    }
    /// Nothing moves for a while: what is kept is to take as little room as it can.
    fn rest(&mut self) {}
    /// Bytes kept for the messages to come.
    fn kept_bytes(&self) -> usize {
        0
    }
    /// Gives those up.
    fn forget(&mut self) {}
    /// Names for later messages that were not kept, because there are too many, since last asked.
    fn take_refused(&mut self) -> u64 {
        0
    }
}

/// What a parser made of the bytes at a message's beginning.
#[derive(Debug)]
pub enum Step<T> {
    /// A head of `used` bytes; `body` follows.
    Head {
        /// Bytes of the head.
        used: usize,
        /// What it says.
        message: T,
        /// What follows.
        body: Body,
    },
    /// Nothing to report: `used` bytes are skipped, a message's beginning follows.
    Skip {
        /// Bytes skipped.
        used: usize,
    },
    /// The front of a head: `used` bytes, and `rest` more that need not be read; the head goes on after them.
    Part {
        /// Bytes read.
        used: usize,
        /// Bytes to pass over.
        rest: u64,
    },
    /// As [`Step::Skip`], and `rest` more bytes are skipped unread.
    Pass {
        /// Bytes read.
        used: usize,
        /// Bytes to pass over.
        rest: u64,
    },
    /// Of replies: where its next part begins was not captured, so that only its end can be found ([`Parser::last`]).
    Trailing,
    /// The connection goes on in a way that cannot be read.
    Leave,
    /// It goes on in TLS.
    Tls,
    /// More bytes are needed.
    NeedMore,
    /// Not this protocol: the stream resynchronises.
    Invalid,
}

/// How the end of a message is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// This many bytes follow.
    Length(u64),
    /// Chunks follow (RFC 9112 §7.1).
    Chunked,
    /// The rest of values that say themselves where they end.
    Elements(Elements),
    /// The parser finds it ([`Parser::body`]); this many bytes of it need not be looked at.
    Own(u64),
    /// Until the sender closes.
    UntilClose,
    /// Not known (the head was cut): until the direction turns.
    UntilTurn,
    /// The connection changes protocol.
    Switch,
}

/// What a parser made of bytes of a body it follows itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// All belong to it, and so does what follows them; this many bytes of that need not be looked at.
    More(u64),
    /// It ended after this many.
    End(usize),
    /// Not such a body, or not followed any longer.
    Lost,
}

/// The facts of a request that its reply's framing depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The reply has no body whatever it says (HEAD).
    pub bodiless: bool,
    /// A tunnel was asked for (CONNECT).
    pub tunnel: bool,
    /// WebSocket was asked for.
    pub websocket: bool,
    /// No reply comes.
    pub silent: bool,
    /// It is a turn, which is told when it is over: nobody holds it.
    pub timed: bool,
    /// A reply need not come: that it does not shows when something later is answered.
    pub optional: bool,
    /// What the protocol itself notes of the request, for its reply.
    pub note: u16,
}

/// A reply's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status code; 0 where the protocol has none.
    pub status: u16,
    /// The kind of failure, where the protocol says it by a word.
    pub failure: Option<&'static str>,
    /// An interim reply: the final one follows.
    pub interim: bool,
}

/// A request's head. Nothing of it but what naming, rules and linking need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Method or verb.
    pub method: Arc<str>,
    /// Path without query, bounded.
    pub path: Arc<str>,
    /// `Host`, where a rule wants it.
    pub host: Option<Arc<str>>,
    /// `1.0`, `1.1`, `2`; empty when the head was cut before it.
    pub version: &'static str,
    /// Trace context, if a valid one came with it.
    pub traceparent: Option<TraceParent>,
    /// What came with it.
    pub carried: Option<Box<Carried>>,
    /// `X-Request-ID`, bounded, where asked for.
    pub request_id: Option<Arc<str>>,
    /// Values of the headers in [`Settings::headers`] by their index there, bounded.
    pub headers: Vec<(u16, Box<str>)>,
    /// What the reply's framing depends on.
    pub asked: Asked,
    /// The head was longer than what was captured of it.
    pub cut: bool,
}

/// Class and method of requests of which only the replies could be counted.
pub const UNNAMED: &str = "_UNNAMED";

impl Request {
    /// A request of which nothing is known but what it is called.
    pub fn named(method: Arc<str>, path: Arc<str>, asked: Asked) -> Box<Self> {
        Box::new(Self {
            method,
            path,
            host: None,
            version: "",
            traceparent: None,
            carried: None,
            request_id: None,
            headers: Vec::new(),
            asked,
            cut: false,
        })
    }

    /// A request that must have been there, of which nothing was captured that names it.
    pub fn unnamed() -> Box<Self> {
        static NAMES: LazyLock<[Arc<str>; 2]> = LazyLock::new(|| [Arc::from(UNNAMED), Arc::from("")]);
        let [method, path] = &*NAMES;
        let mut made = Self::named(Arc::clone(method), Arc::clone(path), Asked::default());
        made.cut = true;
        made
    }
}

/// [`Said::Begun`]'s position of a request whose place in the stream is not known.
pub const NOWHERE: u64 = u64::MAX;

/// What parsers are to look for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names of headers whose values rules want, lower case.
    pub headers: Vec<Box<str>>,
    /// Keep `X-Request-ID`.
    pub request_id: bool,
    /// Members of baggage that are kept.
    pub baggage: Arc<[Arc<str>]>,
    /// Keep `Host`.
    pub host: bool,
    /// Longest head put together from pieces, bytes.
    pub head_limit: usize,
    /// Ports whose connections are timed by turns when what they speak is not known.
    pub timed_ports: Vec<u16>,
    /// Methods that need no new string; the usual ones by default.
    pub methods: Vec<Arc<str>>,
}

impl Default for Settings {
    fn default() -> Self {
        let methods = http1::METHODS.iter().chain(messaging::OPERATIONS).map(|name| Arc::from(*name)).collect();
        Self {
            headers: Vec::new(),
            request_id: false,
            baggage: Arc::from([]),
            host: false,
            head_limit: HEAD_COLLECTED,
            timed_ports: Vec::new(),
            methods,
        }
    }
}

impl Settings {
    /// The method's name, shared where it is a usual one.
    fn method(&self, name: &str) -> Arc<str> {
        self.methods.iter().find(|known| ***known == *name).cloned().unwrap_or_else(|| Arc::from(name))
    }
}

/// What a connection's bytes said.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// A request's head is complete.
    Begun {
        /// Number of the exchange on this connection.
        exchange: u64,
        /// Its head.
        request: Box<Request>,
        /// Operation that carried the first byte.
        first: Stamp,
        /// When that byte had arrived; 0 unknown.
        arrived: Nanos,
        /// Operation that completed the head.
        head_at: Stamp,
        /// Stream position of the first byte; [`NOWHERE`] when not known.
        pos: u64,
        /// Whether this end serves or asks.
        side: Side,
        /// What is spoken.
        protocol: &'static str,
    },
    /// The last byte of a request's body moved.
    RequestDone {
        /// Which exchange.
        exchange: u64,
        /// Operation.
        at: Stamp,
    },
    /// The first byte of the final reply moved.
    Replied {
        /// Which exchange.
        exchange: u64,
        /// Its status; 0 where the protocol has none.
        status: u16,
        /// The kind of failure, where the protocol says it by a word.
        failure: Option<&'static str>,
        /// Operation that carried the first byte.
        first: Stamp,
        /// Nothing was missing between this reply and the one before, so that it is this exchange's.
        sure: bool,
    },
    /// What the messages carry that a request or its reply brings.
    Linked {
        /// Which exchange.
        exchange: u64,
        /// What they carry.
        linked: Box<Linked>,
    },
    /// What a reply came to, where that is said after its body.
    Judged {
        /// Which exchange.
        exchange: u64,
        /// Its status.
        status: u16,
        /// The kind of failure, where the protocol says it by a word.
        failure: Option<&'static str>,
    },
    /// The exchange is over.
    Done {
        /// Which exchange.
        exchange: u64,
        /// How it ended.
        outcome: Outcome,
        /// Operation that moved the last byte, or what ended it.
        at: Stamp,
        /// Bytes of the request.
        request_bytes: u64,
        /// Bytes of the reply.
        reply_bytes: u64,
        /// Bytes of the reply after its head.
        reply_body_bytes: Option<u64>,
    },
    /// A reply whose request was not seen.
    Unpaired {
        /// Its status.
        status: u16,
    },
    /// A datagram of a lookup moved: a client's question, or its answer at either end.
    Datagram {
        /// Which exchange.
        exchange: u64,
        /// What both ends know of the question: its number and what is asked for, as one.
        question: u64,
        /// Which way.
        dir: Direction,
        /// Operation.
        at: Stamp,
        /// It is of no other exchange of this socket.
        sure: bool,
    },
    /// A request began that cannot be named: its name was given before the connection was seen, or in lost bytes.
    Unnamed,
    /// Too many requests of the connection were open: the oldest was given up.
    Crowded,
    /// What later messages refer to was not kept, because the connection has too much of it: statements it prepared.
    Forgotten {
        /// How many.
        names: u64,
    },
    /// Bytes that a parser needed were not captured, or were not understood.
    Lost {
        /// Which way.
        dir: Direction,
        /// How many.
        bytes: u64,
    },
}

/// Which exchange an operation's first bytes belonged to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Number of the exchange, when there is one, and only one ([`Conversation::touched`] tells several).
    pub exchange: Option<u64>,
}

/// Whether a connection is worth following.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not decided.
    Unknown,
    /// A known protocol.
    Trace,
    /// Only what turns the direction matters.
    Turns,
    /// Nothing to see.
    Ignore,
}

/// What is wanted of the kernel for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Whether to follow it.
    pub verdict: Verdict,
    /// Bytes wanted from the front of receives; 0 = the default.
    pub head_rx: u16,
    /// Bytes wanted from the front of sends; 0 = the default.
    pub head_tx: u16,
    /// Receives that end before this position need not be reported.
    pub rx_skip: u64,
    /// Sends that end before this position need not be reported.
    pub tx_skip: u64,
    /// What frames begin with is wanted wherever they lie in an operation.
    pub frames: bool,
}

#[cfg(test)]
#[path = "fixtures_tests.rs"]
mod fixtures;

#[cfg(test)]
#[path = "gaps_tests.rs"]
mod gaps;

#[cfg(test)]
#[path = "detect_tests.rs"]
mod detect;
