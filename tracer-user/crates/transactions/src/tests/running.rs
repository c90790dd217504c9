//! Which requests and calls are open.

use tracer_common::event::NetworkPath;
use tracer_model::Side;

use super::{GET, Host, Limits, OK};

#[test]
fn open_requests_are_listed_with_their_open_calls_and_ended_ones_are_not() {
    let mut host = Host::new(Limits::default());
    let listed = |host: &Host| {
        let mut rows: Vec<_> =
            host.engine.running().into_iter().map(|r| (r.span.tid, r.has_thread, r.calls.len())).collect();
        rows.sort_unstable();
        rows
    };
    assert_eq!(listed(&host), []);
    host.reads(10, 1, GET).reads(11, 2, GET);
    host.sends(10, 3, GET);
    assert_eq!(listed(&host), [(10, true, 1), (11, true, 0)]);
    host.reads(10, 3, OK).sends(10, 1, OK);
    assert_eq!(listed(&host), [(11, true, 0)]);
    // Another request on the same thread: it runs several, so its state is that of none.
    host.reads(11, 4, GET);
    assert_eq!(listed(&host), [(11, false, 0), (11, false, 0)]);
}

#[test]
fn a_reported_span_leaves_its_memory_to_the_next_one_and_nothing_else() {
    let mut host = Host::new(Limits::default());
    host.reads(10, 1, GET).works(10, 500).sends(10, 3, GET).reads(10, 3, OK).sends(10, 1, OK);
    let (first, _) = host.finish().remove(0);
    assert!(first.cost.cpu > 0 && first.server.calls.len() == 1);
    let memory = &raw const *first;
    host.engine.give_back(first);
    host.reads(11, 5, "PUT /other HTTP/1.1\r\nHost: h\r\n\r\n").sends(11, 5, OK);
    let (second, verdicts) = host.finish().remove(0);
    assert_eq!(&raw const *second, memory);
    assert_eq!((&*second.request.method, &*second.request.path, second.cookie), ("PUT", "/other", 5));
    assert_eq!((second.cost.cpu, second.server.calls.len(), verdicts.parent), (0, 0, None));
}

#[test]
fn a_reported_call_leaves_the_memory_of_its_client_side_to_the_next_one() {
    let mut host = Host::new(Limits::default());
    let call = |host: &mut Host, cookie| {
        host.reads(10, 1, GET).sends(10, cookie, GET).reads(10, cookie, OK).sends(10, 1, OK);
        let spans = host.finish();
        spans.into_iter().map(|(live, _)| live).find(|live| live.side == Side::Client).expect("a call")
    };
    let first = call(&mut host, 3);
    let (memory, client) = (&raw const *first, &raw const *first.client);
    let cause = first.client.cause.request();
    host.engine.give_back(first);
    let second = call(&mut host, 4);
    assert_eq!((&raw const *second, &raw const *second.client), (memory, client));
    assert!(cause.is_some() && second.client.cause.request().is_some_and(|request| Some(request) != cause));
}

#[test]
fn a_plain_exchange_needs_no_more_than_the_span_itself() {
    let mut host = Host::new(Limits::default());
    host.path = NetworkPath { rtt: 120, rtt_min: 90, ..NetworkPath::default() };
    host.opens(1, (7, 9)).reads(10, 1, GET).works(10, 500).sends(10, 1, OK).works(10, 300);
    host.reads(10, 2, "*1\r\n$4\r\nPING\r\n").works(10, 50).sends(10, 2, "+PONG\r\n").works(10, 20);
    host.sends(11, 3, GET).reads(11, 3, OK);
    let mut parts = Vec::new();
    for (mut live, _) in host.finish() {
        let has = [live.server.get_mut().is_some(), live.client.get_mut().is_some(), live.rare.get_mut().is_some()];
        parts.push((live.side, live.protocol.to_string(), has));
    }
    let alone = [false; 3];
    let expected = [
        (Side::Server, "http".to_string(), alone),
        (Side::Server, "redis".to_string(), alone),
        (Side::Client, "http".to_string(), [false, true, false]),
    ];
    assert_eq!(parts, expected);
}
