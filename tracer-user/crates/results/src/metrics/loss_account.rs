//! Losses and attribution gaps: the one account from which `/metrics`, the API, the console and the summary take their
//! figures.
//!
//! `tracer_events_lost_total` counts records and spans that were dropped. `tracer_attribution_gaps_total` counts
//! everything else that limits the agent's knowledge: no record was dropped, but the agent could not attribute
//! something or saw only a part of it.

use prometheus::core::Collector;
use tracer_common::lost::Lost;
use tracer_model::decode::Malformed;

use super::families::Families;
use super::totals::Totals;

/// Losses counted in user space, besides the kernel's and malformed records.
const USER_SPACE: [&str; 4] = ["hook_skipped", "records_not_written", "spans_not_written", "samples_dropped"];

/// The account.
#[derive(Debug)]
pub(super) struct LossAccount {
    events: Totals,
    gaps: Totals,
}

impl LossAccount {
    pub(super) fn new(families: &Families) -> Self {
        let family = |name: &str, help: &str| Totals::new(families, name, help, "reason");
        let account = Self {
            events: family("tracer_events_lost_total", "Records and spans that were lost, by where and why."),
            gaps: family(
                "tracer_attribution_gaps_total",
                "What the agent could not attribute or did not see completely although no record was lost, by reason.",
            ),
        };
        for reason in Lost::ALL {
            account.set(reason.name(), 0);
        }
        account
    }

    /// Sets the total of a reason.
    pub(super) fn set(&self, reason: &str, total: u64) {
        let family = if is_event(reason) { &self.events } else { &self.gaps };
        family.set(reason, total);
    }

    /// Lost events by reason, without zeros, sorted by name.
    pub(super) fn events(&self) -> Vec<(String, u64)> {
        let families = self.events.0.collect();
        let counted = families.iter().flat_map(prometheus::proto::MetricFamily::get_metric).filter_map(|metric| {
            let reason = metric.get_label().first()?.value().to_owned();
            Some((reason, metric.get_counter().get_value() as u64))
        });
        let mut all: Vec<(String, u64)> = counted.filter(|(_, count)| *count > 0).collect();
        all.sort_unstable();
        all
    }
}

fn is_event(reason: &str) -> bool {
    let in_kernel = Lost::ALL.into_iter().any(|lost| lost.is_event() && lost.name() == reason);
    in_kernel || USER_SPACE.contains(&reason) || Malformed::ALL.into_iter().any(|why| why.name() == reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_the_sum_of_the_family_on_metrics() {
        let families = Families::default();
        let account = LossAccount::new(&families);
        for (reason, total) in [
            ("ring_full_op", 5),
            ("hook_skipped", 2),
            ("decode_short", 1),
            ("parser_gap_bytes", 70_000),
            ("payload_fault", 3),
            ("thread_operations_missing", 4),
        ] {
            account.set(reason, total);
        }
        let expected = [("decode_short", 1), ("hook_skipped", 2), ("ring_full_op", 5)];
        assert_eq!(account.events(), expected.map(|(reason, count)| (reason.to_owned(), count)));
        let text = prometheus::TextEncoder::new().encode_to_string(&families.registry().gather()).unwrap();
        let sum = |family: &str| -> f64 {
            let lines = text.lines().filter(|line| line.starts_with(&format!("{family}{{")));
            lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
        };
        assert!((sum("tracer_events_lost_total") - 8.0).abs() < 0.1, "{text}");
        assert!((sum("tracer_attribution_gaps_total") - 70_007.0).abs() < 0.1, "{text}");
    }
}
