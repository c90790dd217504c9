//! Stacks: whole, with names and lines, on and off the CPU.

mod ad_hoc;
mod call_sites;
mod debug_info;
mod early_stacks;
mod flame;
mod frames_roots;
mod hotspots;
mod java_frames;
mod moved;
mod node_frames;
mod off_cpu;
mod perf_agreement;
mod php_frames;
mod python_frames;
mod unwind;
