//! Hands windows of request classes to the activity profiles: those that end, and those of earlier runs.

use std::sync::Arc;

use tracer_model::Side;
use tracer_results::analysis::activity::Values;
use tracer_results::history::recent::Point;
use tracer_results::history::rows::{ClassRow, DURATION_BOUNDS_NS};

use super::Pipeline;

impl Pipeline {
    /// The window that began at `start_ns` is over: its requests served are learnt.
    pub(super) fn learn_activity(&mut self, start_ns: u64) {
        for (class, points) in self.history.recent.series() {
            let Some(point) = points.back().filter(|point| point.start_ns == start_ns) else { continue };
            if let Some(info) = self.names.class(class).filter(|info| info.side == Side::Server) {
                let class = (Arc::clone(&info.service_name), Arc::clone(&info.name));
                self.activity.push(&class, start_ns, &of_point(point));
            }
        }
    }

    /// A window of an earlier run.
    pub fn learn_past_activity(&mut self, row: &ClassRow) {
        if *row.side == *Side::Server.name()
            && let Some(values) = of_row(row)
        {
            self.activity.push_past(
                &(Arc::clone(&row.service_name), Arc::clone(&row.request_class)),
                row.start_ns,
                &values,
            );
        }
    }
}

fn of_point(point: &Point) -> Values {
    [
        point.rate_per_s,
        point.error_rate_per_s,
        point.mean_s,
        point.p95_s,
        point.cpu_s,
        point.runqueue_s,
        point.blocked_s,
        point.queue_s,
        point.downstream_s,
    ]
}

/// The same of a row of the history; `None` if it has no requests, or no length. `Point` counts waits for calls as blocked.
fn of_row(row: &ClassRow) -> Option<Values> {
    let count = row.count as f64;
    if count < 1.0 || row.length_s <= 0.0 || row.length_s.is_nan() {
        return None;
    }
    let each = |sum: f64| (sum / count) as f32;
    Some([
        (count / row.length_s) as f32,
        (row.errors as f64 / row.length_s) as f32,
        each(row.duration_s),
        p95_s(row) as f32,
        each(row.cpu_s),
        each(row.runqueue_s),
        each(row.blocked_s + row.downstream_s),
        each(row.queue_s),
        each(row.downstream_s),
    ])
}

/// The 95th percentile, interpolated within its bucket; seconds.
fn p95_s(row: &ClassRow) -> f64 {
    let counts = &row.duration_histogram.0;
    let wanted = counts.iter().map(|count| f64::from(*count)).sum::<f64>() * 0.95;
    let bound =
        |index: usize| DURATION_BOUNDS_NS.get(index).or(DURATION_BOUNDS_NS.last()).map_or(0.0, |nanos| *nanos as f64);
    let mut below = 0.0;
    for (index, count) in counts.iter().enumerate() {
        let here = f64::from(*count);
        if here > 0.0 && below + here >= wanted {
            let from = index.checked_sub(1).map_or(0.0, bound);
            return (from + (bound(index) - from) * (wanted - below) / here) / 1e9;
        }
        below += here;
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_results::history::rows::DurationHistogram;

    #[test]
    fn a_row_gives_values_per_request() {
        let mut histogram = DurationHistogram::default();
        histogram.add(1_000_000, 90);
        histogram.add(40_000_000, 10);
        let row = ClassRow {
            length_s: 10.0,
            count: 100,
            errors: 5,
            duration_s: 2.0,
            cpu_s: 1.0,
            blocked_s: 0.5,
            downstream_s: 0.25,
            duration_histogram: histogram,
            ..ClassRow::default()
        };
        let values = of_row(&row).unwrap();
        let expected = [10.0, 0.5, 0.02, 0.040_504, 0.01, 0.0, 0.0075, 0.0, 0.0025];
        assert!(values.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4), "{values:?}");
        assert_eq!(of_row(&ClassRow::default()), None);
    }
}
