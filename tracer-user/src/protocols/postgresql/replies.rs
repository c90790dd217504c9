//! Replies of the server: where each ends, and how it failed.

use super::frames::{Frame, Front, HEADER, error_field, frame, number};
use super::sqlstate::{ABORTED, OTHER, code};
use super::{NOTE_ANSWERS, NOTE_READY, NOTE_SYNC, NOTE_UNKNOWN, REPLIES};
use crate::protocols::{Body, Reply, Step};

/// An error's SQLSTATE lies within this many bytes of its beginning.
const ERROR_FRONT: usize = 256;
/// Bytes of ReadyForQuery.
const READY: usize = 6;

/// Progress in reading a reply.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Part of it was read.
    begun: bool,
    /// Number of messages it has answered.
    answers: u16,
    failure: Option<&'static str>,
    /// The server reported an error: it skips everything sent before the next Sync.
    skipping: bool,
    /// The server has notified this client, so it listens.
    notified: bool,
}

/// Effect of a message on the current reply.
enum ReplyEffect {
    /// The reply continues.
    GoesOn,
    Ends,
    /// The message belongs to no reply.
    Unasked,
    /// The connection changes protocol.
    Switches,
    /// More bytes of the message are needed.
    Needs,
}

impl Progress {
    /// Reads the front of a reply; `note` is that of the request.
    pub(super) fn reply(&mut self, bytes: &[u8], cut: bool, note: u16) -> Step<Reply> {
        if self.skipping && !self.begun && note >= NOTE_ANSWERS {
            return Step::Head { used: 0, message: reply(Some(ABORTED)), body: Body::Length(0) };
        }
        let mut at = 0;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let frame = match frame(rest, REPLIES) {
                Front::Frame(frame) if frame.kind != b'Z' || frame.is_whole() => frame,
                Front::Bad if at == 0 => return Step::Invalid,
                Front::Frame(_) | Front::Short | Front::Bad => return self.wait(at, cut),
            };
            let begun = self.begun;
            let effect = self.message(&frame, cut, note);
            // The beginning of a reply is a step of its own: its time is that of its first byte.
            if !begun && self.begun && at > 0 {
                self.begun = false;
                return Step::Pass { used: at, rest: 0 };
            }
            let (there, rest) = frame.split();
            match effect {
                ReplyEffect::Needs => {
                    self.begun = begun;
                    return self.wait(at, cut);
                }
                ReplyEffect::Switches => {
                    let message = self.end();
                    return Step::Head { used: at + there, message, body: Body::Switch };
                }
                ReplyEffect::Ends => {
                    self.skipping &= note != NOTE_SYNC;
                    self.count(&frame);
                    let message = self.end();
                    return Step::Head { used: at + there, message, body: Body::Length(rest) };
                }
                ReplyEffect::GoesOn | ReplyEffect::Unasked => self.count(&frame),
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

    fn message(&mut self, frame: &Frame<'_>, cut: bool, note: u16) -> ReplyEffect {
        let front = frame.fields.get(..frame.fields.len().min(ERROR_FRONT)).unwrap_or_default();
        if !self.begun {
            match frame.kind {
                b'N' | b'A' | b'S' => return ReplyEffect::Unasked,
                // Answers a Sync that was counted for no request.
                b'Z' if !matches!(note, NOTE_READY | NOTE_SYNC) => {
                    self.skipping = false;
                    return ReplyEffect::Unasked;
                }
                _ => self.begun = true,
            }
        }
        match frame.kind {
            b'Z' => ReplyEffect::Ends,
            b'W' => ReplyEffect::Switches,
            b'E' => {
                let is_over = error_field(front, b"C").is_some() || frame.is_whole() || front.len() == ERROR_FRONT;
                if !is_over && !cut {
                    return ReplyEffect::Needs;
                }
                let fatal = [&b"V"[..], b"S"].iter().any(|kind| {
                    matches!(error_field(front, kind), Some(severity) if severity == b"FATAL" || severity == b"PANIC")
                });
                if note == NOTE_UNKNOWN && fatal {
                    // The server ends an idle connection.
                    self.begun = false;
                    return ReplyEffect::Unasked;
                }
                if matches!(note, NOTE_READY | NOTE_SYNC) && !fatal { ReplyEffect::GoesOn } else { ReplyEffect::Ends }
            }
            b'C' | b'I' | b's' if note == NOTE_UNKNOWN => ReplyEffect::Ends,
            b'1' | b'2' | b'3' | b'T' | b'n' | b'C' | b'I' | b's' if note >= NOTE_ANSWERS => {
                if self.answers + 1 >= note - NOTE_ANSWERS { ReplyEffect::Ends } else { ReplyEffect::GoesOn }
            }
            _ => ReplyEffect::GoesOn,
        }
    }

    /// Notes the content of a message.
    fn count(&mut self, frame: &Frame<'_>) {
        match frame.kind {
            b'Z' => {
                if self.skipping && self.failure.is_none() && self.begun {
                    self.failure = Some(ABORTED);
                }
                self.skipping = false;
            }
            b'E' if self.begun => {
                let front = frame.fields.get(..frame.fields.len().min(ERROR_FRONT)).unwrap_or_default();
                let kind = error_field(front, b"C").map_or(OTHER, code);
                self.failure.get_or_insert(kind);
                self.skipping = true;
            }
            b'A' => self.notified = true,
            b'1' | b'2' | b'3' | b'T' | b'n' | b'C' | b'I' | b's' => self.answers = self.answers.saturating_add(1),
            _ => {}
        }
    }

    /// The next message was not read from its beginning.
    pub(super) fn broken(&mut self) {
        *self = Self { notified: self.notified, ..Self::default() };
    }

    /// The reply that ends with `bytes`, when only its end can be found.
    pub(super) fn last(&mut self, bytes: &[u8], listens: bool) -> Option<Reply> {
        let found = last(bytes, listens || self.notified)?;
        let Self { failure, notified, .. } = std::mem::take(self);
        self.notified = notified;
        Some(reply(failure.or(found.failure)))
    }

    /// Ends the reply.
    fn end(&mut self) -> Reply {
        let Self { failure, skipping, notified, .. } = std::mem::take(self);
        (self.skipping, self.notified) = (skipping, notified);
        reply(failure)
    }
}

fn reply(failure: Option<&'static str>) -> Reply {
    Reply { status: 0, failure, interim: false }
}

/// Whether `bytes` are messages that answer no request.
pub(super) fn are_unasked(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Front::Frame(frame) = frame(rest, b"NAS")
        && frame.is_whole()
    {
        rest = rest.get(frame.split().0..).unwrap_or_default();
        if rest.is_empty() {
            return true;
        }
    }
    false
}

/// The reply that ends with `bytes`, that is, with ReadyForQuery. An error's SQLSTATE is found if `bytes` contain the
/// whole message. That there was an error also shows in the transaction status, and in its ending: a zero byte ends its
/// last field and another the message itself, where a command tag has only one. Of the other messages possible there,
/// only a notification without payload ends like that, and only a client that `listens` gets one.
fn last(bytes: &[u8], listens: bool) -> Option<Reply> {
    let (before, ready) = bytes.split_at_checked(bytes.len().checked_sub(READY)?)?;
    let (front, state) = ready.split_at_checked(HEADER)?;
    if front != b"Z\0\0\0\x05" {
        return None;
    }
    let is_error = |at: &usize| {
        let length = number(before, at + 1).map(|length| length as usize);
        length == Some(before.len() - at - 1) && before.get(at + HEADER) == Some(&b'S')
    };
    let found = memchr::memrchr_iter(b'E', before).find(is_error).and_then(|at| before.get(at + HEADER..));
    let failure = match (found, state) {
        (Some(fields), _) => Some(error_field(fields, b"C").map_or(OTHER, code)),
        (None, b"E") => Some(OTHER),
        (None, b"I" | b"T") if before.ends_with(&[0, 0]) && !listens => Some(OTHER),
        (None, b"I" | b"T") => None,
        _ => return None,
    };
    Some(reply(failure))
}
