//! The same as `http1`, on a connection that became a WebSocket session.

use crate::conversation::converse;
use tracer_model::Direction::{Rx, Tx};

const ASKED: &[u8] = b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n";
const GIVEN: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\n\r\n";

pub(crate) fn run(data: &[u8]) {
    converse(&[(Rx, ASKED), (Tx, GIVEN)], data);
}
