//! Exceptions, and the request that each was thrown for.

use tracer_common::event::{DeclaredCall, DeclaredValues, ENTITY_BITS, Header, Kind, TEXT_NONE};
use tracer_common::runtime::{KIND_GO, KIND_PYTHON};
use tracer_runtimes::exceptions::{RawTypeName, ThrowingRuntime, raw};
use tracer_runtimes::process_memory::MemoryFile;

use super::{GET, Host, Limits, OK};
use crate::thrown::ThrownException;

/// A type of this name, of at most eight bytes.
fn of_type(name: &str) -> RawTypeName {
    let mut word = [0; 8];
    word[..name.len()].copy_from_slice(name.as_bytes());
    let mut values =
        DeclaredValues { first_len: name.len() as u32, second_len: TEXT_NONE, ..DeclaredValues::default() };
    values.first[0] = u64::from_ne_bytes(word);
    raw(ThrowingRuntime::Cpp, &values, || None::<MemoryFile>).expect("a name")
}

/// The task that a goroutine of this number is.
pub(super) fn goroutine(number: u64) -> u64 {
    u64::from(KIND_GO) << ENTITY_BITS | number
}

impl Host {
    /// On one thread, goroutine 5 has read a request on socket 1, and 6 one on socket 2.
    pub(super) fn with_two_goroutines() -> Self {
        let mut host = Self::new(Limits::default());
        host.engine.remember_readers();
        host.opens(1, (0, 0)).opens(2, (0, 0));
        host.entity = goroutine(5);
        host.reads(10, 1, GET);
        host.entity = goroutine(6);
        host.reads(10, 2, GET);
        host
    }

    /// A thread, or the goroutine it runs, throws; whether that was for a request.
    fn throws(&mut self, tid: u32, goroutine: u64, kind: &str) -> bool {
        let header = Header { kind: Kind::DeclaredCall as u8, nanos: self.nanos, tgid: 1, tid, ..Header::default() };
        let counters = *self.counters.entry(tid).or_default();
        let entity = self.entity;
        let call = DeclaredCall { header, task: goroutine, entity, counters, ..DeclaredCall::default() };
        let kind = (!kind.is_empty()).then(|| of_type(kind));
        let thrown = ThrownException { kind, tid, at: self.nanos };
        self.engine.thrown(ThrowingRuntime::Cpp, &call, thrown)
    }

    /// As [`Self::throws`], in Python: a clause for all exceptions catches it.
    fn catches(&mut self, tid: u32, kind: &str) -> bool {
        let header = Header { kind: Kind::DeclaredCall as u8, nanos: self.nanos, tgid: 1, tid, ..Header::default() };
        let counters = *self.counters.entry(tid).or_default();
        let call = DeclaredCall { header, entity: self.entity, counters, ..DeclaredCall::default() };
        let thrown = ThrownException { kind: Some(of_type(kind)), tid, at: self.nanos };
        self.engine.thrown(ThrowingRuntime::Python, &call, thrown)
    }

    /// What was thrown for each request, in the order in which they began; `?`: of unknown type.
    fn thrown(&mut self) -> Vec<String> {
        let name = |thrown: &ThrownException| {
            thrown.kind.as_ref().map_or_else(|| "?".to_owned(), |raw| raw.name().to_string())
        };
        let spans = self.finish();
        spans.iter().map(|(live, _)| live.rare.exception.as_deref().map_or_else(String::new, name)).collect()
    }
}

#[test]
fn a_request_has_the_last_exception_of_its_thread() {
    let mut host = Host::new(Limits::default());
    assert!(!host.opens(1, (0, 0)).throws(10, 0, "i"));
    host.reads(10, 1, GET);
    assert!(host.throws(10, 0, "i") && host.throws(10, 0, "4Boom"));
    assert!(!host.throws(11, 0, "l"), "another thread");
    host.sends(10, 1, OK);
    assert!(!host.throws(10, 0, "l"), "it is answered");
    host.reads(10, 1, GET);
    host.sends(10, 1, OK).reads(10, 1, GET);
    assert!(host.throws(10, 0, ""));
    host.sends(10, 1, OK);
    assert_eq!(host.thrown(), ["Boom", "", "?"]);
}

#[test]
fn a_thread_with_several_requests_throws_for_the_one_it_has_just_read() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0)).reads(10, 1, GET).waits(10, true).reads(10, 2, GET);
    assert!(host.throws(10, 0, "4Boom"));
    host.waits(10, true);
    assert!(!host.throws(10, 0, "i"), "for either");
    host.sends(10, 1, OK).sends(10, 2, OK);
    assert_eq!(host.thrown(), ["", "Boom"]);
}

#[test]
fn a_goroutine_throws_for_what_it_read_on_whichever_thread() {
    let mut host = Host::with_two_goroutines();
    host.entity = goroutine(5);
    assert!(host.throws(11, 0xc000, "4Boom"));
    host.entity = goroutine(7);
    assert!(!host.throws(10, 0xd000, "i"), "it read nothing");
    assert_eq!(host.thrown(), ["Boom", ""]);
}

#[test]
fn a_task_of_python_throws_for_what_it_answers() {
    let mut host = Host::new(Limits::default());
    let task = |number: u64| u64::from(KIND_PYTHON) << ENTITY_BITS | number;
    host.opens(1, (0, 0)).opens(2, (0, 0));
    host.entity = task(1);
    host.reads(10, 1, GET).reads(10, 2, GET);
    // Tasks that others made, for either.
    for (number, kind) in [(7, "4Boom"), (8, "i")] {
        host.entity = task(number);
        assert!(host.catches(10, kind));
    }
    host.entity = task(8);
    host.sends(10, 2, OK);
    host.entity = task(7);
    host.sends(10, 1, OK);
    // It has answered.
    host.entity = task(1);
    host.reads(10, 1, GET);
    host.entity = task(7);
    host.sends(10, 1, OK);
    assert_eq!(host.thrown(), ["Boom", "int", ""]);
}
