//! Who a process is when nobody can be asked any more.

use tracer_common::event::{Exec, Fork, Header, OP_TX, Op, TICK_DEAD, Tick};

use super::*;

/// Knows the parent only.
struct Parent;

impl Introduce for Parent {
    fn introduce(&mut self, tgid: u32) -> Option<ProcessFacts> {
        (tgid == 10).then(|| ProcessFacts { pid: 10, comm: "postmaster".into(), ..ProcessFacts::default() })
    }
}

fn header(kind: Kind, tgid: u32, len: usize) -> Header {
    Header { kind: kind as u8, len: len as u32, nanos: 1, tgid, tid: tgid, ..Header::default() }
}

fn give(pipeline: &mut Pipeline, size: usize, encode: impl FnOnce(&mut [u8]) -> Option<()>) {
    let mut bytes = vec![0; size];
    encode(&mut bytes).unwrap();
    pipeline.record(&bytes, &mut Parent);
}

fn op(pipeline: &mut Pipeline, tgid: u32) {
    let header = Header { flags: OP_TX, ..header(Kind::Op, tgid, Op::SIZE) };
    give(pipeline, Op::SIZE, |out| Op { header, cookie: 1, bytes: 1, ..Op::default() }.encode(out));
}

fn fork(pipeline: &mut Pipeline, parent: u32, child_tgid: u32) {
    let header = header(Kind::Fork, parent, Fork::SIZE);
    give(pipeline, Fork::SIZE, |out| Fork { header, child_tgid, child_tid: child_tgid }.encode(out));
}

fn service(pipeline: &Pipeline, tgid: u32) -> String {
    let id = pipeline.engine.service_of(tgid).unwrap();
    pipeline.names.services[id.0 as usize].to_string()
}

#[test]
fn who_ends_at_once_is_of_whoever_forked_it() {
    let mut pipeline = Pipeline::new(&Config::default(), 1, 0, "host");
    op(&mut pipeline, 10);
    let parent = service(&pipeline, 10);
    assert_ne!(parent, "unknown");
    // Forked, and forked by that; neither is there any more when it is asked for.
    fork(&mut pipeline, 10, 11);
    fork(&mut pipeline, 11, 12);
    op(&mut pipeline, 12);
    op(&mut pipeline, 11);
    assert_eq!([service(&pipeline, 11), service(&pipeline, 12)], [parent.clone(), parent.clone()]);
    // Gone before it moved a byte.
    fork(&mut pipeline, 10, 13);
    let mut comm = [0; 16];
    comm[..4].copy_from_slice(b"name");
    let dead = |tgid| Header { flags: TICK_DEAD, ..header(Kind::Tick, tgid, Tick::SIZE) };
    give(&mut pipeline, Tick::SIZE, |out| Tick { header: dead(13), comm, ..Tick::default() }.encode(out));
    assert_eq!(service(&pipeline, 13), parent);
    // Another program, or a parent nobody knows: what it is called, or nothing.
    fork(&mut pipeline, 10, 14);
    give(&mut pipeline, Exec::SIZE, |out| {
        Exec { header: header(Kind::Exec, 14, Exec::SIZE), ..Exec::default() }.encode(out)
    });
    give(&mut pipeline, Tick::SIZE, |out| Tick { header: dead(14), comm, ..Tick::default() }.encode(out));
    fork(&mut pipeline, 77, 15);
    op(&mut pipeline, 15);
    assert_eq!([service(&pipeline, 14), service(&pipeline, 15)], ["name", "unknown"]);
    // Those that ended are forgotten, and the place in the list with them.
    assert_eq!(pipeline.fills().processes_forked.entries, 3);
    pipeline.tick(FORGET + 2);
    assert_eq!(pipeline.fills().processes_forked.entries, 2);
}

#[test]
fn a_process_outlives_its_threads() {
    let mut pipeline = Pipeline::new(&Config::default(), 1, 0, "host");
    // The first that is heard of a program is that a thread of it ended: it can be asked who it is.
    let header = Header { flags: TICK_DEAD, tid: 99, ..header(Kind::Tick, 10, Tick::SIZE) };
    let mut comm = [0; 16];
    comm[..4].copy_from_slice(b"name");
    give(&mut pipeline, Tick::SIZE, |out| Tick { header, comm, ..Tick::default() }.encode(out));
    assert_eq!(service(&pipeline, 10), "postmaster");
}
