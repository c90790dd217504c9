//! Turns the bytes of connections into exchanges: a request and its reply.
//!
//! Adding a protocol takes one file here ([`Protocol`] and [`Parser`]), one line in [`PROTOCOLS`], one for its
//! [`ProtocolId`] and fixtures in its tests. Everything the protocols share is written once: positions, gaps and
//! resynchronisation in `stream.rs`, matching replies to requests in `pair.rs`, and both joined in `connection_parser.rs`.
//! The module is pure: no clock, no I/O; timestamps come with the bytes.

pub mod amqp;
mod bodies;
pub mod cassandra;
mod cgi;
mod changes;
mod chunk;
pub mod closing;
mod compact;
mod connection_parser;
pub mod context;
pub mod dns;
mod early;
mod elements;
pub mod fastcgi;
pub mod framed;
pub mod grpc;
pub mod http1;
pub mod http2;
pub mod jobs;
pub mod kafka;
pub mod memcached;
pub mod messaging;
mod missing;
mod mode;
pub mod mongodb;
pub mod mqtt;
mod multiplex;
pub mod mysql;
pub mod nats;
mod pair;
mod parts;
mod pieces;
mod pool;
pub mod postgresql;
mod proxy;
pub mod recognised;
pub mod redis;
mod round_trips;
pub mod scgi;
mod session;
mod session_identity;
pub mod sql;
pub mod stomp;
mod stream;
mod take_back;
pub mod tls;
pub mod uwsgi;
pub mod websocket;

use std::fmt;
use std::sync::{Arc, LazyLock};

use tracer_common::limits::HEAD_COLLECTED;

pub use chunk::{Chunk, Stamp};
pub use closing::{Closed, Totals};
pub use compact::ActiveState;
pub use connection_parser::ConnectionParser;
pub use elements::Elements;
pub use session_identity::SessionIdentity;

use context::TraceParent;
use jobs::JobEvent;
pub use tracer_model::{Conventions, ProtocolId};
use tracer_model::{Direction, Linked, Nanos, Outcome, PropagatedContext, Side};

/// Every protocol the tracer knows, in detection order. This is the only list.
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

/// One protocol.
pub trait Protocol: Sync + fmt::Debug {
    /// Its id, which has its name and the conventions of its requests.
    fn id(&self) -> ProtocolId;
    /// Its name: lower case; also the file name, the configuration key and the metric label.
    fn name(&self) -> &'static str {
        self.id().name()
    }
    /// Classifies `bytes`, the first bytes of a message.
    fn detect(&self, bytes: &[u8]) -> Detected;
    /// Whether `request`, which [`Protocol::detect`] could not classify alone, and `answer` from the other direction
    /// together belong to this protocol.
    fn answers(&self, request: &[u8], answer: &[u8]) -> bool {
        let _ = (request, answer);
        false
    }
    /// As [`Protocol::answers`], for words that other protocols have, too: what follows decides.
    fn may_answer(&self, request: &[u8], answer: &[u8]) -> bool {
        let _ = (request, answer);
        false
    }
    /// Whether clients usually send requests before earlier ones are answered (pipelining).
    fn pipelines(&self) -> bool {
        false
    }
    /// Offset in `bytes` where a request begins, when `bytes` starts in the middle of a message; `None` when that
    /// cannot be determined.
    fn next_request(&self, bytes: &[u8]) -> Option<usize> {
        let _ = bytes;
        None
    }
    /// Whether the last bytes of an operation reveal the end of a reply whose message boundaries are lost
    /// ([`Parser::last`]).
    fn trails(&self) -> bool {
        false
    }
    /// The protocol that its messages are taken for in the middle of a connection, where only the beginning could tell
    /// the two apart.
    fn looks_like(&self) -> ProtocolId {
        self.id()
    }
    /// Whether the tracer only times this protocol's round trips.
    fn round_trips(&self) -> bool {
        false
    }
    /// Opens one connection of a protocol that answers in order. [`Protocol::framed`] opens the others.
    fn open(&self) -> Box<dyn Parser> {
        Box::new(NotInOrder)
    }
    /// Opens one connection of a protocol whose messages carry the number of their exchange; `joined`: in mid-stream.
    fn framed(&self, joined: bool) -> Option<Box<dyn framed::Framed>> {
        let _ = joined;
        None
    }
}

/// Reads nothing: a [`framed::Framed`] reads this protocol's messages.
#[derive(Debug)]
struct NotInOrder;

impl Parser for NotInOrder {
    fn request(&mut self, _: &[u8], _: bool, _: &Settings) -> Step<Box<Request>> {
        Step::Invalid
    }

    fn reply(&mut self, _: &[u8], _: bool, _: &ExpectedReply) -> Step<Reply> {
        Step::Invalid
    }
}

/// Classification of a message's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detected {
    /// A request of this protocol.
    Request,
    /// A reply of this protocol.
    Reply,
    /// Could become a message of this protocol: more bytes are needed.
    NeedMore,
    /// Another protocol.
    No,
    /// This protocol, but the bytes do not show which end is the client. For protocols that are timed by round trips,
    /// the end that connected is.
    Either,
    /// Certainly another protocol, for the whole life of the connection.
    Never,
}

/// Reads the message heads of one connection. Returns with each head how its body is delimited; shared code follows the
/// bodies for all protocols.
pub trait Parser: Send + fmt::Debug {
    /// Reads a request's head off the front of `bytes`. `cut`: the bytes after `bytes` were not captured, so the parser
    /// makes do. Empty `bytes` without `cut`: a head of several parts is incomplete, but the server already speaks.
    fn request(&mut self, bytes: &[u8], cut: bool, settings: &Settings) -> Step<Box<Request>>;
    /// The request whose head consists of the bytes read before and the rest of an operation, of which only the front,
    /// `bytes`, and the `last` bytes were captured; `None` when these do not suffice.
    fn request_ends_with(&mut self, bytes: &[u8], last: &[u8]) -> Option<Box<Request>> {
        let _ = (bytes, last);
        None
    }
    /// Reads a reply's head off the front of `bytes`; `expected` comes from the request it answers.
    fn reply(&mut self, bytes: &[u8], cut: bool, expected: &ExpectedReply) -> Step<Reply>;
    /// Whether `bytes`, at the beginning of a reply, skip the oldest request, whose reply is optional
    /// ([`ExpectedReply::optional`]); `None` when more bytes are needed.
    fn passes(&self, bytes: &[u8], expected: &ExpectedReply) -> Option<bool> {
        let _ = (bytes, expected);
        Some(false)
    }
    /// The protocol that [`Body::Switch`] leads to, if it is a known one; `expected` comes from the request that caused the
    /// switch.
    fn switched(&self, expected: &ExpectedReply) -> Option<&'static dyn Protocol> {
        let _ = expected;
        None
    }
    /// Whether `bytes`, from the server, answer no request.
    fn is_unasked(&self, bytes: &[u8]) -> bool {
        let _ = bytes;
        false
    }
    /// Follows a body returned as [`Body::Own`]: `bytes` are its next ones.
    fn body(&mut self, is_request: bool, bytes: &[u8]) -> Walked {
        let _ = (is_request, bytes);
        Walked::Lost
    }
    /// Whether such a body ends with an operation whose rest of `len` bytes was not captured except for `last`.
    fn ends_unseen(&self, is_request: bool, len: u64, last: &[u8]) -> bool {
        let _ = (is_request, len, last);
        false
    }
    /// Whether a fragmented head can be complete, judging by `fresh`: its newest fragment and a few bytes before it.
    fn may_be_whole(&self, fresh: &[u8]) -> bool {
        let _ = fresh;
        true
    }
    /// Whether `line`, which the server answers with `reply`, is a whole request, though it looks like the beginning of a
    /// head.
    fn is_whole_line(&self, line: &[u8], reply: &[u8]) -> bool {
        let _ = (line, reply);
        false
    }
    /// Whether a reply ends with `bytes`, the last bytes that were captured without a gap, up to an operation's end:
    /// [`Protocol::trails`].
    fn last(&mut self, bytes: &[u8]) -> ReplyEnd {
        let _ = bytes;
        ReplyEnd::NotYet
    }
    /// How a reply ended with `bytes`, in which [`Parser::last`] found no end, though the next request shows that it ended: if
    /// only one way is left.
    fn ended(&mut self, bytes: &[u8]) -> Option<Reply> {
        let _ = bytes;
        None
    }
    /// As [`Protocol::next_request`], by what this connection has shown.
    fn next_request(&self, bytes: &[u8]) -> Option<usize> {
        let _ = bytes;
        None
    }
    /// The message being read (a request if `requests`, else a reply) is cut off.
    fn broken(&mut self, requests: bool) {
        let _ = requests;
    }
    /// The connection goes idle: shrink kept state as far as possible.
    fn rest(&mut self) {}
    /// Bytes kept for later messages.
    fn kept_bytes(&self) -> usize {
        0
    }
    /// Drops the state counted by [`Parser::kept_bytes`].
    fn forget(&mut self) {}
    /// What the head just read shows of a job in a queue.
    fn take_job(&mut self) -> Option<JobEvent> {
        None
    }
    /// Names for later messages that the parser refused to keep, because there were too many, since the last call.
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
        /// Its content.
        message: T,
        /// How the body is delimited.
        body: Body,
    },
    /// Nothing to report: skip `used` bytes; the beginning of a message follows.
    Skip {
        /// Bytes skipped.
        used: usize,
    },
    /// The front of a head: `used` bytes, and `rest` more that need not be read; the head continues after them.
    Part {
        /// Bytes read.
        used: usize,
        /// Bytes to skip unread.
        rest: u64,
    },
    /// As [`Step::Skip`], but skip `rest` more bytes unread.
    Pass {
        /// Bytes read.
        used: usize,
        /// Bytes to skip unread.
        rest: u64,
    },
    /// Replies only: the beginning of the next part was not captured, so only the reply's end can be found
    /// ([`Parser::last`]).
    Trailing,
    /// The connection continues in a form that cannot be read.
    Leave,
    /// The connection continues in TLS.
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
    /// The rest of self-delimiting values.
    Elements(Elements),
    /// The parser finds the end ([`Parser::body`]); it need not see the next so many bytes.
    Own(u64),
    /// Until the sender closes.
    UntilClose,
    /// Unknown, because the head was cut: until the other direction speaks.
    UntilTurn,
    /// The head continues beyond the captured part of its operation; the captured part tells what follows.
    Beyond(Beyond),
    /// The connection changes protocol.
    Switch,
}

/// What follows a head that was captured only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// No body.
    Nothing,
    /// This many bytes.
    Length(u64),
    /// Chunks.
    Chunks,
}

/// Result of [`Parser::body`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// All bytes belong to the body, and it continues; the parser need not see the next so many bytes.
    More(u64),
    /// The body ended after this many bytes.
    End(usize),
    /// Not such a body, or the parser no longer follows it.
    Lost,
}

/// The facts of a request that the framing of its reply depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedReply {
    /// The reply has no body whatever its headers say (HEAD).
    pub bodiless: bool,
    /// The client asked for a tunnel (CONNECT).
    pub tunnel: bool,
    /// The client asked for WebSocket.
    pub websocket: bool,
    /// No reply comes.
    pub silent: bool,
    /// A round trip, reported only once it is over: no span is open for it meanwhile.
    pub timed: bool,
    /// A reply is optional: its absence shows when the server answers a later request.
    pub optional: bool,
    /// The protocol's own note about the request, for reading its reply.
    pub note: u16,
}

/// A reply's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status code; 0 where the protocol has none.
    pub status: u16,
    /// The kind of failure, where the protocol names it.
    pub failure: Option<&'static str>,
    /// An interim reply: the final one follows.
    pub interim: bool,
}

/// What the last bytes of an operation show of a reply whose message boundaries are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyEnd {
    /// It does not end here, as far as can be seen.
    NotYet,
    /// It ends here, and this is how.
    Is(Reply),
    /// It ends here; what shows how was not captured.
    Unseen,
}

/// A request's head: only the parts that naming, rules and linking need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Method or verb.
    pub method: Arc<str>,
    /// Path without query, bounded.
    pub path: Arc<str>,
    /// HTTP: hash of the method's target with its query; 0: unknown.
    pub target: u64,
    /// `Host`, if a rule wants it.
    pub host: Option<Arc<str>>,
    /// `1.0`, `1.1`, `2`; empty when the head was cut before it.
    pub version: &'static str,
    /// Trace context, if the request carried a valid one.
    pub traceparent: Option<TraceParent>,
    /// Propagated context that the request carried.
    pub carried: Option<Box<PropagatedContext>>,
    /// `X-Request-ID`, bounded, if wanted.
    pub request_id: Option<Arc<str>>,
    /// Values of the headers in [`Settings::headers`] by their index there, bounded.
    pub headers: Vec<(u16, Box<str>)>,
    /// Who the connection is for, if this request begins it and names a user.
    pub session: Option<Box<SessionIdentity>>,
    /// The database that the request is for, bounded: as its connection's login or the request itself names it.
    pub namespace: Option<Arc<str>>,
    /// Facts that the framing of the reply depends on.
    pub expected: ExpectedReply,
    /// The head was longer than its captured part.
    pub cut: bool,
}

/// Request class and method of requests that show only by their replies.
pub const UNNAMED: &str = "_UNNAMED";

impl Request {
    /// A request of which only the name is known.
    pub fn named(method: Arc<str>, path: Arc<str>, expected: ExpectedReply) -> Box<Self> {
        Box::new(Self {
            method,
            path,
            target: 0,
            host: None,
            version: "",
            traceparent: None,
            carried: None,
            request_id: None,
            headers: Vec::new(),
            session: None,
            namespace: None,
            expected,
            cut: false,
        })
    }

    /// A request that must have existed, but no captured bytes name it.
    pub fn unnamed() -> Box<Self> {
        static NAMES: LazyLock<[Arc<str>; 2]> = LazyLock::new(|| [Arc::from(UNNAMED), Arc::from("")]);
        let [method, path] = &*NAMES;
        let mut made = Self::named(Arc::clone(method), Arc::clone(path), ExpectedReply::default());
        made.cut = true;
        made
    }
}

/// [`ExchangeEvent::Begun`]'s position for a request whose stream position is unknown.
pub const NOWHERE: u64 = u64::MAX;

/// What parsers look for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Header names whose values rules want, lower case.
    pub headers: Vec<Box<str>>,
    /// Keep `X-Request-ID`.
    pub request_id: bool,
    /// Baggage members to keep.
    pub baggage: Arc<[Arc<str>]>,
    /// Keep `Host`.
    pub host: bool,
    /// Longest head assembled from fragments, bytes.
    pub head_limit: usize,
    /// Ports whose connections are timed by round trips when their protocol is unknown.
    pub timed_ports: Vec<u16>,
    /// Method names that need no new string; by default the usual ones.
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
    /// The method's name; usual names are shared.
    pub fn method(&self, name: &str) -> Arc<str> {
        self.methods.iter().find(|known| ***known == *name).cloned().unwrap_or_else(|| Arc::from(name))
    }
}

/// An event read from a connection's bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum ExchangeEvent {
    /// A request's head is complete.
    Begun {
        /// Number of the exchange on this connection.
        exchange: u64,
        /// Its head.
        request: Box<Request>,
        /// Operation that carried the request's first byte.
        first: Stamp,
        /// When that byte arrived; 0: unknown.
        arrived: Nanos,
        /// Operation that completed the head.
        head_at: Stamp,
        /// Stream position of the first byte; [`NOWHERE`] if unknown.
        pos: u64,
        /// Whether this end is the server or the client.
        side: Side,
        /// Protocol name.
        protocol: ProtocolId,
    },
    /// The first byte of the final reply moved.
    Replied {
        /// Which exchange.
        exchange: u64,
        /// Its status; 0 where the protocol has none.
        status: u16,
        /// The kind of failure, where the protocol names it.
        failure: Option<&'static str>,
        /// Operation that carried the first byte.
        first: Stamp,
        /// Nothing was missing between this reply and the one before, so it certainly answers this exchange.
        sure: bool,
    },
    /// A TLS handshake showed the server's certificate.
    Certificate {
        /// The server's name, as the client asked for it; empty: it did not.
        name: Box<str>,
        /// When the certificate expires, seconds since 1970.
        expires: i64,
    },
    /// Links carried by the messages that a request or its reply transports.
    Linked {
        /// Which exchange.
        exchange: u64,
        /// The links.
        linked: Box<Linked>,
    },
    /// What a request or its reply shows of jobs in a queue. That it asks for one is said before it begins.
    Job {
        /// Which exchange.
        exchange: u64,
        /// What.
        job: JobEvent,
    },
    /// The outcome of a reply, where the protocol gives it after the body.
    Judged {
        /// Which exchange.
        exchange: u64,
        /// Its status.
        status: u16,
        /// The kind of failure, where the protocol names it.
        failure: Option<&'static str>,
        /// The exchange's protocol, if only its outcome shows it.
        protocol: Option<ProtocolId>,
    },
    /// The exchange is over.
    Done {
        /// Which exchange.
        exchange: u64,
        /// How it ended.
        outcome: Outcome,
        /// Operation that moved the last byte, or the event that ended the exchange.
        at: Stamp,
        /// Bytes of the request.
        request_bytes: u64,
        /// Bytes of the reply.
        reply_bytes: u64,
        /// Bytes of the reply after its head.
        reply_body_bytes: Option<u64>,
    },
    /// The exchange was none: an answer showed that the connection's protocol is another one.
    Withdrawn {
        /// Which exchange.
        exchange: u64,
    },
    /// A reply whose request the tracer did not see.
    Unpaired {
        /// Its status.
        status: u16,
    },
    /// A datagram of a DNS lookup moved: the client's question, or the answer at either end.
    Datagram {
        /// Which exchange.
        exchange: u64,
        /// Hash of what both ends know of the question: its number and the name and type asked for.
        question: u64,
        /// Direction.
        dir: Direction,
        /// Operation.
        at: Stamp,
        /// The datagram belongs to no other exchange of this socket.
        sure: bool,
    },
    /// A request began that cannot be named: its name was given before the tracer saw the connection, or in lost bytes.
    Unnamed,
    /// Heads were captured only in part: later heads that refer to them may be unreadable.
    HeadsCut {
        /// How many.
        heads: u64,
    },
    /// Too many requests of the connection were open: the oldest was given up.
    Crowded,
    /// The parser did not keep what later messages refer to (prepared statements), because the connection has too many.
    Forgotten {
        /// How many.
        names: u64,
    },
    /// Bytes that a parser needed were not captured, or it did not understand them.
    Lost {
        /// Direction.
        dir: Direction,
        /// How many.
        bytes: u64,
    },
}

/// The exchange that an operation's first bytes belonged to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Number of the exchange, if there is exactly one ([`ConnectionParser::touched`] lists several).
    pub exchange: Option<u64>,
}

/// Whether the tracer follows a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not decided yet.
    Unknown,
    /// A known protocol.
    Trace,
    /// Only changes of direction matter. A parser's own verdict: encrypted, and which end is the client is not known.
    RoundTrips,
    /// Not worth following.
    Ignore,
}

/// What the parser wants the kernel to report of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Whether to follow it.
    pub verdict: Verdict,
    /// Bytes wanted from the front of receives; 0: the default.
    pub head_rx: u16,
    /// Bytes wanted from the front of sends; 0: the default.
    pub head_tx: u16,
    /// Receives that end before this position need not be reported.
    pub rx_skip: u64,
    /// Sends that end before this position need not be reported.
    pub tx_skip: u64,
    /// The beginnings of frames are wanted wherever they lie in an operation.
    pub frames: bool,
}

#[cfg(test)]
mod fixtures_tests;

#[cfg(test)]
mod gaps_tests;

#[cfg(test)]
mod detect_tests;

#[cfg(test)]
mod namespace_tests;
