//! The CPU usage of the whole host.
//!
//! Many kernels count `/proc/stat` by timer ticks, so work that begins and ends between two ticks shows too small or
//! too large there. The sum of run times at the root of a cpuacct hierarchy, in nanoseconds, is preferred if it exists;
//! then that of `/proc/schedstat`.

/// CPU time of the whole host since boot, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostCpuSource {
    /// User, nice, system, interrupt and steal time. User time includes guests' time.
    pub busy_s: f64,
    /// Idle time and time waiting for I/O.
    pub idle_s: f64,
    /// Steal time alone; part of `busy_s` unless that is exact.
    pub steal_s: f64,
    /// CPUs online.
    pub cpus: u32,
    /// `busy_s` is a sum of run times, not counted by ticks.
    pub exact: bool,
}

/// Parses the first line of `/proc/stat`, with `hertz` ticks per second; `None` if it is malformed.
pub fn parse(stat: &str, hertz: f64) -> Option<HostCpuSource> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || fields.next()?.ok();
    let (user, nice, system, idle, iowait) = (next()?, next()?, next()?, next()?, next()?);
    let (irq, softirq, steal) = (next().unwrap_or(0), next().unwrap_or(0), next().unwrap_or(0));
    let busy = [user, nice, system, irq, softirq, steal].into_iter().fold(0u64, u64::saturating_add);
    Some(HostCpuSource {
        busy_s: busy as f64 / hertz,
        idle_s: idle.saturating_add(iowait) as f64 / hertz,
        steal_s: steal as f64 / hertz,
        cpus: stat.lines().skip(1).take_while(|line| line.starts_with("cpu")).count() as u32,
        exact: false,
    })
}

/// Reads the current usage.
pub fn read() -> Option<HostCpuSource> {
    // The unit is USER_HZ, which is 100 on every processor this builds for.
    let ticks = parse(&std::fs::read_to_string("/proc/stat").ok()?, 100.0)?;
    Some(match cpuacct().or_else(schedstat) {
        Some(busy_s) => HostCpuSource { busy_s, exact: true, ..ticks },
        None => ticks,
    })
}

/// Run time of all tasks since boot, seconds, from the root of the cpuacct hierarchy.
fn cpuacct() -> Option<f64> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let root = cpuacct_root(&mounts)?;
    let nanos: u64 = std::fs::read_to_string(format!("{root}/cpuacct.usage")).ok()?.trim().parse().ok()?;
    Some(nanos as f64 / 1e9)
}

/// The same from the scheduler's statistics, if the kernel has them.
fn schedstat() -> Option<f64> {
    parse_schedstat(&std::fs::read_to_string("/proc/schedstat").ok()?)
}

/// Sums the run time of all CPUs, seconds (`Documentation/scheduler/sched-stats.rst`, seventh field, nanoseconds).
pub fn parse_schedstat(text: &str) -> Option<f64> {
    let cpus = text.lines().filter(|line| line.starts_with("cpu"));
    let times = cpus.map(|line| line.split_ascii_whitespace().nth(7)?.parse::<u64>().ok());
    let sum = times.collect::<Option<Vec<u64>>>()?.into_iter().fold(0u64, u64::saturating_add);
    (sum > 0).then_some(sum as f64 / 1e9)
}

/// Mount point of the cpuacct hierarchy, from the text of `/proc/mounts`.
pub fn cpuacct_root(mounts: &str) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup" && options.split(',').any(|option| option == "cpuacct")).then_some(path)
    })
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

    #[test]
    fn run_times_of_the_scheduler() {
        let text = "version 17\ntimestamp 4295000000\ncpu0 0 0 10 2 5 1 1500000000 70 8\ndomain0 3 0\ncpu1 0 0 1 2 3 4 500000000 6 7\n";
        assert_eq!(parse_schedstat(text), Some(2.0));
        assert_eq!(parse_schedstat("version 15\ncpu0 0 0\n"), None);
        assert_eq!(parse_schedstat(""), None);
    }

    #[test]
    fn the_hierarchy_is_found() {
        let mounts =
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup /sys/fs/cgroup/acct cgroup rw,relatime,cpuacct 0 0\n";
        assert_eq!(cpuacct_root(mounts), Some("/sys/fs/cgroup/acct"));
        assert_eq!(cpuacct_root("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in ".{0,200}") {
            let _ = parse(&text, 100.0);
            let _ = parse(&format!("cpu  {text}"), 100.0);
        }
    }
}
