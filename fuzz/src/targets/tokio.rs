//! Arbitrary bytes as a program that may contain tokio.
use tracer_runtimes::tokio::inspect;

pub(crate) fn run(data: &[u8]) {
    let _ = inspect(data);
}
