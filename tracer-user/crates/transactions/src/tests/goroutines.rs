//! Goroutines in the task table: creations arrive in any order, names are never reused.

use tracer_common::event::{ENTITY_BITS, Header, Op, TASK_EDGE_CREATED, TaskEdge};
use tracer_common::runtime::KIND_GO;
use tracer_model::{ServiceId, SpanId, TraceId};

use super::super::slot::Slot;
use super::super::task_table::{AnsweredRequest, OtherRequests, TaskTable, Works};

const TGID: u32 = 7;

fn named(name: u64) -> u64 {
    u64::from(KIND_GO) << ENTITY_BITS | name
}

fn op(name: u64, nanos: u64, edge_seq: u32) -> Op {
    Op { header: Header { nanos, tgid: TGID, ..Header::default() }, entity: named(name), edge_seq, ..Op::default() }
}

/// `parent` creates `child`.
fn made(all: &mut TaskTable, child: u64, parent: u64, nanos: u64, nth: u32) {
    let header = Header { nanos, tgid: TGID, ..Header::default() };
    let task_edge = TaskEdge {
        header,
        child: named(child),
        parent: named(parent),
        nth,
        relation: TASK_EDGE_CREATED,
        reserved: [0; 3],
    };
    all.task_edge(&task_edge, nanos, |_| false);
}

fn answer(request: Slot, start: u64) -> AnsweredRequest {
    AnsweredRequest { request, kept: (SpanId(1), TraceId(1), ServiceId(0), None), start }
}

/// `name` sends a call; returns whether the call waits.
fn calls(all: &mut TaskTable, name: u64, nanos: u64, edge_seq: u32, call: Slot) -> bool {
    match all.works(&op(name, nanos, edge_seq), |_| false) {
        Works::Undecided(id) => all.waits(id, call),
        _ => false,
    }
}

#[test]
fn makings_that_overtake_each_other_are_no_loss() {
    let mut all = TaskTable::within(64);
    let [request, call] = [Slot::numbered(1), Slot::numbered(2)];
    // Edges of another processor in between, counted earlier but reported later; and an operation whose count covers
    // them all.
    made(&mut all, 10, 1, 100, 2);
    made(&mut all, 11, 10, 101, 1);
    assert!(calls(&mut all, 11, 110, 4, call));
    made(&mut all, 12, 1, 112, 4);
    let decided = all.answers(&op(1, 120, 4), answer(request, 90), (5, true, OtherRequests::None), |_| false);
    assert_eq!((decided, all.lost), (vec![(call, None)], 0));
}

#[test]
fn an_edge_reported_twice_or_late_changes_no_other_request() {
    let mut all = TaskTable::within(64);
    let [first, second, call, other] = [1, 2, 3, 4].map(Slot::numbered);
    made(&mut all, 10, 1, 100, 1);
    assert_eq!(all.answers(&op(1, 110, 1), answer(first, 90), (5, true, OtherRequests::None), |_| false), []);
    // The parent works for another request now; the task it spawned earlier does not.
    let over = |slot: Slot| slot == first;
    assert!(matches!(all.works(&op(1, 200, 1), over), Works::Undecided(_)));
    made(&mut all, 10, 1, 201, 1);
    assert!(matches!(all.works(&op(10, 205, 1), over), Works::For(answer, Some(_)) if answer.request == first));
    // Reported late: the parent's interval at that time has ended.
    made(&mut all, 11, 1, 105, 2);
    assert!(calls(&mut all, 11, 210, 2, call));
    // Seen at work before its creation was reported.
    assert!(calls(&mut all, 12, 211, 2, other));
    made(&mut all, 12, 1, 212, 3);
    assert_eq!(all.answers(&op(1, 220, 3), answer(second, 190), (5, true, OtherRequests::None), over), []);
}
