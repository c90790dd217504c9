//! libFuzzer's entry point for every target. `TRACER_FUZZ_TARGET` names the one to run; `cargo xtask fuzz` sets it.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("TRACER_FUZZ_TARGET").unwrap_or_default();
    match tracer_fuzz::TARGETS.iter().find(|(name, _)| *name == wanted) {
        Some((_, run)) => *run,
        None => panic!("TRACER_FUZZ_TARGET names no target: '{wanted}'"),
    }
});

fuzz_target!(|data: &[u8]| TARGET(data));
