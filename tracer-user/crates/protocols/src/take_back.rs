//! Takes a recognition back that the answers contradict: several protocols begin with the same words.

use super::connection_parser::{ConnectionParser, HeldOperation};
use super::mode::Mode;
use super::{Chunk, Detected, ExchangeEvent, PROTOCOLS, Protocol, Verdict};

/// Most operations kept whose words several protocols have.
const UNDECIDED: usize = 8;
/// Longest of them.
const UNDECIDED_BYTES: u64 = 512;

/// How well the recognition of a connection's protocol stands.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// An answer was one of this protocol's.
    pub(super) proven: bool,
    /// Bytes were missed: what is read since may begin anywhere.
    pub(super) missed: bool,
    /// Protocols that answers have contradicted, by their index in [`PROTOCOLS`].
    pub(super) refuted: u32,
    /// Requests and answers that several protocols have.
    pub(super) undecided: Vec<HeldOperation>,
}

const _: () = assert!(PROTOCOLS.len() <= u32::BITS as usize);

impl Standing {
    /// Whether it matters to what comes next on a connection whose protocol is not settled.
    pub(super) fn is_open(&self) -> bool {
        self.refuted != 0 || !self.undecided.is_empty()
    }

    /// Protocols that no answer has contradicted.
    pub(super) fn candidates(&self) -> impl Iterator<Item = &'static dyn Protocol> + use<> {
        let refuted = self.refuted;
        let stands = move |(index, _): &(usize, &&dyn Protocol)| refuted >> index & 1 == 0;
        PROTOCOLS.iter().enumerate().filter(stands).map(|(_, protocol)| *protocol)
    }

    /// Keeps an exchange that several protocols have; false if there are too many.
    pub(super) fn keep(&mut self, asked: &Chunk<'_>, answer: &Chunk<'_>) -> bool {
        let fits = asked.len.max(answer.len) <= UNDECIDED_BYTES && self.undecided.len() + 2 <= UNDECIDED;
        if fits {
            self.undecided.extend([HeldOperation::from(asked), HeldOperation::from(answer)]);
        } else {
            self.undecided = Vec::new();
        }
        fits
    }
}

impl ConnectionParser {
    /// Whether `answer`, which this protocol does not have, shows that it is another protocol: none had fitted before, and
    /// nothing was missed.
    pub(super) fn is_refuted(&self, answer: &[u8]) -> bool {
        let other =
            self.protocol.is_some_and(|protocol| matches!(protocol.detect(answer), Detected::No | Detected::Never));
        other && !self.standing.proven && !self.standing.missed && !self.midstream && !self.unsure && !self.orphan
    }

    /// The connection's protocol is unknown again, and its open exchanges were none.
    pub(super) fn take_back(&mut self, out: &mut Vec<ExchangeEvent>) {
        let is_it = |known: &&dyn Protocol| self.protocol.is_some_and(|protocol| protocol.id() == known.id());
        self.standing.refuted |= PROTOCOLS.iter().position(is_it).map_or(0, |index| 1 << index);
        if let Mode::Multiplexed(multiplexed) = std::mem::take(&mut self.mode) {
            let (positions, next) = multiplexed.withdraw(out);
            (self.rx.pos, self.tx.pos) = positions;
            self.pair.go_on(next);
        }
        while let Some(waiting) = self.pair.end() {
            out.push(ExchangeEvent::Withdrawn { exchange: waiting.exchange });
        }
        (self.protocol, self.parser, self.requests, self.upgrade) = (None, None, None, None);
        self.rx.restart();
        self.tx.restart();
        self.misses = 0;
        self.verdict = Verdict::Unknown;
    }
}
