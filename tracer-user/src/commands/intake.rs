//! Where the kernel's records come in.

use tracer_kernel::ring_occupancy::RingLevel;
use tracer_kernel::rings::Rings;

use super::Failure;
use super::netns::OwnNetns;

/// The rings, and what is known of what is in them.
pub(super) struct Intake {
    pub(super) rings: Rings,
    /// Gauge of the ring of stacks.
    pub(super) level: Option<RingLevel>,
    /// Tells own sockets from others where only those are traced.
    pub(super) netns: Option<OwnNetns>,
    /// Whether the last drain took all there was.
    pub(super) drained: bool,
}

impl Intake {
    /// Has a look at the rings, and at the agent's network namespace if only its sockets are traced.
    pub(super) fn new(rings: Rings, only_own_netns: bool) -> Result<Self, Failure> {
        let level = rings
            .sample_level()
            .map_err(|error| log::warn!("the fill level of the stacks' ring is not known: {error}"))
            .ok();
        let netns = only_own_netns.then(OwnNetns::new).transpose().map_err(Failure::Running)?;
        Ok(Self { rings, level, netns, drained: false })
    }
}
