//! The BPF object, built from `tracer-ebpf` and embedded by the build script.

use aya::include_bytes_aligned;

/// The object's bytes; empty when the binary was built without it (`cargo check` needs no eBPF toolchain).
pub static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tracer.bpf.o"));
