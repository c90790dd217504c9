//! The same as `http1`, on a connection already recognised as MQTT 5.

use crate::conversation::converse;
use tracer_model::Direction::{Rx, Tx};

const CONNECT: &[u8] = b"\x10\x0e\0\x04MQTT\x05\x02\0\x3c\0\0\x01a";

pub(crate) fn run(data: &[u8]) {
    converse(&[(Rx, CONNECT), (Tx, b"\x20\x03\0\0\0")], data);
}
