//! Verdicts over several runs of an agent: each begins with its own reference, as the agent's own do.

use std::collections::VecDeque;

use super::detector::{Detector, FINDINGS, Settings};
use super::finding::Finding;
use super::window::Window;

/// A detector for the present run, and what earlier ones found.
#[derive(Debug)]
pub struct DetectorRuns {
    /// Start of the present run.
    run_ns: u64,
    settings: Settings,
    /// Of the present run.
    pub detector: Detector,
    past: VecDeque<Finding>,
}

impl DetectorRuns {
    /// Before the first window.
    pub fn new(settings: Settings) -> Self {
        let detector = Detector::new(settings.clone());
        Self { run_ns: 0, settings, detector, past: VecDeque::new() }
    }

    /// Takes the next window, of the run that began at `run_ns` (0: not known, so the same).
    pub fn push(&mut self, run_ns: u64, window: &Window) {
        if run_ns != self.run_ns && self.run_ns != 0 && run_ns != 0 {
            let next = Detector::new(self.settings.clone()).numbered_from(self.detector.next_id());
            self.past.extend(std::mem::replace(&mut self.detector, next).into_findings());
            let more = self.past.len().saturating_sub(FINDINGS);
            self.past.drain(..more);
        }
        if run_ns != 0 {
            self.run_ns = run_ns;
        }
        self.detector.push(window);
    }

    /// All findings, oldest first. Numbers go on over runs.
    pub fn findings(&self) -> impl DoubleEndedIterator<Item = &Finding> {
        self.past.iter().chain(self.detector.findings())
    }
}

impl DetectorRuns {
    /// What all runs found; those that last are over, because they are no longer watched.
    pub fn into_findings(mut self) -> VecDeque<Finding> {
        self.past.extend(self.detector.into_findings());
        self.past
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_process_is_found_in_each_run_and_over_with_it() {
        let mut runs = DetectorRuns::new(Settings::default());
        for n in 0..120u64 {
            // Two runs of sixty windows; in each another process burns CPU from the fortieth on.
            let foreign_s = if n % 60 >= 40 { 20.0 } else { 0.0 };
            let (start_ns, busy_s) = (n * 10_000_000_000, 1.0 + foreign_s);
            let window = Window { start_ns, length_s: 10.0, cores: 4.0, busy_s, foreign_s, ..Window::default() };
            runs.push(1 + n / 60, &window);
        }
        let found: Vec<(u64, Option<u64>)> = runs.findings().map(|one| (one.id, one.until_ns)).collect();
        assert_eq!(found, [(1, Some(600_000_000_000)), (2, None)]);
        // An agent that starts after both shows them, and numbers its own after them.
        let mut next = Detector::new(Settings::default());
        assert!(next.remember(runs.into_findings()));
        assert!(!next.remember(VecDeque::new()));
        assert_eq!((next.findings().count(), next.own_findings().count(), next.next_id()), (2, 0, 3));
        assert!(next.evidence(2).is_none());
        assert!(next.findings().all(|one| one.until_ns.is_some()));
    }
}
