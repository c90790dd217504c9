//! The kernel side of tracer: observes, decides nothing, never blocks.
//!
//! One object, one module per concern; each program is a thin wrapper over a body that returns the reason when it
//! had to drop something. It parses no protocol and follows no pointer through an unresolved offset.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod arch;
mod bound;
mod call_stack;
mod declared;
mod emit;
mod exceptions;
mod exchange_counts;
mod header;
mod hello;
mod inband;
mod interpreter;
mod kernel;
mod log_lines;
mod off_cpu;
mod offsets;
mod own_stack;
mod policy;
mod process;
mod profiler_cost;
mod ring;
mod runtime;
mod sample;
mod sched;
mod scratch;
mod send_priority;
mod socket;
mod stack_rate;
mod storage;
mod thread_pool;
mod tls;
mod trace_context;
mod unwind;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the verifier refuses a program that could get here.
    loop {}
}

/// Some helpers (`bpf_probe_read_user`, task storage) are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
