//! Identity of processes that can no longer be inspected.

use tracer_common::event::{Exec, Fork, Header, OP_TX, Op, THREAD_STATS_DEAD, ThreadStats};

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
    // Forked, and forked again by the child; both have exited before they can be identified.
    fork(&mut pipeline, 10, 11);
    fork(&mut pipeline, 11, 12);
    op(&mut pipeline, 12);
    op(&mut pipeline, 11);
    assert_eq!([service(&pipeline, 11), service(&pipeline, 12)], [parent.clone(), parent.clone()]);
    // Exited before it moved a byte.
    fork(&mut pipeline, 10, 13);
    let mut comm = [0; 16];
    comm[..4].copy_from_slice(b"name");
    let dead = |tgid| Header { flags: THREAD_STATS_DEAD, ..header(Kind::ThreadStats, tgid, ThreadStats::SIZE) };
    give(&mut pipeline, ThreadStats::SIZE, |out| {
        ThreadStats { header: dead(13), comm, ..ThreadStats::default() }.encode(out)
    });
    assert_eq!(service(&pipeline, 13), parent);
    // Another program, or an unknown parent: named after its thread, or unknown.
    fork(&mut pipeline, 10, 14);
    give(&mut pipeline, Exec::SIZE, |out| {
        Exec { header: header(Kind::Exec, 14, Exec::SIZE), ..Exec::default() }.encode(out)
    });
    give(&mut pipeline, ThreadStats::SIZE, |out| {
        ThreadStats { header: dead(14), comm, ..ThreadStats::default() }.encode(out)
    });
    fork(&mut pipeline, 77, 15);
    op(&mut pipeline, 15);
    assert_eq!([service(&pipeline, 14), service(&pipeline, 15)], ["name", "unknown"]);
    // Exited processes are forgotten, along with their entries in the table.
    assert_eq!(pipeline.table_use().processes_forked.entries, 3);
    pipeline.tick(FORGET + 2);
    assert_eq!(pipeline.table_use().processes_forked.entries, 2);
}

#[test]
fn a_process_outlives_its_threads() {
    let mut pipeline = Pipeline::new(&Config::default(), 1, 0, "host");
    // The first record of a program is the exit of one of its threads: it can still be inspected.
    let header = Header { flags: THREAD_STATS_DEAD, tid: 99, ..header(Kind::ThreadStats, 10, ThreadStats::SIZE) };
    let mut comm = [0; 16];
    comm[..4].copy_from_slice(b"name");
    give(&mut pipeline, ThreadStats::SIZE, |out| ThreadStats { header, comm, ..ThreadStats::default() }.encode(out));
    assert_eq!(service(&pipeline, 10), "postmaster");
}

#[test]
fn names_hold_nothing_that_does_not_show_itself() {
    let mut pipeline = Pipeline::new(&Config::default(), 1, 0, "host");
    let facts = ProcessFacts { pid: 20, exe: "/opt/a\u{202e}b\n".into(), ..ProcessFacts::default() };
    pipeline.process(20, &facts);
    assert_eq!(service(&pipeline, 20), "a\\u{202e}b\\u{a}");
    let mut comm = [0; 16];
    comm[..4].copy_from_slice(b"a\x1b[m");
    let header = Header { flags: THREAD_STATS_DEAD, ..header(Kind::ThreadStats, 21, ThreadStats::SIZE) };
    give(&mut pipeline, ThreadStats::SIZE, |out| ThreadStats { header, comm, ..ThreadStats::default() }.encode(out));
    assert_eq!(service(&pipeline, 21), "a\\u{1b}[m");
}

#[test]
fn a_child_in_another_directory_is_of_its_parents_service() {
    let mut pipeline = Pipeline::new(&Config::default(), 1, 0, "host");
    let facts = |pid, cwd: &str| ProcessFacts {
        pid,
        exe: "/usr/bin/node".into(),
        cwd: cwd.into(),
        cmdline: vec!["node".into(), "server.js".into()],
        ..ProcessFacts::default()
    };
    pipeline.process(30, &facts(30, "/srv/a"));
    pipeline.process_of(31, &facts(31, "/"), Some(30));
    pipeline.process(32, &facts(32, "/srv/b"));
    let names = [30, 31, 32].map(|pid| service(&pipeline, pid));
    assert_eq!(names, ["server", "server", "server@/srv/b/server.js"]);
}
