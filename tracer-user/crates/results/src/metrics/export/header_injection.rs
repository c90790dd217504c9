//! Connections and requests that get a `traceparent` header.

use tracer_common::header::{Outcome, Subject};

use crate::metrics::families::Families;
use crate::metrics::totals::Totals;

/// A family for each subject.
#[derive(Debug)]
pub(super) struct HeaderFamilies {
    connections: Totals,
    requests: Totals,
    left_alone: Totals,
}

impl HeaderFamilies {
    pub(super) fn new(r: &Families) -> Self {
        let family = |subject: &str, help: &str, label: &str| {
            let name = format!("tracer_inband_header_{subject}_total");
            Totals::new(r, &name, help, label)
        };
        Self {
            connections: family(
                "connections",
                "Connections to destinations that get a traceparent header by event: taken (their requests can get \
                 one), released (they ended, or get no more).",
                "event",
            ),
            requests: family(
                "requests",
                "Requests on taken connections by outcome: injected, present (they had a header), busy (earlier bytes \
                 were not acknowledged).",
                "outcome",
            ),
            left_alone: family(
                "left_alone",
                "Connections to destinations that get no traceparent header, by reason: full, not_taken (from the \
                 start); blocking, zerocopy (from the start or from then on); every other reason holds from then on \
                 (see docs/context-propagation.md).",
                "reason",
            ),
        }
    }

    pub(super) fn set(&self, outcome: Outcome, count: u64) {
        let family = match outcome.subject() {
            Subject::Connection => &self.connections,
            Subject::Request => &self.requests,
            Subject::LeftAlone => &self.left_alone,
        };
        family.set(outcome.name(), count);
    }
}
