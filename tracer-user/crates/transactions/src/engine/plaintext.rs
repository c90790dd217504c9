//! Encrypted connections whose text is known: what a TLS library reads and writes takes the place of what its socket
//! moves.
//!
//! From a connection's first text on, its socket's bytes are only read for the headers of TLS records: a request's key is
//! that of the record its first byte travelled in, which is the same at both ends, whether an end sees text or not.

use smallvec::SmallVec;
use tracer_common::event::{Header, NetworkPath, OP_AHEAD, OP_EOF, OP_JOINED, OP_TX, Op};
use tracer_model::{Direction, Nanos, Side};
use tracer_protocols::{Chunk, Closed, Stamp};

use crate::engine::Engine;
use crate::output::Output;
use crate::plaintext::{EVENTS, Text, direction, is_further_text, text_bytes};
use crate::slot::Slot;
use crate::strategies::tasks;
use crate::thread::Thread;

impl Engine {
    /// A TLS library read or wrote text.
    pub(super) fn text(&mut self, op: &Op, carried: (&[u8], &[u8], &[u8]), out: &mut Vec<Output>) {
        self.follow(&op.header, op.nth);
        if let Some(thread) = self.world.threads.get_mut(&op.header.tid) {
            thread.awaits_text = None;
        }
        let Some(arrived) = self.take_text(op, out) else {
            self.world.counters.text_unbound += 1;
            return;
        };
        self.overtaken(op);
        tasks::note(&mut self.world, op);
        let header = Header { flags: op.header.flags & !(OP_JOINED | OP_AHEAD), ..op.header };
        let arrived = if header.flags & OP_TX == 0 { arrived } else { 0 };
        // Its thread may have used another socket since.
        let path = if op.sent_pos == op.cookie { op.path } else { NetworkPath::default() };
        self.on_io(&Op { header, seq: 0, arrived, path, sent_pos: 0, sent_end: 0, ..*op }, carried, out);
        self.judge_text(op.cookie, out);
    }

    /// Prepares the connection for a text; when its bytes arrived. `None` if it is not known to be encrypted.
    fn take_text(&mut self, op: &Op, out: &mut Vec<Output>) -> Option<Nanos> {
        let nanos = op.header.nanos;
        let joined = op.header.flags & OP_JOINED != 0;
        if is_further_text(op) {
            // Its first record has prepared the connection.
            return self.world.connections.get(&op.cookie)?.plain.as_ref().map(|plain| plain.arrived);
        }
        let connection = self.world.connections.get_mut(&op.cookie).filter(|connection| !connection.no_text)?;
        let known = connection.plain.as_deref().or(connection.before_text.as_deref());
        if connection.side() != Some(Side::Client) && known.is_some_and(|known| known.is_elsewhere(op)) {
            return None;
        }
        let mut events = std::mem::take(&mut self.events);
        let mut begins = false;
        if connection.plain.is_none() {
            let Some(passed) = connection.talk.awake().encrypted() else {
                self.events = events;
                return None;
            };
            let text = connection.talk.awake().begin_text(joined && passed, &mut events);
            let timed = std::mem::replace(&mut connection.talk, text);
            let plain = connection.plain.insert(connection.before_text.take().unwrap_or_default());
            plain.timed = Some(Box::new((timed, Vec::new())));
            begins = !(joined && passed);
        } else if joined {
            // The kernel side had lost its object: positions start over.
            let at = Stamp { nanos, pid: op.header.tgid, ..Stamp::default() };
            connection.talk.awake().closed(Closed::Both, at, None, &self.world.settings, &mut events);
            let text = connection.talk.awake().begin_text(true, &mut events);
            connection.talk = text;
            connection.plain = Some(Box::default());
            self.world.counters.text_rejoined += 1;
        }
        for event in events.drain(..) {
            self.on_exchange_event(op.cookie, event, None, out);
        }
        self.events = events;
        let connection = self.world.connections.get_mut(&op.cookie)?;
        // Whoever opened the connection caused its first text, too: the handshake was for that.
        if begins {
            connection.text_begins();
        }
        self.encryption.text_seen(op.header.tgid, self.world.limits.processes);
        let side = connection.side();
        let plain = connection.plain.as_mut()?;
        plain.records.keep(op.header.flags & OP_AHEAD != 0);
        let (dir, bytes) = (direction(op), u64::from(text_bytes(op)));
        let seq = match dir {
            // A library that gathers texts writes several at one place.
            Direction::Tx => {
                (op.seq != 0 && plain.texts[1].back().is_none_or(|last| last.seq != op.seq)).then_some(op.seq)
            }
            Direction::Rx => plain.received_at(op),
        };
        match seq {
            Some(seq) => plain.note(dir, Text { pos: op.pos, bytes, seq }),
            // A reply needs no key.
            None if side == Some(Side::Server) && dir == Direction::Rx => self.world.counters.text_unplaced += 1,
            None => {}
        }
        Some(plain.arrived)
    }

    /// Takes an operation on the socket of an encrypted connection: of its bytes, only record headers are read. False if
    /// the operation is to be handled like any other.
    pub(super) fn ciphertext(&mut self, op: &Op, head: &[u8]) -> bool {
        let Some(connection) = self.world.connections.get_mut(&op.cookie) else { return false };
        let Some(plain) = connection.plain.as_mut().filter(|_| op.header.flags & OP_EOF == 0) else { return false };
        self.world.now = self.world.now.max(op.header.nanos);
        let late = connection.last > op.header.nanos;
        connection.last = connection.last.max(op.header.nanos);
        connection.tgid = op.header.tgid;
        plain.moved(op, head, late);
        if connection.talk.side() == Some(Side::Server)
            && plain.awaits_text(op)
            && let Some(thread) = self.world.threads.get_mut(&op.header.tid)
        {
            thread.awaits_text = Some(op.cookie);
        }
        let receives = direction(op) == Direction::Rx;
        if let Some((timed, events)) = plain.timed.as_deref_mut()
            && events.len() < EVENTS
        {
            let Header { nanos, tgid: pid, tid, .. } = op.header;
            let at = Stamp { nanos, pid, tid, reads: op.counters.reads };
            let (dir, pos, len, arrived) = (direction(op), op.pos, u64::from(op.bytes), op.arrived);
            let chunk = Chunk { dir, pos, len, head, tail: &[], fragments: &[], at, arrived };
            timed.awake().on_io(false, &chunk, &self.world.settings, events);
        }
        if receives {
            self.loops.received_encrypted(&mut self.world, op);
        }
        true
    }

    /// A thread that received a whole record goes on: a library returns its text before anything else, so that text was not
    /// seen (its library's probes are gone, or it was read in a way that is not traced). Neither, then, may be the replies
    /// to what is open on that connection: it counts no longer as all that its threads work for.
    pub(super) fn miss_text(&mut self, op: &Op) {
        let thread = self.world.threads.get_mut(&op.header.tid).filter(|thread| !thread.is_further_piece(op));
        let awaited = thread.and_then(|thread| thread.awaits_text.take());
        let Some(connection) = awaited.and_then(|cookie| self.world.connections.get(&cookie)) else { return };
        self.world.counters.text_missed += 1;
        let open: SmallVec<[Slot; 4]> = connection.spans().collect();
        let mut readers: SmallVec<[u32; 4]> = SmallVec::new();
        for slot in open {
            if let Some(live) = self.world.spans.get_mut(slot).filter(|live| live.end == 0) {
                live.alone = false;
                readers.push(live.tid);
            }
        }
        for tid in readers {
            if let Some(doubted) = self.world.threads.get_mut(&tid).map(Thread::lose) {
                self.doubt(tid, doubted);
            }
        }
    }

    /// Follows the records of a connection that may turn out to have text, and has its process looked at. Called after the
    /// connection's parser took the operation.
    pub(super) fn watch_encrypted(&mut self, op: &Op, head: &[u8]) {
        let Some(connection) = self.world.connections.get_mut(&op.cookie) else { return };
        if connection.plain.is_some() || connection.no_text || op.header.flags & OP_EOF != 0 {
            return;
        }
        if connection.talk.if_awake().is_none_or(|talk| !talk.awaits_text()) {
            connection.before_text = None;
            return;
        }
        let first = connection.before_text.is_none();
        let before_text = connection.before_text.get_or_insert_default();
        before_text.moved(op, head, false);
        before_text.shakes_hands(op);
        let (tgid, now) = (op.header.tgid, op.header.nanos);
        if first {
            self.encryption.begins(tgid, now, self.world.limits.processes);
        }
    }

    /// A text was read: once its protocol is known, its encrypted bytes need no timing. If it is of no known protocol,
    /// they are what remains.
    fn judge_text(&mut self, cookie: u64, out: &mut Vec<Output>) {
        let Some(connection) = self.world.connections.get_mut(&cookie) else { return };
        let Some(plain) = connection.plain.as_mut().filter(|plain| plain.timed.is_some()) else { return };
        if connection.talk.awake().is_ignored() {
            self.give_up_text(cookie, out);
        } else if connection.talk.side().is_some() {
            plain.timed = None;
        }
    }

    /// The connection goes on as one that is timed by round trips of its encrypted bytes, if its text's protocol is not
    /// known.
    pub(super) fn give_up_text(&mut self, cookie: u64, out: &mut Vec<Output>) {
        let Some(connection) = self.world.connections.get_mut(&cookie) else { return };
        let Some(timed) = connection.plain.as_mut().and_then(|plain| plain.timed.take()) else { return };
        let (talk, events) = *timed;
        (connection.talk, connection.plain, connection.no_text) = (talk, None, true);
        for event in events {
            self.on_exchange_event(cookie, event, None, out);
        }
        if let Some(connection) = self.world.connections.get_mut(&cookie) {
            connection.talk.awake().goes_on_without_text();
            connection.asked = (0, 0, 0);
            connection.set_skips((0, 0));
        }
        self.update_policy(cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Limits;
    use crate::plaintext::{Plaintext, TEXTS};
    use tracer_common::event::{FAMILY_INET, Kind, Open, ROLE_ACTIVE, ROLE_PASSIVE, ROLE_UNKNOWN};
    use tracer_common::policy::{TEXT_UNWANTED, VERDICT_IGNORE, VERDICT_ROUND_TRIPS, VERDICT_TRACE};
    use tracer_model::ProtocolId;
    use tracer_model::decode::Record;
    use tracer_protocols::Settings;

    /// A server's connection, fed record by record.
    struct Server {
        engine: Engine,
        out: Vec<Output>,
        nanos: u64,
        /// Positions of the socket's bytes and of the text, received and sent.
        pos: [[u64; 2]; 2],
        /// Operations of its thread.
        nth: u32,
    }

    impl Server {
        fn new() -> Self {
            Self::of_role(ROLE_PASSIVE)
        }

        /// `role`: `ROLE_…` of its connection.
        fn of_role(role: u8) -> Self {
            let mut made = Self {
                engine: Engine::new(Settings::default(), Limits::default(), 1),
                out: Vec::new(),
                nanos: 1000,
                pos: [[0; 2]; 2],
                nth: 0,
            };
            let header = Header { nanos: 1, tgid: 7, tid: 7, ..Header::default() };
            let open = Open { header, cookie: 1, family: FAMILY_INET, role, ..Open::default() };
            made.engine.record(&Record::Open(open), &mut made.out);
            made
        }

        fn moves(&mut self, text: bool, sends: bool, head: &[u8]) {
            self.nanos += 1000;
            self.nth += 1;
            let flags = if sends { OP_TX } else { 0 };
            let pos = &mut self.pos[usize::from(text)][usize::from(sends)];
            let (bytes, seq) = (head.len() as u32, if text { 0 } else { 5000 + *pos as u32 });
            let header = Header { flags, nanos: self.nanos, tgid: 7, tid: 7, ..Header::default() };
            let op = Op { header, cookie: 1, pos: *pos, bytes, seq, nth: self.nth, ..Op::default() };
            *pos += head.len() as u64;
            let record = if text {
                Record::Text { op, head, tail: &[], fragments: &[] }
            } else {
                Record::Op { op, head, tail: &[], fragments: &[] }
            };
            self.engine.record(&record, &mut self.out);
        }

        /// A record of TLS moves, whose content begins like this.
        fn record(&mut self, sends: bool, kind: u8, begin: &[u8], len: usize) {
            let mut bytes = vec![kind, 3, 3, (len >> 8) as u8, len as u8];
            bytes.extend_from_slice(begin);
            bytes.resize(5 + len, 0);
            self.moves(false, sends, &bytes);
        }

        fn handshake(&mut self) {
            self.record(false, 22, &[1, 0, 0, 96, 3, 3], 100);
            self.record(true, 22, &[2, 0, 0, 76, 3, 3], 80);
            self.record(false, 20, &[1], 1);
            self.record(false, 22, &[0x5a], 40);
            self.record(true, 22, &[0x5a], 40);
        }

        /// Protocols and paths of all spans.
        fn spans(mut self) -> Vec<(ProtocolId, String)> {
            self.engine.expire(true, &mut self.out);
            let span = |output: &Output| match output {
                Output::Finished(span, _) => {
                    Some((span.protocol, format!("{} {}", span.request.method, span.request.path)))
                }
                _ => None,
            };
            self.out.iter().filter_map(span).collect()
        }
    }

    #[test]
    fn text_takes_the_place_of_encrypted_bytes() {
        let mut server = Server::new();
        server.handshake();
        for path in ["/a", "/b"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            server.record(false, 23, &[], request.len() + 24);
            server.moves(true, false, request.as_bytes());
            let at = server.pos[1][0] - request.len() as u64;
            let seq = server.engine.world.connections.get(&1).and_then(|known| known.seq(Direction::Rx, at));
            assert_eq!(seq, Some(5000 + (server.pos[0][0] - request.len() as u64 - 29) as u32), "{path}");
            server.moves(true, true, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            server.record(true, 23, &[], 38 + 24);
        }
        let expected = [(ProtocolId::Tls, "handshake "), (ProtocolId::Http, "GET /a"), (ProtocolId::Http, "GET /b")];
        let mut spans = server.spans();
        spans.sort_by_key(|(protocol, _)| *protocol == ProtocolId::Http);
        assert_eq!(spans, expected.map(|(protocol, name)| (protocol, name.to_owned())));
    }

    /// Sends a call on a connection in the clear, by the thread that serves; whether its request was its only one.
    fn calls_for_it_alone(server: &mut Server, cookie: u64) -> Option<bool> {
        let head = b"GET /down HTTP/1.1\r\nHost: x\r\n\r\n";
        server.nanos += 1000;
        server.nth += 1;
        let header = Header { flags: OP_TX, nanos: server.nanos, tgid: 7, tid: 7, ..Header::default() };
        let open = Open { header, cookie, family: FAMILY_INET, role: ROLE_ACTIVE, ..Open::default() };
        server.engine.record(&Record::Open(open), &mut server.out);
        let op = Op { header, cookie, bytes: head.len() as u32, nth: server.nth, ..Op::default() };
        server.engine.record(&Record::Op { op, head, tail: &[], fragments: &[] }, &mut server.out);
        let slot = server.engine.world.connections.get(&cookie)?.spans().next()?;
        let cause = &server.engine.span(slot)?.client.cause;
        cause.candidate.map(|_| cause.is_certain())
    }

    #[test]
    fn after_text_was_missed_no_call_is_certain_to_be_the_open_requests() {
        let mut server = Server::new();
        server.handshake();
        let request = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
        server.record(false, 23, &[], request.len() + 24);
        server.moves(true, false, request);
        assert_eq!(calls_for_it_alone(&mut server, 2), Some(true));
        // From here on its library has no probes: neither the reply is seen, nor the next request.
        server.record(true, 23, &[], 200);
        server.record(false, 23, &[], request.len() + 24);
        assert_ne!(calls_for_it_alone(&mut server, 3), Some(true));
        assert_eq!(server.engine.world.counters.text_missed, 1);
        server.record(true, 23, &[], 200);
        server.record(false, 23, &[], request.len() + 24);
        assert_ne!(calls_for_it_alone(&mut server, 4), Some(true));
    }

    /// The kernel side carries a long text in several records; what is behind the first has its place in the first's record.
    #[test]
    fn every_request_of_a_long_text_counts() {
        let mut server = Server::new();
        server.handshake();
        let request = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n";
        let text = request.repeat(400);
        let at = server.pos[0][0];
        server.record(false, 23, &[], text.len() + 24);
        server.nanos += 1000;
        let mut place = 0;
        for head in text.chunks(4096) {
            server.nth += 1;
            let header = Header { kind: Kind::Text as u8, nanos: server.nanos, tgid: 7, tid: 7, ..Header::default() };
            let (bytes, sent_end) = (head.len() as u32, text.len() as u64);
            let op =
                Op { header, cookie: 1, pos: place, bytes, sent_end, sent_at: place, nth: server.nth, ..Op::default() };
            server.engine.record(&Record::Text { op, head, tail: &[], fragments: &[] }, &mut server.out);
            place += u64::from(bytes);
        }
        let seq = |at| server.engine.world.connections.get(&1).and_then(|known| known.seq(Direction::Rx, at));
        assert_eq!(seq(0), Some(5000 + at as u32));
        assert_eq!(seq(9000), Some(5000 + at as u32 + 9000));
        assert_eq!(server.engine.world.counters.text_unplaced, 0);
        server.pos[1][0] = place;
        server.moves(true, true, &b"+OK\r\n".repeat(400));
        assert_eq!(server.spans().iter().filter(|(protocol, _)| *protocol == ProtocolId::Redis).count(), 400);
    }

    #[test]
    fn behind_a_missing_text_no_record_is_taken_for_anothers() {
        let mut server = Server::new();
        server.handshake();
        let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes();
        let record = request("/a").len() + 24;
        server.record(false, 23, &[], record);
        server.moves(true, false, &request("/z"));
        // Two records in one receive, as long as each other; of the first the text is reported after that of the second.
        let mut both = Vec::new();
        for _ in 0..2 {
            both.extend([23, 3, 3, 0, record as u8]);
            both.resize(both.len() + record, 0);
        }
        server.moves(false, false, &both);
        let (first, second) = (server.pos[1][0], server.pos[1][0] + request("/a").len() as u64);
        server.pos[1][0] = second;
        server.moves(true, false, &request("/b"));
        server.pos[1][0] = first;
        server.moves(true, false, &request("/a"));
        let seq = |server: &Server, at| {
            server.engine.world.connections.get(&1).and_then(|known| known.seq(Direction::Rx, at))
        };
        assert_eq!((seq(&server, first), seq(&server, second)), (None, None));
        // What is received next has its place again.
        server.pos[1][0] = second + request("/b").len() as u64;
        let at = server.pos[0][0] as u32;
        server.record(false, 23, &[], record);
        server.moves(true, false, &request("/c"));
        assert_eq!(seq(&server, second + request("/b").len() as u64), Some(5000 + at));
    }

    #[test]
    fn records_reported_after_their_text_wait_for_none() {
        let mut server = Server::new();
        server.handshake();
        let request = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
        let record = request.len() + 24;
        server.record(false, 23, &[], record);
        server.moves(true, false, request);
        let second = server.pos[1][0];
        server.nanos += 10_000;
        server.moves(true, false, request);
        // Received before that, with another record behind it.
        server.nanos -= 10_000;
        let mut both = Vec::new();
        for _ in 0..2 {
            both.extend([23, 3, 3, 0, record as u8]);
            both.resize(both.len() + record, 0);
        }
        server.moves(false, false, &both);
        server.nanos += 20_000;
        let third = server.pos[1][0];
        server.moves(true, false, request);
        let seq = |at| server.engine.world.connections.get(&1).and_then(|known| known.seq(Direction::Rx, at));
        assert_eq!((seq(second), seq(third)), (None, None));
    }

    #[test]
    fn text_of_no_known_protocol_leaves_round_trips() {
        let mut server = Server::new();
        server.handshake();
        for _ in 0..5 {
            server.record(false, 23, &[], 10 + 24);
            server.moves(true, false, b"\x01question!");
            server.moves(true, true, b"\x01answer 90");
            server.record(true, 23, &[], 10 + 24);
        }
        assert_eq!(server.engine.world.connections.get(&1).map(|known| known.no_text), Some(true));
        let trips = server.spans().into_iter().filter(|(_, name)| name.starts_with("TLS")).count();
        assert_eq!(trips, 5);
    }

    /// Exchanges of a connection that is older than the agent: which end is the client is not known.
    fn joined_in_its_middle(exchanges: usize) -> Server {
        let mut server = Server::of_role(ROLE_UNKNOWN);
        server.pos = [[5000, 7000], [0, 0]];
        for _ in 0..exchanges {
            server.record(false, 23, &[], 80);
            server.record(true, 23, &[], 90);
        }
        server
    }

    #[test]
    fn records_from_before_the_agent_are_followed_until_their_text_comes() {
        let mut server = joined_in_its_middle(100);
        let verdicts = |server: &Server| server.engine.policies.iter().map(|(_, ask)| ask.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(&server), [VERDICT_ROUND_TRIPS]);
        assert_eq!(server.engine.encryption.take_begun().collect::<Vec<_>>(), [7], "its library is looked at");
        for _ in 0..3 {
            let request = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
            server.record(false, 23, &[], request.len() + 24);
            server.moves(true, false, request);
            server.moves(true, true, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            server.record(true, 23, &[], 38 + 24);
        }
        assert_eq!(verdicts(&server), [VERDICT_ROUND_TRIPS, VERDICT_TRACE], "of its records, little is needed now");
        let spans = server.spans();
        assert_eq!(spans, vec![(ProtocolId::Http, "GET /a".to_owned()); 3]);
    }

    #[test]
    fn text_of_no_known_protocol_from_before_the_agent_leaves_nothing() {
        let mut server = joined_in_its_middle(1);
        for _ in 0..40 {
            server.record(false, 23, &[], 10 + 24);
            server.moves(true, false, b"\x01question!");
            server.moves(true, true, b"\x01answer 90");
            server.record(true, 23, &[], 10 + 24);
        }
        let last = server.engine.policies.last().map(|(_, ask)| (ask.verdict, ask.text));
        assert_eq!(last, Some((VERDICT_IGNORE, TEXT_UNWANTED)));
        assert_eq!(server.spans(), []);
    }

    #[test]
    fn text_of_a_connection_in_the_clear_is_dropped() {
        let mut server = Server::new();
        server.moves(false, false, b"GET /a HTTP/1.1\r\n\r\n");
        server.moves(true, false, b"GET /b HTTP/1.1\r\n\r\n");
        server.moves(false, true, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(server.engine.world.counters.text_unbound, 1);
        assert_eq!(server.spans(), [(ProtocolId::Http, "GET /a".to_owned())]);
    }

    #[test]
    fn a_position_is_named_by_the_record_its_byte_travelled_in() {
        let mut plain = Plaintext::default();
        plain.note(Direction::Rx, Text { pos: 0, bytes: 100, seq: 7000 });
        plain.note(Direction::Rx, Text { pos: 100, bytes: 20_000, seq: 7122 });
        assert_eq!(plain.seq(Direction::Rx, 0), Some(7000));
        assert_eq!(plain.seq(Direction::Rx, 99), Some(7099));
        assert_eq!(plain.seq(Direction::Rx, 5100), Some(12_122));
        assert_eq!(plain.seq(Direction::Rx, 20_100), None);
        assert_eq!(plain.seq(Direction::Tx, 0), None);
        // A write may be cut into records anywhere behind its first bytes.
        plain.note(Direction::Tx, Text { pos: 0, bytes: 5000, seq: 1 });
        assert_eq!(plain.seq(Direction::Tx, 1023), Some(1024));
        assert_eq!(plain.seq(Direction::Tx, 1024), None);
        for n in 0..100 {
            plain.note(Direction::Tx, Text { pos: 5000 + n, bytes: 1, seq: n as u32 });
        }
        assert!(plain.texts[1].len() <= TEXTS);
    }
}
