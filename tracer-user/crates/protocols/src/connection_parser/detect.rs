//! Detects a connection's protocol from the beginnings of its messages.

use tracer_model::{Direction, ProtocolId};

use super::super::mode::Mode;
use super::super::multiplex::Multiplexed;
use super::super::round_trips::Inside;
use super::super::{Chunk, Detected, ExchangeEvent, Protocol, Settings, Verdict};
use super::{ConnectionParser, HeldOperation};

/// Message beginnings that fit no protocol before the connection is ignored.
const MISSES: u8 = 2;
/// The same for a connection joined in mid-stream, where most operations carry bodies.
const MISSES_MIDSTREAM: u8 = 32;

/// Bytes that are collected until a protocol shows: of one message, and where many requests may have been sent at once.
const UNDECIDED_MESSAGE: usize = 64;
const UNDECIDED_PIPELINE: usize = 32 << 10;

impl ConnectionParser {
    /// Detects the protocol; true when that protocol's parser can take `chunk`.
    pub(super) fn detect(
        &mut self,
        chunk: &Chunk<'_>,
        turned: bool,
        settings: &Settings,
        out: &mut Vec<ExchangeEvent>,
    ) -> bool {
        let limit = if self.midstream { MISSES_MIDSTREAM } else { MISSES };
        let stream = match chunk.dir {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        };
        if turned {
            // A finished message that could still have become a known one is a miss, too.
            self.misses = self.misses.saturating_add(u8::from(!stream.buffer.is_empty()));
            stream.buffer = Vec::new();
            stream.start = None;
            stream.begins_cut = false;
        }
        if stream.begins_cut {
            // Within messages of which only the first bytes were captured.
            return false;
        }
        // The first bytes may arrive one by one.
        let gathered;
        let bytes = if stream.buffer.is_empty() {
            chunk.head
        } else {
            gathered = [&stream.buffer, chunk.head].concat();
            &gathered
        };
        if !self.midstream
            && let Some(inside) = self.inside.take()
        {
            self.go_on_inside(chunk, *inside);
            return true;
        }
        let (mut more, mut pipelined, mut either) = (false, false, false);
        for protocol in self.standing.candidates() {
            let requests = match protocol.detect(bytes) {
                Detected::Request => chunk.dir,
                Detected::Reply => chunk.dir.flip(),
                Detected::Either if protocol.round_trips() => {
                    // The bytes do not show which end is the client.
                    if self.time_round_trips(protocol, None) {
                        return true;
                    }
                    // Text that a TLS library reads or writes will show them.
                    let is_tls = protocol.id() == ProtocolId::Tls;
                    self.verdict = if is_tls { Verdict::RoundTrips } else { Verdict::Ignore };
                    return false;
                }
                Detected::NeedMore => {
                    more = true;
                    pipelined |= protocol.pipelines();
                    continue;
                }
                Detected::Either => {
                    either = true;
                    continue;
                }
                Detected::No => continue,
                Detected::Never => {
                    self.verdict = Verdict::Ignore;
                    return false;
                }
            };
            if protocol.round_trips() {
                return self.time_round_trips(protocol, Some(requests));
            }
            if let Some(mut inside) = self.inside.take()
                && (inside.protocol.looks_like(), inside.requests) == (protocol.id(), requests)
            {
                inside.parser.broken(true);
                inside.parser.broken(false);
                self.go_on_inside(chunk, *inside);
                return true;
            }
            self.protocol = Some(protocol);
            self.requests = Some(requests);
            self.verdict = Verdict::Trace;
            let joined = self.midstream;
            if let Some(framed) = protocol.framed(joined) {
                let pos = stream.start.map_or(chunk.pos, |(_, _, pos)| pos);
                let (pos, passed) = match chunk.dir {
                    Direction::Rx => ((pos, self.tx.pos), self.tx.pos > self.origin.1),
                    Direction::Tx => ((self.rx.pos, pos), self.rx.pos > self.origin.0),
                };
                // Bytes of the other end passed unread.
                let lost = joined || passed;
                let lost = if chunk.dir == Direction::Rx { (false, lost) } else { (lost, false) };
                let mut multiplexed = Multiplexed::new(framed, requests, pos, lost);
                multiplexed.go_on(self.pair.upcoming());
                self.mode = Mode::Multiplexed(Box::new(multiplexed));
                return true;
            }
            self.parser = Some(protocol.open());
            let begins = stream.buffer.is_empty();
            if begins {
                stream.pos = chunk.pos;
            }
            // A reply whose request passed unseen.
            let other = self.stream(chunk.dir.flip());
            if other.buffer.is_empty() {
                other.restart();
            }
            let before = std::mem::take(&mut self.standing.undecided);
            if begins && fits(protocol, requests, &before) {
                self.replay(&before, settings, out);
            }
            return true;
        }
        let most = if pipelined { UNDECIDED_PIPELINE } else { UNDECIDED_MESSAGE };
        let room = chunk.head.len() as u64 == chunk.len && stream.buffer.len() < most;
        if more && self.misses < limit && (room || pipelined) {
            stream.begin(chunk, 0);
            // Many requests may have been sent at once: their replies, and the first ones, are enough.
            stream.begins_cut = !room;
            if room || stream.buffer.is_empty() {
                stream.buffer.extend_from_slice(chunk.head);
            }
            return false;
        }
        stream.buffer = Vec::new();
        stream.start = None;
        self.misses = self.misses.saturating_add(u8::from(!either));
        if self.misses < limit {
            return false;
        }
        self.verdict = Verdict::Ignore;
        self.time_unknown()
    }

    /// Goes on with the protocol that the connection spoke before its bytes became those of TLS; `chunk` carries the first
    /// text, or the first that can be read.
    fn go_on_inside(&mut self, chunk: &Chunk<'_>, inside: Inside) {
        let Inside { protocol, requests, parser } = inside;
        (self.protocol, self.requests, self.parser) = (Some(protocol), Some(requests), Some(parser));
        self.verdict = Verdict::Trace;
        // What was read before TLS began proved it.
        self.standing.proven = true;
        let stream = self.stream(chunk.dir);
        if stream.buffer.is_empty() {
            stream.pos = chunk.pos;
        }
        let other = self.stream(chunk.dir.flip());
        if other.buffer.is_empty() {
            other.restart();
        }
    }

    /// Detects the protocol from a request and its reply together; true when the parser can take `chunk`, the reply.
    pub(super) fn detect_pair(&mut self, chunk: &Chunk<'_>, settings: &Settings, out: &mut Vec<ExchangeEvent>) -> bool {
        let dir = chunk.dir.flip();
        let stream = self.stream(dir);
        let Some((at, arrived, pos)) = stream.start else { return false };
        let asked = std::mem::take(&mut stream.buffer);
        let cut = std::mem::take(&mut stream.begins_cut);
        let len = if cut { stream.pos.saturating_sub(pos) } else { asked.len() as u64 };
        let found = self.standing.candidates().find(|protocol| protocol.answers(&asked, chunk.head));
        let request = Chunk { dir, pos, len, head: &asked, tail: &[], fragments: &[], at, arrived };
        let Some(protocol) = found else {
            let may_be = !cut && self.standing.candidates().any(|protocol| protocol.may_answer(&asked, chunk.head));
            if may_be && self.standing.keep(&request, chunk) {
                self.stream(dir).restart();
                (self.misses, self.verdict) = (0, Verdict::Unknown);
            } else {
                self.stream(dir).buffer = asked;
            }
            return false;
        };
        self.protocol = Some(protocol);
        self.parser = Some(protocol.open());
        self.requests = Some(dir);
        self.verdict = Verdict::Trace;
        for (dir, pos) in [(dir, pos), (chunk.dir, chunk.pos)] {
            self.stream(dir).restart();
            self.stream(dir).pos = pos;
        }
        let before = std::mem::take(&mut self.standing.undecided);
        self.replay(&before, settings, out);
        self.feed(&request, settings, out);
        true
    }

    /// Reads exchanges that came before the protocol was decided.
    fn replay(&mut self, before: &[HeldOperation], settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        for dir in [Direction::Rx, Direction::Tx] {
            if let Some(first) = before.iter().find(|held| held.dir == dir) {
                self.stream(dir).pos = first.pos;
            }
        }
        for HeldOperation { dir, pos, len, head, tail, fragments, at, arrived } in before {
            let chunk = Chunk { dir: *dir, pos: *pos, len: *len, head, tail, fragments, at: *at, arrived: *arrived };
            self.feed(&chunk, settings, out);
        }
    }
}

/// Whether all these exchanges can be of a protocol whose requests go this way.
fn fits(protocol: &'static dyn Protocol, requests: Direction, exchanges: &[HeldOperation]) -> bool {
    exchanges.chunks(2).all(|exchange| match exchange {
        [asked, answer] => asked.dir == requests && protocol.may_answer(&asked.head, &answer.head),
        _ => false,
    })
}
