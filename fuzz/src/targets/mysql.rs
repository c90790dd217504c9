//! Arbitrary bytes and packets, cut and captured arbitrarily, in both directions of a MySQL or MariaDB connection.
use crate::conversation::Playing;

/// The start of a connection: the greeting, its answer, OK. The answer's second and third bytes hold the negotiated
/// capabilities.
const GREETING: &[u8] = b"\x45\0\0\0\x0a8.0.36\0\x07\0\0\0saltsalt\0\xff\xff\x21\x02\0\xff\xff\x15\0\0\0\0\0\0\0\0\0\0saltsaltsalt\0mysql_native_pas\0";
const OK: &[u8] = b"\x07\0\0\x02\0\0\0\x02\0\0\0";

pub(crate) fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let mut playing = Playing::new();
    playing.play(1, GREETING);
    let login = [&[0x22, 0, 0, 1, 0x85, 0xa6, 0xff, first & 1][..], &[0; 28], b"a\0"].concat();
    playing.play(0, &login);
    playing.play(1, OK);
    // A packet with this number.
    let begun = playing.finish(rest, |number, payload| [&[payload.len() as u8, 0, 0, number][..], payload].concat());
    assert!(begun > 0, "the connection is recognised");
}
