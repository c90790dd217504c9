//! Vocabulary shared by several layers. Plain data: no behaviour beyond naming and formatting.

mod call_site;
pub mod decode;
pub mod dimensions;
mod log_line;
mod network;
mod process_end;
mod protocol;
pub mod quantity;
pub mod sample_span;
mod sampling_decision;
mod stack;
pub mod text;

use std::fmt;
use std::sync::Arc;

use tracer_common::inband_context;

pub use call_site::{CallSite, CodePlace};
pub use log_line::{LogLine, LogLines, LogText, LogTextBudget};
pub use network::{FailedConnect, Network, Opening};
pub use process_end::ProcessEnd;
pub use protocol::{Conventions, ProtocolId};
pub use sampling_decision::{KeepReason, SamplingDecision, Threshold};
pub use stack::{Interpreted, Owner, StackSample, Wait, WakerStack};

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of every kernel record.
pub type Nanos = u64;

/// Direction of bytes, seen from the process that owns the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received.
    Rx,
    /// Sent.
    Tx,
}

impl Direction {
    /// The opposite direction.
    #[must_use]
    pub fn flip(self) -> Self {
        match self {
            Self::Rx => Self::Tx,
            Self::Tx => Self::Rx,
        }
    }
}

/// The side of a request that a span describes: the service that answers, or the call as its caller saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Entry port: requests come in.
    Server,
    /// Exit port: requests go out.
    Client,
}

impl Side {
    /// `server` or `client`, as OpenTelemetry spells span kinds.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// When the connection of a request was accepted, relative to the arrival of the request's first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accepted {
    /// Before that byte arrived, or the request did not arrive on an accepted connection.
    #[default]
    Before,
    /// After it, at this time.
    At(Nanos),
    /// After it; this kernel does not expose the time.
    Unseen,
}

/// Where a request waited before it was read. Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// From the arrival of its first byte until the accept of its connection.
    pub accept: u64,
    /// From then on in the socket, until the first byte was read.
    pub socket: u64,
}

impl Queues {
    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.accept += other.accept;
        self.socket += other.socket;
    }
}

/// How sure an attribution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grade {
    /// The thread or task read the request itself and runs one at a time.
    Certain,
    /// Later evidence from the other side agrees.
    Confirmed,
    /// Two different requests fit, or the evidence is one-sided.
    Ambiguous,
    /// No request fits.
    Orphan,
}

impl Grade {
    /// Every grade, best first.
    pub const ALL: [Self; 4] = [Self::Certain, Self::Confirmed, Self::Ambiguous, Self::Orphan];

    /// Label value of `tracer_attribution_total{grade}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Certain => "certain",
            Self::Confirmed => "confirmed",
            Self::Ambiguous => "ambiguous",
            Self::Orphan => "orphan",
        }
    }
}

/// A service: the processes that answer as one tier. Index into [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u32);

/// A request class of one service, protocol and side. Index into [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub u32);

/// W3C trace id. Displays as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// W3C parent (span) id. Displays as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub u64);

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Description of a request class.
#[derive(Clone, Debug)]
pub struct ClassInfo {
    /// Owning service.
    pub service: ServiceId,
    /// The service's name.
    pub service_name: Arc<str>,
    /// Protocol name, lower case.
    pub protocol: ProtocolId,
    /// Entry or exit port.
    pub side: Side,
    /// The request class: `GET /users/{id}`.
    pub name: Arc<str>,
    /// Path template without the method, for `http.route`; empty where the protocol has none.
    pub route: Arc<str>,
}

/// Names behind the ids. Append-only; the pipeline owns them and sinks borrow them.
#[derive(Debug, Default)]
pub struct Names {
    /// By [`ServiceId`].
    pub services: Vec<Arc<str>>,
    /// By [`ClassId`].
    pub classes: Vec<ClassInfo>,
}

impl Names {
    /// The service's name; `"unknown"` for an id that was never assigned.
    pub fn service(&self, id: ServiceId) -> Arc<str> {
        self.services.get(id.0 as usize).cloned().unwrap_or_else(|| Arc::from("unknown"))
    }

    /// Description of a class.
    pub fn class(&self, id: ClassId) -> Option<&ClassInfo> {
        self.classes.get(id.0 as usize)
    }
}

/// CPU and waiting time, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// On CPU.
    pub cpu: u64,
    /// Runnable, waiting for a CPU.
    pub runq: u64,
    /// Blocked while holding the request.
    pub blocked: u64,
    /// Context switches.
    pub switches: u64,
}

impl Cost {
    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.cpu += other.cpu;
        self.runq += other.runq;
        self.blocked += other.blocked;
        self.switches += other.switches;
    }
}

/// How a span ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The whole reply was sent.
    Complete,
    /// The connection ended before the reply did.
    Aborted,
    /// The connection changed protocol (101, CONNECT): reported, then left alone.
    Upgraded,
    /// The end was not seen (bytes lost, idle too long, tracing stopped): times extend to the last byte seen.
    Unfinished,
}

impl Outcome {
    /// Lower-case word, used in attributes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Aborted => "aborted",
            Self::Upgraded => "upgraded",
            Self::Unfinished => "unfinished",
        }
    }
}

/// Context that propagates through a transaction besides its ids: from the span's own headers, or from its parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropagatedContext {
    /// W3C `tracestate`, unchanged; empty if there was none or it was too long.
    pub state: Box<str>,
    /// Members of W3C `baggage` that the configuration asks for, with values as received (percent-encoded), bounded.
    pub baggage: Vec<(Arc<str>, Box<str>)>,
    /// The service class assigned by a rule for this request or one above it; empty if none was.
    pub service_class: Arc<str>,
}

/// The other end of a span on another host, as that host's agent reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The host's own name for itself.
    pub host: Arc<str>,
    /// Server side: the caller's service and the class of its call; empty if unknown.
    pub service: Arc<str>,
    /// See `service`.
    pub class: Arc<str>,
    /// Client side: how the request went on the other host.
    pub end: Option<RemoteEnd>,
}

/// How a request went on the host that served it. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteEnd {
    /// The server span on that host.
    pub span: SpanId,
    /// First byte read to last byte written.
    pub duration: u64,
    /// Before that: waiting in the socket.
    pub queue: u64,
    /// CPU charged to it.
    pub cpu: u64,
    /// The rest of the call's duration: network time both ways.
    pub network: u64,
    /// Whether it failed.
    pub error: bool,
}

/// Limit of links per span.
pub const LINKS: usize = 32;

/// Links from the messages carried by one request or reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Linked {
    /// Producers as named in the messages, without duplicates: at most [`LINKS`].
    pub to: Vec<(TraceId, SpanId)>,
    /// Links beyond the limit, repeats included.
    pub dropped: u32,
    /// Messages not searched for links: compressed, or not captured.
    pub unread: u32,
}

impl Linked {
    /// Adds a producer.
    pub fn add(&mut self, producer: (TraceId, SpanId)) {
        if self.to.contains(&producer) {
            return;
        }
        if self.to.len() < LINKS {
            self.to.push(producer);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Work of a thread for a request after its reply. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfterReply {
    /// From the end of the reply to the last operation.
    pub time: u64,
    /// CPU.
    pub cpu: u64,
}

/// A finished span: what one request caused on one service. All times are [`Nanos`]; 0: not seen.
#[derive(Clone, Debug)]
pub struct Span {
    /// Span id (W3C parent id).
    pub id: SpanId,
    /// Trace id.
    pub trace: TraceId,
    /// The span that caused it, if known.
    pub parent: Option<SpanId>,
    /// Producers of the messages consumed or moved here, if the messages name them.
    pub linked: Option<Box<Linked>>,
    /// The carrier that named `parent`: a header (`traceparent`, `b3`), `connection` (the call at its other end),
    /// `relay` (the same, reported by another host's agent) or `tcp_option` (an in-band context). Empty if `grade` and
    /// `evidence` tell.
    pub carrier: &'static str,
    /// Trace flags of its transaction, if a carrier gives them.
    pub trace_flags: Option<TraceFlags>,
    /// The rest of its propagated context.
    pub carried: Option<Arc<PropagatedContext>>,
    /// Entry or exit port.
    pub side: Side,
    /// Protocol name.
    pub protocol: ProtocolId,
    /// The service.
    pub service: ServiceId,
    /// Its request class.
    pub class: ClassId,
    /// Process that read (server) or sent (client) the request.
    pub pid: u32,
    /// Thread of `pid`.
    pub tid: u32,
    /// Cookie of its socket.
    pub cookie: u64,
    /// Method, command or verb.
    pub method: Arc<str>,
    /// Path without the query string; literals stay out of labels. For a database, the query summary.
    pub path: Arc<str>,
    /// Protocol version as written, e.g. `1.1`.
    pub version: &'static str,
    /// Local port of the socket (0 for UNIX).
    pub local_port: u16,
    /// Remote address as text (empty for UNIX).
    pub peer: Arc<str>,
    /// Remote port.
    pub peer_port: u16,
    /// What its connection moves is encrypted: it was seen as its TLS library reads and writes it.
    pub encrypted: bool,
    /// First byte arrived in the socket (server side; 0: unknown).
    pub arrived: Nanos,
    /// Whether the connection was accepted by then.
    pub accepted: Accepted,
    /// Time its jobs waited for pool threads while its own thread slept; `None` without such jobs, or if uncertain.
    /// Nanoseconds.
    pub pool_queue: Option<u64>,
    /// Work done for it after its reply; `None` if negligible.
    pub after_reply: Option<AfterReply>,
    /// First byte read (server) or sent (client).
    pub start: Nanos,
    /// First byte of the reply sent (server) or read (client); 0: none.
    pub first_reply: Nanos,
    /// Last byte of the reply, or the event that ended the span.
    pub end: Nanos,
    /// Bytes of the request, head and body.
    pub request_bytes: u64,
    /// Bytes of the reply, head and body.
    pub reply_bytes: u64,
    /// Bytes of the reply after its head, as carried on the connection (chunk framing included); `None` if the head
    /// exceeded what was captured.
    pub reply_body_bytes: Option<u64>,
    /// Status code, if a reply was seen and the protocol has such codes.
    pub status: Option<u16>,
    /// Kind of failure, if the reply names one: `WRONGTYPE`.
    pub failure: Option<&'static str>,
    /// Whether it counts as failed (5xx on a server, 4xx and 5xx on a client, a named failure, aborted).
    pub error: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// Aborted because its own process ended: how.
    pub process_end: Option<ProcessEnd>,
    /// It failed, and an exception was thrown for it: of which type the last one was.
    pub exception: Option<Arc<str>>,
    /// Where that was thrown, if its stack was taken.
    pub thrown_at: Option<Arc<CallSite>>,
    /// Lines that were written to logs for it, if its service's lines are kept.
    pub log_lines: Option<Arc<LogLines>>,
    /// CPU and waiting time charged to it.
    pub cost: Cost,
    /// Time during which at least one of its downstream calls was open, nanoseconds.
    pub downstream: u64,
    /// Downstream calls, up to a limit.
    pub calls: u32,
    /// How sure `parent` is (client side), or that its thread worked for it alone (server side).
    pub grade: Grade,
    /// The evidence for `grade`.
    pub evidence: &'static str,
    /// Its network, where TCP has measured it.
    pub network: Option<Network>,
    /// How its connection was opened, if it is the first call there.
    pub opening: Option<Box<Opening>>,
    /// Client side: the service that answers, if that is on this host.
    pub callee: Option<ServiceId>,
    /// The other end, if that is on another host with an agent.
    pub remote: Option<Box<Remote>>,
    /// `X-Request-ID`, bounded, if the configuration asks for it.
    pub request_id: Option<Arc<str>>,
    /// The database that it is for, if the login of its connection or the request names it.
    pub namespace: Option<Arc<str>>,
    /// Values of a declared call, if any are declared.
    pub declared: Option<Box<DeclaredFacts>>,
    /// Client side: where in its program it was made, if its stack was taken.
    pub called_from: Option<Arc<CallSite>>,
    /// Why it is exported, if not all are.
    pub kept: Option<SamplingDecision>,
}

impl Span {
    /// `error.type` where neither a status nor the reply says more: how its process ended, else how it ended itself.
    pub fn end_type(&self) -> &'static str {
        self.process_end.map_or(self.outcome.name(), ProcessEnd::error_type)
    }

    /// First byte read to last byte of the reply, nanoseconds.
    pub fn duration(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Time from the arrival of the first byte until it was read, nanoseconds; 0: unknown.
    pub fn queue(&self) -> u64 {
        if self.arrived == 0 { 0 } else { self.start.saturating_sub(self.arrived) }
    }

    /// [`Span::queue`] by where it was spent; `None` if unknown.
    pub fn queues(&self) -> Option<Queues> {
        let accept = match self.accepted {
            _ if self.arrived == 0 => return None,
            Accepted::Before => 0,
            Accepted::At(at) => at.saturating_sub(self.arrived).min(self.queue()),
            Accepted::Unseen => return None,
        };
        Some(Queues { accept, socket: self.queue() - accept })
    }

    /// The table a database query addresses, if exactly one (`db.collection.name`): the query summary, in `path`, after
    /// the operation.
    pub fn collection(&self) -> Option<&str> {
        let rest = self.path.strip_prefix(&*self.method)?.strip_prefix(' ')?;
        (!rest.is_empty() && !rest.contains(' ')).then_some(rest)
    }
}

/// A value of a declared call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeclaredValue {
    /// A number: what a register of 64 bits can hold, signed or not.
    Number(i128),
    /// Text, bounded, without invisible characters.
    Text(Arc<str>),
}

/// What is known of a declared call beyond its times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredFacts {
    /// Who it is for.
    pub user: Option<Arc<str>>,
    /// Its metrics that could be read, by name.
    pub metrics: Vec<(Arc<str>, DeclaredValue)>,
}

/// Most dimensions of requests that can be declared.
pub const DIMENSIONS_MAX: usize = 4;

/// Values of the declared dimensions of a request, by their numbers ([`crate::dimensions`]); 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DimensionValues(pub [u16; DIMENSIONS_MAX]);

/// CPU seconds of this host by kind, since tracing began; the basis of [`capture ratio`](HostCpu::capture_ratio).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostCpu {
    /// Charged to request classes.
    pub requests: f64,
    /// Charged to services (and other processes), outside any request.
    pub overhead: f64,
    /// Kernel threads.
    pub kernel: f64,
    /// Counted by the scheduler hook but not yet reported per thread.
    pub unreported: f64,
    /// Idle, by the scheduler hook.
    pub idle: f64,
    /// Busy, by the system (`/proc/stat`: user, nice, system, irq, softirq, steal), over the same time.
    pub system_busy: f64,
    /// Taken by the hypervisor, and whether `system_busy` contains it.
    pub steal: f64,
    /// See `steal`.
    pub steal_is_busy: bool,
    /// CPUs online.
    pub cpus: u32,
}

impl HostCpu {
    /// Attributed CPU (classes, named overhead, kernel) ÷ CPU the system reports as used; `None` before any was used.
    pub fn capture_ratio(&self) -> Option<f64> {
        let attributed = self.requests + self.overhead + self.kernel + self.unreported;
        (self.system_busy > 0.0).then(|| attributed / self.system_busy)
    }
}

/// Trace flags (W3C Trace Context Level 2), those that are defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceFlags(u8);

impl TraceFlags {
    /// Those of a transaction whose id was drawn here: sampled, and its id is random.
    pub const DRAWN: Self = Self(inband_context::DRAWN);

    /// The defined ones of a byte.
    pub fn new(bits: u8) -> Self {
        Self(bits & inband_context::DRAWN)
    }

    /// From single flags.
    pub fn of(sampled: bool, random: bool) -> Self {
        Self((u8::from(sampled) * inband_context::SAMPLED) | (u8::from(random) * inband_context::RANDOM))
    }

    /// As one byte.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Whether the sender samples the transaction.
    pub fn is_sampled(self) -> bool {
        self.0 & inband_context::SAMPLED != 0
    }

    /// Whether the right-most seven bytes of the trace id are random.
    pub fn is_random(self) -> bool {
        self.0 & inband_context::RANDOM != 0
    }
}

/// Consumes classified spans, costs and samples. Sinks never see each other and send nothing back.
pub trait Sink {
    /// A span is finished.
    fn span(&mut self, names: &Names, span: &Span) {
        let _ = (names, span);
    }
    /// `count` spans are finished that are alike.
    fn spans(&mut self, names: &Names, span: &Span, count: u64) {
        for _ in 0..count {
            self.span(names, span);
        }
    }
    /// CPU or waiting was charged. Also called for work after a span was reported, so sums of these calls are exact,
    /// while a span's own `cost` is as of its report.
    fn cost(&mut self, names: &Names, owner: Owner, cost: Cost) {
        let _ = (names, owner, cost);
    }
    /// A stack was sampled.
    fn sample(&mut self, names: &Names, sample: &StackSample) {
        let _ = (names, sample);
    }
    /// Called about once a second.
    fn tick(&mut self, now: Nanos) {
        let _ = now;
    }
}
