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
    give(pipeline, Fork::SIZE, |out| Fork { header, child_tgid, child_tid: child_tgid, ..Fork::default() }.encode(out));
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
    assert_eq!(pipeline.table_use().processes_forked.entries, 4);
    pipeline.tick(FORGET + 2);
    assert_eq!(pipeline.table_use().processes_forked.entries, 3);
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

fn exec(pipeline: &mut Pipeline, tgid: u32, name: &str) {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name.as_bytes());
    give(pipeline, Exec::SIZE, |out| Exec { header: header(Kind::Exec, tgid, Exec::SIZE), comm }.encode(out));
}

#[test]
fn programs_that_end_at_once_are_named_by_their_execution() {
    let mut pipeline = Pipeline::new(&Config::default(), 1, 0, "host");
    // inetd runs a program for each connection; the program forks before anything else is known of it.
    fork(&mut pipeline, 10, 40);
    exec(&mut pipeline, 40, "micro-httpd");
    op(&mut pipeline, 40);
    fork(&mut pipeline, 10, 41);
    exec(&mut pipeline, 41, "cgi.sh");
    fork(&mut pipeline, 41, 42);
    op(&mut pipeline, 42);
    op(&mut pipeline, 41);
    assert_eq!([40, 41, 42].map(|pid| service(&pipeline, pid)), ["micro-httpd", "cgi", "cgi"]);
    assert_eq!(pipeline.table_use().processes_executed.entries, 4);
    // Nothing of a process stays once it is gone.
    for tgid in [40, 41, 42] {
        let header = Header { flags: THREAD_STATS_DEAD, ..header(Kind::ThreadStats, tgid, ThreadStats::SIZE) };
        give(&mut pipeline, ThreadStats::SIZE, |out| ThreadStats { header, ..ThreadStats::default() }.encode(out));
    }
    pipeline.tick(FORGET + 2);
    assert_eq!(pipeline.table_use().processes_executed.entries, 1);
}

#[test]
fn brief_programs_inherit_the_unit_and_the_declared_name() {
    for (cgroup, otel, expected) in [
        ("/system.slice/shop.service", None, "shop"),
        ("/user.slice", Some("cart"), "cart"),
        ("/user.slice", None, "curl"),
    ] {
        let mut pipeline = Pipeline::new(&Config::default(), 1, 0, "host");
        let facts = ProcessFacts {
            pid: 50,
            exe: "/bin/dash".into(),
            cgroup: cgroup.into(),
            otel_service: otel.map(str::to_owned),
            ..ProcessFacts::default()
        };
        pipeline.process(50, &facts);
        fork(&mut pipeline, 50, 51);
        fork(&mut pipeline, 51, 52);
        exec(&mut pipeline, 52, "curl");
        op(&mut pipeline, 52);
        assert_eq!(service(&pipeline, 52), expected);
    }
}

#[test]
fn a_child_that_is_ending_belongs_to_its_parents_service() {
    let mut pipeline = Pipeline::new(&Config::default(), 1, 0, "host");
    let server = ProcessFacts {
        pid: 60,
        exe: "/usr/bin/python3.11".into(),
        cmdline: vec!["python3".into(), "shop.py".into()],
        ..ProcessFacts::default()
    };
    pipeline.process(60, &server);
    // Its memory is gone: the system shows neither a program nor arguments.
    let ending = |pid| ProcessFacts { pid, comm: "python3".into(), ..ProcessFacts::default() };
    fork(&mut pipeline, 60, 61);
    pipeline.process(61, &ending(61));
    fork(&mut pipeline, 60, 62);
    exec(&mut pipeline, 62, "curl");
    pipeline.process(62, &ending(62));
    // A kernel thread has none either.
    pipeline.process(63, &ending(63));
    assert_eq!([61, 62, 63].map(|pid| service(&pipeline, pid)), ["shop", "curl", "python3"]);
}
