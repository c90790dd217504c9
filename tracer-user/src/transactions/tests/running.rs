//! Which requests and calls are open.

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
