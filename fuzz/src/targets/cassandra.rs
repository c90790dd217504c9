//! Arbitrary bytes, envelopes and segments, cut and captured arbitrarily, in both directions of a Cassandra connection.

use crate::conversation::framed;
use tracer_protocols::framed::Way;

/// STARTUP of version 5.
const STARTUP: &[u8] = b"\x05\0\0\0\x01\0\0\0\x02\0\0";

/// The checksum of segments' headers.
fn crc24(mut header: u32) -> u32 {
    let mut crc = 0x87_5060;
    for _ in 0..3 {
        crc ^= (header & 0xff) << 16;
        header >>= 8;
        for _ in 0..8 {
            crc <<= 1;
            crc = if crc & 0x100_0000 == 0 { crc } else { crc ^ 0x197_4f0b };
        }
    }
    crc
}

pub(crate) fn run(data: &[u8]) {
    framed(
        STARTUP,
        |way, bytes| {
            // Framing, kind, stream, flags, body.
            let [how, kind, stream, flags, body @ ..] = bytes else { return bytes.to_vec() };
            let version = 3 + how % 3 + if way == Way::Reply { 0x80 } else { 0 };
            let len = (body.len() as u32).to_be_bytes();
            let envelope = [&[version, *flags, 0, *stream, *kind], &len[..], body].concat();
            if how & 0x80 == 0 {
                return envelope;
            }
            // A whole envelope, or its first or another part.
            let part = if how & 0x20 == 0 { &envelope[..] } else { &envelope[..envelope.len() / 2] };
            let header = part.len() as u32 | u32::from(how & 0x40 == 0) << 17;
            [&header.to_le_bytes()[..3], &crc24(header).to_le_bytes()[..3], part, &[0; 4]].concat()
        },
        data,
    );
}
