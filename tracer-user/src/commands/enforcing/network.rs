//! Priorities of packets: decided with every drain, written to the kernel or counted.

use tracer_kernel::loader::Attached;
use tracer_kernel::send_priority::{self, SendPriorities, SendPriorityMode};
use tracer_policies::service_classes::network::{
    NetworkActions, NetworkDecision, NetworkOrder, PacketPriorities, SendingRequest,
};
use tracer_policies::service_classes::{Mode, Priority};

use super::{NAMES, Numbers};
use crate::commands::Failure;
use crate::config::Config;

/// Decides about connections with every drain, and has it written to the kernel or counted.
pub(super) struct Network {
    pub(super) decision: NetworkDecision,
    packets: PacketPriorities,
    pub(super) sending: Vec<SendingRequest>,
    /// By number of the class.
    pub(super) counts: Vec<NetworkActions>,
    /// The program is attached.
    pub(super) attached: bool,
}

impl Network {
    /// By the priorities of these classes.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            decision: NetworkDecision::new(network_priorities(config)),
            packets: config.enforcement.packets,
            sending: Vec::new(),
            counts: vec![NetworkActions::default(); NAMES],
            attached: send_priority_mode(config) == SendPriorityMode::On,
        }
    }

    /// Writes what was decided to the kernel, or counts it.
    pub(super) fn carry_out(
        &mut self,
        orders: Vec<NetworkOrder>,
        numbers: &Numbers,
        kernel: Option<&mut SendPriorities>,
    ) {
        let dry = !self.attached;
        let mut kernel = kernel;
        for order in orders {
            let (NetworkOrder::Set { class, .. } | NetworkOrder::Clear { class, .. }) = order;
            let mut nowhere = NetworkActions::default();
            let counts = self.counts.get_mut(numbers.number_of(class)).unwrap_or(&mut nowhere);
            match (order, kernel.as_deref_mut()) {
                (NetworkOrder::Set { renewed: false, .. }, _) if dry => counts.would_apply += 1,
                (NetworkOrder::Set { cookie, priority, until, renewed, .. }, Some(kernel)) => {
                    let Some(priority) = self.packets.of(priority) else { continue };
                    let done = kernel.set(cookie, priority, until);
                    counts.applied += u64::from(done && !renewed);
                    counts.refused += u64::from(!done);
                }
                (NetworkOrder::Clear { cookie, .. }, Some(kernel)) => {
                    kernel.clear(cookie);
                    counts.restored += 1;
                }
                _ => {}
            }
        }
    }
}

/// By index of the class.
pub(super) fn network_priorities(config: &Config) -> Vec<Priority> {
    config.service_classes.classes.iter().map(|class| class.network).collect()
}

/// Whether packets are given priorities: only where a class asks for it.
pub(in crate::commands) fn send_priority_mode(config: &Config) -> SendPriorityMode {
    if config.enforcement.mode == Mode::On && config.service_classes.changes_network() {
        SendPriorityMode::On
    } else {
        SendPriorityMode::Off
    }
}

/// Checks that packets can be given priorities, if a class asks for it.
pub(in crate::commands) fn check_network(attached: &[Attached]) -> Result<(), Failure> {
    let missing = attached.iter().find(|each| each.program == send_priority::PROGRAM && each.missing.is_some());
    match missing.and_then(|each| each.missing.as_ref()) {
        Some(why) => Err(Failure::SelfTest(format!(
            "--enforce on: a service class has a network priority, and the program for it cannot be used: {why}; see \
             docs/service-classes.md"
        ))),
        None => Ok(()),
    }
}
