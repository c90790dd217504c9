//! The same as `http1`, on a connection already recognised as NATS; its server confirms what it is sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer_user::model::Direction::{Rx, Tx};

fuzz_target!(|data: &[u8]| tracer_fuzz::converse(
    &[(Tx, b"INFO {}\r\n"), (Rx, b"CONNECT {}\r\nSUB _INBOX.* 1\r\n")],
    data
));
