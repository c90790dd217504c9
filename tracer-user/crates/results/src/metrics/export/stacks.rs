//! How walks over sampled stacks ended.

use tracer_common::interpreter::Language;

use super::Metrics;
use crate::metrics::families::Families;
use crate::metrics::totals::Totals;

/// The families.
#[derive(Debug)]
pub(super) struct Stacks {
    walks: Totals,
    python: Interpreted,
    php: Interpreted,
    javascript: Interpreted,
    java: Interpreted,
}

/// Those of a language.
#[derive(Debug)]
struct Interpreted {
    walks: Totals,
    functions: Totals,
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
            python: Interpreted {
                walks: outcomes(
                    "tracer_python_stack_walks_total",
                    "Walks over the frames of Python in sampled stacks, by how they ended: complete came to the outermost \
                     frame, no_thread_state is a thread that runs no Python; every other outcome is a stack that lacks \
                     Python functions.",
                ),
                functions: outcomes(
                    "tracer_python_functions_total",
                    "Readings of Python functions in stacks, of each process until the function has a name, by outcome: named, \
                     unnamed (freed before it was read).",
                ),
            },
            php: Interpreted {
                walks: outcomes(
                    "tracer_php_stack_walks_total",
                    "Walks over the frames of PHP in sampled stacks, by how they ended: complete came to the outermost \
                     frame, no_thread_state is a process that runs no PHP at the moment; every other outcome is a stack \
                     that lacks PHP functions.",
                ),
                functions: outcomes(
                    "tracer_php_functions_total",
                    "Readings of PHP functions in stacks, of each process until the function has a name, by outcome: named, \
                     unnamed (freed before it was read).",
                ),
            },
            javascript: Interpreted {
                walks: outcomes(
                    "tracer_javascript_stack_walks_total",
                    "Sampled stacks of Node.js in which functions of JavaScript were looked for, by how that ended: complete read \
                     all that the native frames run, no_thread_state is a thread that runs no JavaScript at the moment; every \
                     other outcome is a stack that lacks functions.",
                ),
                functions: outcomes(
                    "tracer_javascript_functions_total",
                    "Readings of JavaScript functions in stacks, of each process until the function has a name, by outcome: \
                     named, unnamed (freed or moved before it was read).",
                ),
            },
            java: Interpreted {
                walks: outcomes(
                    "tracer_java_stack_walks_total",
                    "Sampled stacks of Java in which interpreted methods were looked for, by how that ended: complete found some, \
                     no_thread_state is a thread that interprets none at the moment; every other outcome is a stack that \
                     lacks methods.",
                ),
                functions: outcomes(
                    "tracer_java_functions_total",
                    "Readings of interpreted methods in stacks, of each process until the method has a name, by outcome: \
                     named, unnamed (its class was unloaded before it was read).",
                ),
            },
        }
    }
}

impl Metrics {
    /// User stacks that were walked, by outcome, absolute.
    pub fn set_walks(&self, outcomes: impl Iterator<Item = (&'static str, u64)>) {
        self.stacks.walks.set_all(outcomes);
    }

    /// Walks over frames of a language by outcome, and its functions that were named and could not be, absolute.
    pub fn set_interpreted(
        &self,
        language: Language,
        walks: impl Iterator<Item = (&'static str, u64)>,
        (named, unnamed): (u64, u64),
    ) {
        let families = match language {
            Language::Python => &self.stacks.python,
            Language::Php => &self.stacks.php,
            Language::JavaScript => &self.stacks.javascript,
            Language::Java => &self.stacks.java,
        };
        families.walks.set_all(walks);
        families.functions.set_all([("named", named), ("unnamed", unnamed)]);
    }
}
