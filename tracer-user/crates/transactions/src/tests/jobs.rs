//! Workers that take jobs from queues in Redis, scripted: their jobs, the calls in them, and who put them there.

use tracer_common::event::Fork;
use tracer_model::ProtocolId;

use super::*;

const CALL: &str = "GET /down HTTP/1.1\r\n\r\n";
/// The worker's thread, its connection to Redis, and one for calls.
const WORKER: u32 = 5;
const REDIS: u64 = 1;
const OTHER: u64 = 2;
/// Another process, which puts jobs into queues.
const PRODUCER: u32 = 2;

fn command(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{}", words.len(), words.concat())
}

fn asks() -> String {
    command(&["BRPOP", "queue:default", "queue:low", "2"])
}

/// An element as Sidekiq writes it.
fn element(number: u32) -> String {
    format!(r#"{{"retry":true,"queue":"default","args":[{number}],"class":"HardWorker","jid":"{number}"}}"#)
}

fn taken(number: u32) -> String {
    command(&["queue:default", &element(number)])
}

/// A worker that has asked for its first job, twice.
fn worker() -> Host {
    let mut host = Host::new(Limits::default());
    host.opens(REDIS, (0, 0)).opens(OTHER, (0, 0)).sends(WORKER, REDIS, asks()).waits(WORKER, true);
    host.reads(WORKER, REDIS, "*-1\r\n").sends(WORKER, REDIS, asks()).waits(WORKER, true);
    host
}

/// The worker makes a call and reads its reply.
fn calls(host: &mut Host) -> &mut Host {
    host.sends(WORKER, OTHER, CALL).waits(WORKER, true).reads(WORKER, OTHER, OK)
}

type Spans = Vec<(Box<OpenSpan>, Verdicts)>;

fn jobs(spans: &Spans) -> Vec<&(Box<OpenSpan>, Verdicts)> {
    spans.iter().filter(|(live, _)| live.protocol == ProtocolId::Job).collect()
}

/// Grade of every HTTP call, and which job is its parent.
fn parents(spans: &Spans) -> Vec<(Grade, Option<usize>)> {
    let jobs = jobs(spans);
    let calls = spans.iter().filter(|(live, _)| live.protocol == ProtocolId::Http && live.side == Side::Client);
    let parent = |verdicts: &Verdicts| jobs.iter().position(|(job, _)| Some(job.id) == verdicts.parent);
    calls.map(|(_, verdicts)| (verdicts.grade, parent(verdicts))).collect()
}

#[test]
fn a_job_is_what_its_worker_does_until_it_asks_for_the_next() {
    let mut host = worker();
    for number in 0..2 {
        host.reads(WORKER, REDIS, taken(number)).works(WORKER, 100);
        calls(&mut host).works(WORKER, 20).sends(WORKER, REDIS, asks()).waits(WORKER, true);
    }
    host.reads(WORKER, REDIS, "*-1\r\n").sends(WORKER, REDIS, asks());
    let spans = host.finish();
    let jobs = jobs(&spans);
    assert_eq!(jobs.len(), 2);
    for (job, verdicts) in jobs {
        assert_eq!((&*job.request.method, &*job.request.path), ("process", "default HardWorker"));
        assert_eq!((job.side, job.cost.cpu, verdicts.grade), (Side::Server, 120, Grade::Certain));
        assert_eq!((job.outcome, verdicts.parent), (Some(Outcome::Complete), None));
    }
    assert_eq!(parents(&spans), [(Grade::Certain, Some(0)), (Grade::Certain, Some(1))]);
    // What asks belongs to no job.
    let asked: Vec<_> = spans.iter().filter(|(live, _)| &*live.request.method == "BRPOP").collect();
    assert_eq!(asked.len(), 5);
    assert!(asked.iter().all(|(_, verdicts)| (verdicts.parent, verdicts.grade) == (None, Grade::Certain)));
}

/// `BullMQ`: an event loop waits for a marker on one connection, and takes jobs by a script on another.
#[test]
fn jobs_that_a_script_gives_are_spans_and_linked() {
    let script = |keys: [&str; 2]| command(&["EVALSHA", &"a".repeat(40), "2", keys[0], keys[1], "1"]);
    let added = script(["bull:mails:wait", "bull:mails:paused"]);
    let takes = script(["bull:mails:wait", "bull:mails:active"]);
    let mut host = Host::new(Limits::default());
    host.opens(REDIS, (0, 0)).opens(OTHER, (0, 0)).opens(3, (0, 0)).opens(12, (0, 0));
    host.moves(PRODUCER, 50, 12, true, 0, added).moves(PRODUCER, 50, 12, false, 0, "$1\r\n7\r\n");
    host.sends(WORKER, 3, command(&["BZPOPMIN", "bull:mails:marker", "5"])).waits(WORKER, true);
    host.reads(WORKER, 3, "*3\r\n$17\r\nbull:mails:marker\r\n$1\r\n0\r\n$1\r\n0\r\n").sends(
        WORKER,
        REDIS,
        takes.clone(),
    );
    host.waits(WORKER, true);
    host.reads(WORKER, REDIS, "*4\r\n*2\r\n$4\r\nname\r\n$7\r\nwelcome\r\n$1\r\n7\r\n:0\r\n:0\r\n");
    calls(&mut host).sends(WORKER, REDIS, takes).waits(WORKER, true);
    host.reads(WORKER, REDIS, "*4\r\n:0\r\n:0\r\n:0\r\n:0\r\n");
    let spans = host.finish();
    let push = spans.iter().find(|(live, _)| live.pid == PRODUCER).unwrap();
    let jobs = jobs(&spans);
    assert_eq!(jobs.iter().map(|(job, _)| &*job.request.path).collect::<Vec<_>>(), ["mails welcome"]);
    assert_eq!(jobs[0].0.rare.linked.as_ref().unwrap().to, [(push.1.trace, push.0.id)]);
    // Which job a call belongs to is not known: it begins nothing.
    assert_eq!(parents(&spans), [(Grade::Ambiguous, None)]);
    let evidence = |method: &str| {
        let call = spans.iter().find(|(live, _)| live.pid != PRODUCER && &*live.request.method == method).unwrap();
        call.1.reason.text()
    };
    assert_eq!([evidence("BZPOPMIN"), evidence("EVALSHA")], ["it asks a queue for the next job"; 2]);
}

#[test]
fn a_job_is_linked_to_the_request_that_put_it_there() {
    for (times, linked) in [(1, true), (2, false)] {
        let mut host = worker();
        host.opens(11, (0, 0)).opens(12, (0, 0)).moves(PRODUCER, 50, 11, false, 0, GET);
        for _ in 0..times {
            // Equal elements do not show which of them is taken.
            host.moves(PRODUCER, 50, 12, true, 0, command(&["LPUSH", "queue:default", &element(7)]));
            host.moves(PRODUCER, 50, 12, false, 0, ":1\r\n");
        }
        host.moves(PRODUCER, 50, 11, true, 0, OK).reads(WORKER, REDIS, taken(7)).sends(WORKER, REDIS, asks());
        let spans = host.finish();
        let push = spans.iter().find(|(live, _)| &*live.request.method == "LPUSH").unwrap();
        let request = spans.iter().find(|(live, _)| live.side == Side::Server && live.pid == PRODUCER).unwrap();
        let (job, verdicts) = jobs(&spans)[0];
        let to = job.rare.linked.as_ref().map(|linked| linked.to.clone());
        assert_eq!(to, linked.then(|| vec![(request.1.trace, push.0.id)]));
        assert_ne!(verdicts.trace, request.1.trace);
    }
}

#[test]
fn a_producer_that_was_reported_long_ago_is_linked() {
    let mut host = worker();
    host.opens(12, (0, 0)).moves(PRODUCER, 50, 12, true, 0, command(&["LPUSH", "queue:default", &element(7)]));
    host.moves(PRODUCER, 50, 12, false, 0, ":1\r\n");
    host.nanos += 20_000_000_000;
    host.engine.report(host.nanos, &mut host.out);
    assert!(host.out.iter().any(|output| matches!(output, Output::Finished(..))));
    host.reads(WORKER, REDIS, taken(7)).sends(WORKER, REDIS, asks());
    let spans = host.finish();
    let push = spans.iter().find(|(live, _)| &*live.request.method == "LPUSH").unwrap();
    assert_eq!(jobs(&spans)[0].0.rare.linked.as_ref().unwrap().to, [(push.1.trace, push.0.id)]);
}

#[test]
fn a_thread_that_does_other_work_meanwhile_is_not_certain() {
    type Step = fn(&mut Host);
    let cases: [(&str, Step); 2] = [
        ("a timer of an event loop", |host| {
            host.waits(WORKER, true);
        }),
        ("a message on a connection that it did not use for the job", |host| {
            host.waits(WORKER, true).reads(WORKER, 3, "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n");
        }),
    ];
    for (what, step) in cases {
        let mut host = worker();
        host.opens(3, (0, 0)).sends(WORKER, 3, command(&["SUBSCRIBE", "c"]));
        host.reads(WORKER, 3, "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n").reads(WORKER, REDIS, taken(0));
        step(&mut host);
        calls(&mut host).sends(WORKER, REDIS, asks());
        let spans = host.finish();
        assert_eq!(parents(&spans), [(Grade::Ambiguous, None)], "{what}");
    }
}

#[test]
fn a_wait_for_a_new_connection_is_part_of_the_job() {
    let mut host = worker();
    host.reads(WORKER, REDIS, taken(0));
    let header = Header {
        kind: Kind::State as u8,
        flags: STATE_OWN,
        nanos: host.nanos,
        tgid: 1,
        tid: WORKER,
        ..Header::default()
    };
    let state =
        State { header, cookie: 9, new: tcp_state::SYN_SENT, counters: host.counters[&WORKER], ..State::default() };
    host.engine.record(&Record::State(state), &mut host.out);
    host.waits(WORKER, true).sends(WORKER, 9, CALL).waits(WORKER, true).reads(WORKER, 9, OK);
    host.sends(WORKER, REDIS, asks());
    assert_eq!(parents(&host.finish()), [(Grade::Certain, Some(0))]);
}

#[test]
fn what_a_request_takes_from_a_list_is_no_job() {
    let mut host = worker();
    // Another thread serves requests, one of which waits for its result in a list.
    host.opens(20, (0, 0)).opens(21, (0, 0)).reads(6, 20, GET).sends(6, 21, command(&["BLPOP", "result:1", "5"]));
    host.reads(6, 21, command(&["result:1", "x"])).sends(6, 20, OK);
    let spans = host.finish();
    assert!(jobs(&spans).is_empty());
    let asked = spans.iter().find(|(live, _)| &*live.request.method == "BLPOP").unwrap();
    assert_eq!(asked.1.grade, Grade::Certain);
    assert!(asked.1.parent.is_some());
}

#[test]
fn a_question_for_another_queue_is_part_of_the_job() {
    let mut host = worker();
    host.opens(3, (0, 0)).reads(WORKER, REDIS, taken(0));
    host.sends(WORKER, 3, command(&["BLPOP", "result:1", "5"])).reads(WORKER, 3, command(&["result:1", "x"]));
    calls(&mut host).sends(WORKER, REDIS, asks());
    let spans = host.finish();
    let jobs = jobs(&spans);
    let asked = spans.iter().find(|(live, _)| &*live.request.method == "BLPOP").unwrap();
    assert_eq!((jobs.len(), asked.1.parent), (1, Some(jobs[0].0.id)));
    assert_eq!(parents(&spans), [(Grade::Certain, Some(0))]);
}

/// RQ: the list has ids, a hash has the name, and a child process does the job.
#[test]
fn a_job_may_be_named_later_and_done_by_a_child() {
    const CHILD: u32 = 3;
    let id = "5e86c39f-d9f9-45a3-bb92-dff331591824";
    let mut host = Host::new(Limits::default());
    let ask = command(&["BLPOP", "rq:queue:high", "rq:queue:low", "405"]);
    host.opens(REDIS, (0, 0)).opens(10, (0, 0)).sends(WORKER, REDIS, &ask).waits(WORKER, false);
    host.reads(WORKER, REDIS, "*-1\r\n").sends(WORKER, REDIS, &ask).waits(WORKER, false);
    host.reads(WORKER, REDIS, command(&["rq:queue:high", id]));
    host.sends(WORKER, REDIS, command(&["HGETALL", &format!("rq:job:{id}")]));
    let hash = ["status", "queued", "description", "app.tasks.count(0, 'planted-value')", "timeout", "180"];
    host.reads(WORKER, REDIS, command(&hash));
    let header = Header { kind: Kind::Fork as u8, nanos: host.nanos, tgid: 1, tid: WORKER, ..Header::default() };
    let fork = Fork { header, child_tgid: CHILD, child_tid: CHILD, ..Fork::default() };
    host.engine.record(&Record::Fork(fork), &mut host.out);
    host.nanos += 10;
    host.moves(CHILD, CHILD, 10, true, 0, CALL).moves(CHILD, CHILD, 10, false, 0, OK);
    let header = Header {
        kind: Kind::ThreadStats as u8,
        flags: THREAD_STATS_DEAD,
        nanos: host.nanos,
        tgid: CHILD,
        tid: CHILD,
        ..Header::default()
    };
    let counters = host.counters[&CHILD];
    let stats = ThreadStats { header, counters, ..ThreadStats::default() };
    host.engine.record(&Record::ThreadStats(stats), &mut host.out);
    host.nanos += 10;
    host.sends(WORKER, REDIS, &ask);
    let spans = host.finish();
    assert_eq!(&*jobs(&spans)[0].0.request.path, "high app.tasks.count");
    assert_eq!(parents(&spans), [(Grade::Certain, Some(0))]);
}

#[test]
fn a_job_that_is_handed_over_is_counted_and_has_no_calls() {
    let mut host = Host::new(Limits::default());
    let ask = command(&["BRPOP", "celery", "1"]);
    let message = r#"{"body": "W10=", "headers": {"lang": "py", "task": "tasks.add", "id": "5a1c"}}"#;
    host.opens(REDIS, (0, 0)).opens(OTHER, (0, 0)).sends(WORKER, REDIS, &ask).waits(WORKER, true);
    host.reads(WORKER, REDIS, command(&["celery", message])).waits(WORKER, true);
    calls(&mut host).sends(WORKER, REDIS, &ask);
    let spans = host.finish();
    let (job, verdicts) = jobs(&spans)[0];
    assert_eq!((&*job.request.path, job.end, verdicts.grade), ("celery tasks.add", job.start, Grade::Ambiguous));
    assert_eq!(parents(&spans), [(Grade::Orphan, None)]);
}

#[test]
fn a_job_whose_worker_ends_is_not_known_to_be_done() {
    let mut host = worker();
    host.reads(WORKER, REDIS, taken(0)).ends(WORKER);
    let spans = host.finish();
    assert_eq!(jobs(&spans)[0].0.outcome, Some(Outcome::Unfinished));
}

#[test]
fn a_thread_that_takes_one_element_may_do_anything_after_it() {
    let mut host = Host::new(Limits::default());
    host.opens(REDIS, (0, 0)).opens(OTHER, (0, 0)).sends(WORKER, REDIS, asks());
    host.reads(WORKER, REDIS, taken(0));
    calls(&mut host);
    let spans = host.finish();
    assert_eq!(jobs(&spans)[0].1.grade, Grade::Ambiguous);
    assert_eq!(parents(&spans), [(Grade::Ambiguous, None)]);
}

/// The result of another program is shown by a list that is moved to itself: no job.
#[test]
fn a_list_that_is_moved_to_itself_gives_no_job() {
    for ask in [&["BRPOPLPUSH", "result", "result", "5"][..], &["BLMOVE", "result", "result", "LEFT", "LEFT", "5"]] {
        let mut host = Host::new(Limits::default());
        host.opens(REDIS, (0, 0)).opens(OTHER, (0, 0));
        for _ in 0..3 {
            host.sends(WORKER, REDIS, command(ask)).reads(WORKER, REDIS, "$1\r\nx\r\n");
        }
        calls(&mut host);
        assert!(jobs(&host.finish()).is_empty());
    }
}

#[test]
fn what_else_a_worker_takes_where_it_asks_may_be_its_work() {
    for (words, reply, grade) in [
        (&["BLPOP", "notify", "5"][..], command(&["notify", "x"]), Grade::Ambiguous),
        (&["LPOP", "other"], "$1\r\nx\r\n".to_owned(), Grade::Ambiguous),
        (&["EVALSHA", "abc", "1", "k"], "$1\r\nx\r\n".to_owned(), Grade::Ambiguous),
        (&["GET", "k"], "$1\r\nx\r\n".to_owned(), Grade::Certain),
    ] {
        let mut host = worker();
        host.reads(WORKER, REDIS, taken(0)).sends(WORKER, REDIS, command(words)).reads(WORKER, REDIS, reply);
        calls(&mut host).sends(WORKER, REDIS, asks());
        let spans = host.finish();
        assert_eq!(parents(&spans)[0].0, grade, "{words:?}");
        assert_eq!(jobs(&spans).len(), 1);
    }
}

#[test]
fn a_job_whose_worker_shows_no_work_ends() {
    let mut host = worker();
    host.reads(WORKER, REDIS, taken(0));
    let idle = host.engine.world.limits.idle;
    for (wait, open) in [(1_000_000_000, true), (idle / 2, true), (idle + 2_000_000_000, false)] {
        host.nanos += wait;
        // Another thread shows the time.
        host.sends(6, OTHER, CALL).reads(6, OTHER, OK);
        host.engine.expire(false, &mut host.out);
        assert_eq!(host.engine.jobs.held() == 1, open, "{wait}");
    }
    let spans = host.finish();
    assert_eq!(jobs(&spans)[0].0.outcome, Some(Outcome::Unfinished));
}

#[test]
fn another_servers_list_has_other_elements() {
    for (port, linked) in [(6379, true), (6380, false)] {
        let mut host = Host::new(Limits::default());
        let opens = |host: &mut Host, cookie, remote_port| {
            let header = Header { kind: Kind::Open as u8, nanos: host.nanos, tgid: 1, tid: 1, ..Header::default() };
            let open = Open { header, cookie, family: FAMILY_INET, remote_port, ..Open::default() };
            host.engine.record(&Record::Open(open), &mut host.out);
        };
        opens(&mut host, REDIS, 6379);
        opens(&mut host, 12, port);
        host.sends(WORKER, REDIS, asks()).waits(WORKER, true);
        host.moves(PRODUCER, 50, 12, true, 0, command(&["LPUSH", "queue:default", &element(7)]));
        host.moves(PRODUCER, 50, 12, false, 0, ":1\r\n");
        host.reads(WORKER, REDIS, taken(7)).sends(WORKER, REDIS, asks());
        let spans = host.finish();
        assert_eq!(jobs(&spans)[0].0.rare.linked.is_some(), linked, "{port}");
    }
}

/// A request that asks for a job had no room among the connection's requests: what begins next does not.
#[test]
fn only_the_request_that_asks_is_taken_for_one() {
    let mut host = worker();
    host.engine.jobs.asking = Some((REDIS, 99));
    assert!(!host.engine.jobs.take_asking(OTHER, 0));
    assert!(!host.engine.jobs.take_asking(REDIS, 99));
}
