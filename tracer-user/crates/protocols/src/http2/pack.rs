//! Packs the table of an idle connection into bytes: an active entry takes some 60 bytes, a packed one a few.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::hpack::{Name, TableEntry};
use crate::context::Which;

/// Names by their packed numbers; from [`WANTED`] on, headers that rules want.
const NAMES: [Name; 19] = [
    Name::Method,
    Name::Path,
    Name::Scheme,
    Name::Authority,
    Name::Status,
    Name::ContentLength,
    Name::ContentType,
    Name::GrpcStatus,
    Name::RequestId,
    Name::Other,
    Name::Unknown,
    Name::Context(Which::TraceParent),
    Name::Context(Which::TraceState),
    Name::Context(Which::Baggage),
    Name::Context(Which::B3),
    Name::Context(Which::TraceId),
    Name::Context(Which::SpanId),
    Name::Context(Which::Sampled),
    Name::Context(Which::Flags),
];
const WANTED: u16 = 64;

/// The packed number of a name; exhaustive, so a new name must get one.
fn number(name: Name) -> u16 {
    match name {
        Name::Method => 0,
        // Only a whole path is kept.
        Name::Path | Name::CutPath => 1,
        Name::Scheme => 2,
        Name::Authority => 3,
        Name::Status => 4,
        Name::ContentLength => 5,
        Name::ContentType => 6,
        Name::GrpcStatus => 7,
        Name::RequestId => 8,
        Name::Other => 9,
        Name::Unknown => 10,
        Name::Context(Which::TraceParent) => 11,
        Name::Context(Which::TraceState) => 12,
        Name::Context(Which::Baggage) => 13,
        Name::Context(Which::B3) => 14,
        Name::Context(Which::TraceId) => 15,
        Name::Context(Which::SpanId) => 16,
        Name::Context(Which::Sampled) => 17,
        Name::Context(Which::Flags) => 18,
        Name::Wanted(index) => index.saturating_add(WANTED),
    }
}

/// Writes a number, seven bits per byte, lowest first.
fn put(out: &mut Vec<u8>, mut number: u32) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Overhead per entry beside name and value (RFC 7541 §4.1).
const EACH: u32 = 32;

/// Values common to the tables of many connections on a host: paths, hosts, content types. Each gets a number for the
/// agent's lifetime; beyond [`VALUES`], and for longer values, every table stores its own copy.
#[derive(Debug, Default)]
struct SharedValues {
    numbers: HashMap<Arc<[u8]>, u32>,
    values: Vec<Arc<[u8]>>,
}

const VALUES: usize = 4096;
const LONGEST: usize = 64;

fn known() -> MutexGuard<'static, SharedValues> {
    static KNOWN: LazyLock<Mutex<SharedValues>> = LazyLock::new(Mutex::default);
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedValues {
    /// The number of a value worth sharing.
    fn number(&mut self, name: Name, value: &[u8]) -> Option<u32> {
        if !matches!(name, Name::Path | Name::Authority | Name::ContentType) || !(5..=LONGEST).contains(&value.len()) {
            return None;
        }
        if let Some(number) = self.numbers.get(value) {
            return Some(*number);
        }
        if self.values.len() >= VALUES {
            return None;
        }
        let (number, value) = (self.values.len() as u32, Arc::<[u8]>::from(value));
        self.values.push(Arc::clone(&value));
        self.numbers.insert(value, number);
        Some(number)
    }
}

/// Packs the entries: name, size, and value or its number for each; for an unwanted entry only its size, marked by an
/// odd number.
pub(super) fn pack<'a>(entries: impl IntoIterator<Item = &'a TableEntry>) -> Box<[u8]> {
    let (mut out, mut known) = (Vec::new(), known());
    for TableEntry { name, value, size } in entries {
        if *name == Name::Other && value.is_empty() && (EACH..1 << 30).contains(size) {
            put(&mut out, (size - EACH) << 1 | 1);
            continue;
        }
        let shared = known.number(*name, value);
        put(&mut out, u32::from(number(*name)) << 2 | u32::from(shared.is_some()) << 1);
        put(&mut out, *size);
        if let Some(shared) = shared {
            put(&mut out, shared);
            continue;
        }
        put(&mut out, value.len() as u32);
        out.extend_from_slice(value);
    }
    out.into_boxed_slice()
}

/// Unpacks the entries.
pub(super) fn unpack(mut bytes: &[u8]) -> VecDeque<TableEntry> {
    let (mut entries, known) = (VecDeque::new(), known());
    while let Some((entry, rest)) = one(bytes, &known) {
        entries.push_back(entry);
        bytes = rest;
    }
    entries
}

fn one<'a>(mut bytes: &'a [u8], known: &SharedValues) -> Option<(TableEntry, &'a [u8])> {
    let first = take(&mut bytes)?;
    if first & 1 == 1 {
        return Some((TableEntry { name: Name::Other, value: Box::default(), size: (first >> 1) + EACH }, bytes));
    }
    let number = u16::try_from(first >> 2).ok()?;
    let own = NAMES.get(usize::from(number)).copied();
    let name = own.unwrap_or(Name::Wanted(number.saturating_sub(WANTED)));
    let size = take(&mut bytes)?;
    let length = take(&mut bytes)? as usize;
    if first & 2 != 0 {
        let value = known.values.get(length)?;
        return Some((TableEntry { name, value: Box::from(&**value), size }, bytes));
    }
    let (value, rest) = bytes.split_at_checked(length)?;
    Some((TableEntry { name, value: Box::from(value), size }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let names = NAMES.into_iter().chain([Name::Wanted(0), Name::Wanted(300)]);
        assert!(NAMES.iter().enumerate().all(|(n, name)| usize::from(number(*name)) == n));
        let entry = |(n, name)| TableEntry { name, value: vec![7; n * 100].into(), size: 32 + n as u32 * 5000 };
        let plain = |size| TableEntry { name: Name::Other, value: Box::default(), size };
        let plain = [plain(32), plain(95), plain(96), plain(20_000), plain(7), plain(u32::MAX)];
        let entries: VecDeque<TableEntry> = plain.into_iter().chain(names.enumerate().map(entry)).collect();
        let packed = pack(&entries);
        let path = TableEntry { name: Name::Path, value: b"/shop.v1.Cart/Get".as_slice().into(), size: 54 };
        let packed_path = pack([&path]);
        assert!(packed_path.len() < 6 && unpack(&packed_path) == [path]);
        assert_eq!(unpack(&packed), entries);
        assert!(unpack(&packed[..packed.len() - 1]).len() == entries.len() - 1 && unpack(b"").is_empty());
    }
}
