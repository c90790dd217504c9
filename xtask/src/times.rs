//! Time of a run by step, as a table.

use std::time::{Duration, Instant};

/// Steps in order of execution.
#[derive(Debug, Default)]
pub(crate) struct Times {
    steps: Vec<(String, Duration)>,
}

impl Times {
    /// Runs a step and records its time, also if it fails.
    pub(crate) fn of<T>(&mut self, step: &str, run: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = run();
        self.add(step, begin.elapsed());
        done
    }

    /// Adds a step that was measured elsewhere.
    pub(crate) fn add(&mut self, step: &str, took: Duration) {
        self.steps.push((step.to_owned(), took));
    }

    /// The table, longest step first. Reruns have their own row and are also part of their step.
    pub(crate) fn table(&self) -> String {
        let mut steps: Vec<_> = self.steps.iter().collect();
        steps.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let rows = steps.iter().map(|(step, took)| format!("{:>7.1} s  {step}\n", took.as_secs_f64()));
        format!("Where the time went:\n{}", rows.collect::<String>()).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_step_stands_first() {
        let mut times = Times::default();
        times.add("short", Duration::from_millis(1500));
        times.add("long", Duration::from_secs(90));
        assert_eq!(times.of("answer", || 42), 42);
        let table = times.table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "   90.0 s  long");
        assert_eq!(lines[2], "    1.5 s  short");
        assert!(lines[3].ends_with("answer"));
    }
}
