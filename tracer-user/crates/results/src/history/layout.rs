//! Names: `DIR/kind=classes/date=2026-11-24/hour=07/HOST-20261124T070010Z.parquet`, and for windows that are still
//! collected `DIR/_journal/HOST-20261124T070010Z.journal`. Times are UTC, of a file's first window. Summaries have a file a day:
//! `DIR/kind=hourly_classes/date=2026-11-24/HOST-20261124T000000Z.parquet`.
//!
//! Partitions as Hive names them: DuckDB, Spark and others take them for columns, and skip what begins with `_`.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Directory of the journals.
pub(super) const JOURNALS: &str = "_journal";
/// Ends of file names.
pub const PARQUET: &str = ".parquet";
pub(super) const JOURNAL: &str = ".journal";
pub(super) const TEMPORARY: &str = ".parquet.tmp";
/// Most bytes of a host's name in names of files.
const HOST_MAX: usize = 64;
const TIME: &str = "%Y%m%dT%H%M%SZ";

/// A host's name as file names have it.
pub fn host_part(host: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
    let part: String = host.chars().map(plain).take(HOST_MAX).collect();
    match part.chars().next() {
        None => "unknown".to_owned(),
        // Readers skip files that begin with these.
        Some('.' | '_') => format!("h{part}"),
        Some(_) => part,
    }
}

/// The name of a file without its end: host, time of its first window, and a number if that was taken.
pub(super) fn stem(host_part: &str, start_s: i64, number: u32) -> String {
    let time = timestamp(start_s).strftime(TIME);
    if number == 0 { format!("{host_part}-{time}") } else { format!("{host_part}-{time}-{number}") }
}

/// The time in a stem of any host, seconds since the epoch, and the host's part. None: no name of the history.
pub fn parse_stem(stem: &str) -> Option<(&str, i64)> {
    let (rest, last) = stem.rsplit_once('-')?;
    // A number is shorter than a time.
    let is_number = !last.is_empty() && last.len() < 6 && last.bytes().all(|b| b.is_ascii_digit());
    let (host, time) = if is_number { rest.rsplit_once('-')? } else { (rest, last) };
    let time = jiff::civil::DateTime::strptime(TIME, time).ok()?.to_zoned(TimeZone::UTC).ok()?;
    (!host.is_empty()).then(|| (host, time.timestamp().as_second()))
}

/// Directory of the files of a table whose first window is at that time.
pub(super) fn partition(root: &Path, kind: &str, start_s: i64) -> PathBuf {
    let time = timestamp(start_s);
    root.join(format!("kind={kind}"))
        .join(time.strftime("date=%Y-%m-%d").to_string())
        .join(time.strftime("hour=%H").to_string())
}

/// Directory of a day's files of a table of summaries.
pub(super) fn day(root: &Path, kind: &str, start_s: i64) -> PathBuf {
    root.join(format!("kind={kind}")).join(date(start_s))
}

/// Name of the partition of a day.
pub fn date(start_s: i64) -> String {
    timestamp(start_s).strftime("date=%Y-%m-%d").to_string()
}

fn timestamp(start_s: i64) -> Timestamp {
    Timestamp::from_second(start_s).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let stem_of = |host: &str, number| stem(host, 1_795_500_010, number);
        assert_eq!(stem_of("a-1", 0), "a-1-20261124T060010Z");
        for (host, number) in [("a-1", 0), ("a", 3), ("20261124T060010Z", 0), ("a-7", 12)] {
            assert_eq!(parse_stem(&stem_of(host, number)), Some((host, 1_795_500_010)), "{host} {number}");
        }
        for foreign in
            ["", "part-0000", "a-20261124T0600Z", "-20261124T060010Z", "a-20261324T060010Z", "20261124T060010Z"]
        {
            assert_eq!(parse_stem(foreign), None, "{foreign}");
        }
        let dir = partition(Path::new("/h"), "classes", 1_795_500_010);
        assert_eq!(dir, Path::new("/h/kind=classes/date=2026-11-24/hour=06"));
        for (host, part) in [("db.example", "db.example"), ("../../x y", "h.._.._x_y"), ("", "unknown"), ("ä", "h_")] {
            assert_eq!(host_part(host), part);
        }
        assert_eq!(host_part(&"x".repeat(500)).len(), HOST_MAX);
    }
}
