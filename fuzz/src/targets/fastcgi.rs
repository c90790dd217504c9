//! The same as `http1`, on a connection already recognised as FastCGI.

use crate::conversation::converse;
use tracer_model::Direction::{Rx, Tx};

const ASKED: &[u8] = b"\x01\x01\0\x01\0\x08\0\0\0\x01\x01\0\0\0\0\0\
    \x01\x04\0\x01\0\x27\x01\0\x0e\x03REQUEST_METHODGET\x0b\x06SCRIPT_NAME/a.phpx\0\x01\x04\0\x01\0\0\0\0\x01\x05\0\x01\0\0\0\0";
const ANSWERED: &[u8] = b"\x01\x06\0\x01\0\x0c\0\0A: b\r\n\r\nbody\x01\x03\0\x01\0\x08\0\0\0\0\0\0\0\0\0\0";

pub(crate) fn run(data: &[u8]) {
    converse(&[(Rx, ASKED), (Tx, ANSWERED)], data);
}
