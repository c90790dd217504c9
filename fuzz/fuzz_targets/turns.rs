//! The same as `http1`, on connections timed by round trips: one that may switch to TLS, and one in its handshake.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer_user::model::Direction::{Rx, Tx};

const HELLO: &[u8] =
    b"\x16\x03\x01\0\x2f\x01\0\0\x2b\x03\x03abcdefghijklmnopqrstuvwxyzabcdef\0\0\x02\x13\x01\x01\0\0\0";

fuzz_target!(|data: &[u8]| {
    tracer_fuzz::converse(&[(Tx, b"220 a ESMTP\r\n"), (Rx, b"EHLO b\r\n")], data);
    tracer_fuzz::converse(&[(Rx, HELLO)], data);
});
