//! Captured connections (`fixtures/`) as the records the kernel would have made of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tracer_common::event::{FAMILY_INET, Header, Kind, OP_TX, Op, Open, State, ThreadCounters, tcp_state};
use tracer_common::limits::{HEAD_MAX, HEAD_REPLY, HEAD_REQUEST, HEAD_UNKNOWN, TAIL_MAX};
use tracer_model::{Direction, ProtocolId, Side};
use tracer_protocols::{
    Chunk, Closed, ConnectionParser, Conventions, Detected, ExchangeEvent, PROTOCOLS, Settings, Stamp, Verdict,
};

/// Time between two operations, nanoseconds.
const STEP: u64 = 20_000;
/// CPU a thread uses between two operations, nanoseconds.
const WORK: u64 = 10_000;
/// Threads that share the connections.
const THREADS: u32 = 8;

/// One operation on a socket.
#[derive(Clone, Debug)]
struct Moved {
    dir: Direction,
    len: usize,
    pos: u64,
    /// What the kernel would carry of it.
    head: Vec<u8>,
    tail: Vec<u8>,
}

/// One captured connection.
#[derive(Debug)]
pub(crate) struct Captured {
    moved: Vec<Moved>,
    /// Operations of it before it was left alone, or ended.
    lasts: usize,
    /// Requests and replies in it; where it becomes a session, its operations.
    pub(crate) messages: u64,
}

/// Connections of each protocol, by the name of their directory.
pub(crate) type Fixtures = BTreeMap<String, Vec<Captured>>;

/// Reads all there are; a protocol without any is an error.
pub(crate) fn read() -> Result<Fixtures, String> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/protocols/fixtures");
    let mut fixtures = Fixtures::new();
    let mut lacking: Vec<(usize, &str)> = PROTOCOLS.iter().map(|protocol| protocol.name()).enumerate().collect();
    lacking.retain(|(_, name)| is_parsed(name));
    for dir in list(&base)? {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut connections = Vec::new();
        for file in list(&dir)?.iter().filter(|file| file.extension().is_some_and(|kind| kind == "bytes")) {
            let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
            for operations in parse(&text).ok_or_else(|| format!("{}: not a fixture", file.display()))? {
                let first = operations.first().map(|(_, bytes)| &bytes[..]).unwrap_or_default();
                lacking.retain(|(index, _)| {
                    !PROTOCOLS
                        .get(*index)
                        .is_some_and(|protocol| matches!(protocol.detect(first), Detected::Request | Detected::Reply))
                });
                connections.push(Captured::new(&operations));
            }
        }
        // What begins as another protocol does is known by the name of its directory.
        let by_name = lacking.iter().filter(|(_, lacked)| *lacked == name).count();
        if by_name == 1 && !connections.is_empty() {
            lacking.retain(|(_, lacked)| *lacked != name);
        }
        if connections.iter().all(|one| one.messages == 0) {
            if !is_parsed(&name) {
                continue;
            }
            return Err(format!("{}: nothing was understood of what was captured", dir.display()));
        }
        fixtures.insert(name, connections);
    }
    if lacking.is_empty() {
        return Ok(fixtures);
    }
    let names: Vec<&str> = lacking.into_iter().map(|(_, name)| name).collect();
    Err(format!("no captured connection in {} of: {}", base.display(), names.join(", ")))
}

fn list(dir: &Path) -> Result<Vec<std::path::PathBuf>, String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut paths: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Which way each went, and its bytes.
type Operations = Vec<(Direction, Vec<u8>)>;

/// Connections of a file, each as its operations; `None` where a line is none.
fn parse(text: &str) -> Option<Vec<Operations>> {
    let mut connections: Vec<Operations> = Vec::new();
    for line in text.lines() {
        match line.split_once(' ') {
            None if line == "new" => connections.push(Vec::new()),
            Some((word, hex)) => {
                let digit = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
                let bytes = (0..hex.len()).step_by(2).map(digit).collect::<Option<Vec<u8>>>()?;
                let dir = if word == "rx" { Direction::Rx } else { Direction::Tx };
                connections.last_mut()?.push((dir, bytes));
            }
            None => return None,
        }
    }
    Some(connections)
}

impl Captured {
    /// Plays the connection once, to learn how much the kernel would be asked to carry of each operation, and what is in
    /// it.
    fn new(operations: &[(Direction, Vec<u8>)]) -> Self {
        let mut conversation = ConnectionParser::new(false);
        let (settings, mut events, mut moved) = (Settings::default(), Vec::new(), Vec::new());
        let mut pos = [0u64; 2];
        let mut lasts = 0;
        for (nth, (dir, bytes)) in operations.iter().enumerate() {
            let want = conversation.want();
            let which = usize::from(*dir == Direction::Tx);
            let asked = [want.head_rx, want.head_tx][which];
            let role = match (want.verdict, conversation.side()) {
                (Verdict::Unknown, _) | (_, None) => HEAD_UNKNOWN,
                (_, Some(side)) if (side == Side::Server) == (*dir == Direction::Rx) => HEAD_REQUEST,
                _ => HEAD_REPLY,
            };
            let carried = usize::from(if asked == 0 { role } else { asked }).min(bytes.len()).min(HEAD_MAX);
            let (head, rest) = bytes.split_at(carried);
            let tail = &rest[rest.len().saturating_sub(TAIL_MAX)..];
            let one = Moved { dir: *dir, len: bytes.len(), pos: pos[which], head: head.to_vec(), tail: tail.to_vec() };
            pos[which] += bytes.len() as u64;
            let at = Stamp { nanos: nth as u64 + 1, pid: 1, tid: 1, reads: 0 };
            conversation.bytes(&one.chunk(at), &settings, &mut events);
            if conversation.want().verdict != Verdict::Ignore {
                lasts = moved.len() + 1;
            }
            if pos[which] > [want.rx_skip, want.tx_skip][which] {
                moved.push(one);
            }
        }
        conversation.closed(Closed::Both, Stamp::default(), None, &settings, &mut events);
        let session = |word: &ExchangeEvent| matches!(word, ExchangeEvent::Begun { protocol, .. } if protocol.conventions() == Conventions::Session);
        let exchanges = events
            .iter()
            .filter(|event| matches!(event, ExchangeEvent::Begun { .. } | ExchangeEvent::Replied { .. }))
            .count();
        // A session's messages are reported as one.
        let messages = if events.iter().any(session) { operations.len() } else { exchanges } as u64;
        Self { moved, lasts, messages }
    }

    /// Operations of it that are reported.
    pub(crate) fn operations(&self) -> u64 {
        self.moved.len() as u64
    }

    /// Has `conversation` take all of it and clears `events` after each operation.
    pub(crate) fn play(
        &self,
        conversation: &mut ConnectionParser,
        settings: &Settings,
        events: &mut Vec<ExchangeEvent>,
    ) {
        for (nth, moved) in self.moved.iter().enumerate() {
            let at = Stamp { nanos: STEP * (nth as u64 + 1), pid: 1, tid: 1, reads: nth as u32 };
            conversation.bytes(&moved.chunk(at), settings, events);
            events.clear();
        }
    }

    /// What happened on a connection `cookie` that does the same, beginning at `at`, and `ends`, or stays as long as
    /// there is something to come.
    pub(crate) fn records(
        &self,
        cookie: u64,
        at: &mut u64,
        counters: &mut [ThreadCounters],
        ends: bool,
        into: &mut Records,
    ) {
        let thread = cookie as u32 % THREADS;
        let (tgid, tid) = (1000, 1000 + thread);
        let Some(counters) = counters.get_mut(thread as usize) else { return };
        let header = |kind: Kind, flags, nanos, len: usize| Header {
            kind: kind as u8,
            flags,
            nanos,
            tgid,
            tid,
            len: len as u32,
            ..Header::default()
        };
        let (isn_local, isn_remote) = (cookie as u32 ^ 0x5a5a_5a5a, cookie as u32);
        *at += STEP;
        let open = Open {
            header: header(Kind::Open, 0, *at, Open::SIZE),
            cookie,
            family: FAMILY_INET,
            local: [127; 16],
            remote: [127; 16],
            local_port: 80,
            remote_port: cookie as u16,
            isn_local,
            isn_remote,
            ..Open::default()
        };
        into.push(Open::SIZE, |out| open.encode(out));
        let mut done = [0u64; 2];
        let count = if ends { self.moved.len() } else { self.lasts };
        for moved in self.moved.iter().take(count) {
            *at += STEP;
            counters.cpu += WORK;
            let tx = moved.dir == Direction::Tx;
            counters.reads = counters.reads.wrapping_add(u32::from(!tx));
            done[usize::from(tx)] = moved.pos + moved.len as u64;
            let len = Op::SIZE + moved.head.len() + moved.tail.len();
            let op = Op {
                header: header(Kind::Op, if tx { OP_TX } else { 0 }, *at, len),
                cookie,
                pos: moved.pos,
                arrived: if tx { 0 } else { *at - WORK },
                bytes: moved.len as u32,
                seq: (if tx { isn_local } else { isn_remote }).wrapping_add(moved.pos as u32),
                head: moved.head.len() as u16,
                tail: moved.tail.len() as u16,
                nth: counters.switches + 1,
                counters: *counters,
                ..Op::default()
            };
            // One switch an operation: it is their number, too.
            counters.switches = counters.switches.wrapping_add(1);
            into.push(Op::SIZE, |out| op.encode(out));
            into.bytes.extend_from_slice(&moved.head);
            into.bytes.extend_from_slice(&moved.tail);
            into.close();
        }
        if ends {
            *at += STEP;
            let state = State {
                header: header(Kind::State, 0, *at, State::SIZE),
                cookie,
                new: tcp_state::CLOSE,
                rx: done[0],
                tx: done[1],
                last_rx: *at - STEP,
                last_tx: *at - STEP,
                counters: *counters,
                ..State::default()
            };
            into.push(State::SIZE, |out| state.encode(out));
        }
    }
}

impl Moved {
    fn chunk(&self, at: Stamp) -> Chunk<'_> {
        Chunk {
            dir: self.dir,
            pos: self.pos,
            len: self.len as u64,
            head: &self.head,
            tail: &self.tail,
            fragments: &[],
            at,
            arrived: at.nanos,
        }
    }
}

/// Counters of the threads that serve connections.
pub(crate) fn threads() -> Vec<ThreadCounters> {
    vec![ThreadCounters::default(); THREADS as usize]
}

/// Records, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Records {
    /// Adds the fixed part of one.
    fn push(&mut self, size: usize, encode: impl FnOnce(&mut [u8]) -> Option<()>) {
        let at = self.bytes.len();
        self.bytes.resize(at + size, 0);
        let _ = self.bytes.get_mut(at..).and_then(encode);
        self.ends.push(at + size);
    }

    /// What was added since belongs to the last one.
    fn close(&mut self) {
        if let Some(end) = self.ends.last_mut() {
            *end = self.bytes.len();
        }
    }

    /// Each of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).filter_map(|(begin, end)| self.bytes.get(begin..*end))
    }

    /// Forgets them.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Whether a protocol's messages are read: not where only turns are timed, and of names most go as datagrams, which are not
/// captured by connections.
fn is_parsed(name: &str) -> bool {
    ProtocolId::from_name(name)
        .is_none_or(|id| !matches!(id.conventions(), Conventions::RoundTrips | Conventions::Names))
}
