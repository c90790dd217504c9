//! Arbitrary bytes, messages and documents, cut and captured arbitrarily, in both directions of a MongoDB connection.

use crate::conversation::framed;
use tracer_protocols::framed::Way;

/// `{ping: 1}`.
const PING: &[u8] = b"\x24\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0\x0f\0\0\0\x10ping\0\x01\0\0\0\0";

pub(crate) fn run(data: &[u8]) {
    framed(
        PING,
        |way, bytes| {
            // Kind, request id, the id it responds to, flags, then documents and the bytes between them.
            let [kind, id, to, flags, body @ ..] = bytes else { return bytes.to_vec() };
            let kind = [2013u32, 2013, 2013, 2013, 1, 2004, 2012, 2002][usize::from(kind % 8)];
            let to = if way == Way::Request { 0 } else { u32::from(*to) };
            let words = [20 + body.len() as u32, u32::from(*id), to, kind, u32::from(flags & 3)];
            [&words.map(u32::to_le_bytes).concat()[..], body].concat()
        },
        data,
    );
}
