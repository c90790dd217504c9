//! The same as `http1`, on a connection already recognised as memcached's protocols.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer_user::model::Direction::{Rx, Tx};

fuzz_target!(|data: &[u8]| tracer_fuzz::converse(&[(Rx, b"set k 0 0 1\r\nx\r\n"), (Tx, b"STORED\r\n")], data));
