//! Single frames: a command, header lines, and the offset of the body.

use std::borrow::Cow;

use memchr::memchr;

use crate::Detected;
use crate::framed::Way;

/// Longest body accepted, in bytes.
const LONGEST: u64 = 1 << 30;
/// Longest name of a header.
const NAME: usize = 64;

/// Kind of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StompCommand {
    Connect,
    Send,
    Subscribe,
    Unsubscribe,
    Ack,
    Nack,
    Begin,
    Commit,
    Abort,
    Disconnect,
    Connected,
    Message,
    Receipt,
    Error,
}

/// Commands by sender.
const FROM_CLIENT: &[(&[u8], StompCommand)] = &[
    (b"CONNECT", StompCommand::Connect),
    (b"STOMP", StompCommand::Connect),
    (b"SEND", StompCommand::Send),
    (b"SUBSCRIBE", StompCommand::Subscribe),
    (b"UNSUBSCRIBE", StompCommand::Unsubscribe),
    (b"ACK", StompCommand::Ack),
    (b"NACK", StompCommand::Nack),
    (b"BEGIN", StompCommand::Begin),
    (b"COMMIT", StompCommand::Commit),
    (b"ABORT", StompCommand::Abort),
    (b"DISCONNECT", StompCommand::Disconnect),
];
const FROM_SERVER: &[(&[u8], StompCommand)] = &[
    (b"CONNECTED", StompCommand::Connected),
    (b"MESSAGE", StompCommand::Message),
    (b"RECEIPT", StompCommand::Receipt),
    (b"ERROR", StompCommand::Error),
];

fn known(way: Way) -> &'static [(&'static [u8], StompCommand)] {
    if way == Way::Request { FROM_CLIENT } else { FROM_SERVER }
}

/// A frame's head.
#[derive(Debug)]
pub(super) struct Head<'a> {
    /// The lines after the command.
    lines: &'a [u8],
    /// Bytes before the body.
    pub(super) len: usize,
    /// The empty line that ends it was there.
    pub(super) whole: bool,
}

/// The first line without its end, and its full length; `None` if its end is missing.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr(b'\n', bytes)?;
    let line = bytes.get(..end).unwrap_or_default();
    Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1))
}

impl<'a> Head<'a> {
    /// Reads the available part of a head at the front of `bytes`, with its command once that line is complete. `None`:
    /// `way` has no such command.
    pub(super) fn read(bytes: &'a [u8], way: Way) -> Option<(Option<StompCommand>, Self)> {
        let Some((word, used)) = line(bytes) else {
            let begun = bytes.strip_suffix(b"\r").unwrap_or(bytes);
            let may = known(way).iter().any(|(word, _)| word.starts_with(begun));
            return may.then_some((None, Self { lines: &[], len: bytes.len(), whole: false }));
        };
        let (_, command) = known(way).iter().find(|(known, _)| *known == word)?;
        let mut at = used;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some((text, len)) = line(rest) else {
                let lines = bytes.get(used..at).unwrap_or_default();
                return is_header_begun(rest)
                    .then_some((Some(*command), Self { lines, len: bytes.len(), whole: false }));
            };
            if text.is_empty() {
                let lines = bytes.get(used..at).unwrap_or_default();
                return Some((Some(*command), Self { lines, len: at + len, whole: true }));
            }
            if memchr(b':', text).is_none() || !is_header_begun(text) {
                return None;
            }
            at += len;
        }
    }

    /// The value of a header; its first occurrence counts.
    pub(super) fn get(&self, wanted: &[u8]) -> Option<&'a [u8]> {
        let mut rest = self.lines;
        while let Some((text, len)) = line(rest) {
            rest = rest.get(len..).unwrap_or_default();
            let (name, value) = text.split_at(memchr(b':', text).unwrap_or(text.len()));
            if name == wanted {
                // Version 1.0 allows spaces around the value.
                return Some(value.get(1..).unwrap_or_default().trim_ascii());
            }
        }
        None
    }

    /// Length of the body in bytes, if given.
    pub(super) fn length(&self) -> Option<u64> {
        let text = self.get(b"content-length")?;
        let plain = !text.is_empty() && text.len() <= 10 && text.iter().all(u8::is_ascii_digit);
        let length = plain.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()?;
        (length <= LONGEST).then_some(length)
    }

    /// The name of a subscription: its id, or its destination if it has none.
    pub(super) fn subscription(&self) -> Option<&'a [u8]> {
        self.get(b"id").or_else(|| self.get(b"destination"))
    }

    /// The destination, without escapes.
    pub(super) fn destination(&self) -> Cow<'a, [u8]> {
        let text = self.get(b"destination").unwrap_or_default();
        if memchr(b'\\', text).is_none() {
            return Cow::Borrowed(text);
        }
        let mut plain = Vec::with_capacity(text.len());
        let mut bytes = text.iter();
        while let Some(byte) = bytes.next() {
            match (*byte, bytes.as_slice().first()) {
                (b'\\', Some(escaped @ (b'c' | b'n' | b'r' | b'\\'))) => {
                    plain.push(match escaped {
                        b'c' => b':',
                        b'n' => b'\n',
                        b'r' => b'\r',
                        _ => b'\\',
                    });
                    bytes.next();
                }
                (byte, _) => plain.push(byte),
            }
        }
        Cow::Owned(plain)
    }
}

/// Whether an incomplete line can be a header: a name of plain characters, up to its colon.
fn is_header_begun(text: &[u8]) -> bool {
    let name = text.get(..memchr(b':', text).unwrap_or(text.len())).unwrap_or_default();
    let name = if name.len() == text.len() { name.strip_suffix(b"\r").unwrap_or(name) } else { name };
    let plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    name.len() <= NAME && name.iter().all(plain)
}

/// Bytes of line ends between frames, which keep connections alive.
pub(super) fn pause(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count()
}

/// Classifies the first bytes of a message.
pub(super) fn detect(bytes: &[u8]) -> Detected {
    let bytes = bytes.get(pause(bytes)..).unwrap_or_default();
    let mut more = false;
    for (way, detected) in [(Way::Request, Detected::Request), (Way::Reply, Detected::Reply)] {
        match stands(way, bytes) {
            Some(true) => return detected,
            None => more = !bytes.is_empty(),
            Some(false) => {}
        }
    }
    if more { Detected::NeedMore } else { Detected::No }
}

/// Whether a frame of `way` begins here: a command, and the name of the first header, which nearly all frames have;
/// `None` if more bytes are needed.
fn stands(way: Way, bytes: &[u8]) -> Option<bool> {
    let Some((command, head)) = Head::read(bytes, way) else { return Some(false) };
    command?;
    let first = bytes.get(line(bytes).map_or(0, |(_, len)| len)..head.len).unwrap_or_default();
    match memchr(b':', first) {
        Some(at) => {
            let name = first.get(..at).unwrap_or_default();
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            Some(at > 0 && name.iter().all(plain))
        }
        None if head.whole => Some(false),
        None => None,
    }
}

/// Offset of a frame's beginning when frame boundaries are unknown: at the front, or after a zero byte.
pub(super) fn find(way: Way, bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..)?;
        let pause = pause(rest);
        if stands(way, rest.get(pause..).unwrap_or_default()) == Some(true) {
            return Some(at + pause);
        }
        at += memchr(0, rest)? + 1;
    }
}

/// The kind of an ERROR, from a list: its text quotes names.
pub(super) fn failure(text: &[u8]) -> &'static str {
    let text = text.to_ascii_lowercase();
    for (begins, word) in [
        (&b"bad connect"[..], "BAD_CONNECT"),
        (b"access refused", "ACCESS_REFUSED"),
        (b"access_refused", "ACCESS_REFUSED"),
        (b"authentication", "AUTHENTICATION"),
        (b"bad command", "BAD_COMMAND"),
        (b"unknown command", "UNKNOWN_COMMAND"),
        (b"unknown destination", "UNKNOWN_DESTINATION"),
        (b"invalid destination", "INVALID_DESTINATION"),
        (b"missing destination", "MISSING_DESTINATION"),
        (b"subscription not found", "SUBSCRIPTION_NOT_FOUND"),
        (b"message not found", "MESSAGE_NOT_FOUND"),
        (b"missing", "MISSING_HEADER"),
        (b"not_found", "NOT_FOUND"),
        (b"not found", "NOT_FOUND"),
        (b"precondition_failed", "PRECONDITION_FAILED"),
        (b"resource_locked", "RESOURCE_LOCKED"),
        (b"version mismatch", "VERSION_MISMATCH"),
        (b"processing error", "PROCESSING_ERROR"),
        (b"server cancelled subscription", "SUBSCRIPTION_CANCELLED"),
        (b"connection", "CONNECTION"),
    ] {
        if text.starts_with(begins) {
            return word;
        }
    }
    "_OTHER"
}
