//! The binary protocol: 24-byte headers, each with the length of what follows.

use super::{OTHER, length, mark, named};
use crate::{Detected, ExpectedReply, Reply, Request, Step};

const HEADER: usize = 24;
/// Longest body accepted: the server's largest item size.
const BODY_MOST: u32 = 1 << 30;

/// When the server answers a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerRule {
    Always,
    /// Only on a hit or a failure.
    Quiet,
    Never,
}

/// Opcodes: name as in the text protocol, extra bytes of requests, answer.
pub(super) fn command(opcode: u8) -> Option<(&'static str, &'static [u8], AnswerRule)> {
    use AnswerRule::{Always, Never, Quiet};
    Some(match opcode {
        0x00 | 0x0c => ("get", &[0], Always),
        0x09 | 0x0d => ("get", &[0], Quiet),
        0x01 => ("set", &[8], Always),
        0x11 => ("set", &[8], Quiet),
        0x02 => ("add", &[8], Always),
        0x12 => ("add", &[8], Quiet),
        0x03 => ("replace", &[8], Always),
        0x13 => ("replace", &[8], Quiet),
        0x04 => ("delete", &[0], Always),
        0x14 => ("delete", &[0], Quiet),
        0x05 => ("incr", &[20], Always),
        0x15 => ("incr", &[20], Quiet),
        0x06 => ("decr", &[20], Always),
        0x16 => ("decr", &[20], Quiet),
        0x07 => ("quit", &[0], Always),
        0x17 => ("quit", &[0], Never),
        0x08 => ("flush_all", &[0, 4], Always),
        0x18 => ("flush_all", &[0, 4], Quiet),
        0x0a => ("noop", &[0], Always),
        0x0b => ("version", &[0], Always),
        0x0e => ("append", &[0], Always),
        0x19 => ("append", &[0], Quiet),
        0x0f => ("prepend", &[0], Always),
        0x1a => ("prepend", &[0], Quiet),
        0x10 => ("stats", &[0], Always),
        0x1b => ("verbosity", &[4], Always),
        0x1c => ("touch", &[4], Always),
        0x1d | 0x23 => ("gat", &[4], Always),
        0x1e | 0x24 => ("gat", &[4], Quiet),
        0x20 => ("sasl_list", &[0], Always),
        0x21 => ("sasl_auth", &[0], Always),
        0x22 => ("sasl_step", &[0], Always),
        _ => return None,
    })
}

/// Name of a status that is a failure.
fn failure(status: u16) -> Option<&'static str> {
    Some(match status {
        // Success; a miss; key exists; not stored; continue.
        0 | 1 | 2 | 5 | 0x21 => return None,
        3 => "value_too_large",
        4 => "invalid_arguments",
        6 => "non_numeric",
        7 => "not_my_vbucket",
        0x20 => "auth_error",
        0x81 => "unknown_command",
        0x82 => "out_of_memory",
        0x83 => "not_supported",
        0x84 => "internal_error",
        0x85 => "busy",
        0x86 => "temporary_failure",
        _ => OTHER,
    })
}

#[derive(Clone, Copy)]
struct BinaryHeader {
    reply: bool,
    opcode: u8,
    key: u16,
    extra: u8,
    kind: u8,
    status: u16,
    body: u32,
    opaque: [u8; 4],
}

impl BinaryHeader {
    fn read(bytes: &[u8]) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER>()?;
        let [magic, opcode, k0, k1, extra, kind, s0, s1, b0, b1, b2, b3, o0, o1, o2, o3, ..] = *header;
        Some(Self {
            reply: magic == 0x81,
            opcode,
            key: u16::from_be_bytes([k0, k1]),
            extra,
            kind,
            status: u16::from_be_bytes([s0, s1]),
            body: u32::from_be_bytes([b0, b1, b2, b3]),
            opaque: [o0, o1, o2, o3],
        })
    }

    /// Whether its lengths are consistent.
    fn fits(&self) -> bool {
        self.kind == 0 && self.body <= BODY_MOST && u32::from(self.key) + u32::from(self.extra) <= self.body
    }

    fn mark(&self) -> u16 {
        mark(&self.opaque, self.opcode)
    }
}

pub(super) fn detect_binary(bytes: &[u8]) -> Detected {
    let Some(header) = BinaryHeader::read(bytes) else {
        let known = bytes.get(1).is_none_or(|opcode| command(*opcode).is_some());
        let plain = bytes.get(5).is_none_or(|kind| *kind == 0);
        return if known && plain { Detected::NeedMore } else { Detected::No };
    };
    let Some((_, extras, _)) = command(header.opcode) else { return Detected::No };
    // Keys have at most 250 bytes.
    if !header.fits() || header.key > 250 {
        return Detected::No;
    }
    match header.reply {
        false if extras.contains(&header.extra) => Detected::Request,
        true if header.status <= 0x86 && matches!(header.extra, 0 | 4) => Detected::Reply,
        _ => Detected::No,
    }
}

/// No state between messages.
pub(super) struct Binary;

impl Binary {
    pub(super) fn request(bytes: &[u8], cut: bool) -> Step<Box<Request>> {
        let Some(header) = BinaryHeader::read(bytes) else { return if cut { Step::Invalid } else { Step::NeedMore } };
        if header.reply || !header.fits() {
            return Step::Invalid;
        }
        let (name, _, answer) = command(header.opcode).unwrap_or((OTHER, &[], AnswerRule::Always));
        let mut expected = ExpectedReply::default();
        match answer {
            AnswerRule::Always => {}
            AnswerRule::Quiet => (expected.optional, expected.note) = (true, header.mark()),
            AnswerRule::Never => expected.silent = true,
        }
        let body = length(header.body.into());
        Step::Head { used: HEADER, message: named(name, expected), body }
    }

    pub(super) fn reply(bytes: &[u8], cut: bool) -> Step<Reply> {
        let Some(header) = BinaryHeader::read(bytes) else { return if cut { Step::Invalid } else { Step::NeedMore } };
        if !header.reply || !header.fits() {
            return Step::Invalid;
        }
        // Statistics come one by one; an empty one ends them.
        let interim = header.opcode == 0x10 && header.status == 0 && header.body > 0;
        let message = Reply { status: 0, failure: failure(header.status), interim };
        Step::Head { used: HEADER, message, body: length(header.body.into()) }
    }

    /// Whether a reply does not answer the oldest quiet request.
    pub(super) fn passes(bytes: &[u8], expected: ExpectedReply) -> Option<bool> {
        BinaryHeader::read(bytes).map(|header| header.mark() != expected.note)
    }
}
