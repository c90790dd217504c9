//! Any bytes as a program that may have tokio in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer_user::runtimes::tokio::inspect;

fuzz_target!(|data: &[u8]| {
    let _ = inspect(data);
});
