//! The same as `http1`, on a connection already recognised as uwsgi.

use crate::conversation::converse;
use tracer_model::Direction::Rx;

const ASKED: &[u8] =
    b"\0\x38\0\0\x0e\0REQUEST_METHOD\x04\0POST\x09\0PATH_INFO\x02\0/a\x0e\0CONTENT_LENGTH\x01\x005hello";

pub(crate) fn run(data: &[u8]) {
    converse(&[(Rx, ASKED)], data);
}
