//! Which TLS record a piece of text travelled in, from the headers of the records in the ciphertext that was received
//! before it (RFC 8446 §5, RFC 5246 §6.2).
//!
//! No library returns text of two records at once, and none reads from its socket while it has a whole record left. So
//! when a receive begins, the text of all records that ended before it has been read; and a text either ends its record,
//! or fills its reader's buffer. Where a library is handed what was received by others, records wait until their text is
//! read, or that of a later one. Records that carry no text (the rest of the handshake under TLS 1.3) are skipped because
//! their sizes do not fit. Where this cannot be followed, there is no answer.

use std::collections::VecDeque;

use tracer_model::Nanos;

use super::{CHANGE, DATA, HANDSHAKE, HEADER, Record};

/// Most records that wait for their text.
const RECORDS: usize = 64;
/// What encryption adds to a text: 16 bytes (ChaCha20 in TLS 1.2) to a full block and a long digest (CBC).
const OVERHEAD: std::ops::RangeInclusive<u32> = 16..=96;
/// The same without block ciphers: up to 24 bytes (GCM in TLS 1.2). Where the length of the reader's buffer is unknown, what is
/// more may be text that it has no room for.
const OVERHEAD_OF_STREAMS: std::ops::RangeInclusive<u32> = 16..=24;
/// Longest record of an encrypted alert under TLS 1.3 (RFC 8446 §5.2, §6): level, description, type, 16 bytes of tag.
const ALERT: u32 = 19;
/// Record lengths of a client's Finished message under TLS 1.3: with SHA-256 and with SHA-384.
const FINISHED: [u32; 2] = [53, 69];

/// A record of encrypted data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    /// Sequence number of its header.
    seq: u32,
    /// Stream position after its last byte.
    end: u64,
    len: u32,
    /// Bytes of its text that were read.
    used: u32,
    /// When its header was received.
    at: Nanos,
}

/// How far the handshake has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Joined later, or its end was seen: every record of data carries text.
    #[default]
    Data,
    /// The client's first message was seen.
    Hello,
    /// The next record is encrypted.
    Changed,
    /// Under TLS 1.3, its rest travels as data, up to the client's Finished message.
    Sealed,
}

/// The records of a connection's received bytes.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Position of the next header, or of its first byte that was not received; `None`: not known.
    next: Option<u64>,
    /// The bytes of that header that were received, and the sequence number of the first.
    header: [u8; HEADER],
    have: usize,
    began: u32,
    waiting: VecDeque<Waiting>,
    stage: Stage,
    /// What encryption adds, once a text showed it.
    overhead: Option<u32>,
    /// Records are received before those before them are read.
    ahead: bool,
}

impl Records {
    /// Takes a receive of `bytes` bytes at stream position `pos`, which begins at sequence number `seq`; `head` is its
    /// captured front, `now` its time.
    pub fn received(&mut self, pos: u64, bytes: u64, seq: u32, head: &[u8], now: Nanos) {
        let end = pos.saturating_add(bytes);
        while !self.ahead && self.waiting.front().is_some_and(|record| record.end <= pos) {
            self.waiting.pop_front();
        }
        let is_known = self.next.is_some_and(|next| next >= pos);
        if !is_known {
            // A gap, or the beginning: only the front of an operation can be a header.
            self.waiting.clear();
            (self.next, self.have) = (None, 0);
            if head.first_chunk().copied().and_then(Record::read).is_none() {
                return;
            }
            self.next = Some(pos);
        }
        while let Some(next) = self.next.filter(|next| *next < end) {
            let Some(byte) = usize::try_from(next - pos).ok().and_then(|at| head.get(at)) else {
                // Not captured: where the following records begin is not known either.
                (self.next, self.have) = (None, 0);
                return;
            };
            if self.have == 0 {
                self.began = seq.wrapping_add((next - pos) as u32);
            }
            if let Some(place) = self.header.get_mut(self.have) {
                *place = *byte;
            }
            self.have += 1;
            self.next = Some(next + 1);
            if self.have < HEADER {
                continue;
            }
            self.have = 0;
            let Some(record) = Record::read(self.header) else {
                self.next = None;
                return;
            };
            self.next = Some(next + 1 + record.len as u64);
            self.note(record, next + 1 + record.len as u64, now);
        }
    }

    /// Whether a whole record was received whose text has not been read, in bytes that end at stream position `end`. Never
    /// where records are received ahead of their text, nor for one that may be an alert.
    pub fn is_unread(&self, end: u64) -> bool {
        let unread = |record: &Waiting| record.used == 0 && record.end <= end && record.len > ALERT;
        !self.ahead && self.waiting.iter().any(unread)
    }

    /// Whether a record that was received by `now` may have a text of `bytes` bytes and no more: one that waits fits, or whether any
    /// does is not known.
    pub fn may_have(&self, bytes: u32, now: Nanos) -> bool {
        let fits = |record: &Waiting| match self.overhead {
            Some(overhead) => record.len == bytes.saturating_add(overhead),
            None => OVERHEAD_OF_STREAMS.contains(&record.len.saturating_sub(bytes)),
        };
        self.waiting.is_empty() || self.waiting.iter().any(|record| record.at > now || fits(record))
    }

    /// Which of the records received so far wait for their text is not known any more.
    pub fn forget_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Whether records are received before those before them are read.
    pub fn keep(&mut self, ahead: bool) {
        self.ahead = ahead;
    }

    fn note(&mut self, record: Record, end: u64, at: Nanos) {
        let len = record.len as u32;
        match (record.kind, self.stage) {
            (HANDSHAKE, Stage::Changed) => self.stage = Stage::Data,
            (HANDSHAKE, Stage::Data) if self.waiting.is_empty() => self.stage = Stage::Hello,
            (CHANGE, Stage::Hello) => self.stage = Stage::Changed,
            (DATA, Stage::Hello | Stage::Changed | Stage::Sealed) => {
                // With a client's certificate, records come before it.
                self.stage = if FINISHED.contains(&len) { Stage::Data } else { Stage::Sealed };
            }
            (DATA, Stage::Data) => {
                if self.waiting.len() >= RECORDS {
                    self.waiting.clear();
                    self.next = None;
                    return;
                }
                self.waiting.push_back(Waiting { seq: self.began, end, len, used: 0, at });
            }
            _ => {}
        }
    }

    /// The place of a text of `bytes` bytes: sequence number of its record's header, and offset in the record's text.
    /// `asked`: length of the reader's buffer; 0: unknown. A text that was reported so late that what was received after it is
    /// known already (`now` is its time) has no place any more.
    pub fn text(&mut self, bytes: u32, asked: u32, now: Nanos) -> Option<(u32, u32)> {
        while let Some(record) = self.waiting.front_mut().filter(|record| record.at <= now) {
            let left = record.len.saturating_sub(record.used);
            let over = left.saturating_sub(bytes);
            let ends = match self.overhead {
                Some(overhead) => over == overhead,
                None if asked == 0 => OVERHEAD_OF_STREAMS.contains(&over),
                None => OVERHEAD.contains(&over) && asked != bytes,
            };
            let goes_on = !ends && over > *OVERHEAD.start() && (asked == bytes || asked == 0);
            if !ends && !goes_on {
                // No text, or not this one.
                self.waiting.pop_front();
                continue;
            }
            let found = (record.seq, record.used);
            if ends {
                // Block ciphers pad: then no single number fits.
                self.overhead = Some(over).filter(|over| OVERHEAD_OF_STREAMS.contains(over));
                self.waiting.pop_front();
            } else {
                record.used += bytes;
            }
            return Some(found);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u8, len: usize) -> Vec<u8> {
        let mut bytes = vec![kind, 3, 3, (len >> 8) as u8, len as u8];
        bytes.resize(HEADER + len, 0x5a);
        bytes
    }

    #[test]
    fn a_text_is_placed_by_its_records_header() {
        let mut records = Records::default();
        let hello = record(HANDSHAKE, 200);
        records.received(0, hello.len() as u64, 1000, &hello, 1);
        let mut flight = record(CHANGE, 1);
        flight.extend(record(DATA, 53));
        flight.extend(record(DATA, 53));
        // The request has the size of the Finished message, and both came at once.
        records.received(205, flight.len() as u64, 1205, &flight, 1);
        assert_eq!(records.text(36, 4096, 1), Some((1205 + 6 + 58, 0)));
        assert_eq!(records.text(36, 4096, 1), None);
        // The header alone, then the rest, as OpenSSL reads it.
        let next = record(DATA, 117);
        let pos = 205 + flight.len() as u64;
        records.received(pos, 5, 1205 + flight.len() as u32, &next[..5], 1);
        records.received(pos + 5, 117, 1210 + flight.len() as u32, &next[5..], 1);
        assert_eq!(records.text(60, 60, 1), Some((1205 + flight.len() as u32, 0)));
        assert_eq!(records.text(40, 60, 1), Some((1205 + flight.len() as u32, 60)));
    }

    #[test]
    fn a_text_that_fits_no_record_is_anothers() {
        let mut records = Records::default();
        assert!(records.may_have(1, 1), "nothing is known");
        let requests = [record(DATA, 117), record(DATA, 57)].concat();
        records.received(0, requests.len() as u64, 1000, &requests, 10);
        assert!(records.may_have(100, 20) && records.may_have(40, 20));
        assert!(!records.may_have(99 - 8, 20) && !records.may_have(102, 20));
        assert!(records.may_have(102, 5), "it was read before");
        assert_eq!(records.text(100, u32::MAX, 20), Some((1000, 0)));
        assert!(!records.may_have(39, 20), "what encryption adds is known");
        assert_eq!(records.text(40, u32::MAX, 20), Some((1122, 0)));
        assert!(records.may_have(40, 20));
    }

    #[test]
    fn a_text_reported_late_is_not_that_of_a_later_record() {
        let mut records = Records::default();
        let request = record(DATA, 117);
        records.received(0, 122, 1000, &request, 10);
        // Its text was read at 20, and is reported only now.
        records.received(122, 122, 1122, &request, 30);
        assert_eq!(records.text(100, 4096, 20), None);
        assert_eq!(records.text(100, 4096, 40), Some((1122, 0)));
    }

    #[test]
    fn a_part_of_a_record_is_none_where_the_readers_buffer_is_unknown() {
        let mut records = Records::default();
        let mut flight = record(DATA, 81);
        flight.extend(record(DATA, 81));
        records.received(0, 172, 1000, &flight, 1);
        // As Go reads the preface of HTTP/2, then the rest.
        assert_eq!(records.text(24, 0, 1), Some((1000, 0)));
        assert_eq!(records.text(40, 0, 1), Some((1000, 24)));
        assert_eq!(records.text(64, 0, 1), Some((1086, 0)));
    }

    #[test]
    fn a_whole_record_is_unread_until_its_text_is() {
        let mut records = Records::default();
        let request = record(DATA, 117);
        records.received(0, 5, 1000, &request[..5], 1);
        assert!(!records.is_unread(5), "only its header is there");
        records.received(5, 117, 1005, &request[5..], 1);
        assert!(records.is_unread(122));
        assert!(records.text(100, 4096, 1).is_some());
        assert!(!records.is_unread(122));
        let alert = record(DATA, 19);
        records.received(122, 24, 1122, &alert, 1);
        assert!(!records.is_unread(146));
        records.keep(true);
        records.received(146, 122, 1146, &request, 1);
        assert!(!records.is_unread(268));
    }

    #[test]
    fn what_was_not_captured_gives_no_place_until_records_show_again() {
        let mut records = Records::default();
        let bytes = [record(DATA, 100), record(DATA, 100)].concat();
        records.received(0, bytes.len() as u64, 7, &bytes[..50], 1);
        assert_eq!(records.text(83, 4096, 1), Some((7, 0)));
        assert_eq!(records.text(83, 4096, 1), None, "its header was not captured");
        let next = record(DATA, 90);
        records.received(210, 95, 217, &next, 1);
        assert_eq!(records.text(73, 4096, 1), Some((217, 0)));
        // A lost operation.
        records.received(400, 95, 407, &next, 1);
        assert_eq!(records.text(73, 4096, 1), Some((407, 0)));
        // One that begins in the middle of a record.
        records.received(600, 95, 607, &[1; 95], 1);
        assert_eq!(records.text(73, 4096, 1), None);
    }

    proptest! {
        /// However the stream is split into receives, a text whose place is known has the right one.
        #[test]
        fn a_known_place_is_the_right_one(
            sizes in proptest::collection::vec(1usize..400, 1..12),
            cuts in proptest::collection::vec(1usize..300, 1..20),
            captured in 5usize..600,
        ) {
            let mut stream = Vec::new();
            let mut truth = Vec::new();
            for size in &sizes {
                truth.push((stream.len() as u32, stream.len() + HEADER + size + 17, *size as u32));
                stream.extend(record(DATA, size + 17));
            }
            let mut records = Records::default();
            let (mut at, mut cuts) = (0, cuts.into_iter().cycle());
            let mut due = truth.into_iter().peekable();
            while at < stream.len() {
                let end = (at + cuts.next().unwrap_or(1)).min(stream.len());
                let piece = &stream[at..end];
                records.received(at as u64, piece.len() as u64, at as u32, &piece[..piece.len().min(captured)], 1);
                at = end;
                while let Some((seq, _, size)) = due.next_if(|(_, ends, _)| *ends <= at) {
                    let found = records.text(size, 100_000, 1);
                    prop_assert!(found.is_none_or(|found| found == (seq, 0)), "{found:?} for {seq}");
                }
            }
        }

        #[test]
        fn never_panics_on_arbitrary_input(
            operations in proptest::collection::vec((any::<u64>(), any::<u32>(), any::<u32>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..20),
        ) {
            let mut records = Records::default();
            for (pos, bytes, seq, head) in operations {
                records.received(pos, u64::from(bytes), seq, &head, 1);
                let _ = (records.text(bytes, seq, 1), records.text(seq & 0xff, 0, 1));
            }
        }
    }
}
