//! Which processor the traced machine has. The BPF target names none, so the build sets `--cfg bpf_target_arch="…"`.
//! The numbers themselves are in `tracer_common::arch`.

#[cfg(bpf_target_arch = "aarch64")]
pub(crate) use tracer_common::arch::{
    is_futex_aarch64 as is_futex, is_sendto_aarch64 as is_sendto, is_splice_aarch64 as is_splice,
    shape_aarch64 as shape, wait_aarch64 as wait,
};
#[cfg(not(bpf_target_arch = "aarch64"))]
pub(crate) use tracer_common::arch::{
    is_futex_x86_64 as is_futex, is_sendto_x86_64 as is_sendto, is_splice_x86_64 as is_splice, shape_x86_64 as shape,
    wait_x86_64 as wait,
};
#[cfg(bpf_target_arch = "aarch64")]
pub(crate) use tracer_common::off_cpu::names_file_aarch64 as names_file;
#[cfg(not(bpf_target_arch = "aarch64"))]
pub(crate) use tracer_common::off_cpu::names_file_x86_64 as names_file;
