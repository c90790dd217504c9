//! Any bytes as a program that may be of Go.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer_user::runtimes::go::inspect;

fuzz_target!(|data: &[u8]| {
    let _ = inspect(data);
});
