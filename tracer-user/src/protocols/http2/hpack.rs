//! HPACK (RFC 7541): header blocks to the fields that matter here.
//!
//! A decoder of its own: those there are want the table from its beginning and refuse a block with one unknown index,
//! while a connection may be joined in its middle or lose a block. Entries are found from the newest backwards, so that
//! those added since are known and those before are not; the ends of what was forgotten need not be known. Values of
//! fields nobody asks for (cookies, authorization) are not kept at all.

use std::collections::VecDeque;

use super::huffman;
use super::pack::{pack, unpack};
use crate::protocols::Settings;
use crate::protocols::context::Which;

/// Most that is kept of a table, counted as the protocol does (names, values and 32 bytes each). Older entries are as
/// unknown as those from before the connection was joined.
const KEPT: u32 = 16 * 1024;
/// The table's size when nobody says otherwise (RFC 9113 §6.5.2).
const DEFAULT_SIZE: u32 = 4096;
/// Entries of the static table.
const STATIC: usize = 61;
/// Most bytes kept of a value.
const VALUE_LIMIT: usize = 1024;
/// Longest string that is looked into.
const STRING_LIMIT: usize = 64 * 1024;

/// Names of the static table (appendix A).
const STATIC_NAMES: [&str; STATIC] = [
    ":authority",
    ":method",
    ":method",
    ":path",
    ":path",
    ":scheme",
    ":scheme",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "accept",
    "access-control-allow-origin",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "link",
    "location",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "refresh",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "transfer-encoding",
    "user-agent",
    "vary",
    "via",
    "www-authenticate",
];

/// Value of an entry of the static table, where it has one that matters.
fn static_value(index: usize) -> &'static [u8] {
    match index {
        2 => b"GET",
        3 => b"POST",
        4 => b"/",
        5 => b"/index.html",
        6 => b"http",
        7 => b"https",
        8 => b"200",
        9 => b"204",
        10 => b"206",
        11 => b"304",
        12 => b"400",
        13 => b"404",
        14 => b"500",
        _ => b"",
    }
}

/// Which field it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Method,
    Path,
    Scheme,
    Authority,
    Status,
    ContentLength,
    ContentType,
    GrpcStatus,
    /// One that says which transaction it is.
    Context(Which),
    RequestId,
    /// One that a rule asks for, by its index in [`Settings::headers`].
    Wanted(u16),
    /// One that nobody asks for.
    Other,
    /// Its entry was added to the table before the connection was seen, or in bytes that were not.
    Unknown,
}

impl Name {
    fn of(name: &[u8], settings: &Settings) -> Self {
        let known = match name {
            b":method" => Self::Method,
            b":path" => Self::Path,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":status" => Self::Status,
            b"content-length" => Self::ContentLength,
            b"content-type" => Self::ContentType,
            b"grpc-status" => Self::GrpcStatus,
            b"x-request-id" if settings.request_id => Self::RequestId,
            _ => Self::Other,
        };
        if known != Self::Other {
            return known;
        }
        if let Some(which) = Which::of(name, settings) {
            return Self::Context(which);
        }
        let wanted = settings.headers.iter().position(|wanted| wanted.as_bytes() == name);
        wanted.map_or(Self::Other, |index| Self::Wanted(index as u16))
    }
}

/// An entry of the dynamic table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Name,
    /// At most [`VALUE_LIMIT`] bytes of it.
    pub(super) value: Box<[u8]>,
    /// As the protocol counts it.
    pub(super) size: u32,
}

/// How the reading of a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// At its end.
    Whole,
    /// In the middle of it, or in what cannot be read: what it adds to the table is not known.
    Broken,
}

/// One direction's dynamic table, newest entry first.
#[derive(Debug)]
pub(super) struct Table {
    entries: Entries,
    size: u32,
    limit: u32,
}

/// Its entries: in a list, or as bytes while it rests. Of an idle connection it is most of what is kept.
#[derive(Debug)]
enum Entries {
    #[expect(clippy::box_collection, reason = "what rests has no room for a list's head")]
    Listed(Box<VecDeque<Entry>>),
    Packed(Box<[u8]>),
}

impl Entries {
    fn none() -> Self {
        Self::Packed(Box::default())
    }

    /// The list.
    fn listed(&mut self) -> &mut VecDeque<Entry> {
        if let Self::Packed(packed) = self {
            *self = Self::Listed(Box::new(unpack(packed)));
        }
        match self {
            Self::Listed(listed) => listed,
            Self::Packed(_) => unreachable!("it was listed above"),
        }
    }
}

/// Takes integers and strings off a block.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// An integer with a prefix of `bits` bits (§5.1).
    fn integer(&mut self, bits: u32) -> Option<usize> {
        let (first, mut rest) = self.bytes.split_first()?;
        let most = (1usize << bits) - 1;
        let mut value = usize::from(*first) & most;
        if value == most {
            let mut shift = 0;
            loop {
                let (byte, after) = rest.split_first()?;
                rest = after;
                value += usize::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    break;
                }
                if shift > 28 {
                    return None;
                }
            }
        }
        self.bytes = rest;
        Some(value)
    }

    /// A string literal (§5.2): its text, decoded into `text` where it is encoded, and the length of it all.
    fn string<'b>(&mut self, text: &'b mut Vec<u8>) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        let encoded = self.bytes.first()? & 0x80 != 0;
        let length = self.integer(7)?;
        if length > STRING_LIMIT {
            return None;
        }
        let (string, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        if !encoded {
            return Some(string);
        }
        text.clear();
        huffman::decode(string, text)?;
        Some(text)
    }
}

impl Table {
    /// A table as it is when a connection begins; `joined`: as it is when one is found in its middle.
    pub(super) fn new(joined: bool) -> Self {
        Self { entries: Entries::none(), size: 0, limit: if joined { KEPT } else { DEFAULT_SIZE } }
    }

    /// What was added last is not known: nothing that is in it can be found any more.
    pub(super) fn poison(&mut self) {
        self.entries = Entries::none();
        self.size = 0;
        self.limit = KEPT;
    }

    /// It is not used for a while.
    pub(super) fn rest(&mut self) {
        if let Entries::Listed(listed) = &self.entries {
            self.entries = Entries::Packed(pack(listed.iter()));
        }
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        match &self.entries {
            Entries::Listed(listed) => {
                let values: usize = listed.iter().map(|entry| entry.value.len()).sum();
                listed.capacity() * size_of::<Entry>() + values
            }
            Entries::Packed(packed) => packed.len(),
        }
    }

    /// Reads a header block; `field` takes each field: its name and, unless the entry is unknown, its value, of which
    /// [`VALUE_LIMIT`] bytes are given. A block that is not whole poisons the table.
    pub(super) fn decode(
        &mut self,
        block: &[u8],
        whole: bool,
        settings: &Settings,
        mut field: impl FnMut(Name, &[u8]),
    ) -> Ended {
        let mut reader = Reader { bytes: block };
        let mut text = Vec::new();
        while !reader.bytes.is_empty() {
            if self.field(&mut reader, &mut text, settings, &mut field).is_none() {
                self.poison();
                return Ended::Broken;
            }
        }
        if !whole {
            self.poison();
            return Ended::Broken;
        }
        Ended::Whole
    }

    /// Reads one representation (§6).
    fn field(
        &mut self,
        reader: &mut Reader<'_>,
        text: &mut Vec<u8>,
        settings: &Settings,
        field: &mut impl FnMut(Name, &[u8]),
    ) -> Option<()> {
        let first = *reader.bytes.first()?;
        if first & 0x80 != 0 {
            match reader.integer(7)? {
                0 => return None,
                index if index <= STATIC => {
                    field(Name::of(STATIC_NAMES[index - 1].as_bytes(), settings), static_value(index));
                }
                index => match self.entries.listed().get(index - STATIC - 1) {
                    Some(entry) => field(entry.name, &entry.value),
                    None => field(Name::Unknown, b""),
                },
            }
            return Some(());
        }
        if first & 0xe0 == 0x20 {
            self.limit = u32::try_from(reader.integer(5)?).unwrap_or(KEPT).min(KEPT);
            self.evict();
            return Some(());
        }
        let indexed = first & 0xc0 == 0x40;
        let index = reader.integer(if indexed { 6 } else { 4 })?;
        let (name, name_length) = match index {
            0 => {
                let name = reader.string(text)?;
                (Name::of(name, settings), name.len())
            }
            index if index <= STATIC => {
                let name = STATIC_NAMES[index - 1].as_bytes();
                (Name::of(name, settings), name.len())
            }
            // The length of a name is only needed for its entry's size: as if none were there, nothing is evicted early.
            index => {
                let known = self.entries.listed().get(index - STATIC - 1);
                known.map_or((Name::Unknown, 0), |entry| (entry.name, 0))
            }
        };
        let value = reader.string(text)?;
        let length = value.len();
        let kept = value.get(..length.min(VALUE_LIMIT)).unwrap_or_default();
        field(name, kept);
        if indexed {
            let kept = if matches!(name, Name::Other | Name::Unknown) { &[] } else { kept };
            let entry = Entry { name, value: Box::from(kept), size: (name_length + length + 32) as u32 };
            self.size += entry.size;
            self.entries.listed().push_front(entry);
            self.evict();
        }
        Some(())
    }

    fn evict(&mut self) {
        while self.size > self.limit
            && let Some(entry) = self.entries.listed().pop_back()
        {
            self.size -= entry.size;
        }
    }
}

#[cfg(test)]
#[path = "hpack_tests.rs"]
mod tests;
