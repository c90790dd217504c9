//! HPACK (RFC 7541): decodes header blocks into the fields that matter here.
//!
//! A hand-written decoder: existing ones need the table from its beginning and refuse a block with one unknown index,
//! while the tracer may join a connection in mid-stream or miss a block. Indexes count back from the newest entry, so
//! entries added since are known and earlier ones are not; the evicted end need not be known. Values of unwanted fields
//! (cookies, authorization) are not kept at all.

use std::collections::VecDeque;

use super::huffman;
use super::pack::{pack, unpack};
use crate::Settings;
use crate::context::Which;

/// Most bytes kept of a table, counted as in the protocol (names, values and 32 bytes each). Older entries are as
/// unknown as those from before the connection was joined.
const KEPT: u32 = 16 * 1024;
/// The table's default size (RFC 9113 §6.5.2).
const DEFAULT_SIZE: u32 = 4096;
/// Entries of the static table.
const STATIC: usize = 61;
/// Most bytes of a value kept.
const VALUE_LIMIT: usize = 1024;
/// Longest string decoded.
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

/// Value of a static table entry, if it matters.
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

/// The fields that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Method,
    Path,
    /// The beginning of a path that was not captured whole.
    CutPath,
    Scheme,
    Authority,
    Status,
    ContentLength,
    ContentType,
    GrpcStatus,
    /// A field that carries trace context.
    Context(Which),
    RequestId,
    /// A header that a rule wants, by its index in [`Settings::headers`].
    Wanted(u16),
    /// A field that is not wanted.
    Other,
    /// Its entry was added to the table before the tracer saw the connection, or in missed bytes.
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
pub(super) struct TableEntry {
    pub(super) name: Name,
    /// At most [`VALUE_LIMIT`] bytes of the value.
    pub(super) value: Box<[u8]>,
    /// Size as the protocol counts it.
    pub(super) size: u32,
}

/// How reading a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// At its end.
    Whole,
    /// In the middle, or at something unreadable: its additions to the table are unknown.
    Broken,
}

/// One direction's dynamic table, newest entry first.
#[derive(Debug)]
pub(super) struct Table {
    entries: Entries,
    size: u32,
    limit: u32,
}

/// The table's entries: a list while active, bytes while idle. They are most of the memory an idle connection takes.
#[derive(Debug)]
enum Entries {
    #[expect(clippy::box_collection, reason = "what rests has no room for a list's head")]
    Listed(Box<VecDeque<TableEntry>>),
    Packed(Box<[u8]>),
}

impl Entries {
    fn none() -> Self {
        Self::Packed(Box::default())
    }

    /// The list, unpacked if necessary.
    fn listed(&mut self) -> &mut VecDeque<TableEntry> {
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
struct BlockReader<'a> {
    bytes: &'a [u8],
}

impl<'a> BlockReader<'a> {
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

    /// A string literal (§5.2): its text, decoded into `text` if Huffman-coded, and its total length.
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

impl<'a> BlockReader<'a> {
    /// What there is of a string that does not end in the block.
    fn cut_string<'b>(&self, text: &'b mut Vec<u8>) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        let encoded = self.bytes.first()? & 0x80 != 0;
        let mut reader = Self { bytes: self.bytes };
        let length = reader.integer(7)?;
        if length <= reader.bytes.len() || length > STRING_LIMIT {
            return None;
        }
        if !encoded {
            return Some(reader.bytes);
        }
        text.clear();
        // Its last symbol may be cut, which is no error here.
        let _ = huffman::decode(reader.bytes, text);
        Some(text)
    }
}

impl Table {
    /// A table as at the beginning of a connection; `joined`: as for a connection joined in mid-stream.
    pub(super) fn new(joined: bool) -> Self {
        Self { entries: Entries::none(), size: 0, limit: if joined { KEPT } else { DEFAULT_SIZE } }
    }

    /// The latest additions are unknown, so no index can be resolved any more.
    pub(super) fn poison(&mut self) {
        self.entries = Entries::none();
        self.size = 0;
        self.limit = KEPT;
    }

    /// Packs the table of an idle connection.
    pub(super) fn rest(&mut self) {
        if let Entries::Listed(listed) = &self.entries {
            self.entries = Entries::Packed(pack(listed.iter()));
        }
    }

    /// Bytes of memory it takes.
    pub(super) fn bytes(&self) -> usize {
        match &self.entries {
            Entries::Listed(listed) => {
                let values: usize = listed.iter().map(|entry| entry.value.len()).sum();
                listed.capacity() * size_of::<TableEntry>() + values
            }
            Entries::Packed(packed) => packed.len(),
        }
    }

    /// Reads a header block; `field` takes each field: its name and, unless the entry is unknown, up to [`VALUE_LIMIT`]
    /// bytes of its value. An incomplete block poisons the table.
    pub(super) fn decode(
        &mut self,
        block: &[u8],
        whole: bool,
        settings: &Settings,
        mut field: impl FnMut(Name, &[u8]),
    ) -> Ended {
        let mut reader = BlockReader { bytes: block };
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
        reader: &mut BlockReader<'_>,
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
            // The name's length only matters for the entry's size: assuming 0, nothing is evicted early.
            index => {
                let known = self.entries.listed().get(index - STATIC - 1);
                known.map_or((Name::Unknown, 0), |entry| (entry.name, 0))
            }
        };
        if name == Name::Path
            && let Some(front) = reader.cut_string(text)
        {
            field(Name::CutPath, front.get(..front.len().min(VALUE_LIMIT)).unwrap_or_default());
            return None;
        }
        let value = reader.string(text)?;
        let length = value.len();
        let kept = value.get(..length.min(VALUE_LIMIT)).unwrap_or_default();
        field(name, kept);
        if indexed {
            let kept = if matches!(name, Name::Other | Name::Unknown) { &[] } else { kept };
            let entry = TableEntry { name, value: Box::from(kept), size: (name_length + length + 32) as u32 };
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
mod tests;
