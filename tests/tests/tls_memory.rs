//! Text of TLS objects that read and write memory, by programs that move the encrypted bytes themselves: as many requests
//! as the server logged, at both ends, and no wrong parent.

use tracer_tests::begin;
use tracer_tests::tls_pair::both_ends;

/// The last ones ask several times before they read.
const ASKS: [&[&str]; 4] = [
    &["a", "1.2", "20", "20"],
    &["b", "1.3", "20", "20"],
    &["c", "1.2", "5", "24", "4"],
    &["d", "1.3", "5", "24", "4"],
];
const REQUESTS: usize = 2 * (20 * 20 + 5 * 24);

#[test]
fn asyncio_at_both_ends() {
    let Some(_turn) = begin("tls_asyncio", &["python3", "openssl"]) else { return };
    let (right, count) = both_ends("asyncio", &["python3", "tls_asyncio.py"], &ASKS, REQUESTS);
    assert_eq!(right, count, "each served request has the call of the other end");
}

#[test]
fn uvloop_at_both_ends() {
    let Some(_turn) = begin("tls_uvloop", &["python3", "openssl"]) else { return };
    let (right, count) = both_ends("uvloop", &["python3", "-X", "loop=uvloop", "tls_asyncio.py"], &ASKS, REQUESTS);
    assert_eq!(right, count, "each served request has the call of the other end");
}
