//! The agent's own process under the usual `process_*` names, read at every scrape.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::{Gauge, proto::MetricFamily};

/// Clock ticks per second in `/proc`: fixed at 100 on every supported architecture.
const USER_HZ: f64 = 100.0;

/// Reads `/proc/self` at every scrape, except for CPU and resident memory: the agent's loop maintains those.
#[derive(Debug, Clone)]
pub(super) struct Process {
    started: Gauge,
    threads: Gauge,
    virtual_memory: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
}

impl Process {
    pub(super) fn new() -> prometheus::Result<Self> {
        Ok(Self {
            started: Gauge::new("process_start_time_seconds", "Start time of the agent in seconds since the epoch.")?,
            threads: Gauge::new("process_threads", "Threads of the agent.")?,
            virtual_memory: Gauge::new("process_virtual_memory_bytes", "Address space of the agent in bytes.")?,
            open_fds: Gauge::new("process_open_fds", "Open file descriptors of the agent.")?,
            max_fds: Gauge::new("process_max_fds", "Limit of open file descriptors of the agent.")?,
        })
    }

    fn all(&self) -> [&Gauge; 5] {
        [&self.started, &self.threads, &self.virtual_memory, &self.open_fds, &self.max_fds]
    }

    /// Updates the gauges; one that cannot be read keeps its value.
    fn read(&self) {
        if let Ok(stat) = fs::read_to_string("/proc/self/stat")
            && let Some(fields) = Stat::parse(&stat)
        {
            self.threads.set(fields.threads);
            self.virtual_memory.set(fields.virtual_bytes);
            if let Some(booted) = fs::read_to_string("/proc/stat").ok().as_deref().and_then(boot_time) {
                self.started.set(booted + fields.start_ticks / USER_HZ);
            }
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // The listing itself uses one descriptor.
            self.open_fds.set(entries.count().saturating_sub(1) as f64);
        }
        if let Some(most) = fs::read_to_string("/proc/self/limits").ok().as_deref().and_then(soft_limit) {
            self.max_fds.set(most);
        }
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}

/// Fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq)]
struct Stat {
    threads: f64,
    start_ticks: f64,
    virtual_bytes: f64,
}

impl Stat {
    /// Parses from the last parenthesis on, because the name before it may contain anything.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // The first field here is field 3 in proc(5).
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self { threads: field(20)?, start_ticks: field(22)?, virtual_bytes: field(23)? })
    }
}

/// Boot time of the host, seconds since the epoch.
fn boot_time(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Soft limit of open files; `None` when unlimited.
fn soft_limit(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_blanks_shifts_nothing() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 12 0 900 4096000 55 0";
        assert_eq!(Stat::parse(text), Some(Stat { threads: 12.0, start_ticks: 900.0, virtual_bytes: 4_096_000.0 }));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn this_process_is_read() {
        let process = Process::new().unwrap();
        process.read();
        for (gauge, least) in process.all().into_iter().zip([1.0e9, 1.0, 1.0e6, 3.0, 8.0]) {
            assert!(gauge.get() >= least, "{gauge:?}");
        }
        assert_eq!(soft_limit("Max open files            1024                 4096   files\n"), Some(1024.0));
        assert_eq!(soft_limit("Max open files            unlimited unlimited files\n"), None);
    }
}
