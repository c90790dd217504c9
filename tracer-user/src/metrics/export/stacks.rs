//! How walks over sampled stacks ended.

use super::Metrics;
use crate::metrics::families::Families;
use crate::metrics::totals::Totals;

/// The families.
#[derive(Debug)]
pub(super) struct Stacks {
    walks: Totals,
    python_walks: Totals,
    python_functions: Totals,
}

impl Stacks {
    pub(super) fn new(r: &Families) -> Self {
        let outcomes = |name: &str, help: &str| Totals::new(r, name, help, "outcome");
        Self {
            walks: outcomes(
                "tracer_stack_walks_total",
                "User stacks sampled, by how the walk ended: complete and frame_pointer_end came to the outermost frame, \
                 frame_pointers followed frame pointers only and cannot know; every other outcome is an incomplete \
                 stack.",
            ),
            python_walks: outcomes(
                "tracer_python_stack_walks_total",
                "Walks over the frames of Python in sampled stacks, by how they ended: complete came to the outermost \
                 frame, no_thread_state is a thread that runs no Python; every other outcome is a stack that lacks \
                 Python functions.",
            ),
            python_functions: outcomes(
                "tracer_python_functions_total",
                "Python functions seen in stacks, once a process, by outcome: named, unnamed (freed before it was read).",
            ),
        }
    }
}

impl Metrics {
    /// User stacks that were walked, by outcome, absolute.
    pub fn set_walks(&self, outcomes: impl Iterator<Item = (&'static str, u64)>) {
        self.stacks.walks.set_all(outcomes);
    }

    /// Walks over Python's frames by outcome, and functions that were named and could not be, absolute.
    pub fn set_python(&self, walks: impl Iterator<Item = (&'static str, u64)>, (named, unnamed): (u64, u64)) {
        self.stacks.python_walks.set_all(walks);
        self.stacks.python_functions.set_all([("named", named), ("unnamed", unnamed)]);
    }
}
