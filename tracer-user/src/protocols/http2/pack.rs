//! A table that is not used for a while, as bytes: entries take some 60 bytes each while it is, and some 10 here.

use std::collections::VecDeque;

use super::hpack::{Entry, Name};
use crate::protocols::context::Which;

/// Names by their numbers here; from [`WANTED`] on those that rules ask for.
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

/// The number of a name; a new one does not compile before it has one.
fn number(name: Name) -> u16 {
    match name {
        Name::Method => 0,
        Name::Path => 1,
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

/// The entries as bytes: of each its name, its size, its value's length, its value.
pub(super) fn pack(entries: &VecDeque<Entry>) -> Box<[u8]> {
    let mut out = Vec::with_capacity(entries.iter().map(|entry| 8 + entry.value.len()).sum());
    for Entry { name, value, size } in entries {
        // Of no header that matters more is looked at.
        let value = value.get(..value.len().min(usize::from(u16::MAX))).unwrap_or_default();
        out.extend_from_slice(&number(*name).to_le_bytes());
        out.extend_from_slice(&size.to_le_bytes());
        out.extend_from_slice(&(value.len() as u16).to_le_bytes());
        out.extend_from_slice(value);
    }
    out.into_boxed_slice()
}

/// The entries again.
pub(super) fn unpack(mut bytes: &[u8]) -> VecDeque<Entry> {
    let mut entries = VecDeque::new();
    while let Some(([n0, n1, s0, s1, s2, s3, l0, l1], rest)) = bytes.split_first_chunk() {
        let number = u16::from_le_bytes([*n0, *n1]);
        let own = NAMES.get(usize::from(number)).copied();
        let name = own.unwrap_or(Name::Wanted(number.saturating_sub(WANTED)));
        let length = usize::from(u16::from_le_bytes([*l0, *l1]));
        let Some((value, after)) = rest.split_at_checked(length) else { break };
        entries.push_back(Entry { name, value: Box::from(value), size: u32::from_le_bytes([*s0, *s1, *s2, *s3]) });
        bytes = after;
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let names = NAMES.into_iter().chain([Name::Wanted(0), Name::Wanted(300)]);
        assert!(NAMES.iter().enumerate().all(|(n, name)| usize::from(number(*name)) == n));
        let entry = |(n, name)| Entry { name, value: vec![7; n * 100].into(), size: 32 + n as u32 * 5000 };
        let entries: VecDeque<Entry> = names.enumerate().map(entry).collect();
        let packed = pack(&entries);
        assert_eq!(unpack(&packed), entries);
        assert!(unpack(&packed[..packed.len() - 1]).len() == entries.len() - 1 && unpack(b"").is_empty());
    }
}
