//! Whether operations are worth carrying whole: where messages begin behind the front of an operation, each of them counts;
//! where long bodies move, the front says it all.

use tracer_common::limits::HEAD_WHOLE;

use super::{Chunk, ExchangeEvent, Stamp};

/// Pieces of operations in a row in which no message begins, after which only fronts are wanted.
const BARREN: u8 = 64;
/// A connection with this many requests so far is worth a capture policy.
pub(super) const LASTING: u64 = 8;

/// What the pieces behind the front of a direction's operations told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pieces {
    barren: u8,
}

impl Pieces {
    /// Whether `chunk` goes on with the operation that ended at `pos` and was made at `last`: the kernel carries a long one in
    /// several records.
    pub(super) fn goes_on(chunk: &Chunk<'_>, pos: u64, last: Stamp) -> bool {
        chunk.pos == pos && pos > 0 && chunk.at == last
    }

    /// Notes what such a piece told; `begun`: that requests began in it.
    pub(super) fn note(&mut self, begun: bool, told: &[ExchangeEvent]) {
        let begins = |event: &ExchangeEvent| {
            matches!(
                event,
                ExchangeEvent::Begun { .. } | ExchangeEvent::Replied { .. } | ExchangeEvent::Unpaired { .. }
            )
        };
        self.barren = if begun || told.iter().any(begins) { 0 } else { (self.barren + 1).min(BARREN) };
    }

    /// A message began where nothing was captured, or more will follow.
    pub(super) fn missed(&mut self) {
        self.barren = 0;
    }

    /// Whether a direction needs a capture policy however short its connection is: for a longer `front`, to skip up to a
    /// position, or because fronts suffice.
    pub(super) fn need_policy(self, front: u16, skip: u64) -> bool {
        front > 0 || skip > 0 || self.wanted(0) == 0
    }

    /// Bytes wanted from the front of operations: all of them, or `front` where that suffices.
    pub(super) fn wanted(self, front: u16) -> u16 {
        if self.barren < BARREN { HEAD_WHOLE } else { front }
    }
}

#[cfg(test)]
mod tests {
    use tracer_common::limits::{HEAD_MAX, HEAD_REPLY, HEAD_REPLY_WHOLE, HEAD_REQUEST};

    use super::super::connection_parser::ConnectionParser;
    use super::super::{Chunk, ExchangeEvent, Settings, Stamp};
    use super::*;
    use tracer_model::{Direction, Side};

    /// The kernel side of a server's connection: carries what the parser wants.
    struct Kernel {
        conversation: ConnectionParser,
        pos: [u64; 2],
        nanos: u64,
        carried: usize,
        told: Vec<ExchangeEvent>,
    }

    impl Kernel {
        fn new() -> Self {
            let conversation = ConnectionParser::new(false);
            Self { conversation, pos: [0; 2], nanos: 0, carried: 0, told: Vec::new() }
        }

        /// One operation.
        fn moves(&mut self, dir: Direction, bytes: &[u8]) {
            let want = self.conversation.want();
            let asked = if dir == Direction::Rx { want.head_rx } else { want.head_tx };
            let is_long_reply = dir == Direction::Tx && bytes.len() > usize::from(HEAD_REPLY_WHOLE);
            let front = usize::from(match asked {
                0 if is_long_reply => HEAD_REPLY,
                0 => HEAD_REQUEST,
                asked => asked.min(HEAD_MAX as u16),
            });
            self.nanos += 1;
            let at = Stamp { nanos: self.nanos, pid: 1, tid: 1, reads: 0 };
            let first = bytes.len().min(front);
            let (head, rest) = bytes.split_at(first);
            if asked == HEAD_WHOLE || asked == 0 {
                self.record(dir, at, head, head.len());
                rest.chunks(HEAD_MAX).for_each(|piece| self.record(dir, at, piece, piece.len()));
            } else {
                self.record(dir, at, head, bytes.len());
            }
        }

        fn record(&mut self, dir: Direction, at: Stamp, head: &[u8], len: usize) {
            let pos = &mut self.pos[usize::from(dir == Direction::Tx)];
            let chunk = Chunk { dir, pos: *pos, len: len as u64, head, tail: &[], fragments: &[], at, arrived: 0 };
            *pos += len as u64;
            self.carried += head.len();
            self.conversation.bytes(&chunk, &Settings::default(), &mut self.told);
        }

        /// Requests, answered requests and bytes not captured where a message may have begun, since the last call.
        fn counts(&mut self) -> [u64; 3] {
            let mut counts = [0; 3];
            for event in self.told.drain(..) {
                match event {
                    ExchangeEvent::Begun { side: Side::Server, .. } => counts[0] += 1,
                    ExchangeEvent::Done { outcome: tracer_model::Outcome::Complete, .. } => counts[1] += 1,
                    ExchangeEvent::Lost { bytes, .. } => counts[2] += bytes,
                    _ => {}
                }
            }
            counts
        }
    }

    fn set(value: usize) -> Vec<u8> {
        format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${value}\r\n{}\r\n", "v".repeat(value)).into_bytes()
    }

    #[test]
    fn every_command_of_a_long_pipeline_is_counted() {
        let mut kernel = Kernel::new();
        // As Redis reads them: 16 KiB at a time, whatever that cuts through.
        let asked = set(5).repeat(20_000);
        for read in asked.chunks(16 * 1024) {
            kernel.moves(Direction::Rx, read);
        }
        kernel.moves(Direction::Tx, &b"+OK\r\n".repeat(20_000));
        assert_eq!(kernel.counts(), [20_000, 20_000, 0]);
    }

    /// A message of PostgreSQL's clients.
    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
    }

    #[test]
    fn every_execution_of_a_batch_is_counted_by_name() {
        let mut kernel = Kernel::new();
        let startup = [&[0, 3, 0, 0][..], b"user\0u\0\0"].concat();
        kernel.moves(Direction::Rx, &[&(startup.len() as u32 + 4).to_be_bytes()[..], &startup].concat());
        let ready = message(b'Z', b"I");
        kernel.moves(Direction::Tx, &[message(b'R', &[0; 4]), ready.clone()].concat());
        let prepared = message(b'P', b"s\0INSERT INTO t VALUES ($1)\0\0\0");
        kernel.moves(Direction::Rx, &[prepared, message(b'S', b"")].concat());
        kernel.moves(Direction::Tx, &[message(b'1', b""), ready.clone()].concat());
        // As a driver sends a thousand rows: at once, and one Sync at the end.
        let bound = message(b'B', b"\0s\0\0\0\0\x01\0\0\0\x04\0\0\0\x01\0\0");
        let row = [bound, message(b'E', b"\0\0\0\0\0")].concat();
        kernel.moves(Direction::Rx, &[row.repeat(1000), message(b'S', b"")].concat());
        let done = [message(b'2', b""), message(b'C', b"INSERT 0 1\0")].concat();
        [done.repeat(1000), ready].concat().chunks(8192).for_each(|sent| kernel.moves(Direction::Tx, sent));
        let named = |event: &&ExchangeEvent| matches!(event, ExchangeEvent::Begun { request, .. } if &*request.method == "INSERT");
        assert_eq!(kernel.told.iter().filter(named).count(), 1000);
        assert_eq!(kernel.counts(), [1002, 1002, 0]);
    }

    #[test]
    fn every_message_of_one_write_is_counted() {
        let mut kernel = Kernel::new();
        kernel.moves(Direction::Tx, b"INFO {\"server_id\":\"a\",\"version\":\"2.10\"}\r\n");
        kernel.moves(Direction::Rx, b"CONNECT {\"verbose\":false}\r\nPING\r\n");
        kernel.moves(Direction::Tx, b"PONG\r\n");
        kernel.counts();
        kernel.moves(Direction::Rx, format!("PUB events 900\r\n{}\r\n", "x".repeat(900)).repeat(50).as_bytes());
        assert_eq!(kernel.counts(), [50, 50, 0]);
    }

    /// What no protocol's messages begin with is one operation, and what is inside it are no beginnings.
    #[test]
    fn a_long_operation_that_nothing_fits_is_missed_once() {
        let mut kernel = Kernel::new();
        let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let inside = usize::from(HEAD_REQUEST) + HEAD_MAX;
        let mut long = vec![0xee_u8; 5 * HEAD_MAX];
        long[inside..inside + text.len()].copy_from_slice(text.as_bytes());
        kernel.moves(Direction::Rx, &long);
        assert_eq!(kernel.counts(), [0, 0, 0]);
        kernel.moves(Direction::Rx, text.as_bytes());
        kernel.moves(Direction::Tx, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(kernel.counts(), [1, 1, 0]);
    }

    /// A client's reply comes before its request's record, and is longer than what is set aside.
    #[test]
    fn a_long_reply_before_its_request_is_read_in_order() {
        let mut kernel = Kernel::new();
        for _ in 0..2 {
            kernel.moves(Direction::Tx, b"*1\r\n$4\r\nPING\r\n");
            kernel.moves(Direction::Rx, b"+PONG\r\n");
        }
        kernel.moves(Direction::Rx, &[&b"$199992\r\n"[..], &vec![b'v'; 199_992][..], b"\r\n"].concat());
        kernel.moves(Direction::Tx, b"*1\r\n$4\r\nPING\r\n");
        kernel.moves(Direction::Rx, b"+PONG\r\n");
        let lost = kernel.told.iter().filter(|event| matches!(event, ExchangeEvent::Lost { .. })).count();
        assert_eq!(lost, 0, "{:?}", kernel.told);
        let done = |event: &&ExchangeEvent| {
            matches!(event, ExchangeEvent::Done { outcome: tracer_model::Outcome::Complete, .. })
        };
        assert_eq!(kernel.told.iter().filter(done).count(), 3);
    }

    #[test]
    fn of_long_values_the_fronts_suffice() {
        let mut kernel = Kernel::new();
        let value = format!("$300000\r\n{}\r\n", "v".repeat(300_000)).into_bytes();
        for round in 0..50 {
            kernel.carried = 0;
            for read in set(300_000).chunks(16 * 1024) {
                kernel.moves(Direction::Rx, read);
            }
            kernel.moves(Direction::Tx, b"+OK\r\n");
            kernel.moves(Direction::Rx, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
            value.chunks(64 * 1024).for_each(|sent| kernel.moves(Direction::Tx, sent));
            assert_eq!(kernel.counts(), [2, 2, 0], "{round}");
            assert!(round < 5 || kernel.carried < 100_000, "{round}: {} bytes carried", kernel.carried);
        }
        // A pipeline that is seen to be cut has the next ones carried whole.
        for round in 0..3 {
            for read in set(5).repeat(2000).chunks(16 * 1024) {
                kernel.moves(Direction::Rx, read);
                kernel.moves(Direction::Tx, &b"+OK\r\n".repeat(read.len() / set(5).len()));
            }
            let counts = kernel.counts();
            assert!(round == 0 || counts[2] == 0, "{round}: {counts:?}");
        }
    }
}
