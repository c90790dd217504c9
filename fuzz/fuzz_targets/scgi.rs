//! The same as `http1`, on a connection already recognised as SCGI.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer_user::model::Direction::Rx;

const ASKED: &[u8] = b"50:CONTENT_LENGTH\x005\0REQUEST_METHOD\0POST\0PATH_INFO\0/a\0,hello";

fuzz_target!(|data: &[u8]| tracer_fuzz::converse(&[(Rx, ASKED)], data));
