//! Replies of the server: where each ends, and how it failed.

use std::sync::LazyLock;

use super::packets::{FULL, HEADER, Packet, integer, packet, short};
use super::{NOTE_AUTH, NOTE_FETCH, NOTE_FIELDS, NOTE_PREPARE, NOTE_RESULT};
use crate::{Body, Reply, ReplyEnd, Step};

/// First bytes of packets.
const OK: u8 = 0;
const EOF: u8 = 0xfe;
const ERROR: u8 = 0xff;
const INFILE: u8 = 0xfb;
/// Server status flags: another result follows; a cursor was opened instead of rows.
const MORE: u16 = 0x0008;
const CURSOR: u16 = 0x0040;
/// An error with this number reports progress (MariaDB).
const PROGRESS: u16 = 0xffff;
/// Everything needed of a packet lies within this many bytes of its beginning.
const FRONT: usize = 64;
/// Fewest bytes that show that a reply ended in words: more than the last fields of any packet that ends with numbers.
const WORDS: usize = 32;
/// Error numbers: the server's, and those of client libraries, which servers never send.
const ERRORS: std::ops::Range<u16> = 1000..5000;
/// Any other number.
const OTHER: &str = "_OTHER";

/// Numbers of errors as text, four bytes each.
static NUMBERS: LazyLock<String> = LazyLock::new(|| ERRORS.map(|number| number.to_string()).collect());

fn name(number: u16) -> &'static str {
    let at = usize::from(number.wrapping_sub(ERRORS.start)) * 4;
    if ERRORS.contains(&number) { NUMBERS.get(at..at + 4).unwrap_or(OTHER) } else { OTHER }
}

/// Position in a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The first packet of the reply, or of another result, is next.
    #[default]
    First,
    /// This many packets of columns are next.
    Columns(u64),
    /// The EOF packet between columns and rows, unless both ends agreed to omit it.
    Between,
    Rows,
    /// This many packets are next, and end the reply.
    Last(u64),
}

/// Progress in reading a reply.
#[derive(Debug, Default)]
pub(super) struct Progress {
    begun: bool,
    stage: Stage,
    /// The packet continues in the next one.
    continued: bool,
    failure: Option<&'static str>,
    /// The statement id, once a reply gave it.
    pub(super) prepared: Option<u32>,
    /// No EOF packet follows the columns ([`super::DEPRECATE_EOF`]).
    pub(super) lean: bool,
}

/// Effect of a packet on the current reply.
enum ReplyEffect {
    GoesOn,
    Ends,
    /// The packet belongs to no reply.
    Unasked,
    /// More bytes of the packet are needed.
    Needs,
}

impl Progress {
    /// Reads the front of a reply; `note` is that of the request.
    pub(super) fn reply(&mut self, bytes: &[u8], cut: bool, note: u16) -> Step<Reply> {
        let mut at = 0;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(packet) = packet(rest) else { return self.wait(at, cut) };
            let enough = packet.is_whole() || packet.payload.len() >= FRONT;
            let (begun, stage, continued) = (self.begun, self.stage, self.continued);
            let does = if enough || cut { self.packet(&packet, note) } else { ReplyEffect::Needs };
            match does {
                ReplyEffect::Needs => {
                    (self.begun, self.stage, self.continued) = (begun, stage, continued);
                    return self.wait(at, cut);
                }
                // The beginning of a reply is a step of its own: its time is that of its first byte.
                _ if !begun && self.begun && at > 0 => {
                    (self.begun, self.stage, self.continued) = (begun, stage, continued);
                    return Step::Pass { used: at, rest: 0 };
                }
                _ => {}
            }
            let (there, rest) = packet.split();
            if matches!(does, ReplyEffect::Ends) {
                let message = self.end();
                return Step::Head { used: at + there, message, body: Body::Length(rest) };
            }
            at += there;
            if rest > 0 {
                return if self.begun { Step::Part { used: at, rest } } else { Step::Pass { used: at, rest } };
            }
        }
    }

    /// No more than `at` bytes can be read.
    fn wait<T>(&self, at: usize, cut: bool) -> Step<T> {
        match at {
            0 if cut => Step::Trailing,
            0 => Step::NeedMore,
            used if self.begun => Step::Part { used, rest: 0 },
            used => Step::Pass { used, rest: 0 },
        }
    }

    fn packet(&mut self, packet: &Packet<'_>, note: u16) -> ReplyEffect {
        let Packet { number, length, payload } = *packet;
        let continued = std::mem::replace(&mut self.continued, length == FULL);
        if continued {
            return if self.begun { ReplyEffect::GoesOn } else { ReplyEffect::Unasked };
        }
        if !self.begun {
            // A reply begins with the command's sequence number plus one; packets of a login in between have higher
            // ones.
            if number == 0 || (number != 1 && note != NOTE_AUTH) {
                return ReplyEffect::Unasked;
            }
            self.begun = true;
            self.stage = if matches!(note, NOTE_FETCH | NOTE_FIELDS) { Stage::Rows } else { Stage::First };
        }
        let Some(first) = payload.first().copied() else {
            return if length == 0 { ReplyEffect::GoesOn } else { ReplyEffect::Needs };
        };
        if first == ERROR && matches!(self.stage, Stage::First | Stage::Rows | Stage::Between) {
            let Some(code) = short(payload, 1) else { return ReplyEffect::Needs };
            if code == PROGRESS {
                return ReplyEffect::GoesOn;
            }
            self.failure = Some(name(code));
            return ReplyEffect::Ends;
        }
        let ends = |over: bool| if over { ReplyEffect::Ends } else { ReplyEffect::GoesOn };
        match self.stage {
            Stage::First if note == NOTE_AUTH => ends(first == OK),
            Stage::First if note == NOTE_PREPARE => self.prepared(payload),
            Stage::First if note != NOTE_RESULT => ReplyEffect::Ends,
            Stage::First => match first {
                OK => {
                    let status = integer(payload, 1)
                        .and_then(|(_, at)| integer(payload, at))
                        .and_then(|(_, at)| short(payload, at));
                    ends(status.is_none_or(|status| status & MORE == 0))
                }
                INFILE => ReplyEffect::GoesOn,
                _ => {
                    let Some((columns, at)) = integer(payload, 0) else { return ReplyEffect::Ends };
                    // MariaDB omits columns the client already knows.
                    let known = payload.get(at) == Some(&0) && length == at as u64 + 1;
                    self.stage = match columns {
                        0 => Stage::Rows,
                        _ if known => Stage::Between,
                        columns => Stage::Columns(columns),
                    };
                    ReplyEffect::GoesOn
                }
            },
            Stage::Columns(columns) => {
                self.stage = if columns > 1 { Stage::Columns(columns - 1) } else { Stage::Between };
                ReplyEffect::GoesOn
            }
            Stage::Between | Stage::Rows if first == EOF && length < 9.max(if self.lean { FULL } else { 0 }) => {
                // The old EOF packet is five bytes long, the new one is an OK packet.
                let status = if length == 5 {
                    short(payload, 3)
                } else {
                    integer(payload, 1).and_then(|(_, at)| integer(payload, at)).and_then(|(_, at)| short(payload, at))
                };
                let status = status.unwrap_or_default();
                if self.stage == Stage::Between && length == 5 && status & CURSOR == 0 {
                    self.stage = Stage::Rows;
                    return ReplyEffect::GoesOn;
                }
                self.stage = Stage::First;
                ends(status & MORE == 0 || note == NOTE_FETCH)
            }
            Stage::Between => {
                self.stage = Stage::Rows;
                ReplyEffect::GoesOn
            }
            Stage::Rows => ReplyEffect::GoesOn,
            Stage::Last(left) => {
                self.stage = Stage::Last(left.saturating_sub(1));
                ends(left <= 1)
            }
        }
    }

    /// The first packet of the reply to PREPARE: the statement id, and the number of packets that follow.
    fn prepared(&mut self, payload: &[u8]) -> ReplyEffect {
        let Some(number) = super::packets::long(payload, 1) else { return ReplyEffect::Ends };
        self.prepared = Some(number);
        let block = |at| {
            let count = u64::from(short(payload, at).unwrap_or_default());
            if count == 0 || self.lean { count } else { count + 1 }
        };
        let left = block(5) + block(7);
        self.stage = Stage::Last(left);
        if left == 0 { ReplyEffect::Ends } else { ReplyEffect::GoesOn }
    }

    /// Ends the reply.
    fn end(&mut self) -> Reply {
        let failure = self.failure;
        self.restart();
        reply(failure)
    }

    /// The message being read is cut off.
    pub(super) fn restart(&mut self) {
        *self = Self { prepared: self.prepared, lean: self.lean, ..Self::default() };
    }

    /// Whether the reply ends with `bytes`, when only its end can be found.
    pub(super) fn last(&mut self, bytes: &[u8]) -> ReplyEnd {
        let failure = match (error_at_end(bytes), bytes) {
            (Some(code), _) => Some(name(code)),
            // The end of rows, in its old and in its new form; bytes of its header may be missing.
            (None, [.., 0, 0, _, EOF, _, _, low, high]) if is_status(*low, *high) => None,
            (None, [.., _, EOF, 0, 0, low, high, _, _]) if is_status(*low, *high) => None,
            _ => return ReplyEnd::NotYet,
        };
        self.restart();
        ReplyEnd::Is(reply(failure))
    }
}

impl Progress {
    /// A reply ended with `bytes`. Only an error and what a statement changed (`Records: 3  Duplicates: 0  Warnings: 0`) end in
    /// words; the error's number came before what was captured.
    pub(super) fn ended(&mut self, bytes: &[u8]) -> Option<Reply> {
        let words = bytes.len() >= WORDS && bytes.iter().all(|byte| !byte.is_ascii_control());
        if !words || memchr::memmem::find(bytes, b"Warnings: ").is_some() {
            return None;
        }
        self.restart();
        Some(reply(Some(OTHER)))
    }
}

/// Whether these can be final server status flags, with no result after them.
fn is_status(low: u8, high: u8) -> bool {
    let status = u16::from_le_bytes([low, high]);
    status & MORE == 0 && status & 0x8004 == 0
}

/// The number of the error at the end of `bytes`.
fn error_at_end(bytes: &[u8]) -> Option<u16> {
    let is_error = |at: &usize| {
        let header = at.checked_sub(HEADER).and_then(|from| packet(bytes.get(from..)?));
        header.is_some_and(|found| found.is_whole() && found.length == (bytes.len() - at) as u64)
            && bytes.get(at + 3) == Some(&b'#')
    };
    let at = memchr::memrchr_iter(ERROR, bytes).find(is_error)?;
    short(bytes, at + 1)
}

fn reply(failure: Option<&'static str>) -> Reply {
    Reply { status: 0, failure, interim: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors() {
        assert_eq!([name(1000), name(1062), name(4999), name(5000), name(0)], ["1000", "1062", "4999", OTHER, OTHER]);
    }
}
