//! The agent about itself: how full everything is, what it gives up, what it may take.

use prometheus::{Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::export::{Totals, vec};
use crate::guard::fill::Fill;
use crate::guard::shed::{Ceilings, Level};

/// Reasons of the watchdog.
const REASONS: [&str; 4] = ["standstill", "ending", "memory", "cpu"];

/// Bounds of the delays of contexts, seconds.
const DELAYS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0];

/// The families.
#[derive(Debug)]
pub(super) struct Own {
    entries: IntGaugeVec,
    limits: IntGaugeVec,
    reached: Totals,
    level: Gauge,
    shed: Vec<(Level, IntCounter)>,
    ceilings: GaugeVec,
    usage: GaugeVec,
    detached: GaugeVec,
    spans: Totals,
    saved: Totals,
    span_retries: Totals,
    relay: Totals,
    relay_delay: Histogram,
    inband: Totals,
    headers: Totals,
    unlinked: Totals,
}

impl Own {
    pub(super) fn new(r: &Registry) -> Self {
        let gauge = |name: &str, help: &str, label: &str| GaugeVec::new(Opts::new(name, help), &[label]);
        let int = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["what"]);
        let total = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["what"]);
        let shed = vec(
            r,
            total("tracer_shed_total", "Times a level of detail was given up to stay within the agent's own ceilings."),
        );
        let detached = vec(
            r,
            gauge(
                "tracer_watchdog_detached",
                "1 where the watchdog has detached every program for this reason; the agent ends then.",
                "reason",
            ),
        );
        for reason in REASONS {
            detached.with_label_values(&[reason]).set(0.0);
        }
        let outcomes = "Units of work by what became of them as spans: sent, queue_full, rejected by the collector, or failed \
                        because it could not be reached for long.";
        let spans = Totals(vec(r, IntCounterVec::new(Opts::new("tracer_otlp_spans_total", outcomes), &["outcome"])));
        let outcomes = "Noteworthy transactions by what became of them: written, failed (the disk refused), or missed (gone from \
                        memory before they stood still).";
        let saved =
            Totals(vec(r, IntCounterVec::new(Opts::new("tracer_saved_transactions_total", outcomes), &["outcome"])));
        let again = "Requests with spans that were sent again.";
        let span_retries =
            Totals(vec(r, IntCounterVec::new(Opts::new("tracer_otlp_retries_total", again), &["signal"])));
        let outcomes = "Contexts between hosts by what became of them: sent, received; of those received matched, late (their request \
                        was reported), unmatched (it was not seen), elsewhere (the same, sent to several agents), settled (named \
                        the transaction of one that was known), duplicate, refused, dropped. And answer_late: words of other ends whose call was reported.";
        let relay = Totals(vec(r, IntCounterVec::new(Opts::new("tracer_relay_total", outcomes), &["outcome"])));
        let outcomes = "Contexts in band by what became of them: sent, received; matched (named the parent of the request they \
                        came with), header (that one named a parent itself), unmatched (no request begins where they went or \
                        came), contradicted (another carrier named another parent), renamed (sent with the name of another \
                        transaction than the call turned out to be of), refused, dropped.";
        let inband = Totals(vec(r, IntCounterVec::new(Opts::new("tracer_inband_total", outcomes), &["outcome"])));
        let outcomes = "Connections and requests to destinations whose requests get a traceparent header: connections_taken and \
                        connections_left, and those not taken (full, blocking, not_taken); requests injected, present (they had \
                        one), busy. Whatever else is named ended it for its connection.";
        let outcomes = Opts::new("tracer_inband_header_total", outcomes);
        let headers = Totals(vec(r, IntCounterVec::new(outcomes, &["outcome"])));
        let reasons = "Messages of requests and replies with many that link nothing though they may say who produced them: unread \
                       (compressed, or not captured, as far as their number is known), or limit (their unit has too many links).";
        let reasons = Opts::new("tracer_messages_unlinked_total", reasons);
        let unlinked = Totals(vec(r, IntCounterVec::new(reasons, &["reason"])));
        let delay = "From the first byte of a request read to its caller on another host known, seconds.";
        let delay = HistogramOpts::new("tracer_relay_match_delay_seconds", delay).buckets(DELAYS.to_vec());
        let relay_delay = vec(r, Histogram::with_opts(delay));
        Self {
            entries: vec(r, int("tracer_fill_entries", "What is in a table, queue, cache or ring of the agent.")),
            limits: vec(r, int("tracer_fill_limit_entries", "Most that can be in it.")),
            reached: Totals(vec(
                r,
                total("tracer_fill_reached_total", "Times something found no room in it, or made something else go."),
            )),
            level: vec(
                r,
                Gauge::new(
                    "tracer_shed_level",
                    "Detail given up: 0 nothing, 1 payload, 2 sampling, 3 classes, 4 history; each includes those before.",
                ),
            ),
            shed: Level::ALL
                .into_iter()
                .filter(|level| *level > Level::Full)
                .map(|level| (level, shed.with_label_values(&[level.name()])))
                .collect(),
            ceilings: vec(
                r,
                gauge(
                    "tracer_ceiling",
                    "Most the agent may take: memory (without pages of files) in bytes, CPU in cores' worth.",
                    "resource",
                ),
            ),
            usage: vec(
                r,
                gauge(
                    "tracer_ceiling_used_ratio",
                    "What the agent takes / what it may: memory (without pages of files), CPU of the last seconds.",
                    "resource",
                ),
            ),
            detached,
            spans,
            saved,
            span_retries,
            relay,
            relay_delay,
            inband,
            headers,
            unlinked,
        }
    }

    pub(super) fn fill(&self, what: &str, fill: Fill) {
        self.entries.with_label_values(&[what]).set(fill.entries as i64);
        self.limits.with_label_values(&[what]).set(i64::try_from(fill.limit).unwrap_or(i64::MAX));
        self.reached.set(what, fill.reached);
    }

    pub(super) fn level(&self, level: Level) {
        self.level.set(f64::from(level as u8));
    }

    pub(super) fn shed(&self, taken: Level) {
        if let Some((_, counter)) = self.shed.iter().find(|(level, _)| *level == taken) {
            counter.inc();
        }
    }

    pub(super) fn usage(&self, ceilings: &Ceilings, memory: u64, cpu: f64) {
        for (resource, most, used) in [("memory", ceilings.memory as f64, memory as f64), ("cpu", ceilings.cpu, cpu)] {
            self.ceilings.with_label_values(&[resource]).set(most);
            self.usage.with_label_values(&[resource]).set(used / most.max(f64::MIN_POSITIVE));
        }
    }

    pub(super) fn export(&self, spans: &[(&str, u64)], retries: u64) {
        for (outcome, count) in spans {
            self.spans.set(outcome, *count);
        }
        self.span_retries.set("traces", retries);
    }

    pub(super) fn relay(&self, outcomes: &[(&str, u64)]) {
        for (outcome, count) in outcomes {
            self.relay.set(outcome, *count);
        }
    }

    pub(super) fn headers(&self, outcomes: &[(&str, u64)]) {
        for (outcome, count) in outcomes {
            self.headers.set(outcome, *count);
        }
    }

    pub(super) fn inband(&self, outcomes: &[(&str, u64)]) {
        for (outcome, count) in outcomes {
            self.inband.set(outcome, *count);
        }
    }

    pub(super) fn unlinked(&self, reasons: &[(&str, u64)]) {
        for (reason, count) in reasons {
            self.unlinked.set(reason, *count);
        }
    }

    pub(super) fn relay_delay(&self, nanos: u64) {
        self.relay_delay.observe(nanos as f64 / 1e9);
    }

    pub(super) fn saved(&self, counts: &[(&str, u64)]) {
        for (outcome, count) in counts {
            self.saved.set(outcome, *count);
        }
    }

    pub(super) fn detached(&self) -> GaugeVec {
        self.detached.clone()
    }
}
