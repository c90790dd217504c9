//! Places of calls: whose functions make them, which send began which call, and what is kept.

use tracer_common::event::Header;
use tracer_common::interpreter::Language;
use tracer_model::sample_span::span;
use tracer_model::{ClassId, Side, Sink};

use super::*;
use crate::profiles::Filter;

fn file(path: &str) -> Arc<str> {
    Arc::from(path)
}

fn python(function: &str, path: &str) -> Frame {
    Frame::interpreted(function, Some(file(path)), Language::Python)
}

#[test]
fn the_innermost_function_of_the_application_makes_the_call() {
    let owners = CodeOwners::default();
    let frames = [
        Frame::of("_start", Some(file("/usr/bin/python3.11"))),
        python("serve (shop/main.py:3)", "/srv/shop/main.py"),
        python("load (shop/items.py:41)", "/srv/shop/items.py"),
        python("query (psycopg2/extras.py:7)", "/usr/lib/python3/dist-packages/psycopg2/extras.py"),
        Frame::of("PQexec", Some(file("/usr/lib/x86_64-linux-gnu/libpq.so.5"))),
        Frame::of("__send", Some(file("/usr/lib/x86_64-linux-gnu/libc.so.6"))),
    ];
    let found = place(&frames, &owners).unwrap();
    assert_eq!((&*found.function, found.file.as_deref(), found.line), ("load", Some("/srv/shop/items.py"), 41));
    // A program that the distribution installed makes its own calls, and an interpreter makes those of others.
    let installed = [
        Frame::of("main", Some(file("/usr/bin/psql"))),
        Frame::of("SendQuery", Some(file("/usr/bin/psql"))),
        Frame::of("PQexec", Some(file("/usr/lib/libpq.so.5"))),
    ];
    assert_eq!(&*place(&installed, &owners).unwrap().function, "SendQuery");
    assert_eq!(place(&frames[..1], &owners), None);
    let owners = CodeOwners { third_party: vec!["/srv/shop/items".into()], ..CodeOwners::default() };
    assert_eq!(&*place(&frames, &owners).unwrap().function, "serve");
}

#[test]
fn drivers_that_are_compiled_into_a_program_are_known_by_their_source() {
    use crate::profiles::frame::Source;
    let at = |function: &str, path: &str| {
        Frame::at(function, Some(file("/srv/shop")), Source { path: Arc::from(path), line: 9 }, path)
    };
    let frames = [
        at("main.load", "/build/shop/items.go"),
        at("github.com/lib/pq.(*conn).query", "/root/go/pkg/mod/github.com/lib/pq@v1.10.9/conn.go"),
        at("database/sql.(*DB).QueryContext", "/usr/local/go/src/database/sql/sql.go"),
        Frame::plain("org.postgresql.core.v3.QueryExecutorImpl.execute"),
    ];
    let found = place(&frames, &CodeOwners::default()).unwrap();
    assert_eq!((&*found.function, found.file.as_deref(), found.line), ("main.load", Some("/build/shop/items.go"), 9));
}

#[test]
fn places_add_up() {
    let stack = |line: u32, inner: &str, calls| {
        let page = python("page (shop/views.py:7)", "/srv/shop/views.py");
        let of =
            vec![Frame::plain("shop"), page, python(&format!("load (shop/items.py:{line})"), "/srv/shop/items.py")];
        (of.into_iter().chain([Frame::of(inner, Some(file("/usr/lib/libc.so.6")))]).collect::<Vec<_>>(), calls, 0)
    };
    let nowhere = (vec![Frame::plain("shop"), Frame::of("__send", Some(file("/usr/lib/libc.so.6")))], 1, 0);
    let stacks = [stack(3, "__send", 4), stack(3, "writev", 2), stack(9, "__send", 3), nowhere];
    let (places, found) = called_from(&stacks, &CodeOwners::default(), 2);
    let of: Vec<_> = places.iter().map(|place| (place.line, place.calls, place.stacks.len())).collect();
    assert_eq!((of, found), (vec![(Some(3), 6, 2), (Some(9), 3, 1)], 3));
    assert!((places[0].share - 0.6).abs() < 1e-9);
    assert_eq!(places[0].stacks[0].frames[2].code, CodeOrigin::ThirdParty);
    let callers: Vec<_> =
        places[0].callers.iter().map(|caller| (&*caller.function, caller.line, caller.calls)).collect();
    assert_eq!(callers, [("page", Some(7), 6)]);
    let (places, _) = called_from(&stacks, &CodeOwners::default(), 9);
    assert_eq!((places[2].function.as_ref(), places[2].calls), (None, 1));
}

fn sent(profiles: &mut Profiles, cookie: u64, nanos: Nanos, tid: u32, at: u64) {
    let header = Header { nanos, tgid: 1, tid, ..Header::default() };
    let call = CallStack { header, cookie, user: 1, ..CallStack::default() };
    profiles.call_sent(&call, &[at], &Interpreted::default());
}

fn call(cookie: u64, tid: u32, (start, first_reply, end): (Nanos, Nanos, Nanos), encrypted: bool) -> Span {
    let class = ClassId(u32::from(encrypted));
    Span { cookie, tid, start, first_reply, end, encrypted, class, side: Side::Client, ..span(1, 1, 1, false) }
}

#[test]
fn a_call_takes_the_stack_of_the_send_that_began_it() {
    let mut profiles = Profiles::new();
    for (cookie, nanos, tid, at) in [(1, 100, 7, 1), (1, 200, 7, 2), (2, 100, 8, 3), (2, 150, 9, 4), (2, 151, 8, 5)] {
        sent(&mut profiles, cookie, nanos, tid, 0x1000 * at);
    }
    // Plain: at the very time. The connection's other send began another call.
    assert!(profiles.call_ended(&call(1, 7, (200, 250, 300), false)).is_some());
    assert!(profiles.call_ended(&call(1, 7, (150, 250, 300), false)).is_none());
    // Inside TLS: the thread's own send that is nearest to the text, before the reply.
    assert!(profiles.call_ended(&call(2, 8, (148, 160, 170), true)).is_some());
    assert!(profiles.call_ended(&call(2, 8, (120, 140, 170), true)).is_some());
    assert!(profiles.call_ended(&call(2, 8, (149, 160, 170), true)).is_none(), "what is left is another thread's");
    let calls = profiles.call_stacks(&Filter::default(), |class| class == ClassId(1));
    assert_eq!((calls.samples(), profiles.call_counts()), (2, [("joined", 3), ("unused", 0), ("refused", 0)]));
    assert_eq!(profiles.table_use().open_calls.entries, 2);
    // What no call took goes.
    profiles.tick(KEPT + 200);
    assert_eq!((profiles.call_counts()[1].1, profiles.table_use().open_calls.entries), (2, 0));
}

#[test]
fn open_calls_are_bounded() {
    let mut calls = CallSites::within(10);
    for nanos in 0..25 {
        calls.add((1, nanos), Sent { tid: 1, stack: nanos as u32 });
    }
    assert_eq!(calls.table_use(), TableUse::new(10, 10, 15));
    assert!(calls.take(&call(1, 1, (14, 0, 90), false)).is_none());
    assert_eq!(calls.take(&call(1, 1, (15, 0, 90), false)), Some(15));
    for nanos in 100..1000 {
        calls.add((1, nanos), Sent { tid: 1, stack: 1 });
        calls.take(&call(1, 1, (nanos, 0, 9000), false));
    }
    assert!(calls.order.len() <= 20, "{}", calls.order.len());
    calls.limit(0);
    calls.add((1, 5000), Sent { tid: 1, stack: 1 });
    assert_eq!((calls.open.len(), calls.refused), (0, 1));
}

#[test]
fn spans_learn_their_place_when_their_stack_has_names() {
    let mut profiles = Profiles::new();
    // A stack in this test's own program.
    let here = spans_learn_their_place_when_their_stack_has_names as fn() as usize as u64;
    let send = |profiles: &mut Profiles, nanos| {
        let header = Header { nanos, tgid: std::process::id(), tid: 1, ..Header::default() };
        let call = CallStack { header, cookie: 5, user: 1, outcome: Outcome::Complete as u16, ..CallStack::default() };
        profiles.call_sent(&call, &[here], &Interpreted::default());
    };
    send(&mut profiles, 10);
    let site = profiles.call_ended(&call(5, 1, (10, 11, 12), false)).unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while site.place().is_none() && std::time::Instant::now() < end {
        profiles.tick(20);
        std::thread::yield_now();
    }
    let place = site.place().expect("a name");
    assert!(place.function.contains("spans_learn_their_place"), "{place:?}");
    // Later calls know it at once.
    send(&mut profiles, 30);
    let site = profiles.call_ended(&call(5, 1, (30, 31, 32), false)).unwrap();
    assert_eq!(site.place(), Some(place));
    assert_eq!((profiles.len(), profiles.ids.len()), (1, 1));
    profiles.tick(30 + RECOGNISED + KEPT);
    assert_eq!((profiles.len(), profiles.ids.len()), (1, 0));
}

#[test]
fn exceptions_have_their_whole_stack() {
    let mut profiles = Profiles::new();
    let here = exceptions_have_their_whole_stack as fn() as usize as u64;
    let throw = |profiles: &mut Profiles, tid, nanos| {
        let header = Header { nanos, tgid: std::process::id(), tid, ..Header::default() };
        let call =
            CallStack { header, cookie: THROWN, user: 1, outcome: Outcome::Complete as u16, ..CallStack::default() };
        profiles.call_sent(&call, &[here], &Interpreted::default());
    };
    throw(&mut profiles, 7, 10);
    assert!(profiles.exception_ended((8, 10)).is_none() && profiles.exception_ended((7, 11)).is_none());
    assert!(profiles.call_ended(&call(7, 7, (10, 11, 12), false)).is_none(), "it is no call's");
    let site = profiles.exception_ended((7, 10)).expect("a stack");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while site.stack().is_empty() && std::time::Instant::now() < end {
        profiles.tick(20);
        std::thread::yield_now();
    }
    let [frame] = site.stack() else { panic!("{:?}", site.stack()) };
    assert!(frame.function.contains("exceptions_have_their_whole_stack"), "{frame:?}");
    assert_eq!(profiles.table_use().open_exceptions.entries, 0);
    // One that no request takes goes.
    throw(&mut profiles, 7, 30);
    assert_eq!(profiles.table_use().open_exceptions.entries, 1);
    profiles.tick(30 + KEPT);
    assert_eq!(profiles.table_use().open_exceptions.entries, 0);
}
