//! BSON (bsonspec.org), as far as commands need it: the elements of a document, one level at a time.
//!
//! A small hand-written reader: documents arrive cut, and only a few of their first elements matter.

/// Longest element name read, in bytes.
const NAME: usize = 64;

/// An element's value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// A string.
    Text(&'a [u8]),
    /// An integer; doubles and booleans are converted.
    Number(i64),
    /// A document, or an array, which is a document keyed by indices.
    Document(Elements<'a>),
    /// Anything else.
    Other,
}

/// The elements of a document, as far as captured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    /// The elements of the document at the front of `bytes`, which may be cut.
    pub(super) fn of(bytes: &'a [u8]) -> Option<Self> {
        let len = usize::try_from(long(bytes, 0)?).ok().filter(|len| *len >= 5)?;
        Some(Self { rest: bytes.get(4..len.min(bytes.len())).unwrap_or_default() })
    }

    /// The value of the first element of this name.
    pub(super) fn get(&self, wanted: &[u8]) -> Option<Value<'a>> {
        self.clone().find(|(name, _)| *name == wanted).map(|(_, value)| value)
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = (&'a [u8], Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.rest);
        let kind = *bytes.first().filter(|kind| **kind != 0)?;
        let (name, at) = text(bytes, 1)?;
        let fixed = |bytes: usize| Some((Value::Other, at + bytes));
        let (value, end) = match kind {
            0x01 => (Value::Number(double(bytes, at)?), at + 8),
            0x02 | 0x0d | 0x0e => {
                let len = length(bytes, at)?;
                // The length counts the terminating zero.
                let text = bytes.get(at + 4..(at + 4 + len).saturating_sub(1)).map_or(Value::Other, Value::Text);
                (text, at + 4 + len)
            }
            0x03 | 0x04 => (Value::Document(Self::of(bytes.get(at..)?)?), at + length(bytes, at)?),
            0x05 => (Value::Other, at + 5 + length(bytes, at)?),
            0x06 | 0x0a | 0x7f | 0xff => (Value::Other, at),
            0x07 => fixed(12)?,
            0x08 => (Value::Number(i64::from(*bytes.get(at)?)), at + 1),
            0x09 | 0x11 => fixed(8)?,
            0x0b => (Value::Other, text(bytes, text(bytes, at)?.1)?.1),
            0x0c => (Value::Other, at + 4 + length(bytes, at)? + 12),
            0x0f => (Value::Other, at + length(bytes, at)?),
            0x10 => (Value::Number(i64::from(long(bytes, at)?)), at + 4),
            0x12 => (Value::Number(i64::from_le_bytes(*bytes.get(at..)?.first_chunk()?)), at + 8),
            0x13 => fixed(16)?,
            _ => return None,
        };
        // An element longer than the captured bytes is the last one read.
        self.rest = bytes.get(end..).unwrap_or_default();
        Some((name, value))
    }
}

/// A 32-bit number.
pub(super) fn long(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..)?.first_chunk().map(|four| i32::from_le_bytes(*four))
}

/// A 32-bit number that is a length.
fn length(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(long(bytes, at)?).ok()
}

fn double(bytes: &[u8], at: usize) -> Option<i64> {
    let value = f64::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
    #[expect(clippy::cast_possible_truncation, reason = "what matters is 0, 1 and codes")]
    Some(value as i64)
}

/// Zero-terminated text, and the offset after it; `None` without a zero, or if it comes too late.
pub(super) fn text(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(at..)?;
    let len = rest.iter().take(NAME * 4).position(|byte| *byte == 0)?;
    Some((rest.get(..len)?, at + len + 1))
}
