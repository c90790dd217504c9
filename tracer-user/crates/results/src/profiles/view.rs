//! Which stacks are wanted.

use std::time::Duration;

use tracer_common::off_cpu::Reason;
use tracer_model::{DimensionValues, Nanos, SpanId};

use super::OffCpuWait;
#[cfg(doc)]
use super::Profiles;

/// What time is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProfileKind {
    /// On the CPU.
    #[default]
    Cpu,
    /// Off the CPU, while a request was held.
    OffCpu,
    /// Both.
    Wall,
    /// Waits for futexes, each with the stack of the thread that ended it.
    Wakers,
}

impl ProfileKind {
    /// Reads `cpu`, `offcpu`, `wall`, `wakers`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "cpu" => Some(Self::Cpu),
            "offcpu" => Some(Self::OffCpu),
            "wall" => Some(Self::Wall),
            "wakers" => Some(Self::Wakers),
            _ => None,
        }
    }

    /// Whether it shows a stack of such a wait, or of a thread that ran.
    pub(super) fn shows(self, wait: Option<&OffCpuWait>) -> bool {
        match self {
            Self::Cpu => wait.is_none(),
            Self::OffCpu => wait.is_some(),
            Self::Wall => true,
            Self::Wakers => wait.is_some_and(|wait| wait.wait.reason == Reason::Futex),
        }
    }
}

/// Which stacks are wanted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Service.
    pub service: Option<String>,
    /// Class; without, the whole service with its overhead.
    pub class: Option<String>,
    /// Only samples this recent.
    pub since: Option<Duration>,
    /// Only samples between these times, by the clock of the records.
    pub range: Option<(Nanos, Nanos)>,
    /// What time.
    pub view: ProfileKind,
    /// Only this slow request: [`Profiles::snapshot_of`].
    pub span: Option<SpanId>,
    /// Only requests with this value of a dimension, both by number.
    pub value: Option<(usize, u16)>,
}

impl Filter {
    pub(super) fn has(&self, values: DimensionValues) -> bool {
        self.value.is_none_or(|(dimension, value)| values.0.get(dimension) == Some(&value))
    }
}
