//! The first request of a transaction, while its spans are open; and what reported requests are charged.

use tracer_model::Cost;
use tracer_relay::message::ContextRoot;

use super::*;
use crate::engine::roots::OpenRoot;
use crate::slot::Slot;

impl Host {
    fn slot_on(&self, cookie: u64) -> Slot {
        let on = |slot: &Slot| self.engine.world.spans.get(*slot).is_some_and(|live| live.cookie == cookie);
        self.engine.world.spans.slots().find(on).expect("an open span")
    }

    fn root_on(&self, cookie: u64) -> OpenRoot {
        self.engine.open_root(self.engine.world.spans.get(self.slot_on(cookie)).expect("an open span"))
    }
}

#[test]
fn calls_on_every_tier_have_the_first_request_that_was_served() {
    let mut host = Host::new(Limits::default());
    // Process 2, which serves nothing, calls process 3; that calls process 4, and that somebody else.
    for (cookie, ends) in [(4, (600, 700)), (5, (700, 600)), (6, (800, 900)), (7, (900, 800)), (8, (30, 40))] {
        host.opens(cookie, ends);
    }
    host.moves(2, 7, 4, true, 601, GET).moves(3, 8, 5, false, 601, GET);
    host.moves(3, 8, 6, true, 801, GET).moves(4, 9, 7, false, 801, GET).moves(4, 9, 8, true, 31, GET);
    assert_eq!(host.root_on(4), OpenRoot::Said(ContextRoot::Callee), "the call is for no request");
    let first = host.slot_on(5);
    assert_eq!([host.root_on(6), host.root_on(8)], [OpenRoot::Open(first), OpenRoot::Open(first)]);
}

#[test]
fn a_call_of_an_event_loop_has_a_root_once_the_answer_shows_its_parent() {
    let mut host = Host::new(Limits::default());
    event_loop(&mut host, false);
    host.reads(9, 1, "GET /1 HTTP/1.1\r\n\r\n").works(9, 10).sends(9, 11, "GET /d1 HTTP/1.1\r\n\r\n").waits(9, true);
    host.reads(9, 2, "GET /2 HTTP/1.1\r\n\r\n").works(9, 20).sends(9, 12, "GET /d2 HTTP/1.1\r\n\r\n").waits(9, true);
    let newest = |host: &Host, cookie: u64| {
        let on = |slot: &Slot| host.engine.world.spans.get(*slot).is_some_and(|live| live.cookie == cookie);
        let start = |slot: &Slot| host.engine.world.spans.get(*slot).map(|live| live.start);
        host.engine.world.spans.slots().filter(on).max_by_key(start).expect("an open span")
    };
    let (request, call) = (newest(&host, 2), newest(&host, 12));
    let root = |host: &Host| host.engine.open_root(host.engine.world.spans.get(call).expect("an open span"));
    assert_eq!(root(&host), OpenRoot::Said(ContextRoot::Unknown));
    host.reads(9, 12, OK).works(9, 3).sends(9, 2, OK).waits(9, true);
    assert_eq!(root(&host), OpenRoot::Open(request));
}

#[test]
fn work_after_the_report_is_charged_by_request() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, GET).works(5, 100).sends(5, 1, OK);
    let slot = host.slot_on(1);
    let id = host.engine.world.spans.get(slot).expect("an open span").id;
    host.engine.classify(slot, ClassId(0), None);
    host.works(5, 10).waits(5, false).reads(5, 1, GET).sends(5, 1, OK);
    host.engine.report(Nanos::MAX, &mut host.out);
    let target = crate::thread::Target::Span { slot, class: Some(ClassId(0)), service: ServiceId(1) };
    host.engine.post(target, Cost { cpu: 7, ..Cost::default() }, 1);
    let late = host.engine.take_late_costs();
    assert_eq!(late.get(&(Some(id), ClassId(0))).map(|cost| cost.cpu), Some(7), "{late:?}");
    assert!(host.engine.take_late_costs().is_empty());
}
