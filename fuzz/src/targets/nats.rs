//! The same as `http1`, on a connection already recognised as NATS; its server confirms what it is sent.

use crate::conversation::converse;
use tracer_model::Direction::{Rx, Tx};

pub(crate) fn run(data: &[u8]) {
    converse(&[(Tx, b"INFO {}\r\n"), (Rx, b"CONNECT {}\r\nSUB _INBOX.* 1\r\n")], data);
}
