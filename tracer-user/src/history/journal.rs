//! The windows that are in no Parquet file yet, or only in one that will be replaced: a file that only grows.
//!
//! A header, then per window its length and checksum (little-endian `u32` each) and its rows. What follows the last whole
//! window was being written when the agent was killed.

use flate2::Crc;

use super::rows::{ClassRow, ColumnType, HistoryRow, HostRow, ServiceRow, Value, WindowRows};

/// Opens every journal of this version.
pub(super) const HEADER: &[u8] = b"tracer history journal 2\n";
/// Those of agents before this one: without services, and without the columns that were added.
const HEADER_1: &[u8] = b"tracer history journal 1\n";
/// Bytes before the rows of a window.
const PREFIX: usize = 8;

/// The bytes of a window.
pub(super) fn encode(window: &WindowRows) -> Vec<u8> {
    let mut bytes = vec![0; PREFIX];
    put_row(&window.host, &mut bytes);
    put_integer(window.classes.len() as u64, &mut bytes);
    for class in &window.classes {
        put_row(class, &mut bytes);
    }
    put_integer(window.services.len() as u64, &mut bytes);
    for service in &window.services {
        put_row(service, &mut bytes);
    }
    let length = (bytes.len() - PREFIX) as u32;
    let sum = checksum(&bytes[PREFIX..]);
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..PREFIX].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The windows of a journal. None: it is no journal of this version.
pub(super) fn decode(bytes: &[u8]) -> Option<Windows<'_>> {
    if HEADER.starts_with(bytes) || bytes == HEADER_1 {
        // Killed before the first window was there.
        return Some(Windows { rest: &[], torn: false, first: false });
    }
    let windows = |header, first| bytes.strip_prefix(header).map(|rest| Windows { rest, torn: false, first });
    windows(HEADER, false).or_else(|| windows(HEADER_1, true))
}

/// Iterates over the whole windows of a journal.
#[derive(Debug)]
pub(super) struct Windows<'a> {
    rest: &'a [u8],
    /// Whether something else than a whole window was found; iteration ends there.
    pub(super) torn: bool,
    /// Whether it is a journal of the first version.
    first: bool,
}

impl Iterator for Windows<'_> {
    type Item = WindowRows;

    fn next(&mut self) -> Option<WindowRows> {
        if self.rest.is_empty() {
            return None;
        }
        let window = self.window();
        if window.is_none() {
            (self.rest, self.torn) = (&[], true);
        }
        window
    }
}

impl Windows<'_> {
    fn window(&mut self) -> Option<WindowRows> {
        let (length, rest) = self.rest.split_first_chunk::<4>()?;
        let (sum, rest) = rest.split_first_chunk::<4>()?;
        let (mut payload, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if checksum(payload) != u32::from_le_bytes(*sum) {
            return None;
        }
        self.rest = rest;
        let host: HostRow = row(&mut payload, self.first)?;
        let classes = rows::<ClassRow>(&mut payload, self.first)?;
        let services = if self.first { Vec::new() } else { rows::<ServiceRow>(&mut payload, false)? };
        payload.is_empty().then_some(WindowRows { host, classes, services })
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn put_row<R: HistoryRow>(row: &R, into: &mut Vec<u8>) {
    for value in row.values() {
        put_value(value, into);
    }
}

fn put_value(value: Value, into: &mut Vec<u8>) {
    match value {
        Value::Integer(value) => put_integer(value, into),
        Value::Float(value) => into.extend(value.to_bits().to_le_bytes()),
        Value::Text(text) => {
            put_integer(text.len() as u64, into);
            into.extend(text.as_bytes());
        }
        Value::Integers(values) => {
            put_integer(values.len() as u64, into);
            for value in values {
                put_integer(value, into);
            }
        }
        Value::Floats(values) => {
            put_integer(values.len() as u64, into);
            for value in values {
                into.extend(value.to_bits().to_le_bytes());
            }
        }
    }
}

fn rows<R: HistoryRow>(bytes: &mut &[u8], first: bool) -> Option<Vec<R>> {
    let count = integer(bytes)?;
    // No room is made in advance: the number is as the file says.
    (0..count).map(|_| row::<R>(bytes, first)).collect()
}

/// A row; `first`: of the first version, which has fewer columns.
fn row<R: HistoryRow>(bytes: &mut &[u8], first: bool) -> Option<R> {
    let there = if first { R::FIRST } else { R::COLUMNS.len() };
    let mut values = R::COLUMNS.iter().take(there).map(|(_, kind)| value(*kind, bytes)).collect::<Option<Vec<_>>>()?;
    if first {
        values.extend(R::default().values().into_iter().skip(there));
    }
    R::from_values(&mut values.into_iter())
}

fn value(kind: ColumnType, bytes: &mut &[u8]) -> Option<Value> {
    Some(match kind {
        ColumnType::Integer => Value::Integer(integer(bytes)?),
        ColumnType::Float => Value::Float(float(bytes)?),
        ColumnType::Text => {
            let length = integer(bytes)?;
            Value::Text(std::str::from_utf8(take(bytes, length)?).ok()?.into())
        }
        ColumnType::Integers => {
            let count = integer(bytes)?;
            Value::Integers((0..count).map(|_| integer(bytes)).collect::<Option<_>>()?)
        }
        ColumnType::Floats => {
            let count = integer(bytes)?;
            Value::Floats((0..count).map(|_| float(bytes)).collect::<Option<_>>()?)
        }
    })
}

fn float(bytes: &mut &[u8]) -> Option<f64> {
    Some(f64::from_bits(u64::from_le_bytes(*take(bytes, 8)?.first_chunk()?)))
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(taken)
}

/// Seven bits a byte, lowest first; the highest bit: more follow.
fn put_integer(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

fn integer(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::rows::{DurationHistogram, Identity};

    fn window(start_ns: u64) -> WindowRows {
        let mut duration_histogram = DurationHistogram::default();
        duration_histogram.add(1_000_000, 300);
        let class = ClassRow {
            start_ns,
            service_name: "shop".into(),
            request_class: "GET /Ä/{id}".into(),
            identity: Identity(u64::MAX),
            count: 300,
            duration_histogram,
            cpu_s: 0.1 + 0.2,
            count_by_size: [1, 2, 297],
            cpu_s_by_size: [0.1, 0.0, 0.2],
            ..ClassRow::default()
        };
        let host = HostRow { start_ns, busy_s: 1.0 / 3.0, events_lost: 1 << 40, ..HostRow::default() };
        let service = ServiceRow { start_ns, callees: "a\nb".into(), overhead_s: 0.5, ..ServiceRow::default() };
        WindowRows { host, classes: vec![class.clone(), ClassRow { errors: 1, ..class }], services: vec![service] }
    }

    fn read(bytes: &[u8]) -> (Vec<WindowRows>, bool) {
        let mut windows = decode(bytes).unwrap();
        let read = windows.by_ref().collect();
        (read, windows.torn)
    }

    #[test]
    fn cut_at_any_byte_keeps_every_whole_window() {
        let windows = [window(1), window(2), WindowRows::default()];
        let mut bytes = HEADER.to_vec();
        let mut ends = vec![bytes.len()];
        for window in &windows {
            bytes.extend(encode(window));
            ends.push(bytes.len());
        }
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1);
            let (read, torn) = read(&bytes[..cut]);
            assert_eq!(read, windows[..whole], "{cut}");
            assert_eq!(torn, cut > HEADER.len() && !ends.contains(&cut), "{cut}");
        }
    }

    #[test]
    fn journals_of_the_first_version_are_read() {
        let window = window(7);
        let mut payload = Vec::new();
        let mut put = |values: Vec<Value>, first: usize| {
            // As that version wrote them: the same row cut to its columns.
            let mut whole = Vec::new();
            for value in values.into_iter().take(first) {
                put_value(value, &mut whole);
            }
            payload.extend(whole);
        };
        put(window.host.values(), HostRow::FIRST);
        put(vec![Value::Integer(1)], 1);
        put(window.classes[0].values(), ClassRow::FIRST);
        let mut bytes = HEADER_1.to_vec();
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(checksum(&payload).to_le_bytes());
        bytes.extend(&payload);
        let (windows, torn) = read(&bytes);
        let class = ClassRow { cpu_s_by_size: [0.0; 3], ..window.classes[0].clone() };
        assert_eq!(
            (windows, torn),
            (vec![WindowRows { host: window.host, classes: vec![class], services: vec![] }], false)
        );
    }

    #[test]
    fn damage_never_panics_and_ends_the_journal_there() {
        let mut bytes = HEADER.to_vec();
        let first = encode(&window(1));
        bytes.extend(&first);
        bytes.extend(encode(&window(2)));
        for at in HEADER.len()..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                let whole = usize::from(at >= HEADER.len() + first.len());
                let (read, torn) = read(&damaged);
                assert_eq!((read.len(), torn), (whole, true), "{at}");
            }
        }
        assert!(decode(b"tracer history journal 3\n").is_none());
        assert!(decode(b"something else").is_none());
        // A right checksum over nonsense: counts and lengths beyond the end.
        for payload in [vec![0xff; 40], vec![0; 3], [vec![0; 200], vec![0xff; 9]].concat()] {
            let mut bytes = HEADER.to_vec();
            bytes.extend((payload.len() as u32).to_le_bytes());
            bytes.extend(checksum(&payload).to_le_bytes());
            bytes.extend(&payload);
            assert_eq!(read(&bytes), (Vec::new(), true));
        }
    }
}
