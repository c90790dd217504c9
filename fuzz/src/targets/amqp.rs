//! The same as `http1`, on a connection already recognised as AMQP 0-9-1; its first channel is in confirm mode.

use crate::conversation::converse;
use tracer_model::Direction::{Rx, Tx};

const HEADER: &[u8] = b"AMQP\0\0\x09\x01";
const CONFIRM: &[u8] = b"\x01\0\x01\0\0\0\x05\0\x55\0\x0a\0\xce";
const CONFIRMED: &[u8] = b"\x01\0\x01\0\0\0\x04\0\x55\0\x0b\xce";

pub(crate) fn run(data: &[u8]) {
    converse(&[(Rx, HEADER), (Rx, CONFIRM), (Tx, CONFIRMED)], data);
}
