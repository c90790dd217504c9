//! Arbitrary bytes, cut and captured arbitrarily, in both directions of one connection.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tracer_fuzz::converse(&[], data));
