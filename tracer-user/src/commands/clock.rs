//! The agent's clock: ticks, and the offset of the wall clock to the monotonic clock, which all measurements use.

use std::time::SystemTime;

use tracer_kernel::loader::monotonic;

/// Minimum change that is applied, nanoseconds: more than reading two clocks in succession explains.
const FOLLOWED: u64 = 1_000_000;
/// Minimum change that is reported, nanoseconds.
const STEP: u64 = 500_000_000;

/// Wall clock minus monotonic clock, nanoseconds.
pub(super) fn wall_offset() -> i64 {
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    wall as i64 - monotonic() as i64
}

/// The clock of a running agent.
#[derive(Debug)]
pub(super) struct Clock {
    /// Wall clock minus monotonic clock as times are shown, nanoseconds.
    pub(super) wall_offset: i64,
    /// Ticks so far.
    pub(super) ticks: u64,
}

impl Clock {
    /// Begins with this offset.
    pub(super) fn new(wall_offset: i64) -> Self {
        Self { wall_offset, ticks: 0 }
    }

    /// The offset if it is another one than before: the clock was set, or is being slewed.
    pub(super) fn follow(&mut self) -> Option<i64> {
        let now = wall_offset();
        let by = now.abs_diff(self.wall_offset);
        if by >= STEP {
            let seconds = now.saturating_sub(self.wall_offset) as f64 / 1e9;
            log::warn!(
                "the wall clock was set by {seconds:+.3} s: times follow it from here on, durations are not affected"
            );
        }
        if by < FOLLOWED {
            return None;
        }
        self.wall_offset = now;
        Some(now)
    }
}
