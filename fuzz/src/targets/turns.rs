//! The same as `http1`, on connections timed by round trips: one that may switch to TLS, and one in its handshake.

use crate::conversation::converse;
use tracer_model::Direction::{Rx, Tx};

const HELLO: &[u8] =
    b"\x16\x03\x01\0\x2f\x01\0\0\x2b\x03\x03abcdefghijklmnopqrstuvwxyzabcdef\0\0\x02\x13\x01\x01\0\0\0";

pub(crate) fn run(data: &[u8]) {
    converse(&[(Tx, b"220 a ESMTP\r\n"), (Rx, b"EHLO b\r\n")], data);
    converse(&[(Rx, HELLO)], data);
}
