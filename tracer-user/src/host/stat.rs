//! What the system says was used: `/proc/stat`.

/// CPU time of the whole host since boot, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostCpu {
    /// User, nice, system, interrupts and steal. Guests' time is part of user time.
    pub busy_s: f64,
    /// Idle and waiting for I/O.
    pub idle_s: f64,
}

/// Parses the first line of `/proc/stat`, counted in `hertz` ticks a second; `None` for anything else.
pub fn parse(stat: &str, hertz: f64) -> Option<HostCpu> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || fields.next()?.ok();
    let (user, nice, system, idle, iowait) = (next()?, next()?, next()?, next()?, next()?);
    let (irq, softirq, steal) = (next().unwrap_or(0), next().unwrap_or(0), next().unwrap_or(0));
    let busy = [user, nice, system, irq, softirq, steal].into_iter().fold(0u64, u64::saturating_add);
    Some(HostCpu { busy_s: busy as f64 / hertz, idle_s: idle.saturating_add(iowait) as f64 / hertz })
}

/// Reads it now.
pub fn read() -> Option<HostCpu> {
    parse(&std::fs::read_to_string("/proc/stat").ok()?, 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_line_counts() {
        let cpu = parse("cpu  100 20 30 400 50 6 7 8 9 0\ncpu0 1 2 3", 100.0).unwrap();
        assert!((cpu.busy_s - 1.71).abs() < 1e-9 && (cpu.idle_s - 4.5).abs() < 1e-9, "{cpu:?}");
        assert_eq!(parse("intr 1 2 3 4 5", 100.0), None);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in ".{0,200}") {
            let _ = parse(&text, 100.0);
            let _ = parse(&format!("cpu  {text}"), 100.0);
        }
    }
}
