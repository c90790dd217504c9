//! Stacks of threads, on and off the CPU, and whom they count for.

use std::borrow::Cow;
use std::sync::Arc;

use super::{ClassId, DimensionValues, Nanos, ServiceId, SpanId};

/// What CPU (or a sample) is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A request class.
    Class(ClassId),
    /// Overhead of a service, outside any request.
    Overhead(ServiceId),
    /// Kernel threads.
    Kernel,
}

/// Interpreted frames of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interpreted {
    /// Innermost first.
    pub frames: Vec<tracer_common::interpreter::InterpretedFrame>,
    /// How the walk over them ended, and whose they are.
    pub outcome: tracer_common::interpreter::InterpreterOutcome,
    /// The language.
    pub language: tracer_common::interpreter::Language,
}

/// Why a thread waited, and for which peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    /// Why.
    pub reason: tracer_common::off_cpu::Reason,
    /// Of a wait for a socket: address and port that the request calls, or [`Wait::CLIENT`]; `None`: not known.
    pub peer: Option<Arc<str>>,
}

impl Wait {
    /// The peer at the other end of a connection that was accepted.
    pub const CLIENT: &str = "client";

    /// A wait without a peer.
    pub fn of(reason: tracer_common::off_cpu::Reason) -> Self {
        Self { reason, peer: None }
    }

    /// The frame shown at the top of its stack.
    pub fn frame(&self) -> Cow<'static, str> {
        match &self.peer {
            Some(peer) => format!("[off CPU: socket to {peer}]").into(),
            None => self.reason.frame().into(),
        }
    }
}

/// The stack of a thread that ended another's wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakerStack {
    /// Its process.
    pub pid: u32,
    /// User-space return addresses, innermost first.
    pub user: Vec<u64>,
    /// How the walk over them ended.
    pub outcome: tracer_common::unwind::Outcome,
    /// Interpreted frames.
    pub interpreted: Interpreted,
}

/// A stack from the kernel and what it was charged to.
#[derive(Clone, Debug)]
pub struct StackSample {
    /// Time of the sample.
    pub nanos: Nanos,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Time that it stands for, nanoseconds; off the CPU, how long.
    pub weight: u64,
    /// User-space return addresses, innermost first.
    pub user: Vec<u64>,
    /// Kernel return addresses, innermost first.
    pub kernel: Vec<u64>,
    /// How the walk over the user frames ended.
    pub outcome: tracer_common::unwind::Outcome,
    /// Interpreted frames.
    pub interpreted: Interpreted,
    /// Why the thread was off the CPU; `None` = it ran.
    pub off_cpu: Option<Wait>,
    /// The stack that ended that wait, if it was seen.
    pub waker: Option<Arc<WakerStack>>,
    /// What the sample is charged to.
    pub owner: Owner,
    /// The span it was taken in, if any.
    pub span: Option<SpanId>,
    /// What that request has of the declared dimensions.
    pub dimensions: DimensionValues,
    /// Taken by a clock of its thread alone, because a request was slow: it counts for that request's own profile and for no
    /// class, whose samples are taken by the clocks of the CPUs.
    pub ad_hoc: bool,
}
