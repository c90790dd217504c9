//! CPU and waits: whose they are, and that they add up.

mod activity;
mod cpu;
mod declared;
mod declared_calls;
mod declared_probes;
mod declared_values;
mod instrumentation;
mod overhead_budget;
mod preempted;
mod queues;
mod subsystems;
mod subsystems_threads;
mod workloads;
