//! Reads RESP elements off the front of bytes that may end anywhere.

use memchr::memchr;

use super::commands::NAME_LIMIT;
use crate::elements::Elements;
use crate::stream::Fed;

/// Error kinds (first words of errors) that are distinguished; scripts may invent others.
pub(super) const ERRORS: &[&str] = &[
    "ERR",
    "WRONGTYPE",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "MOVED",
    "ASK",
    "CROSSSLOT",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "LOADING",
    "BUSY",
    "BUSYGROUP",
    "BUSYKEY",
    "NOSCRIPT",
    "NOGROUP",
    "UNKILLABLE",
    "NOTBUSY",
    "MASTERDOWN",
    "MISCONF",
    "READONLY",
    "OOM",
    "EXECABORT",
    "NOREPLICAS",
    "INPROG",
    "NOGOODSLAVE",
    "NOPROTO",
    "UNBLOCKED",
    "NOTREADY",
    "IOERR",
    "DENIED",
    "INVALIDOBJ",
    "NOMASTERLINK",
    "NOQUORUM",
    "SYNTAX",
    "SAVEDERR",
];
/// Name of every other kind.
pub(super) const OTHER_ERROR: &str = "_OTHER";
/// Result of reading an element.
pub(super) enum Read<T> {
    Got(T),
    /// The bytes end before the element does.
    Short,
    Bad,
}

/// `KIND number CR LF` at `at`: the number and the position after it. A negative number becomes `None`.
pub(super) fn header(bytes: &[u8], at: usize, kind: u8) -> Read<(Option<u64>, usize)> {
    let rest = bytes.get(at..).unwrap_or_default();
    match rest.first() {
        None => return Read::Short,
        Some(byte) if *byte != kind => return Read::Bad,
        Some(_) => {}
    }
    let digits = rest.get(1..).unwrap_or_default();
    let line = digits.get(..digits.len().min(24)).unwrap_or_default();
    let Some(end) = memchr(b'\n', line) else {
        let valid = line.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'\r'));
        return if valid && digits.len() < 24 { Read::Short } else { Read::Bad };
    };
    let Some(text) = line.get(..end).and_then(|line| line.strip_suffix(b"\r")) else { return Read::Bad };
    let Some(number) = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()) else {
        return Read::Bad;
    };
    Read::Got((u64::try_from(number).ok(), at + 1 + end + 1))
}

/// A string at `at` that may be a name: its bytes (`None` if it is too long), and the position after it.
pub(super) fn word(bytes: &[u8], at: usize) -> Read<(Option<&[u8]>, usize)> {
    let (len, start) = match header(bytes, at, b'$') {
        Read::Got((Some(len), start)) => (len, start),
        Read::Got((None, _)) | Read::Bad => return Read::Bad,
        Read::Short => return Read::Short,
    };
    if len > NAME_LIMIT as u64 {
        return Read::Got((None, at));
    }
    let end = start + len as usize;
    match (bytes.get(start..end), bytes.get(end..end + 2)) {
        (Some(word), Some(b"\r\n")) => Read::Got((Some(word), end + 2)),
        (Some(_), Some(_)) => Read::Bad,
        _ => Read::Short,
    }
}

/// A string at `at`: as many of its bytes as there are, its length, and the position after it.
pub(super) fn string(bytes: &[u8], at: usize) -> Read<(&[u8], u64, usize)> {
    let (len, start) = match header(bytes, at, b'$') {
        Read::Got((Some(len), start)) => (len, start),
        Read::Got((None, _)) | Read::Bad => return Read::Bad,
        Read::Short => return Read::Short,
    };
    let Some(rest) = bytes.get(start..) else { return Read::Short };
    let wanted = usize::try_from(len).unwrap_or(usize::MAX);
    let found = rest.get(..wanted).unwrap_or(rest);
    Read::Got((found, len, start.saturating_add(wanted).saturating_add(2)))
}

/// The second and third element of a confirmation, from `at`: the channel (or null), and the number of subscriptions.
pub(super) fn confirmed(bytes: &[u8], at: usize) -> Read<u64> {
    let (len, start) = match header(bytes, at, b'$') {
        Read::Got(found) => found,
        Read::Short => return Read::Short,
        Read::Bad => match bytes.get(at..at + 3) {
            // RESP3's null.
            Some(b"_\r\n") => (None, at + 3),
            _ => return Read::Bad,
        },
    };
    let at = len.map_or(start, |len| start.saturating_add(len as usize).saturating_add(2));
    match header(bytes, at, b':') {
        Read::Got((count, _)) => Read::Got(count.unwrap_or(0)),
        Read::Short => Read::Short,
        Read::Bad => Read::Bad,
    }
}

/// The kind of the error at the front of `bytes`.
pub(super) fn error(bytes: &[u8]) -> Read<&'static str> {
    let text = match bytes.first() {
        Some(b'!') => match header(bytes, 0, b'!') {
            Read::Got((_, at)) => bytes.get(at..).unwrap_or_default(),
            Read::Short => return Read::Short,
            Read::Bad => return Read::Bad,
        },
        _ => bytes.get(1..).unwrap_or_default(),
    };
    let Some(end) = text.iter().position(|byte| matches!(byte, b' ' | b'\r' | b'\n')) else {
        return if text.len() <= NAME_LIMIT { Read::Short } else { Read::Got(OTHER_ERROR) };
    };
    let word = text.get(..end).unwrap_or_default();
    Read::Got(ERRORS.iter().copied().find(|known| known.as_bytes() == word).unwrap_or(OTHER_ERROR))
}

/// The kind of the error whose text begins with these seven bytes, of which the rest is not known.
pub(super) fn error_by_front(front: &[u8]) -> &'static str {
    let fits = |known: &&&str| {
        let word = front.split(|byte| matches!(byte, b' ' | b'\r' | b'\n')).next().unwrap_or_default();
        known.as_bytes() == word || (word.len() == front.len() && known.as_bytes().starts_with(word))
    };
    ERRORS.iter().find(fits).copied().unwrap_or(OTHER_ERROR)
}

/// The kind of the first error among the available elements of the array at the front of `bytes`, which has this many
/// more than it says.
pub(super) fn inner_error(bytes: &[u8], uncounted: u64) -> Option<&'static str> {
    let Read::Got((Some(count), mut at)) = header(bytes, 0, b'*') else { return None };
    for _ in 0..count.saturating_add(uncounted) {
        let rest = bytes.get(at..)?;
        if matches!(rest.first(), Some(b'-' | b'!')) {
            return match error(rest) {
                Read::Got(kind) => Some(kind),
                Read::Short | Read::Bad => Some(OTHER_ERROR),
            };
        }
        let Fed::End(used) = Elements::new(1).feed(rest) else { return None };
        at += used;
    }
    None
}
