//! Replies of the server: where each ends, and how it failed.

use super::frames::{Frame, Front, HEADER, error_field, frame, number};
use super::sqlstate::{ABORTED, OTHER, code};
use super::{NOTE_ANSWERS, NOTE_READY, NOTE_SYNC, NOTE_UNKNOWN, REPLIES};
use crate::{Body, Reply, ReplyEnd, Step};

/// An error's SQLSTATE lies within this many bytes of its beginning.
const ERROR_FRONT: usize = 256;
/// Bytes of ReadyForQuery.
const READY: usize = 6;
/// Messages that answer no request: notices, notifications and changed parameters.
const UNASKED: &[u8] = b"NAS";
/// Messages with which the server's answer ends if nothing failed, before ReadyForQuery.
const LAST_ANSWERS: &[u8] = b"CIs123nTVK";

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

    /// Whether the reply ends with `bytes`, when only its end can be found.
    pub(super) fn last(&mut self, bytes: &[u8], listens: bool) -> ReplyEnd {
        let end = last(bytes, listens || self.notified);
        if matches!(end, ReplyEnd::NotYet) {
            return end;
        }
        let Self { failure, notified, .. } = std::mem::take(self);
        self.notified = notified;
        match (failure, end) {
            // An error ends the statement, whatever follows.
            (Some(failure), _) => ReplyEnd::Is(reply(Some(failure))),
            (None, end) => end,
        }
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
    while let Front::Frame(frame) = frame(rest, UNASKED)
        && frame.is_whole()
    {
        rest = rest.get(frame.split().0..).unwrap_or_default();
        if rest.is_empty() {
            return true;
        }
    }
    false
}

/// Whether a reply ends with `bytes`, that is, with ReadyForQuery, and how: as the message before says. The server may have
/// sent that in an operation of its own, as it does with errors. An error's SQLSTATE is found if `bytes` contain the whole
/// message. That there was an error also shows in the transaction status, and in its ending: a zero byte ends its last field
/// and another the message itself. Of the other messages possible there, only a notification without payload ends like
/// that, and only a client that `listens` gets one.
fn last(bytes: &[u8], listens: bool) -> ReplyEnd {
    let split = bytes.len().checked_sub(READY).and_then(|at| bytes.split_at_checked(at));
    let Some((mut before, [b'Z', 0, 0, 0, 5, state])) = split else { return ReplyEnd::NotYet };
    while let Some(at) = ends_with_one_of(before, UNASKED) {
        before = before.get(..at).unwrap_or_default();
    }
    let error = ends_with_one_of(before, b"E").and_then(|at| before.get(at + HEADER..));
    let failure = match (error, state) {
        (Some(fields), _) => Some(error_field(fields, b"C").map_or(OTHER, code)),
        (None, b'E') => Some(OTHER),
        (None, b'I' | b'T') if ends_with_one_of(before, LAST_ANSWERS).is_some() => None,
        (None, b'I' | b'T') if before.ends_with(&[0, 0]) && !listens => Some(OTHER),
        (None, b'I' | b'T') => return ReplyEnd::Unseen,
        _ => return ReplyEnd::NotYet,
    };
    ReplyEnd::Is(reply(failure))
}

/// Where the message begins that ends with `bytes`, if that is one of `kinds` and all of it is there. Its length decides:
/// within a message of another kind, three zero bytes in a row are only in lengths and in numbers.
fn ends_with_one_of(bytes: &[u8], kinds: &[u8]) -> Option<usize> {
    let ends = |at: &usize| {
        let length = number(bytes, at + 1).map(|length| length as usize);
        bytes.get(*at).is_some_and(|kind| kinds.contains(kind)) && length == Some(bytes.len() - at - 1)
    };
    (0..bytes.len()).rev().find(ends)
}
