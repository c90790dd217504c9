//! Text of TLS objects that read and write memory, by programs that move the encrypted bytes themselves: as many requests
//! as the server logged, at both ends, and no wrong parent.

use tracer_tests::begin;
use tracer_tests::tls_pair::{ServerAndClients, both_ends};
use tracer_tests::workload::built;

const SOURCE: &str = "tls_asyncio.py";

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
    let (right, count) = both_ends("asyncio", &ServerAndClients::interpreted(&["python3"], SOURCE), &ASKS, REQUESTS);
    assert_eq!(right, count, "each served request has the call of the other end");
}

#[test]
fn uvloop_at_both_ends() {
    let Some(_turn) = begin("tls_uvloop", &["python3", "openssl"]) else { return };
    let program = ServerAndClients::interpreted(&["python3", "-X", "loop=uvloop"], SOURCE);
    let (right, count) = both_ends("uvloop", &program, &ASKS, REQUESTS);
    assert_eq!(right, count, "each served request has the call of the other end");
}

/// HTTP/1.1 and HTTP/2 by hyper on tokio, and by threads without either.
#[test]
fn rustls_at_both_ends() {
    let Some(_turn) = begin("tls_rustls", &["openssl", built("tls-pair")]) else { return };
    let program = ServerAndClients { run: &[built("tls-pair")], source: None, probe: "tls_rustls_read" };
    let asks: [&[&str]; 6] = [
        &["a", "1.2", "20", "20", "h1"],
        &["b", "1.3", "20", "20", "h1"],
        &["c", "1.2", "5", "24", "h2"],
        &["d", "1.3", "5", "24", "h2"],
        &["e", "1.2", "5", "20", "blocking"],
        &["f", "1.3", "5", "20", "blocking"],
    ];
    let (right, count) = both_ends("rustls", &program, &asks, 2 * (20 * 20 + 5 * 24 + 5 * 20));
    assert_eq!(right, count, "each served request has the call of the other end");
}
