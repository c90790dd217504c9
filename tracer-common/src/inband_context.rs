//! The TCP option that carries a request's context, byte for byte that of OpenTelemetry's eBPF instrumentation
//! (`bpf/tpinjector/tp_options.h` there): kind, length, trace id, span id, and trace flags if the context is not
//! sampled.

/// Kind of the option: one that IANA has not assigned since 2000.
pub const KIND: u8 = 25;
/// Its length without trace flags, which means "sampled".
pub const LEN: usize = 26;
/// Its length with them.
pub const LEN_FLAGS: usize = 27;
/// Bytes it takes in a TCP header, which pads options to words.
pub const ROOM: u32 = 28;
/// Trace flags: sampled (W3C Trace Context).
pub const SAMPLED: u8 = 1;
/// Most threads for which the kernel side keeps their request's transaction, for the calls the request causes.
pub const THREADS_MAX: u32 = 16_384;
