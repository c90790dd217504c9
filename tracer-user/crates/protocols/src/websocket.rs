//! WebSocket frames (RFC 6455 §5): finds the end of each, and the status code of a close frame.

use tracer_model::ProtocolId;

use super::{Detected, ExpectedReply, Parser, Protocol, Reply, Request, Settings, Step};

/// The protocol: only spoken after an upgrade, never from the start.
#[derive(Debug)]
pub struct WebSocket;

impl Protocol for WebSocket {
    fn id(&self) -> ProtocolId {
        ProtocolId::WebSocket
    }

    fn detect(&self, _: &[u8]) -> Detected {
        // Frames look like anything.
        Detected::No
    }

    fn open(&self) -> Box<dyn Parser> {
        Box::new(Nothing)
    }
}

/// Sessions have no requests and replies.
#[derive(Debug)]
struct Nothing;

impl Parser for Nothing {
    fn request(&mut self, _: &[u8], _: bool, _: &Settings) -> Step<Box<Request>> {
        Step::Invalid
    }

    fn reply(&mut self, _: &[u8], _: bool, _: &ExpectedReply) -> Step<Reply> {
        Step::Invalid
    }
}

/// Longest header: two bytes, eight of length, four of mask.
const HEADER: usize = 14;
/// Status code for a close frame without one (§7.1.5).
const NO_CODE: u16 = 1005;
/// Normal closes, together with [`NO_CODE`]: done; going away.
const FINE: [u16; 3] = [1000, 1001, NO_CODE];

/// Name of a status code that is a failure (§7.4.1, and IANA's registry).
pub(super) fn failure(code: u16) -> Option<&'static str> {
    Some(match code {
        code if FINE.contains(&code) => return None,
        1002 => "1002",
        1003 => "1003",
        1007 => "1007",
        1008 => "1008",
        1009 => "1009",
        1010 => "1010",
        1011 => "1011",
        1012 => "1012",
        1013 => "1013",
        1014 => "1014",
        3000..=3999 => "3xxx",
        4000..=4999 => "4xxx",
        _ => "_OTHER",
    })
}

/// Position in the frames of one direction.
#[derive(Debug, Default)]
pub(super) struct Frames {
    header: [u8; HEADER],
    have: usize,
    /// In a close frame: the mask, and bytes of the code so far.
    closing: Option<([u8; 4], u8)>,
    code: [u8; 2],
    /// Bytes left of the close frame.
    left: u64,
}

/// Result of feeding bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fed {
    /// Bytes taken.
    pub(super) used: usize,
    /// Further bytes of the frame that need not be read.
    pub(super) left: u64,
    /// Status code, if a close frame was read.
    pub(super) closed: Option<u16>,
}

impl Frames {
    /// Whether a frame begins with the next byte.
    pub(super) fn is_between(&self) -> bool {
        self.have == 0 && self.closing.is_none()
    }

    /// Takes bytes up to the end of a header or of a close frame's code; `None` if they are not a frame.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<Fed> {
        let mut used = 0;
        for byte in bytes {
            used += 1;
            if let Some((mask, at)) = self.closing {
                if let (Some(place), Some(mask)) = (self.code.get_mut(usize::from(at)), mask.get(usize::from(at))) {
                    *place = byte ^ mask;
                }
                self.left = self.left.saturating_sub(1);
                if at == 0 && self.left > 0 {
                    self.closing = Some((mask, 1));
                    continue;
                }
                let (left, code) = (self.left, if at == 1 { u16::from_be_bytes(self.code) } else { NO_CODE });
                *self = Self::default();
                return Some(Fed { used, left, closed: Some(code) });
            }
            *self.header.get_mut(self.have)? = *byte;
            self.have += 1;
            let [first, second, ..] = self.header;
            // Reserved opcodes and fragmented control frames do not occur.
            let opcode = first & 15;
            if matches!(opcode, 3..=7 | 11..) || opcode >= 8 && first & 0x80 == 0 {
                return None;
            }
            if self.have < 2 {
                continue;
            }
            let (short, masked) = (second & 0x7f, second & 0x80 != 0);
            let long = match short {
                126 => 2,
                127 => 8,
                _ => 0,
            };
            if opcode >= 8 && long > 0 {
                return None;
            }
            if self.have < 2 + long + if masked { 4 } else { 0 } {
                continue;
            }
            let digits = self.header.get(2..2 + long).unwrap_or_default();
            let len = match long {
                0 => u64::from(short),
                _ => digits.iter().fold(0, |sum, digit| sum << 8 | u64::from(*digit)),
            };
            let mut mask = [0; 4];
            if masked {
                mask.copy_from_slice(self.header.get(2 + long..6 + long).unwrap_or(&[0; 4]));
            }
            *self = Self::default();
            match (opcode, len) {
                (8, 0) => return Some(Fed { used, left: 0, closed: Some(NO_CODE) }),
                (8, _) => (self.closing, self.left) = (Some((mask, 0)), len),
                _ => return Some(Fed { used, left: len, closed: None }),
            }
        }
        Some(Fed { used, left: 0, closed: None })
    }
}

/// Whether an operation of `len` bytes, of which `head` was captured, consists of whole frames: then it begins with
/// one, which shows frame boundaries after missed bytes.
pub(super) fn fits(head: &[u8], len: u64) -> bool {
    let (mut frames, mut at) = (Frames::default(), 0_u64);
    while let Some(rest) = head.get(at as usize..).filter(|rest| !rest.is_empty()) {
        let Some(fed) = frames.feed(rest) else { return false };
        let whole = frames.is_between();
        at = at.saturating_add(fed.used as u64).saturating_add(fed.left);
        if at >= len || !whole {
            return whole && at == len;
        }
    }
    false
}

#[cfg(test)]
mod tests;
