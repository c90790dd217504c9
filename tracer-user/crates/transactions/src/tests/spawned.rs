//! Tokio tasks: their own calls, the calls of tasks they spawn, and tasks that serve a connection.

use tracer_common::event::{
    ENTITY_BITS, TASK_EDGE_CLOSURE, TASK_EDGE_CREATED, TASK_EDGE_WATCHED, TASK_EDGE_WOKE, TaskEdge, WAKE_TASK, Wake,
};
use tracer_common::runtime::KIND_TOKIO;

use super::*;

/// Tasks that serve clients, each on the connection with its own number.
const FIRST: u64 = 1;
const SECOND: u64 = 2;
const THIRD: u64 = 3;
/// Tasks they spawn.
const CHILD: u64 = 10;
const OTHER: u64 = 11;
/// Upstream connections.
const POOLED: u64 = 70;
const FRESH: u64 = 71;

const fn named(task: u64) -> u64 {
    (KIND_TOKIO as u64) << ENTITY_BITS | task
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\n\r\n")
}

/// A runtime with one worker thread, or with two that take turns.
struct Tokio {
    host: Host,
    /// Whether wake-ups between tasks are traced.
    watched: bool,
}

impl Tokio {
    fn new() -> Self {
        let mut host = Host::new(Limits::default());
        for (cookie, new) in [(POOLED, tcp_state::SYN_SENT), (FRESH, tcp_state::SYN_SENT)] {
            host.state(cookie, new);
        }
        Self { host, watched: false }
    }

    /// `task` is polled after its worker waited.
    fn polls(&mut self, task: u64) -> &mut Host {
        self.host.entity = named(task);
        self.host.waits(7, true)
    }

    fn reads(&mut self, task: u64, path: &str) -> &mut Self {
        self.polls(task).reads(7, task, get(path));
        self
    }

    fn answers(&mut self, task: u64) -> &mut Self {
        self.polls(task).works(7, 5).sends(7, task, OK);
        self
    }

    fn asks(&mut self, task: u64, connection: u64, path: &str) -> &mut Self {
        self.polls(task).works(7, 3).sends(7, connection, get(path));
        self
    }

    fn hears(&mut self, task: u64, connection: u64) -> &mut Self {
        self.polls(task).reads(7, connection, OK);
        self
    }

    fn spawns(&mut self, maker: u64, task: u64) -> &mut Self {
        self.edge(TASK_EDGE_CREATED, maker, task)
    }

    fn edge(&mut self, relation: u8, maker: u64, task: u64) -> &mut Self {
        self.host.edge_seq += 1;
        self.host.nanos += 10;
        let flags = if self.watched { TASK_EDGE_WATCHED } else { 0 };
        let header =
            Header { kind: Kind::TaskEdge as u8, nanos: self.host.nanos, tgid: 1, tid: 7, flags, ..Header::default() };
        let (child, parent, nth) = (named(task), named(maker), self.host.edge_seq);
        let task_edge = TaskEdge { header, child, parent, nth, relation, ..TaskEdge::default() };
        self.host.engine.record(&Record::TaskEdge(task_edge), &mut self.host.out);
        self
    }

    /// Path, grade and parent path of each call.
    fn verdicts(&mut self) -> Vec<(String, Grade, Option<String>)> {
        let spans = self.host.finish();
        let path = |live: &OpenSpan| live.request.path.to_string();
        let ids: HashMap<_, _> = spans.iter().map(|(live, _)| (live.id, path(live))).collect();
        let calls = spans.iter().filter(|(live, _)| live.side == tracer_model::Side::Client);
        let parent = |verdicts: &Verdicts| verdicts.parent.and_then(|id| ids.get(&id).cloned());
        let mut all: Vec<_> = calls.map(|(live, verdicts)| (path(live), verdicts.grade, parent(verdicts))).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }
}

fn linked(path: &str, grade: Grade, parent: &str) -> (String, Grade, Option<String>) {
    (path.into(), grade, Some(parent.into()))
}

fn unknown(path: &str) -> (String, Grade, Option<String>) {
    (path.into(), Grade::Orphan, None)
}

#[test]
fn a_task_asks_for_the_request_it_answers() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2");
    tokio.asks(FIRST, POOLED, "/1/a").hears(FIRST, POOLED).asks(SECOND, POOLED, "/2/a").hears(SECOND, POOLED);
    tokio.answers(SECOND).answers(FIRST);
    let expected = [linked("/1/a", Grade::Confirmed, "/1"), linked("/2/a", Grade::Confirmed, "/2")];
    assert_eq!(tokio.verdicts(), expected);
}

#[test]
fn a_spawned_task_is_believed_when_another_uses_its_connection() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2").spawns(FIRST, CHILD);
    tokio.asks(CHILD, POOLED, "/1/a").hears(CHILD, POOLED);
    tokio.asks(SECOND, POOLED, "/2/a").hears(SECOND, POOLED);
    tokio.answers(FIRST).answers(SECOND);
    let expected = [linked("/1/a", Grade::Confirmed, "/1"), linked("/2/a", Grade::Confirmed, "/2")];
    assert_eq!(tokio.verdicts(), expected);
    // The evidence comes only after the first request is answered.
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").spawns(FIRST, CHILD).spawns(CHILD, OTHER);
    tokio.asks(OTHER, POOLED, "/1/a").hears(OTHER, POOLED).answers(FIRST);
    tokio.reads(SECOND, "/2").asks(SECOND, POOLED, "/2/a").hears(SECOND, POOLED).answers(SECOND);
    assert_eq!(tokio.verdicts(), expected);
}

#[test]
fn a_task_that_serves_a_connection_is_not_its_makers() {
    let mut tokio = Tokio::new();
    // The first request's client creates the connection's task, and others use it while that request is open.
    tokio.reads(FIRST, "/1").reads(SECOND, "/2").spawns(FIRST, CHILD);
    tokio.asks(CHILD, POOLED, "/1/a").hears(CHILD, POOLED);
    tokio.asks(CHILD, POOLED, "/2/a").hears(CHILD, POOLED);
    // The task that connects may send first.
    tokio.asks(FIRST, FRESH, "/1/b").hears(FIRST, FRESH).spawns(FIRST, OTHER);
    tokio.asks(OTHER, FRESH, "/2/b").hears(OTHER, FRESH);
    tokio.answers(SECOND).answers(FIRST);
    let expected = [unknown("/1/a"), linked("/1/b", Grade::Confirmed, "/1"), unknown("/2/a"), unknown("/2/b")];
    assert_eq!(tokio.verdicts(), expected);
}

#[test]
fn of_a_request_that_is_over_a_task_says_nothing() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").spawns(FIRST, CHILD).answers(FIRST);
    tokio.asks(CHILD, POOLED, "/1/a").hears(CHILD, POOLED);
    tokio.reads(SECOND, "/2").asks(SECOND, POOLED, "/2/a").hears(SECOND, POOLED).answers(SECOND);
    assert_eq!(tokio.verdicts(), [unknown("/1/a"), linked("/2/a", Grade::Confirmed, "/2")]);
}

#[test]
fn without_names_only_callbacks_count() {
    let mut tokio = Tokio::new();
    // One worker serves one request after the other: the task is unknown.
    tokio.reads(0, "/1").asks(0, POOLED, "/1/a").hears(0, POOLED).answers(0);
    let verdicts = tokio.verdicts();
    assert!(verdicts.iter().all(|(_, grade, _)| matches!(grade, Grade::Ambiguous | Grade::Orphan)), "{verdicts:?}");
}

/// A task that serves a connection for all its users and that no request spawned.
const SENDER: u64 = 20;

impl Tokio {
    fn wakes(&mut self, waker: u64, wakee: u64) -> &mut Self {
        self.host.nanos += 10;
        let header =
            Header { kind: Kind::TaskEdge as u8, nanos: self.host.nanos, tgid: 1, tid: 7, ..Header::default() };
        let task_edge = TaskEdge {
            header,
            child: named(wakee),
            parent: named(waker),
            relation: TASK_EDGE_WOKE,
            ..TaskEdge::default()
        };
        self.host.engine.record(&Record::TaskEdge(task_edge), &mut self.host.out);
        self
    }

    /// `task` leaves a call to a connection's task, which hands back the reply.
    fn leaves(&mut self, task: u64, sender: u64, path: &str) -> &mut Self {
        self.wakes(task, sender).asks(sender, POOLED, path).hears(sender, POOLED).wakes(sender, task)
    }
}

#[test]
fn what_a_task_leaves_to_another_is_its_own() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2");
    tokio.leaves(FIRST, SENDER, "/1/a").leaves(SECOND, SENDER, "/2/a").leaves(FIRST, SENDER, "/1/b");
    tokio.answers(SECOND).answers(FIRST);
    let of = |path, parent| linked(path, Grade::Confirmed, parent);
    assert_eq!(tokio.verdicts(), [of("/1/a", "/1"), of("/1/b", "/1"), of("/2/a", "/2")]);
}

#[test]
fn a_task_that_only_gave_work_or_only_was_woken_is_no_parent() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2");
    // The first gave the work, but the second was woken.
    tokio.wakes(FIRST, SENDER).asks(SENDER, POOLED, "/a").hears(SENDER, POOLED).wakes(SENDER, SECOND);
    // Woken before there is a reply; work given after the call was sent.
    tokio.wakes(FIRST, SENDER).asks(SENDER, POOLED, "/b").wakes(SENDER, FIRST).hears(SENDER, POOLED);
    tokio.asks(SENDER, POOLED, "/c").wakes(SECOND, SENDER).hears(SENDER, POOLED).wakes(SENDER, SECOND);
    tokio.answers(SECOND).answers(FIRST);
    for (path, grade, _) in tokio.verdicts() {
        assert!(matches!(grade, Grade::Orphan | Grade::Ambiguous), "{path}: {grade:?}");
    }
}

#[test]
fn a_result_that_two_take_is_in_doubt() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2").wakes(FIRST, SENDER).wakes(SECOND, SENDER);
    tokio.asks(SENDER, POOLED, "/a").hears(SENDER, POOLED).wakes(SENDER, SECOND).wakes(SENDER, FIRST);
    tokio.answers(SECOND).answers(FIRST);
    for (path, grade, _) in tokio.verdicts() {
        assert!(matches!(grade, Grade::Orphan | Grade::Ambiguous), "{path}: {grade:?}");
    }
}

#[test]
fn a_result_goes_on_by_way_of_one_that_waits_for_work() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2");
    tokio.wakes(SECOND, OTHER).leaves(OTHER, SENDER, "/2/a").wakes(OTHER, SECOND);
    tokio.wakes(FIRST, OTHER).leaves(OTHER, SENDER, "/1/a").wakes(OTHER, FIRST);
    tokio.answers(SECOND).answers(FIRST);
    let expected = [linked("/1/a", Grade::Confirmed, "/1"), linked("/2/a", Grade::Confirmed, "/2")];
    assert_eq!(tokio.verdicts(), expected);
}

#[test]
fn a_wake_up_that_was_not_needed_is_believed_where_others_agreed() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2");
    let unseen = |tokio: &mut Tokio, path: &str| {
        tokio.asks(SENDER, POOLED, path).hears(SENDER, POOLED).wakes(SENDER, FIRST);
    };
    unseen(&mut tokio, "/a");
    for _ in 0..40 {
        tokio.leaves(SECOND, SENDER, "/2/a");
    }
    unseen(&mut tokio, "/z");
    tokio.answers(SECOND).answers(FIRST);
    let all = tokio.verdicts();
    let of = |path: &str| all.iter().find(|(other, ..)| other == path).cloned();
    assert_eq!(of("/z"), Some(linked("/z", Grade::Confirmed, "/1")));
    assert!(of("/a").is_some_and(|(_, grade, _)| matches!(grade, Grade::Orphan | Grade::Ambiguous)));
}

#[test]
fn whoever_gave_work_before_all_probes_stood_does_not_seem_to_wait() {
    for all_stand in [false, true] {
        let mut tokio = Tokio::new();
        tokio.reads(FIRST, "/1").reads(SECOND, "/2");
        // Their hand-overs are not seen: the probe where results are taken is attached after the other.
        tokio.reads(THIRD, "/3").wakes(SECOND, SENDER).wakes(THIRD, SENDER);
        tokio.asks(SENDER, POOLED, "/2/a").hears(SENDER, POOLED);
        if all_stand {
            tokio.host.nanos += 10;
            tokio.host.engine.wakes_are_watched(1, tokio.host.nanos);
        }
        tokio.leaves(FIRST, SENDER, "/1/a").leaves(FIRST, SENDER, "/1/b");
        tokio.answers(SECOND).answers(THIRD).answers(FIRST);
        let all = tokio.verdicts();
        let is_known = |path: &str, parent: &str| all.contains(&linked(path, Grade::Confirmed, parent));
        assert_eq!(["/1/a", "/1/b"].map(|path| is_known(path, "/1")), [all_stand; 2], "{all:?}");
        assert!(!is_known("/2/a", "/1"), "{all:?}");
    }
}

#[test]
fn whoever_took_a_result_without_a_wake_up_keeps_no_other_from_being_believed() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2");
    // The first is still at work when its result is there, and then reads the rest of the reply.
    tokio.wakes(FIRST, SENDER).asks(SENDER, POOLED, "/1/a").hears(SENDER, POOLED).wakes(FIRST, SENDER);
    tokio.leaves(SECOND, SENDER, "/2/a");
    // What it reads of the second's reply comes late, too.
    tokio.leaves(FIRST, SENDER, "/1/b").wakes(SECOND, SENDER).leaves(FIRST, SENDER, "/1/c");
    tokio.answers(SECOND).answers(FIRST);
    let all = tokio.verdicts();
    for (path, parent) in [("/1/b", "/1"), ("/1/c", "/1"), ("/2/a", "/2")] {
        assert!(all.contains(&linked(path, Grade::Confirmed, parent)), "{path}: {all:?}");
    }
    assert!(!all.contains(&linked("/1/a", Grade::Confirmed, "/2")), "{all:?}");
}

/// Checks that each call is its request's, by its path, or that its parent is not known.
fn right_or_unknown(verdicts: &[(String, Grade, Option<String>)]) {
    for (path, grade, parent) in verdicts {
        let is_right = *grade == Grade::Confirmed && parent.as_ref().is_some_and(|parent| path.starts_with(parent));
        assert!(is_right || matches!(grade, Grade::Orphan | Grade::Ambiguous), "{path}: {grade:?}");
    }
}

#[test]
fn of_two_calls_since_a_task_gave_work_none_is_believed_if_another_may_wait() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2");
    // Both of the first's results need no wake-up.
    tokio.wakes(FIRST, SENDER).asks(SENDER, POOLED, "/1/a").hears(SENDER, POOLED).wakes(FIRST, SENDER);
    tokio.wakes(SECOND, SENDER).asks(SENDER, POOLED, "/1/b").hears(SENDER, POOLED);
    tokio.asks(SENDER, POOLED, "/2/a").hears(SENDER, POOLED).wakes(SENDER, SECOND);
    tokio.answers(SECOND).answers(FIRST);
    right_or_unknown(&tokio.verdicts());
}

#[test]
fn what_the_last_one_served_leaves_again_is_not_the_next_ones() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2").leaves(FIRST, SENDER, "/1/a");
    tokio.wakes(FIRST, SENDER).wakes(SECOND, SENDER);
    tokio.asks(SENDER, POOLED, "/1/b").hears(SENDER, POOLED).wakes(SENDER, FIRST);
    tokio.asks(SENDER, POOLED, "/2/a").hears(SENDER, POOLED).wakes(SENDER, SECOND);
    tokio.answers(SECOND).answers(FIRST);
    right_or_unknown(&tokio.verdicts());
}

#[test]
fn with_traced_wake_ups_a_spawned_task_that_met_no_other_is_its_makers() {
    for (meets, grade) in [(false, Grade::Confirmed), (true, Grade::Orphan)] {
        let mut tokio = Tokio::new();
        tokio.watched = true;
        tokio.reads(FIRST, "/1").reads(SECOND, "/2").spawns(FIRST, CHILD);
        tokio.asks(CHILD, POOLED, "/1/a");
        if meets {
            tokio.wakes(SECOND, CHILD);
        }
        tokio.hears(CHILD, POOLED).answers(FIRST).answers(SECOND);
        let verdicts = tokio.verdicts();
        assert!(matches!(&verdicts[..], [(path, found, _)] if path == "/1/a" && *found == grade), "{verdicts:?}");
    }
}

#[test]
fn work_before_a_send_without_a_parent_is_that_of_the_request_read_before() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2");
    // The task of the connection sends what the task of the request left to it, on the same worker and without a poll between.
    tokio.host.works(7, 100).entity = named(CHILD);
    tokio.host.sends(7, FRESH, get("/2/a")).works(7, 10);
    tokio.hears(CHILD, FRESH).answers(FIRST).answers(SECOND);
    let spans = tokio.host.finish();
    let of = |path: &str| spans.iter().find(|(live, _)| &*live.request.path == path).expect(path);
    assert_eq!(of("/2/a").1.parent, None);
    let costs = ["/1", "/2", "/2/a"].map(|path| of(path).0.cost.cpu);
    assert_eq!((costs, tokio.host.overhead()), ([5, 105, 0], 10));
}

#[test]
fn work_before_a_send_is_the_parents_where_there_is_one() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2");
    tokio.host.works(7, 100).entity = named(FIRST);
    tokio.host.sends(7, FRESH, get("/1/a"));
    tokio.hears(FIRST, FRESH).answers(FIRST).answers(SECOND);
    let spans = tokio.host.finish();
    let of = |path: &str| spans.iter().find(|(live, _)| &*live.request.path == path).expect(path);
    assert_eq!(of("/1/a").1.parent, Some(of("/1").0.id));
    let costs = ["/1", "/2", "/1/a"].map(|path| of(path).0.cost.cpu);
    assert_eq!((costs, tokio.host.overhead()), ([105, 5, 0], 0));
}

/// A thread that runs no tasks.
const POOL: u32 = 9;

impl Tokio {
    /// A thread computes, after it waited for work, and wakes `task` with the result.
    fn computes(&mut self, tid: u32, cpu: u64, task: u64) -> &mut Self {
        self.host.waits(tid, false).works(tid, cpu);
        self.gives_back(tid, task)
    }

    fn gives_back(&mut self, tid: u32, task: u64) -> &mut Self {
        let counters = *self.host.counters.entry(tid).or_default();
        let kind = Kind::Wake as u8;
        let header = Header { kind, flags: WAKE_TASK, nanos: self.host.nanos, tgid: 1, tid, ..Header::default() };
        let wake = Wake { header, address: named(task), counters, ..Wake::default() };
        self.host.engine.record(&Record::Wake(wake), &mut self.host.out);
        self
    }

    /// CPU of each request by its path, and that of none.
    fn costs(&mut self) -> (Vec<(String, u64)>, u64) {
        let spans = self.host.finish();
        let costs = spans.iter().map(|(live, _)| (live.request.path.to_string(), live.cost.cpu)).collect();
        (costs, self.host.overhead())
    }
}

#[test]
fn what_a_thread_without_tasks_computes_is_for_the_request_of_the_task_it_wakes() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2").spawns(FIRST, CHILD).spawns(CHILD, OTHER);
    // Before the first wake-up, the thread is not known.
    tokio.gives_back(POOL, FIRST).computes(POOL, 100, FIRST).computes(POOL, 1000, OTHER).computes(POOL, 200, SECOND);
    // The next one's work was in the queue already.
    tokio.host.works(POOL, 2000);
    tokio.gives_back(POOL, SECOND).answers(SECOND).answers(FIRST);
    assert_eq!(tokio.costs(), (vec![("/1".into(), 1105), ("/2".into(), 2205)], 0));
}

#[test]
fn what_a_thread_computes_for_no_open_request_is_overhead() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").spawns(FIRST, CHILD).gives_back(POOL, FIRST).answers(FIRST);
    // Its request is answered; it reads none; no other task is related to it.
    tokio.computes(POOL, 100, FIRST).computes(POOL, 200, CHILD).computes(POOL, 400, SENDER);
    // The spawned one is still the first request's when its maker reads the second.
    tokio.reads(FIRST, "/2").computes(POOL, 800, CHILD).answers(FIRST);
    // Two of a connection are open: which of them is not known.
    let two = get("/3") + &get("/4");
    tokio.polls(SECOND).reads(7, SECOND, two);
    tokio.computes(POOL, 1600, SECOND).answers(SECOND).answers(SECOND);
    let (costs, overhead) = tokio.costs();
    assert_eq!((costs.iter().map(|(_, cpu)| cpu).sum::<u64>(), overhead), (20, 3100), "{costs:?}");
}

#[test]
fn a_thread_that_runs_tasks_wakes_them_for_their_sockets() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2");
    tokio.host.works(7, 100);
    tokio.gives_back(7, FIRST).answers(SECOND).answers(FIRST);
    assert_eq!(tokio.costs(), (vec![("/1".into(), 5), ("/2".into(), 105)], 0));
}

/// Closures that tasks give to a pool of threads.
const CLOSURE: u64 = 30;
const NEXT: u64 = 31;

impl Tokio {
    fn gives_closure(&mut self, maker: u64, closure: u64) -> &mut Self {
        self.edge(TASK_EDGE_CLOSURE, maker, closure)
    }

    /// The pool's thread runs a closure, which makes a call.
    fn asks_in(&mut self, closure: u64, connection: u64, path: &str) -> &mut Self {
        self.host.entity = named(closure);
        self.host.waits(POOL, false).works(POOL, 100).sends(POOL, connection, get(path));
        self.host.waits(POOL, false).reads(POOL, connection, OK);
        self
    }
}

#[test]
fn what_a_closure_asks_is_for_the_request_of_the_task_that_takes_its_result() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2").gives_closure(FIRST, CLOSURE);
    tokio.asks_in(CLOSURE, POOLED, "/1/a").asks_in(CLOSURE, POOLED, "/1/b");
    tokio.host.works(POOL, 1000);
    tokio.gives_back(POOL, FIRST).gives_closure(SECOND, NEXT);
    // No other task ever uses this connection.
    tokio.asks_in(NEXT, FRESH, "/2/a").gives_back(POOL, SECOND).answers(SECOND).answers(FIRST);
    let of = |path, parent| linked(path, Grade::Confirmed, parent);
    assert_eq!(tokio.verdicts(), [of("/1/a", "/1"), of("/1/b", "/1"), of("/2/a", "/2")]);
}

#[test]
fn a_closure_of_a_spawned_task_works_for_the_same_request() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2").spawns(FIRST, CHILD).gives_closure(CHILD, CLOSURE);
    tokio.asks_in(CLOSURE, FRESH, "/1/a").gives_back(POOL, CHILD).answers(SECOND).answers(FIRST);
    assert_eq!(tokio.verdicts(), [linked("/1/a", Grade::Confirmed, "/1")]);
}

#[test]
fn what_a_closure_computes_around_a_call_is_its_requests_once() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2").gives_back(POOL, SECOND).gives_closure(FIRST, CLOSURE);
    tokio.asks_in(CLOSURE, FRESH, "/1/a");
    tokio.host.works(POOL, 1000);
    tokio.gives_back(POOL, FIRST).answers(SECOND).answers(FIRST);
    let (costs, overhead) = tokio.costs();
    assert_eq!((costs, overhead), (vec![("/1".into(), 1105), ("/2".into(), 5), ("/1/a".into(), 0)], 0));
}

#[test]
fn a_closure_that_does_not_end_serves_others() {
    let mut tokio = Tokio::new();
    tokio.watched = true;
    // The first request needs it first, and others leave their jobs to it.
    tokio.reads(FIRST, "/1").reads(SECOND, "/2").gives_closure(FIRST, CLOSURE);
    tokio.asks_in(CLOSURE, POOLED, "/2/a").answers(SECOND).asks_in(CLOSURE, POOLED, "/1/a").answers(FIRST);
    tokio.reads(SECOND, "/3").asks_in(CLOSURE, POOLED, "/3/a").answers(SECOND);
    for (path, grade, parent) in tokio.verdicts() {
        assert!(matches!(grade, Grade::Orphan | Grade::Ambiguous), "{path}: {grade:?} {parent:?}");
    }
}

#[test]
fn a_closure_whose_result_another_task_takes_is_not_its_makers() {
    for taker in [SECOND, SENDER] {
        let mut tokio = Tokio::new();
        tokio.watched = true;
        tokio.reads(FIRST, "/1").reads(SECOND, "/2").gives_closure(FIRST, CLOSURE);
        tokio.asks_in(CLOSURE, POOLED, "/a").gives_back(POOL, taker).answers(SECOND).answers(FIRST);
        let verdicts = tokio.verdicts();
        assert!(matches!(&verdicts[..], [(_, Grade::Orphan | Grade::Ambiguous, _)]), "{verdicts:?}");
    }
    // Its maker is at the next request.
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").gives_closure(FIRST, CLOSURE).answers(FIRST).reads(FIRST, "/2");
    tokio.asks_in(CLOSURE, POOLED, "/1/a").gives_back(POOL, FIRST).answers(FIRST);
    let verdicts = tokio.verdicts();
    assert!(matches!(&verdicts[..], [(_, Grade::Orphan | Grade::Ambiguous, _)]), "{verdicts:?}");
}

#[test]
fn a_closure_whose_end_is_not_seen_is_believed_when_another_task_uses_its_connection() {
    let mut tokio = Tokio::new();
    tokio.reads(FIRST, "/1").reads(SECOND, "/2").gives_closure(FIRST, CLOSURE).gives_closure(SECOND, NEXT);
    tokio.asks_in(CLOSURE, POOLED, "/1/a").asks_in(NEXT, POOLED, "/2/a").answers(FIRST).answers(SECOND);
    let last = tokio.verdicts();
    assert_eq!(last[0], linked("/1/a", Grade::Confirmed, "/1"));
    assert!(matches!(last[1].1, Grade::Orphan | Grade::Ambiguous), "{last:?}");
}
