//! Kafka's primitive types, in their two forms: those before flexible versions, and the compact ones with tagged fields
//! (KIP-482).

/// Reads values one after the other; `None` where one is cut, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    flexible: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], flexible: bool) -> Self {
        Self { bytes, flexible }
    }

    /// What follows, in the other form, or the same.
    pub(super) fn with(self, flexible: bool) -> Self {
        Self { flexible, ..self }
    }

    /// Passes over so many bytes.
    pub(super) fn skip(&mut self, len: usize) -> Option<()> {
        self.take(len).map(|_| ())
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(front)
    }

    pub(super) fn short(&mut self) -> Option<i16> {
        self.take(2)?.first_chunk().map(|bytes| i16::from_be_bytes(*bytes))
    }

    pub(super) fn long(&mut self) -> Option<i32> {
        self.take(4)?.first_chunk().map(|bytes| i32::from_be_bytes(*bytes))
    }

    /// A number in groups of seven bits, lowest first; of 32 bits.
    fn varint(&mut self) -> Option<u32> {
        let mut value = 0;
        for shift in [0, 7, 14, 21, 28] {
            let byte = u32::from(*self.take(1)?.first()?);
            value |= (byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// How many elements, or bytes, follow; null is as good as none. Not flexible: a number of 16 bits, or of 32.
    fn size(&mut self, short: bool) -> Option<usize> {
        if self.flexible {
            return Some(self.varint()?.saturating_sub(1) as usize);
        }
        match if short { i32::from(self.short()?) } else { self.long()? } {
            -1 => Some(0),
            len => usize::try_from(len).ok(),
        }
    }

    /// Elements of an array.
    pub(super) fn count(&mut self) -> Option<usize> {
        self.size(false)
    }

    /// A string.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.size(true)?;
        self.take(len)
    }

    /// Passes over bytes of any length.
    pub(super) fn blob(&mut self) -> Option<()> {
        let len = self.size(false)?;
        self.skip(len)
    }

    /// Passes over tagged fields, where there can be some.
    pub(super) fn tags(&mut self) -> Option<()> {
        if self.flexible {
            for _ in 0..self.varint()? {
                self.varint()?;
                let len = self.varint()?;
                self.skip(len as usize)?;
            }
        }
        Some(())
    }
}
