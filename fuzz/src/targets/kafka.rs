//! Arbitrary bytes, requests and replies, cut and captured arbitrarily, in both directions of a Kafka connection.

use crate::conversation::framed;
use tracer_protocols::framed::Way;

/// APIVERSIONS of version 0.
const VERSIONS: &[u8] = b"\0\0\0\x10\0\x12\0\0\0\0\0\x01\0\x06client";

pub(crate) fn run(data: &[u8]) {
    framed(
        VERSIONS,
        |way, bytes| {
            let message = |parts: &[&[u8]]| {
                let bytes = parts.concat();
                [&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat()
            };
            match (way, bytes) {
                // The API, its version, the correlation id, then the client's name and the rest.
                (Way::Request, [api, version, number, body @ ..]) => {
                    message(&[&[0, *api, 0, *version % 20, 0, 0, 0, *number, 0, 1, b'c'], body])
                }
                (Way::Reply, [number, body @ ..]) => message(&[&[0, 0, 0, *number], body]),
                _ => bytes.to_vec(),
            }
        },
        data,
    );
}
