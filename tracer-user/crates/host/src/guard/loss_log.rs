//! Rate limit for messages about losses on stderr: the first at once, then at most one per interval, so that a flood of
//! losses makes no flood of messages.

use std::time::{Duration, Instant};

/// Minimum time between two messages about the same loss.
const EVERY: Duration = Duration::from_secs(60);

/// Time of the last message, and the total it reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossLog {
    reported: u64,
    at: Option<Instant>,
}

impl LossLog {
    /// The losses since the last message, if at `now` another message is due.
    pub fn due(&mut self, now: Instant, total: u64) -> Option<u64> {
        let more = total.saturating_sub(self.reported);
        let early = self.at.is_some_and(|at| now.saturating_duration_since(at) < EVERY);
        if more == 0 || early {
            return None;
        }
        *self = Self { reported: total, at: Some(now) };
        Some(more)
    }

    /// The losses since the last message, whenever that was: for the end of tracing.
    pub fn rest(&mut self, total: u64) -> Option<u64> {
        let more = total.saturating_sub(self.reported);
        self.reported = self.reported.max(total);
        (more > 0).then_some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_losses_is_one_message_a_minute() {
        let (mut log, begun) = (LossLog::default(), Instant::now());
        assert_eq!(log.due(begun, 0), None);
        assert_eq!(log.due(begun, 3), Some(3), "the first is reported at once");
        let reported: Vec<u64> =
            (0..150).filter_map(|second| log.due(begun + Duration::from_secs(second), 3 + second * 10)).collect();
        assert_eq!(reported, [600, 600]);
        assert_eq!((log.rest(1503), log.rest(1503)), (Some(300), None));
    }
}
