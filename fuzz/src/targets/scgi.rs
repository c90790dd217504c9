//! The same as `http1`, on a connection already recognised as SCGI.

use crate::conversation::converse;
use tracer_model::Direction::Rx;

const ASKED: &[u8] = b"50:CONTENT_LENGTH\x005\0REQUEST_METHOD\0POST\0PATH_INFO\0/a\0,hello";

pub(crate) fn run(data: &[u8]) {
    converse(&[(Rx, ASKED)], data);
}
