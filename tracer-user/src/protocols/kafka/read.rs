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

    /// The next bytes.
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
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

    /// Bytes of any length, as far as they are there, and whether all of them are.
    pub(super) fn blob_as_far(&mut self) -> Option<(&'a [u8], bool)> {
        let len = self.size(false)?;
        if let Some(all) = self.take(len) {
            return Some((all, true));
        }
        Some((std::mem::take(&mut self.bytes), false))
    }

    /// Passes over a topic's name, or number.
    pub(super) fn topic(&mut self, by_id: bool) -> Option<()> {
        if by_id { self.skip(16) } else { self.text().map(|_| ()) }
    }

    /// A number as records have it: of 32 bits, zigzag (protocol buffers' `sint32`).
    pub(super) fn signed(&mut self) -> Option<i32> {
        let value = self.varint()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Bytes as records have them, behind their length; null is as good as none.
    pub(super) fn piece(&mut self) -> Option<&'a [u8]> {
        let len = self.signed()?;
        self.take(usize::try_from(len).unwrap_or_default())
    }

    /// Passes over a number in groups of seven bits, of up to 64.
    pub(super) fn passed(&mut self) -> Option<()> {
        for _ in 0..10 {
            if *self.take(1)?.first()? < 0x80 {
                return Some(());
            }
        }
        None
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
