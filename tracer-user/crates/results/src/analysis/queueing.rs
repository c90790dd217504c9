//! How much longer work takes on busy CPUs.

/// Beyond this utilisation the formula's answer is no longer trusted.
const MOST: f64 = 0.97;
/// More CPUs than this make no difference, and would take long to add up.
const CORES: f64 = 4096.0;

/// Mean time in an M/M/c queue ÷ service time: `1 + C(c,U) / (c·(1−U))`, C by Erlang. `utilisation` from 0 to 1; what
/// is no number counts as idle.
pub fn slowdown(utilisation: f64, cores: f64) -> f64 {
    let u = if utilisation.is_finite() { utilisation.clamp(0.0, MOST) } else { 0.0 };
    let cores = if cores.is_finite() { cores.clamp(1.0, CORES).round() } else { 1.0 };
    let load = u * cores;
    // Erlang B by its recurrence, then C from B.
    let mut blocking = 1.0;
    for servers in 1..=cores as u32 {
        blocking = load * blocking / (f64::from(servers) + load * blocking);
    }
    let waiting = blocking / (1.0 - u * (1.0 - blocking));
    1.0 + waiting / (cores * (1.0 - u))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_is_one_over_idle() {
        for u in [0.0, 0.2, 0.5, 0.9] {
            assert!((slowdown(u, 1.0) - 1.0 / (1.0 - u)).abs() < 1e-9, "{u}");
        }
        // Erlang C(2, 0.5) = 1/3.
        assert!((slowdown(0.5, 2.0) - (1.0 + 1.0 / 3.0)).abs() < 1e-9);
    }

    #[test]
    fn absurd_input_has_an_answer() {
        for (u, cores) in [(f64::NAN, f64::NAN), (9.0, 1e300), (-1.0, -5.0), (f64::INFINITY, 0.0), (0.999, 1e9)] {
            let answer = slowdown(u, cores);
            assert!(answer.is_finite() && answer >= 1.0, "{u} {cores}: {answer}");
        }
    }
}
