//! Kafka's primitive types in both forms: classic, and compact with tagged fields (flexible versions, KIP-482).

/// Reads consecutive values; `None` if one is cut or invalid.
#[derive(Clone, Copy, Debug)]
pub(super) struct KafkaReader<'a> {
    bytes: &'a [u8],
    flexible: bool,
}

impl<'a> KafkaReader<'a> {
    pub(super) fn new(bytes: &'a [u8], flexible: bool) -> Self {
        Self { bytes, flexible }
    }

    /// The rest of the bytes, in the given form.
    pub(super) fn with(self, flexible: bool) -> Self {
        Self { flexible, ..self }
    }

    /// Skips this many bytes.
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

    /// A varint of 32 bits: groups of seven bits, lowest first.
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

    /// Number of elements or bytes that follow; null counts as 0. In the classic form a 16-bit or a 32-bit number.
    fn size(&mut self, short: bool) -> Option<usize> {
        if self.flexible {
            return Some(self.varint()?.saturating_sub(1) as usize);
        }
        match if short { i32::from(self.short()?) } else { self.long()? } {
            -1 => Some(0),
            len => usize::try_from(len).ok(),
        }
    }

    /// Number of elements of an array.
    pub(super) fn count(&mut self) -> Option<usize> {
        self.size(false)
    }

    /// A string.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.size(true)?;
        self.take(len)
    }

    /// Bytes of any length, as far as available, and whether they are complete.
    pub(super) fn blob_as_far(&mut self) -> Option<(&'a [u8], bool)> {
        let len = self.size(false)?;
        if let Some(all) = self.take(len) {
            return Some((all, true));
        }
        Some((std::mem::take(&mut self.bytes), false))
    }

    /// Skips a topic's name or id.
    pub(super) fn topic(&mut self, by_id: bool) -> Option<()> {
        if by_id { self.skip(16) } else { self.text().map(|_| ()) }
    }

    /// A number in the form records use: 32 bits, zigzag (protocol buffers' `sint32`).
    pub(super) fn signed(&mut self) -> Option<i32> {
        let value = self.varint()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Bytes in the form records use, after their length; null counts as empty.
    pub(super) fn piece(&mut self) -> Option<&'a [u8]> {
        let len = self.signed()?;
        self.take(usize::try_from(len).unwrap_or_default())
    }

    /// Skips a varint of up to 64 bits.
    pub(super) fn passed(&mut self) -> Option<()> {
        for _ in 0..10 {
            if *self.take(1)?.first()? < 0x80 {
                return Some(());
            }
        }
        None
    }

    /// Skips tagged fields in flexible versions.
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
