//! The same as `http1`, on a connection already recognised as STOMP, and acknowledges in every way.

use crate::conversation::converse;
use tracer_model::Direction::{Rx, Tx};

const ASKED: &[u8] = b"CONNECT\nhost:/\n\n\0SUBSCRIBE\nid:1\ndestination:/q\nack:client\n\n\0\
    SUBSCRIBE\nid:2\ndestination:/q\nack:client-individual\n\n\0";

pub(crate) fn run(data: &[u8]) {
    converse(&[(Rx, ASKED), (Tx, b"CONNECTED\nversion:1.2\n\n\0")], data);
}
