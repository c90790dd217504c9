//! What a process uses, from `/proc`.

/// Memory, descriptors and threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Vitals {
    /// Resident memory, bytes.
    pub rss: f64,
    /// The most it was, bytes.
    pub peak: f64,
    /// Open descriptors.
    pub fds: usize,
    /// Threads.
    pub threads: usize,
}

impl Vitals {
    /// Of process `pid`; panics when it is gone.
    pub fn of(pid: u32) -> Self {
        let path = format!("/proc/{pid}/status");
        let status = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let word = line.and_then(|rest| rest.split_whitespace().next());
            word.and_then(|word| word.parse::<f64>().ok()).unwrap_or_else(|| panic!("{path}: no {name}"))
        };
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        Self { rss: field("VmRSS") * 1024.0, peak: field("VmHWM") * 1024.0, fds, threads: field("Threads") as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ourselves() {
        let before = Vitals::of(std::process::id());
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let during = Vitals::of(std::process::id());
        assert!(before.rss > 100_000.0 && before.threads >= 1 && before.peak >= before.rss, "{before:?}");
        assert!(during.fds > before.fds.min(3), "{during:?}");
        drop(file);
    }
}
