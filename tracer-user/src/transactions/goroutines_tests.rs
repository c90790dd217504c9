//! Goroutines among the tasks: told of in any order, named once.

use tracer_common::event::{ENTITY_BITS, Header, KIN_CREATED, Kin, Op};
use tracer_common::runtime::KIND_GO;

use super::super::entities::{Answer, Entities, Works};
use super::super::live::Slot;
use crate::model::{ServiceId, TraceId, UnitId};

const TGID: u32 = 7;

fn named(name: u64) -> u64 {
    u64::from(KIND_GO) << ENTITY_BITS | name
}

fn op(name: u64, nanos: u64, kins: u32) -> Op {
    Op { header: Header { nanos, tgid: TGID, ..Header::default() }, entity: named(name), kins, ..Op::default() }
}

/// `parent` makes `child`.
fn made(all: &mut Entities, child: u64, parent: u64, nanos: u64, nth: u32) {
    let header = Header { nanos, tgid: TGID, ..Header::default() };
    let kin = Kin { header, child: named(child), parent: named(parent), nth, relation: KIN_CREATED, reserved: [0; 3] };
    all.kin(&kin, nanos, |_| false);
}

fn answer(request: Slot, start: u64) -> Answer {
    Answer { request, kept: (UnitId(1), TraceId(1), ServiceId(0), None), start }
}

/// A call by `name`; whether it waits.
fn calls(all: &mut Entities, name: u64, nanos: u64, kins: u32, call: Slot) -> bool {
    match all.works(&op(name, nanos, kins), |_| false) {
        Works::Undecided(id) => all.waits(id, call),
        _ => false,
    }
}

#[test]
fn makings_that_overtake_each_other_are_no_loss() {
    let mut all = Entities::within(64);
    let [request, call] = [Slot::numbered(1), Slot::numbered(2)];
    // Those of another processor in between: counted before, told after; and an operation that has seen them all.
    made(&mut all, 10, 1, 100, 2);
    made(&mut all, 11, 10, 101, 1);
    assert!(calls(&mut all, 11, 110, 4, call));
    made(&mut all, 12, 1, 112, 4);
    let decided = all.answers(&op(1, 120, 4), answer(request, 90), (5, true), |_| false);
    assert_eq!((decided, all.lost), (vec![(call, None)], 0));
}

#[test]
fn a_making_told_again_or_late_makes_nothing_of_another_request() {
    let mut all = Entities::within(64);
    let [first, second, call, other] = [1, 2, 3, 4].map(Slot::numbered);
    made(&mut all, 10, 1, 100, 1);
    assert_eq!(all.answers(&op(1, 110, 1), answer(first, 90), (5, true), |_| false), []);
    // The maker works for another request now; what it made before does not.
    let over = |slot: Slot| slot == first;
    assert!(matches!(all.works(&op(1, 200, 1), over), Works::Undecided(_)));
    made(&mut all, 10, 1, 201, 1);
    assert!(matches!(all.works(&op(10, 205, 1), over), Works::For(answer, Some(_)) if answer.request == first));
    // Told of late: its maker's time then is over.
    made(&mut all, 11, 1, 105, 2);
    assert!(calls(&mut all, 11, 210, 2, call));
    // Seen at work before it was told who made it.
    assert!(calls(&mut all, 12, 211, 2, other));
    made(&mut all, 12, 1, 212, 3);
    assert_eq!(all.answers(&op(1, 220, 3), answer(second, 190), (5, true), over), []);
}
