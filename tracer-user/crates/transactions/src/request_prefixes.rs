//! How requests begin, as the kernel side compares it: by these bytes it knows the class of a request that it counts
//! instead of reporting its operations (`tracer_common::exchange_counts`).

use rustc_hash::FxHashMap;
use tracer_common::event::{OP_TX, Op};
use tracer_common::exchange_counts::{CountingRule, RequestPrefix, WINDOW_MAX};
use tracer_common::limits::REQUEST_PREFIXES_MAX;
use tracer_host::guard::tables::TableUse;
use tracer_model::{ClassId, ProtocolId, Side};
use tracer_protocols::memcached;

/// HTTP/1: the request line; the status is behind `HTTP/1.1 ` (RFC 9112 §4).
const HTTP: CountingRule =
    CountingRule { window: WINDOW_MAX as u8, reported: 0, outcome_at: 9, outcome_len: 3, long_after: 0 };
/// RESP: an array's length and its first element, the command; a reply's first byte is its type, and an error's kind
/// follows.
const REDIS: CountingRule = CountingRule { window: 16, reported: 0, outcome_at: 0, outcome_len: 1, long_after: b'-' };

/// Memcached's text: a command of seven letters at most and the space behind it; the first two letters tell the replies of a
/// command apart, and failures from others.
const MEMCACHED: CountingRule = CountingRule { window: 8, reported: 0, outcome_at: 0, outcome_len: 2, long_after: 0 };

/// Most processes noted between two spans.
const PIPELINING: usize = 64;

/// How exchanges of a protocol are counted; `None`: they are always reported.
pub fn rule(protocol: ProtocolId) -> Option<CountingRule> {
    match protocol {
        ProtocolId::Http => Some(HTTP),
        ProtocolId::Redis => Some(REDIS),
        ProtocolId::Memcached => Some(MEMCACHED),
        _ => None,
    }
}

/// What is known of how an open span's request begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// It is one that the kernel side knows, of this class of its numbering.
    Known(u32),
    /// It is new.
    New(Box<RequestPrefix>),
}

/// The beginnings that the kernel side knows, and that of the current operation.
#[derive(Debug, Default)]
pub struct RequestPrefixes {
    on: bool,
    /// The latest operation's first bytes, and which operation it was: connection and time.
    current: RequestPrefix,
    carried: usize,
    operation: (u64, u64),
    /// With the sweep in which each was last seen.
    known: FxHashMap<RequestPrefix, (u32, u32)>,
    sweep: u32,
    full: u64,
    /// Classes by the kernel side's numbers.
    classes: FxHashMap<u32, ClassId>,
    /// Processes that send requests before earlier ones are answered, since last taken.
    pipelining: Vec<u32>,
}

impl RequestPrefixes {
    /// Begins to note beginnings.
    pub fn start(&mut self) {
        self.on = true;
    }

    /// Notes an operation's first bytes.
    pub fn note(&mut self, op: &Op, head: &[u8]) {
        if !self.on {
            return;
        }
        let mut bytes = [0; WINDOW_MAX];
        self.carried = head.len().min(WINDOW_MAX);
        if let (Some(to), Some(from)) = (bytes.get_mut(..self.carried), head.get(..self.carried)) {
            to.copy_from_slice(from);
        }
        let (words, _) = bytes.as_chunks::<8>();
        for (word, bytes) in self.current.head.iter_mut().zip(words) {
            *word = u64::from_ne_bytes(*bytes);
        }
        (self.current.tgid, self.current.bytes) = (op.header.tgid, op.bytes);
        self.operation = (op.cookie, op.header.nanos);
    }

    /// How a request of `protocol` begins whose first byte, at `pos`, came with the operation `op`; `None` if that does not
    /// show its class.
    pub fn beginning(&mut self, op: &Op, pos: u64, side: Side, protocol: ProtocolId) -> Option<Beginning> {
        let is_request = (op.header.flags & OP_TX != 0) == (side == Side::Client);
        if !self.on || !is_request || op.pos != pos || self.operation != (op.cookie, op.header.nanos) {
            return None;
        }
        let rule = rule(protocol)?;
        let window = usize::from(rule.window).min(op.bytes as usize);
        if self.carried < window {
            return None;
        }
        let mut prefix = self.current;
        let mut bytes = prefix.head.map(u64::to_ne_bytes);
        bytes.as_flattened_mut().get_mut(window..)?.fill(0);
        prefix.head = bytes.map(u64::from_ne_bytes);
        if let Some((class, seen)) = self.known.get_mut(&prefix) {
            *seen = self.sweep;
            return Some(Beginning::Known(*class));
        }
        let shown = bytes.as_flattened().get(..window)?;
        let is_named = match protocol {
            ProtocolId::Redis => names_command(shown),
            ProtocolId::Memcached => memcached::is_counted_by_front(shown),
            _ => memchr::memchr(b'\n', shown).is_some(),
        };
        is_named.then(|| Beginning::New(Box::new(prefix)))
    }

    /// A process sends requests, or gets them, before earlier ones are answered.
    pub fn pipelines(&mut self, tgid: u32) {
        // One that finds no place comes again.
        if self.pipelining.len() < PIPELINING {
            self.pipelining.push(tgid);
        }
    }

    /// Such processes, since last taken.
    pub fn take_pipelining(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.pipelining)
    }

    /// The kernel side counts this class by this number from now on.
    pub fn number(&mut self, number: u32, class: ClassId) {
        self.classes.insert(number, class);
    }

    /// The number may become another class's.
    pub fn free(&mut self, number: u32) {
        self.classes.remove(&number);
    }

    /// The class of a number.
    pub fn class(&self, number: u32) -> Option<ClassId> {
        self.classes.get(&number).copied()
    }

    /// The kernel side knows this beginning from now on. Returns those that make room for it.
    pub fn learn(&mut self, prefix: RequestPrefix, class: u32) -> Vec<RequestPrefix> {
        let mut dropped = Vec::new();
        if self.known.len() >= REQUEST_PREFIXES_MAX as usize {
            self.full += 1;
            let sweep = self.sweep;
            self.known.retain(|prefix, (_, seen)| {
                let keep = *seen == sweep;
                if !keep {
                    dropped.push(*prefix);
                }
                keep
            });
            if dropped.is_empty() {
                // All were seen since the last time: start over.
                dropped.extend(self.known.drain().map(|(prefix, _)| prefix));
            }
            self.sweep = self.sweep.wrapping_add(1);
        }
        self.known.insert(prefix, (class, self.sweep));
        dropped
    }

    /// Forgets the beginnings of which `is_over` says so, by process and class, and returns them.
    pub fn forget(&mut self, is_over: impl Fn(u32, u32) -> bool) -> Vec<RequestPrefix> {
        self.known.extract_if(|prefix, (class, _)| is_over(prefix.tgid, *class)).map(|(prefix, _)| prefix).collect()
    }

    /// Size, limit, and how often it was full.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.known.len(), REQUEST_PREFIXES_MAX as usize, self.full)
    }
}

/// Whether `bytes`, the beginning of an array of bulk strings, hold the whole first one.
fn names_command(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let (Some([b'*', ..]), Some([b'$', len @ .., b'\r']), Some(name)) = (lines.next(), lines.next(), lines.next())
    else {
        return false;
    };
    let len = std::str::from_utf8(len).ok().and_then(|len| len.parse::<usize>().ok());
    len.is_some_and(|len| name.len() >= len)
}

#[cfg(test)]
mod tests {
    use tracer_common::event::Header;

    use super::*;

    fn op(bytes: u32, nanos: u64) -> Op {
        Op { header: Header { tgid: 7, nanos, ..Header::default() }, cookie: 3, bytes, ..Op::default() }
    }

    fn beginning(text: &[u8], protocol: ProtocolId) -> Option<Beginning> {
        let mut prefixes = RequestPrefixes::default();
        prefixes.start();
        let op = op(text.len() as u32, 1);
        prefixes.note(&op, text);
        prefixes.beginning(&op, 0, Side::Server, protocol)
    }

    #[test]
    fn a_request_line_within_the_window_is_a_beginning() {
        assert!(beginning(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", ProtocolId::Http).is_some());
        let long = [b"GET /".as_slice(), &[b'a'; 70], b" HTTP/1.1\r\n\r\n"].concat();
        assert_eq!(beginning(&long, ProtocolId::Http), None);
        assert_eq!(beginning(b"GET /a HTTP/1.1\r\n\r\n", ProtocolId::MySql), None);
    }

    #[test]
    fn a_command_within_the_window_is_a_beginning() {
        assert!(beginning(b"*2\r\n$3\r\nGET\r\n$40\r\n", ProtocolId::Redis).is_some());
        assert!(beginning(b"*1\r\n$4\r\nPING\r\n", ProtocolId::Redis).is_some());
        assert_eq!(beginning(b"*2\r\n$12\r\nPEXPIRETIMEX\r\n", ProtocolId::Redis), None);
        assert_eq!(beginning(b"PING\r\n", ProtocolId::Redis), None);
    }

    #[test]
    fn a_text_command_of_memcached_is_a_beginning() {
        for known in ["get k\r\n", "delete k1\r\n", "prepend key 0 0 1\r\nx\r\n", "set k 0 0 1\r\nx\r\n"] {
            assert!(beginning(known.as_bytes(), ProtocolId::Memcached).is_some(), "{known:?}");
        }
        // Its replies are numbers; it may have none; it is not within the window; it has no name; it is a binary one.
        for other in ["incr k 1\r\n", "mg k v q\r\n", "flush_all\r\n", "getter k\r\n", "\u{80}\0\0\u{3}abcdef"] {
            assert_eq!(beginning(other.as_bytes(), ProtocolId::Memcached), None, "{other:?}");
        }
    }

    #[test]
    fn what_was_learnt_is_known_and_the_rest_of_the_operation_does_not_matter() {
        let mut prefixes = RequestPrefixes::default();
        prefixes.start();
        let first = op(30, 1);
        prefixes.note(&first, b"*2\r\n$3\r\nGET\r\n$10\r\nabcdefghij\r\n");
        let Some(Beginning::New(prefix)) = prefixes.beginning(&first, 0, Side::Server, ProtocolId::Redis) else {
            panic!("new")
        };
        assert!(prefixes.learn(*prefix, 5).is_empty());
        let second = op(30, 2);
        prefixes.note(&second, b"*2\r\n$3\r\nGET\r\n$10\r\nABCDEFGHIJ\r\n");
        assert_eq!(prefixes.beginning(&second, 0, Side::Server, ProtocolId::Redis), Some(Beginning::Known(5)));
        // Two requests in one operation are longer.
        let pipeline = op(60, 3);
        prefixes.note(&pipeline, b"*2\r\n$3\r\nGET\r\n$10\r\nABCDEFGHIJ\r\n*2\r\n$3\r\nGET\r\n$10\r\nABCDEFGHIJ\r\n");
        assert!(matches!(prefixes.beginning(&pipeline, 0, Side::Server, ProtocolId::Redis), Some(Beginning::New(_))));
        // Another operation's bytes say nothing.
        assert_eq!(prefixes.beginning(&op(30, 4), 0, Side::Server, ProtocolId::Redis), None);
        assert_eq!(prefixes.forget(|tgid, class| tgid == 7 && class == 5).len(), 1);
    }

    #[test]
    fn a_full_table_makes_room_of_what_was_not_seen_lately() {
        let mut prefixes = RequestPrefixes::default();
        let numbered = |bytes| RequestPrefix { bytes, ..RequestPrefix::default() };
        for bytes in 0..REQUEST_PREFIXES_MAX {
            assert!(prefixes.learn(numbered(bytes), 1).is_empty());
        }
        assert_eq!(prefixes.learn(numbered(9999), 1).len(), REQUEST_PREFIXES_MAX as usize);
        for bytes in 10_000..10_000 + REQUEST_PREFIXES_MAX {
            prefixes.learn(numbered(bytes), 1);
        }
        assert!(prefixes.table_use().entries <= u64::from(REQUEST_PREFIXES_MAX));
        assert_eq!(prefixes.table_use().reached, 2);
    }
}
