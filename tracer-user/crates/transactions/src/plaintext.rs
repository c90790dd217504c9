//! An encrypted connection whose text is read: which record brought which text.

use std::collections::VecDeque;

use tracer_common::event::{Kind, OP_TX, Op};
use tracer_common::policy::{CapturePolicy, TEXT_UNWANTED, VERDICT_TRACE};
use tracer_common::runtime::tls::WHOLE_RECORD;
use tracer_model::{Direction, Nanos, Side};
use tracer_protocols::tls::records::Records;
use tracer_protocols::{ActiveState, ExchangeEvent, Want};

/// Texts of one direction whose records are remembered: a request's head may come in several.
pub(super) const TEXTS: usize = 16;
/// Bytes from a write's beginning that are certain to travel in its first record: every library's records hold as much.
pub(super) const FIRST_RECORD: u64 = 1024;
/// Bytes wanted from the front of what a server receives: the headers of several short records.
pub(super) const HEADERS: u16 = 512;
/// The same where nothing need be read.
pub(super) const LITTLE: u16 = 16;
/// Most events of round trips that wait for the text's protocol: it is known, or known to be unknown, before.
pub(super) const EVENTS: usize = 256;

/// Where a text travelled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    pub(super) pos: u64,
    pub(super) bytes: u64,
    /// Sequence number of its record's header, plus its offset in the record's text.
    pub(super) seq: u32,
}

/// What is known of an encrypted connection besides its text.
#[derive(Debug, Default)]
pub(super) struct Plaintext {
    /// Records received.
    pub(super) records: Records,
    /// When the first byte of the last receive arrived.
    pub(super) arrived: Nanos,
    /// Before the first text: when the connection's first byte was sent, and when something was last received behind it.
    pub(super) handshake: (Nanos, Nanos),
    /// The latest texts received and sent.
    pub(super) texts: [VecDeque<Text>; 2],
    /// Position after the last text received, if there was one.
    pub(super) read_up_to: Option<u64>,
    /// What times the encrypted bytes, until the text's protocol is known, and what it found since the first text.
    pub(super) timed: Option<Box<(ActiveState, Vec<ExchangeEvent>)>>,
}

impl Plaintext {
    /// Sequence number that stands for position `pos` of the text, if it is known.
    pub(super) fn seq(&self, dir: Direction, pos: u64) -> Option<u32> {
        let texts = &self.texts[usize::from(dir == Direction::Tx)];
        let text = texts.iter().rev().find(|text| (text.pos..text.pos.saturating_add(text.bytes)).contains(&pos))?;
        let into = pos - text.pos;
        (dir == Direction::Rx || into < FIRST_RECORD).then(|| text.seq.wrapping_add(into as u32))
    }

    /// Where a text was received: sequence number of its record's header, plus its offset there. Unknown for one that is
    /// reported late, and for those behind one that is missing until more is received: sizes alone do not tell them apart.
    pub(super) fn received_at(&mut self, op: &Op) -> Option<u32> {
        let bytes = text_bytes(op);
        let (begin, end) = (op.pos, op.pos.saturating_add(u64::from(bytes)));
        let expected = self.read_up_to.replace(self.read_up_to.unwrap_or(0).max(end)).unwrap_or(begin);
        if begin < expected {
            return None;
        }
        if begin > expected {
            self.records.forget_waiting();
        }
        let asked = u32::try_from(op.arrived).unwrap_or(0);
        self.records.text(bytes, asked, op.header.nanos).map(|(seq, into)| seq.wrapping_add(into))
    }

    /// Whether a received text that is all of a record's is that of no record of this connection, although some wait for theirs.
    pub(super) fn is_elsewhere(&self, op: &Op) -> bool {
        let is_whole = direction(op) == Direction::Rx && op.arrived == WHOLE_RECORD;
        is_whole && !self.records.may_have(text_bytes(op), op.header.nanos)
    }

    pub(super) fn note(&mut self, dir: Direction, text: Text) {
        let texts = &mut self.texts[usize::from(dir == Direction::Tx)];
        if texts.len() >= TEXTS {
            texts.pop_front();
        }
        texts.push_back(text);
    }

    /// Whether a server's thread has received a whole record with this operation, whose text is to come next. A task may
    /// go on to another thread in between.
    pub(super) fn awaits_text(&self, op: &Op) -> bool {
        let end = op.pos.saturating_add(u64::from(op.bytes));
        direction(op) == Direction::Rx && op.entity == 0 && self.records.is_unread(end)
    }

    /// Takes an operation on the socket. `late`: later ones of its connection were reported before it.
    pub(super) fn moved(&mut self, op: &Op, head: &[u8], late: bool) {
        if direction(op) == Direction::Rx {
            self.records.received(op.pos, u64::from(op.bytes), op.seq, head, op.header.nanos);
            if late {
                // Texts of these records may have been reported already.
                self.records.forget_waiting();
            }
            self.arrived = op.arrived;
        }
    }

    /// An operation before the first text.
    pub(super) fn shakes_hands(&mut self, op: &Op) {
        match direction(op) {
            Direction::Tx if op.pos == 0 => self.handshake = (op.header.nanos, 0),
            Direction::Rx if self.handshake.0 != 0 => self.handshake.1 = op.header.nanos,
            _ => {}
        }
    }

    /// When a client's TLS handshake began, and when it last received something before its first text; 0: not seen.
    pub(super) fn handshake(&self) -> (Nanos, Nanos) {
        self.handshake
    }

    /// What the kernel is to report of the socket, and of the text as `want` says. `by_loop`: the process runs an event
    /// loop, where each receive begins a callback.
    pub(super) fn policy(side: Option<Side>, want: Want, by_loop: bool) -> CapturePolicy {
        let (rx_skip, tx_skip, head_rx) = match side {
            // Replies need no key.
            Some(Side::Client) if by_loop => (0, u64::MAX, LITTLE),
            Some(Side::Client) => (u64::MAX, u64::MAX, LITTLE),
            Some(Side::Server) => (0, u64::MAX, HEADERS),
            None => (0, 0, HEADERS),
        };
        // In KiB, rounded up.
        let text = want.head_rx.max(want.head_tx).div_ceil(1024).min(u16::from(TEXT_UNWANTED - 1)) as u8;
        let verdict = VERDICT_TRACE;
        CapturePolicy { rx_skip, tx_skip, head_rx, head_tx: LITTLE, verdict, text, ..CapturePolicy::default() }
    }
}

/// Length of the text of which `op` is a record.
pub(super) fn text_bytes(op: &Op) -> u32 {
    // Recordings of earlier versions do not have it: there, a text is one record.
    op.bytes.max(u32::try_from(op.sent_end).unwrap_or(0))
}

/// Whether this record of a text goes on with the one before it.
pub(super) fn is_further_text(op: &Op) -> bool {
    op.header.kind == Kind::Text as u8 && op.sent_at != 0
}

pub(super) fn direction(op: &Op) -> Direction {
    if op.header.flags & OP_TX != 0 { Direction::Tx } else { Direction::Rx }
}
