//! The TCP option that carries a request's context, byte for byte that of OpenTelemetry's eBPF instrumentation
//! (`bpf/tpinjector/tp_options.h` there): kind, length, trace id, span id, and trace flags if they are not just
//! "sampled".

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
/// Trace flags: the right-most seven bytes of the trace id are random (W3C Trace Context Level 2).
pub const RANDOM: u8 = 2;
/// Trace flags of a transaction whose id is drawn here.
pub const DRAWN: u8 = SAMPLED | RANDOM;
/// Most threads for which the kernel side keeps their request's transaction, for the calls the request causes.
pub const THREADS_MAX: u32 = 16_384;
