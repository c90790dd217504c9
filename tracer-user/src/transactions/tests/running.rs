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
