//! Arbitrary bytes as a program that may be written in Go.
use tracer_runtimes::go::{frames, inspect};

pub(crate) fn run(data: &[u8]) {
    let _ = (inspect(data), frames(data));
}
