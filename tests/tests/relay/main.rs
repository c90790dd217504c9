//! Agents that tell each other of their hosts' calls.

mod relay;
mod relay_bounds;
mod relay_clock;
mod relay_cost;
mod relay_nats;
mod relay_peers;
mod relay_recovery;
mod relay_tls;
mod relay_trust;
