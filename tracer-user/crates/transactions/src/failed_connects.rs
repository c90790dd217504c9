//! Connections that were never made.

use std::collections::BTreeMap;

use tracer_common::event::{State, tcp_state};
use tracer_host::guard::tables::TableUse;
use tracer_model::FailedConnect;

use super::world::World;

/// Most services, ports and errors of failed connects counted separately within about a second.
const FAILED_CONNECTS: usize = 256;

/// Connections that were not made, by service, port and error.
#[derive(Debug, Default)]
pub(super) struct FailedConnects {
    counts: BTreeMap<FailedConnect, u64>,
    /// Connects whose port was given up because there were too many kinds at once.
    without_port: u64,
}

impl FailedConnects {
    /// Those since last taken.
    pub(super) fn take(&mut self) -> BTreeMap<FailedConnect, u64> {
        std::mem::take(&mut self.counts)
    }

    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.counts.len(), FAILED_CONNECTS, self.without_port)
    }

    /// A connect failed.
    fn add(&mut self, failed: FailedConnect) {
        let has_room = self.counts.len() < FAILED_CONNECTS || self.counts.contains_key(&failed);
        self.without_port += u64::from(!has_room);
        // Which port matters less than that it failed.
        let key = if has_room { failed } else { FailedConnect { port: 0, ..failed } };
        *self.counts.entry(key).or_default() += 1;
    }

    /// A socket changed state: its open spans take over the network path. One that was never connected is counted.
    pub(super) fn note_network(&mut self, world: &mut World, state: &State) {
        let Some(connection) = world.connections.get_mut(&state.cookie) else { return };
        if state.new == tcp_state::SYN_SENT {
            return;
        }
        let open: Vec<_> = connection.spans().collect();
        for slot in open {
            if let Some(live) = world.spans.get_mut(slot) {
                live.goes_on(state.path);
            }
        }
        if state.old == tcp_state::SYN_SENT && state.new == tcp_state::CLOSE {
            let tgid = connection.tgid;
            let service = world.processes.service(tgid);
            self.add(FailedConnect { service, port: state.remote_port, error: state.error });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::ServiceId;

    #[test]
    fn ports_of_failed_connects_that_find_no_room_are_counted() {
        let mut failed = FailedConnects::default();
        let of = |port| FailedConnect { service: ServiceId(1), port, error: 111 };
        for port in 1..=FAILED_CONNECTS as u16 + 10 {
            failed.add(of(port));
        }
        failed.add(of(1));
        assert_eq!(failed.table_use(), TableUse::new(FAILED_CONNECTS + 1, FAILED_CONNECTS, 10));
        let all = failed.take();
        assert_eq!((all.get(&of(0)), all.get(&of(1))), (Some(&10), Some(&2)));
        assert_eq!((failed.table_use().entries, failed.table_use().reached), (0, 10));
    }
}
