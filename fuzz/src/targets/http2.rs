//! Arbitrary frames, cut and captured arbitrarily, in both directions of one HTTP/2 connection.

use crate::conversation::framed;
use tracer_protocols::framed::Way;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Kind, flags, stream, payload.
fn frame(_: Way, bytes: &[u8]) -> Vec<u8> {
    let [kind, flags, key, payload @ ..] = bytes else { return bytes.to_vec() };
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[*kind % 12, *flags, 0, 0, 0, *key], payload].concat()
}

pub(crate) fn run(data: &[u8]) {
    framed(PREFACE, frame, data);
}
