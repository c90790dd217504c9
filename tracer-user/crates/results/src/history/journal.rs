//! The windows that are in no Parquet file yet, or only in one that will be replaced: a file that only grows.
//!
//! A header, then per window its length and checksum (little-endian `u32` each) and its rows. What follows the last whole
//! window was being written when the agent was killed.

use flate2::Crc;

use super::rows::{
    ClassRow, ColumnType, EdgeRow, FindingRow, GoalRow, HistoryRow, HostRow, ServiceRow, Value, WindowRows,
};

/// Opens every journal of this version.
pub(super) const HEADER: &[u8] = b"tracer history journal 4\n";
/// Those of earlier agents: without findings; without edges and goals, too; and without services. Columns that were added are missing
/// in the last two.
const HEADER_3: &[u8] = b"tracer history journal 3\n";
const HEADER_2: &[u8] = b"tracer history journal 2\n";
const HEADER_1: &[u8] = b"tracer history journal 1\n";
/// Bytes before the rows of a window.
const PREFIX: usize = 8;

/// The bytes of a window.
pub(super) fn encode(window: &WindowRows) -> Vec<u8> {
    let mut bytes = vec![0; PREFIX];
    put_row(&window.host, &mut bytes);
    put_rows(&window.classes, &mut bytes);
    put_rows(&window.services, &mut bytes);
    put_rows(&window.edges, &mut bytes);
    put_rows(&window.goals, &mut bytes);
    put_rows(&window.findings, &mut bytes);
    let length = (bytes.len() - PREFIX) as u32;
    let sum = checksum(&bytes[PREFIX..]);
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..PREFIX].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The windows of a journal. None: it is no journal of this version.
pub(super) fn decode(bytes: &[u8]) -> Option<Windows<'_>> {
    if HEADER.starts_with(bytes) {
        // Killed before the first window was there.
        return Some(Windows { rest: &[], torn: false, version: JournalVersion::Fourth });
    }
    let windows = |header, version| bytes.strip_prefix(header).map(|rest| Windows { rest, torn: false, version });
    windows(HEADER, JournalVersion::Fourth)
        .or_else(|| windows(HEADER_3, JournalVersion::Third))
        .or_else(|| windows(HEADER_2, JournalVersion::Second))
        .or_else(|| windows(HEADER_1, JournalVersion::First))
}

/// Which tables and columns a journal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JournalVersion {
    First,
    Second,
    Third,
    Fourth,
}

impl JournalVersion {
    fn columns<R: HistoryRow>(self) -> usize {
        match self {
            Self::First => R::FIRST,
            Self::Second => R::SECOND,
            Self::Third | Self::Fourth => R::COLUMNS.len(),
        }
    }
}

/// Iterates over the whole windows of a journal.
#[derive(Debug)]
pub(super) struct Windows<'a> {
    rest: &'a [u8],
    /// Whether something else than a whole window was found; iteration ends there.
    pub(super) torn: bool,
    version: JournalVersion,
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
        let host: HostRow = row(&mut payload, self.version)?;
        let classes: Vec<ClassRow> = rows(&mut payload, self.version, JournalVersion::First)?;
        let services: Vec<ServiceRow> = rows(&mut payload, self.version, JournalVersion::Second)?;
        let edges: Vec<EdgeRow> = rows(&mut payload, self.version, JournalVersion::Third)?;
        let goals: Vec<GoalRow> = rows(&mut payload, self.version, JournalVersion::Third)?;
        let findings: Vec<FindingRow> = rows(&mut payload, self.version, JournalVersion::Fourth)?;
        payload.is_empty().then_some(WindowRows { host, classes, services, edges, goals, findings })
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn put_rows<R: HistoryRow>(rows: &[R], into: &mut Vec<u8>) {
    put_integer(rows.len() as u64, into);
    for row in rows {
        put_row(row, into);
    }
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
        Value::Single(value) => into.extend(value.to_bits().to_le_bytes()),
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

/// Rows of a table that journals have `since` a version.
fn rows<R: HistoryRow>(bytes: &mut &[u8], version: JournalVersion, since: JournalVersion) -> Option<Vec<R>> {
    if version < since {
        return Some(Vec::new());
    }
    let count = integer(bytes)?;
    // No room is made in advance: the number is as the file says.
    (0..count).map(|_| row::<R>(bytes, version)).collect()
}

/// A row. Columns that the version does not have get their defaults.
fn row<R: HistoryRow>(bytes: &mut &[u8], version: JournalVersion) -> Option<R> {
    let there = version.columns::<R>();
    let mut values = R::COLUMNS.iter().take(there).map(|(_, kind)| value(*kind, bytes)).collect::<Option<Vec<_>>>()?;
    if there < R::COLUMNS.len() {
        values.extend(R::default().values().into_iter().skip(there));
    }
    R::from_values(&mut values.into_iter())
}

fn value(kind: ColumnType, bytes: &mut &[u8]) -> Option<Value> {
    Some(match kind {
        ColumnType::Integer => Value::Integer(integer(bytes)?),
        ColumnType::Float => Value::Float(float(bytes)?),
        ColumnType::Single => Value::Single(f32::from_bits(u32::from_le_bytes(*take(bytes, 4)?.first_chunk()?))),
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
    use crate::history::rows::{DurationHistogram, Identity, Seconds};

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
        let edge =
            EdgeRow { start_ns, caller_service: "front".into(), count: -3, cpu_s: Seconds(-0.5), ..EdgeRow::default() };
        let goal = GoalRow { start_ns, service_class: "gold".into(), attained: 9, goal_s: 0.04, ..GoalRow::default() };
        let classes = vec![class.clone(), ClassRow { errors: 1, ..class }];
        let finding =
            FindingRow { start_ns, service_name: "shop".into(), until_ns: 9, confidence: 0.9, ..FindingRow::default() };
        let (services, edges, goals, findings) = (vec![service], vec![edge], vec![goal], vec![finding]);
        WindowRows { host, classes, services, edges, goals, findings }
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

    /// A journal as an earlier version wrote it: the same rows cut to its columns, and none of later tables.
    fn earlier(header: &[u8], window: &WindowRows, columns: [usize; 3]) -> Vec<u8> {
        fn put<R: HistoryRow>(row: &R, columns: usize, into: &mut Vec<u8>) {
            row.values().into_iter().take(columns).for_each(|value| put_value(value, into));
        }
        let mut payload = Vec::new();
        let [host, class, service] = columns;
        put(&window.host, host, &mut payload);
        put_integer(1, &mut payload);
        put(&window.classes[0], class, &mut payload);
        if service > 0 {
            put_integer(1, &mut payload);
            put(&window.services[0], service, &mut payload);
        }
        let mut bytes = header.to_vec();
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(checksum(&payload).to_le_bytes());
        bytes.extend(&payload);
        bytes
    }

    #[test]
    fn journals_of_earlier_versions_are_read() {
        let mut window = window(7);
        (window.host.run_ns, window.host.edge_rows) = (5, 1);
        let WindowRows { host, classes, services, .. } = window.clone();
        let (windows, torn) = read(&earlier(HEADER_1, &window, [HostRow::FIRST, ClassRow::FIRST, 0]));
        let first = WindowRows {
            host: HostRow { run_ns: 0, edge_rows: 0, ..host.clone() },
            classes: vec![ClassRow { cpu_s_by_size: [0.0; 3], ..classes[0].clone() }],
            ..WindowRows::default()
        };
        assert_eq!((windows, torn), (vec![first], false));

        let columns = [HostRow::SECOND, ClassRow::SECOND, ServiceRow::SECOND];
        let (windows, torn) = read(&earlier(HEADER_2, &window, columns));
        let second = WindowRows {
            host: HostRow { edge_rows: 0, ..host },
            classes: vec![classes[0].clone()],
            services,
            ..WindowRows::default()
        };
        assert_eq!((windows, torn), (vec![second], false));
        for header in [HEADER_1, HEADER_2, HEADER_3] {
            assert_eq!(read(header), (Vec::new(), false));
        }

        // As the fourth, without the number of findings.
        let third = WindowRows { findings: Vec::new(), ..window };
        let payload = encode(&third).split_off(PREFIX);
        let payload = &payload[..payload.len() - 1];
        let prefix = [(payload.len() as u32).to_le_bytes(), checksum(payload).to_le_bytes()].concat();
        let (windows, torn) = read(&[HEADER_3, &prefix, payload].concat());
        assert_eq!((windows, torn), (vec![third], false));
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
        assert!(decode(b"tracer history journal 5\n").is_none());
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
