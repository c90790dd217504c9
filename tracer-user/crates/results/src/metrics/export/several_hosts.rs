//! Contexts exchanged with agents of other hosts, by relay and in band.

use prometheus::{Histogram, HistogramOpts};
use tracer_common::header;

use super::Metrics;
use super::header_injection::HeaderFamilies;
use crate::metrics::families::{Families, vec};
use crate::metrics::totals::Totals;

/// Histogram bounds of `tracer_relay_match_delay_seconds`.
const DELAYS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0];

/// The families.
#[derive(Debug)]
pub(super) struct SeveralHosts {
    relay: Totals,
    match_delay: Histogram,
    inband: Totals,
    headers: HeaderFamilies,
}

impl SeveralHosts {
    pub(super) fn new(r: &Families) -> Self {
        let delay = "From the first byte of a request read to its caller on another host known, seconds.";
        let delay = HistogramOpts::new("tracer_relay_match_delay_seconds", delay).buckets(DELAYS.to_vec());
        Self {
            relay: Totals::new(
                r,
                "tracer_relay_total",
                "Contexts exchanged between hosts by outcome: sent, received; of the received ones matched, late (their \
                 request was already reported), unmatched (the agent did not see their request), elsewhere (unmatched, \
                 but sent to several agents), settled (fixed the transaction of a request already matched), duplicate, \
                 refused, dropped. Also answer_late: answers of the other end that came after their call was reported; \
                 they are no contexts.",
                "outcome",
            ),
            match_delay: vec(r, Histogram::with_opts(delay)),
            inband: Totals::new(
                r,
                "tracer_inband_total",
                "In-band contexts by outcome: sent, received; matched (named the parent of the request they came with), \
                 header (the request named its parent in a header), unmatched (no request begins at that position), \
                 contradicted (another carrier named another parent), renamed (sent with another transaction's name \
                 than the call turned out to have), refused, dropped.",
                "outcome",
            ),
            headers: HeaderFamilies::new(r),
        }
    }
}

impl Metrics {
    /// Contexts exchanged between hosts by outcome, absolute.
    pub fn set_relay(&self, outcomes: &[(&str, u64)]) {
        self.several_hosts.relay.set_all(outcomes.iter().copied());
    }

    /// Observes how long after a request's first byte its caller on another host became known, nanoseconds.
    pub fn relay_delay(&self, nanos: u64) {
        self.several_hosts.match_delay.observe(nanos as f64 / 1e9);
    }

    /// In-band contexts by outcome, absolute.
    pub fn set_inband(&self, outcomes: &[(&str, u64)]) {
        self.several_hosts.inband.set_all(outcomes.iter().copied());
    }

    /// Connections and requests selected for header injection, by outcome, absolute.
    pub fn set_headers(&self, outcomes: impl Iterator<Item = (header::Outcome, u64)>) {
        for (outcome, count) in outcomes {
            self.several_hosts.headers.set(outcome, count);
        }
    }
}
