//! Cookie of a probe of a TLS library.

/// The function reads.
pub const READ: u64 = 1;
/// The function writes.
pub const WRITE: u64 = 2;
/// The function shakes hands.
pub const HANDSHAKE: u64 = 3;
/// The bits of the above.
pub const CALL: u64 = 3;
/// The function returns whether it succeeded, and stores the count where its fourth argument points; otherwise it
/// returns the count.
pub const STORES: u64 = 1 << 2;
/// The function's third argument, the length, is an `int`.
pub const INT: u64 = 1 << 3;
/// The function's fourth argument has flags, as [`LOOKS_AHEAD`].
pub const FLAGS: u64 = 1 << 4;
/// `PR_MSG_PEEK`: what is read is read again later.
pub const LOOKS_AHEAD: u64 = 2;
/// The function's first argument is not the object: its second word, at [`SECOND_WORD`] bytes, points to it.
pub const POINTS: u64 = 1 << 5;
/// See [`POINTS`].
pub const SECOND_WORD: u64 = 8;

/// Cookie of a probe inside a function (`UserProbe::TlsCopy`, `UserProbe::TlsRecord`): where the object, the type of
/// the record, the flag of a look ahead and the length of the reader's buffer are, as [`register`] or [`stack`]; 0:
/// nowhere.
pub const OBJECT: u32 = 0;
/// As [`OBJECT`]: the type, in its lowest byte.
pub const KIND: u32 = 10;
/// As [`OBJECT`]: the flag.
pub const PEEK: u32 = 20;
/// As [`OBJECT`]: the length.
pub const ASKED: u32 = 30;
/// The bits of each.
pub const LOCATION: u64 = 0x3ff;
/// Cookie of what writes: in the object, in words of 8 bytes, the BIO that it writes to; 0: not known.
pub const WRITTEN_BIO: u32 = 10;
/// Likewise: in that BIO, in words of 8 bytes, how many bytes were written to it; 0: not known.
pub const WRITTEN_COUNT: u32 = 20;
/// The bits of either.
pub const WRITTEN_BITS: u64 = 0x3f;
/// Cookie of a function that writes: in the object, in words of 4 bytes, the version of the protocol; 0: not known.
pub const VERSION: u32 = 30;
/// The bits of it.
pub const VERSION_BITS: u64 = 0x3ff;
/// Also in the cookie of a function that writes: in the object, in words of 8 bytes, its BIO for reading; 0: not
/// known, nor the following three.
pub const BIO: u32 = 40;
/// The bits of it.
pub const BIO_BITS: u64 = 0x3f;
/// In the BIO, in words of 4 bytes: its descriptor.
pub const DESCRIPTOR: u32 = 46;
/// The bits of it.
pub const DESCRIPTOR_BITS: u64 = 0x1f;
/// In the BIO, in words of 8 bytes: its method, which begins with its type.
pub const METHOD: u32 = 51;
/// The bits of it.
pub const METHOD_BITS: u64 = 0xf;
/// In the object, in words of 8 bytes: the client's random number, 32 bytes; 0: not known.
pub const RANDOM: u32 = 55;
/// The bits of it.
pub const RANDOM_BITS: u64 = 0x1ff;
/// `BIO_TYPE_DESCRIPTOR`, in a BIO's type: it has a descriptor.
pub const HAS_DESCRIPTOR: u32 = 0x100;

/// Bit of a location: in the register of this number, as instructions number them.
const REGISTER: u64 = 1 << 9;

/// The location of what is in a register that calls keep.
pub const fn register(number: u8) -> u64 {
    REGISTER | number as u64
}

/// The location of what is so many bytes above the stack pointer; `None` if it is too far.
pub fn stack(bytes: u32) -> Option<u64> {
    // 0 is nowhere.
    let place = u64::from(bytes) + 1;
    (place < REGISTER).then_some(place)
}

/// A location, as the probe reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Nowhere.
    Nowhere,
    /// In this register.
    Register(u64),
    /// So many bytes above the stack pointer.
    Stack(u64),
}

/// Reads one of the locations of a cookie.
#[inline(always)]
pub const fn location(cookie: u64, which: u32) -> Location {
    let bits = cookie >> which & LOCATION;
    if bits & REGISTER != 0 {
        Location::Register(bits & 0xf)
    } else if bits != 0 {
        Location::Stack(bits - 1)
    } else {
        Location::Nowhere
    }
}

/// Most that encryption adds to a record, its header included: a full block and a long digest.
const OVERHEAD: u32 = 5 + 96 + 256;

/// Whether more was sent since a record of `bytes` bytes of text was written than that record and a few alerts: text
/// may have been written by a way that is not watched. `sent`: by how much the socket's position moved.
#[inline(always)]
pub const fn wrote_unseen(bytes: u32, sent: u32) -> bool {
    sent > bytes.saturating_add(OVERHEAD)
}

/// Longest text of a record.
pub const LONGEST: u32 = 1 << 14;
/// Instead of the length of a reader's buffer: the text is that of a whole record.
pub const WHOLE_RECORD: u64 = u32::MAX as u64;
/// What encryption adds to a record, its header included, by ciphers that authenticate: least (ChaCha20 under TLS 1.2, RFC
/// 7905) and most (GCM under TLS 1.2, RFC 5288).
const ADDED: [u32; 2] = [5 + 16, 5 + 24];

/// Records that text of `bytes` bytes needs.
#[inline(always)]
const fn records_of(bytes: u32) -> u32 {
    bytes.saturating_sub(1) / LONGEST + 1
}

/// What ends the client's part of a session that it resumes under TLS 1.2 (RFC 5246, 7.1 and 7.4.9), but for what encryption
/// adds: the record that changes to it, and the 16 bytes of its first encrypted message.
const FINISHED_12: u32 = 6 + 16;

/// Where text begins in what a call wrote: `written` bytes, the last of them `bytes` bytes of text, the connection's `first` or
/// later ones. Before them it may have shaken hands. Under TLS 1.3, which adds the same to each record by any cipher, that
/// may be any message; under TLS 1.2 the end of a resumed session's, by ciphers that authenticate.
#[inline(always)]
pub const fn text_begins(bytes: u32, written: u32, version: u32, first: bool) -> Option<u32> {
    let records = records_of(bytes);
    let added = written.wrapping_sub(bytes);
    if added >= records.wrapping_mul(ADDED[0]) && added <= records.wrapping_mul(ADDED[1]) {
        return Some(0);
    }
    if version == TLS_12 && first {
        let begun = added.wrapping_sub(FINISHED_12);
        if begun == (records + 1).wrapping_mul(ADDED[0]) {
            return Some(FINISHED_12 + ADDED[0]);
        }
        if begun == (records + 1).wrapping_mul(ADDED[1]) {
            return Some(FINISHED_12 + ADDED[1]);
        }
    }
    let least = records.wrapping_mul(ADDED_13);
    if version == TLS_13 && added >= least && added < 1 << 20 { Some(added - least) } else { None }
}

/// How much of a write of `most` bytes left with an operation that sent `sent` bytes and nothing else, and what encryption
/// added to each record, its header included: all of it, or as many of the longest records as there was room for. `added`:
/// known from an earlier write; else 0. `None`: other bytes, or not only these.
#[inline(always)]
pub fn text_in(sent: u32, most: u32, added: u32) -> Option<(u32, u32)> {
    let fits = |each: u32| {
        let records = sent / (LONGEST + each);
        if added != 0 && added != each {
            None
        } else if sent.wrapping_sub(most) == records_of(most).wrapping_mul(each) {
            Some((most, each))
        } else if records != 0 && records * (LONGEST + each) == sent && records * LONGEST < most {
            Some((records * LONGEST, each))
        } else {
            None
        }
    };
    fits(ADDED_13).or_else(|| fits(ADDED[1])).or_else(|| fits(ADDED[0]))
}

/// TLS 1.3, as OpenSSL numbers it, and what it adds to a record, its header included.
const TLS_13: u32 = 0x304;
/// TLS 1.2, likewise.
const TLS_12: u32 = 0x303;
const ADDED_13: u32 = 5 + 17;

/// What an object wrote to a BIO that may keep it for a while, since all of it was last known to have left.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsentRecords {
    /// Bytes of text.
    pub bytes: u32,
    /// Records; 0: none yet.
    pub records: u32,
    /// The socket's position before the first of them.
    pub at: u32,
    /// What encryption adds to a record, its header included, once that is known; else 0.
    pub overhead: u32,
}

impl UnsentRecords {
    /// Nothing yet.
    pub const NOTHING: Self = Self { bytes: 0, records: 0, at: 0, overhead: 0 };
    /// Most records by which that is judged.
    const JUDGED: u32 = 16;

    /// Text of `len` bytes is written, in as many records as it needs, while the socket is at `seq`. Whether it is
    /// certain to begin there: the socket moved by exactly what was written before. After a record that was not seen,
    /// none is.
    #[inline(always)]
    pub fn is_placed(&mut self, len: u32, seq: u32) -> bool {
        let added = seq.wrapping_sub(self.at).wrapping_sub(self.bytes);
        let placed = if self.records == 0 {
            true
        } else if self.overhead != 0 {
            added == self.records.wrapping_mul(self.overhead)
        } else {
            let each = added / self.records;
            let fits = self.records <= Self::JUDGED && each * self.records == added;
            let fits = fits && each >= ADDED[0] && each <= ADDED[1];
            if fits {
                self.overhead = each;
            }
            fits
        };
        let records = records_of(len);
        if placed {
            (self.bytes, self.records, self.at) = (len, records, seq);
        } else {
            self.bytes = self.bytes.wrapping_add(len);
            self.records = self.records.wrapping_add(records);
        }
        placed
    }
}
