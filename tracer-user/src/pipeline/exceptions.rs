//! Exceptions that programs throw: their types, and what became of them.

use tracer_common::event::{DeclaredCall, DeclaredValues};
use tracer_runtimes::exceptions::{PythonModules, RawTypeName, ThrowingRuntime, raw};
use tracer_transactions::thrown::ThrownException;

use super::{Introduce, Pipeline};

/// Exceptions since the start.
#[derive(Debug, Default)]
pub(super) struct ExceptionCounts {
    /// By runtime and whether they were thrown for a request.
    thrown: [[u64; 2]; ThrowingRuntime::ALL.len()],
    /// Of those for requests, these whose type could not be read.
    unread: u64,
    /// Of Python's classes.
    modules: PythonModules,
}

impl Pipeline {
    /// A declared call was seen, which may be an exception that is thrown.
    pub(super) fn thrown(&mut self, call: &DeclaredCall, values: Option<&DeclaredValues>, who: &mut dyn Introduce) {
        let (Some(runtime), Some(values)) = (ThrowingRuntime::of(call.declared), values) else { return };
        // PHP goes on with an exception that was thrown before.
        if values.registers.first() == Some(&0) {
            return;
        }
        let kind = raw(runtime, values, || who.memory(call.header.tgid));
        if kind.as_ref().is_some_and(RawTypeName::ends_an_iteration) {
            return;
        }
        let [class, _, minor, _, is_own, ..] = values.registers;
        let kind = match kind {
            Some(name) if runtime == ThrowingRuntime::Python && is_own != 0 => {
                let class = (call.header.tgid, class, minor);
                Some(self.exceptions.modules.qualify(name, class, || who.memory(call.header.tgid)))
            }
            kind => kind,
        };
        let is_read = kind.is_some();
        let thrown = ThrownException { kind, tid: call.header.tid, at: call.header.nanos };
        let is_for_request = self.engine.thrown(runtime, call, thrown);
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
