//! Arbitrary bytes as a program that may be written in Go.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer_user::runtimes::go::inspect;

fuzz_target!(|data: &[u8]| {
    let _ = inspect(data);
});
