//! A process's resources, from `/proc`.

/// Memory, descriptors and threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Vitals {
    /// Resident memory, bytes.
    pub rss: f64,
    /// Peak resident memory, bytes.
    pub peak: f64,
    /// Open descriptors.
    pub fds: usize,
    /// Threads.
    pub threads: usize,
}

impl Vitals {
    /// Of process `pid`; panics if it is gone.
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

/// Asserts that measurements at equal moments of equal rounds do not grow: the least of the later half exceeds the most
/// of the earlier half by no more than `rss` bytes and `fds` descriptors. A single round above the others, wherever it
/// stands, is no growth; a steady increase is.
pub fn flat(rounds: &[Vitals], rss: f64, fds: usize) {
    let (early, late) = rounds.split_at(rounds.len() / 2);
    assert!(!early.is_empty(), "{rounds:?}: no rounds to compare");
    let most = |of: fn(&Vitals) -> f64| early.iter().map(of).fold(0.0, f64::max);
    let least = |of: fn(&Vitals) -> f64| late.iter().map(of).fold(f64::INFINITY, f64::min);
    let memory = least(|one| one.rss) - most(|one| one.rss);
    let open = least(|one| one.fds as f64) - most(|one| one.fds as f64);
    assert!(memory <= rss && open <= fds as f64, "grown by {memory} bytes and {open} descriptors: {rounds:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(rounds: impl Iterator<Item = (f64, usize)>) -> bool {
        let rounds: Vec<_> = rounds.map(|(rss, fds)| Vitals { rss, fds, ..Vitals::default() }).collect();
        std::panic::catch_unwind(|| flat(&rounds, 16.0, 4)).is_err()
    }

    #[test]
    fn only_growth_is_growth() {
        for of in [[56.0, 32.0, 32.0, 32.0], [32.0, 32.0, 32.0, 56.0], [32.0, 48.0, 40.0, 56.0], [32.0; 4]] {
            assert!(!refused(of.into_iter().map(|rss| (rss, 9))), "{of:?}");
        }
        assert!(refused((0..12).map(|round| (f64::from(round) * 17.0, 9))));
        assert!(refused((0..12).map(|round| (32.0, round * 5))));
    }

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
