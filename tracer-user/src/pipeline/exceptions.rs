//! Exceptions that programs throw: their types, and what became of them.

use tracer_common::event::{DeclaredCall, DeclaredValues};

use super::{Introduce, Pipeline};
use crate::runtimes::exceptions::{ThrowingRuntime, raw};

/// Exceptions since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExceptionCounts {
    /// By runtime and whether they were thrown for a request.
    thrown: [[u64; 2]; ThrowingRuntime::ALL.len()],
    /// Of those for requests, these whose type could not be read.
    unread: u64,
}

impl Pipeline {
    /// A declared call was seen, which may be an exception that is thrown.
    pub(super) fn thrown(&mut self, call: &DeclaredCall, values: Option<&DeclaredValues>, who: &mut dyn Introduce) {
        let (Some(runtime), Some(values)) = (ThrowingRuntime::of(call.declared), values) else { return };
        // PHP goes on with an exception that was thrown before.
        if values.registers.first() == Some(&0) {
            return;
        }
        let exception = raw(runtime, values, || who.memory(call.header.tgid));
        let is_read = exception.is_some();
        let is_for_request = self.engine.thrown(call, exception);
        if let Some(count) = self.exceptions.thrown.get_mut(runtime as usize) {
            count[usize::from(is_for_request)] += 1;
        }
        self.exceptions.unread += u64::from(is_for_request && !is_read);
    }

    pub(super) fn publish_exceptions(&self) {
        for (runtime, [without, with]) in ThrowingRuntime::ALL.into_iter().zip(self.exceptions.thrown) {
            if without + with != 0 {
                self.metrics.set_thrown(runtime.name(), with, without);
            }
        }
        self.metrics.set_lost("exception_type_unread", self.exceptions.unread);
    }
}
