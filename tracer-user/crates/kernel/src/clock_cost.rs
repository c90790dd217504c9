//! What an expiry of a sampling clock costs beyond the program that it runs: the interrupt, perf's own work, and programming
//! the timer again. A virtual machine pays ten times what a machine pays, so the agent measures it at start.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::sampler::{self, SamplerError};

/// Period of the clock while it is measured, nanoseconds, and how long each round lasts about.
const PERIOD: u64 = 100_000;
const ROUND: Duration = Duration::from_millis(2);
/// Rounds with the clock and without. The shortest of each count: others were interrupted by something else.
const ROUNDS: u32 = 8;
/// Without a measurement, nanoseconds.
const TYPICAL: u64 = 3_000;
/// What a measurement can be, nanoseconds: a machine of its own needs about the first, and with the last the clock would
/// take half of the round.
const LIMITS: (u64, u64) = (1_000, PERIOD / 2);

/// Nanoseconds of one expiry, within limits; takes some 40 ms.
pub fn measure() -> u64 {
    try_measure().unwrap_or_else(|error| {
        log::debug!("the cost of the sampling clock was not measured: {error}");
        TYPICAL
    })
}

fn try_measure() -> Result<u64, SamplerError> {
    let clock = sampler::idle(PERIOD)?;
    let refused = |source| SamplerError::Refused { what: "the clock did not start", cpu: 0, source };
    let steps = calibrate();
    let (mut without, mut with) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        without = without.min(spin(steps));
        sampler::enable(&clock).map_err(refused)?;
        with = with.min(spin(steps));
        sampler::disable(&clock).map_err(refused)?;
    }
    Ok(each(without, with))
}

/// Nanoseconds of an expiry when the same work took so long `without` the clock and `with` it.
fn each(without: Duration, with: Duration) -> u64 {
    let expiries = (with.as_nanos() as u64 / PERIOD).max(1);
    (with.saturating_sub(without).as_nanos() as u64 / expiries).clamp(LIMITS.0, LIMITS.1)
}

/// Steps of work that take about a round.
fn calibrate() -> u64 {
    let mut steps = 10_000;
    let shortest = |steps| (0..3).map(|_| spin(steps)).min().unwrap_or_default();
    while shortest(steps) < ROUND && steps < 1 << 32 {
        steps *= 2;
    }
    steps
}

/// How long this many steps of work take.
fn spin(steps: u64) -> Duration {
    let begin = Instant::now();
    let mut x = 1u64;
    for _ in 0..steps {
        x = black_box(x.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(3_037_000_493));
    }
    begin.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_the_difference_by_their_number() {
        let millis = |millis: f64| Duration::from_secs_f64(millis / 1e3);
        // 22 expiries in 2.2 ms, which took 0.2 ms.
        assert_eq!(each(millis(2.0), millis(2.2)), 9_090);
        assert_eq!(each(millis(2.0), millis(1.9)), LIMITS.0);
        assert_eq!(each(millis(0.0), millis(9.0)), LIMITS.1);
        assert_eq!(each(millis(0.0), millis(0.0)), LIMITS.0);
    }
}
