//! Fields of methods and of message headers.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Takes fields off the front; `None` for missing ones.
#[derive(Debug)]
pub(super) struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*front)
    }

    fn skip(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(front)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(super) fn short(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(super) fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// A short string.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.byte()?;
        self.skip(usize::from(len))
    }

    /// Skips a value of a table; returns it if it is a long string, otherwise empty.
    fn value(&mut self) -> Option<&'a [u8]> {
        let len = match self.byte()? {
            b't' | b'b' | b'B' => 1,
            b'U' | b'u' | b's' => 2,
            b'I' | b'i' | b'f' => 4,
            b'l' | b'L' | b'd' | b'T' => 8,
            b'D' => 5,
            b'V' => 0,
            b'S' => {
                let len = self.word()?;
                return self.skip(len as usize);
            }
            b'x' | b'A' | b'F' => self.word()? as usize,
            _ => return None,
        };
        self.skip(len).map(|_| &[][..])
    }
}

/// Exchange and routing key as one name, `exchange:key`; the key alone for the nameless exchange.
pub(super) fn destination(fields: &mut FieldReader<'_>) -> Vec<u8> {
    let exchange = fields.text().unwrap_or_default();
    let key = fields.text().unwrap_or_default();
    match (exchange.is_empty(), key.is_empty()) {
        (true, _) => key.to_vec(),
        (false, true) => exchange.to_vec(),
        (false, false) => [exchange, b":", key].concat(),
    }
}

/// Short hash that distinguishes destinations.
pub(super) fn note(destination: &[u8]) -> u16 {
    let mut hasher = DefaultHasher::new();
    destination.hash(&mut hasher);
    hasher.finish() as u16
}

/// A string among a message's headers, if its properties have these flags.
pub(super) fn header<'a>(fields: &mut FieldReader<'a>, flags: u16, wanted: &[u8]) -> Option<&'a [u8]> {
    for flag in [15, 14] {
        if flags & 1 << flag != 0 {
            fields.text()?;
        }
    }
    if flags & 1 << 13 == 0 {
        return None;
    }
    let len = fields.word()? as usize;
    let rest = fields.rest;
    let mut table = FieldReader::new(rest.get(..len).unwrap_or(rest));
    loop {
        let name = table.text()?;
        let value = table.value()?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
    }
}
