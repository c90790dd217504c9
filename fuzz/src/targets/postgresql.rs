//! Arbitrary bytes and messages, cut and captured arbitrarily, in both directions of a PostgreSQL connection.
use crate::conversation::Playing;

/// A connection's first message.
const STARTUP: &[u8] = b"\0\0\0\x10\0\x03\0\0user\0a\0\0";

pub(crate) fn run(data: &[u8]) {
    let mut playing = Playing::new();
    playing.play(0, STARTUP);
    // A message of this kind.
    playing.finish(data, |kind, fields| {
        let length = (fields.len() as u32 + 4).to_be_bytes();
        [&[kind][..], &length, fields].concat()
    });
}
