//! The same as `http1`, on a connection already recognised as memcached's protocols.

use crate::conversation::converse;
use tracer_model::Direction::{Rx, Tx};

pub(crate) fn run(data: &[u8]) {
    converse(&[(Rx, b"set k 0 0 1\r\nx\r\n"), (Tx, b"STORED\r\n")], data);
}
