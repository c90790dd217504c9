//! Contexts of Python: one for each task, or one for a whole loop (Twisted).

use tracer_common::event::ENTITY_BITS;
use tracer_common::runtime::KIND_PYTHON;

use super::*;

const DOWN: &str = "GET /down HTTP/1.1\r\n\r\n";

const fn context(name: u64) -> u64 {
    (KIND_PYTHON as u64) << ENTITY_BITS | name
}

/// A loop on thread 5 that has read requests of connections 1 and 2, in the contexts `readers`.
fn reading(readers: [u64; 2]) -> Host {
    let mut host = Host::new(Limits::default());
    host.engine.has_loops(1);
    for (cookie, reader) in [1, 2].into_iter().zip(readers) {
        host.opens(cookie, (0, 0)).entity = reader;
        host.waits(5, true).reads(5, cookie, GET);
    }
    host.opens(3, (0, 0));
    host
}

fn runs(host: &mut Host, entity: u64) -> &mut Host {
    host.entity = entity;
    host.waits(5, true)
}

/// Grade of the call, and the connection of its parent.
fn call(host: &mut Host) -> (Grade, Option<u64>) {
    let spans = host.finish();
    let (_, call) = spans.iter().find(|(live, _)| live.side == Side::Client).unwrap();
    let parent = spans.iter().find(|(live, _)| Some(live.id) == call.parent);
    (call.grade, parent.map(|(live, _)| live.cookie))
}

#[test]
fn a_task_answers_while_others_have_read_requests() {
    let mut host = reading([context(1), context(2)]);
    runs(&mut host, context(11)).sends(5, 3, DOWN).waits(5, true).reads(5, 3, OK).waits(5, true).sends(5, 1, OK);
    runs(&mut host, context(12)).sends(5, 2, OK);
    assert_eq!(call(&mut host), (Grade::Confirmed, Some(1)));
}

#[test]
fn a_context_that_answers_while_requests_of_unknown_contexts_are_open_is_no_task() {
    let mut host = reading([0, 0]);
    // The call is the second request's.
    runs(&mut host, context(11)).sends(5, 3, DOWN).waits(5, true).reads(5, 3, OK).waits(5, true).sends(5, 1, OK);
    runs(&mut host, context(11)).sends(5, 2, OK);
    assert_eq!(call(&mut host), (Grade::Ambiguous, None));
}

#[test]
fn a_context_that_answers_while_another_request_it_read_is_open_is_no_task() {
    let mut host = reading([0, context(11)]);
    // The call is the second request's.
    runs(&mut host, context(11)).sends(5, 3, DOWN).waits(5, true).reads(5, 3, OK).waits(5, true).sends(5, 1, OK);
    runs(&mut host, context(11)).sends(5, 2, OK);
    assert_eq!(call(&mut host), (Grade::Ambiguous, None));
}
