//! Streams of one connection: which request a thread's work belongs to if it has several.

use super::*;

/// A request on a stream: a head without a body.
fn ask(key: u8, path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
    block.extend(path.bytes());
    [&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, key][..], &block].concat()
}

/// A 200 reply without a body.
fn answer(key: u8) -> Vec<u8> {
    vec![0, 0, 1, 1, 5, 0, 0, 0, key, 0x88]
}

fn preface() -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat()
}

fn cpu(spans: &[(Box<OpenSpan>, Verdicts)]) -> Vec<(String, u64)> {
    let mut costs: Vec<_> = spans.iter().map(|(live, _)| (live.request.path.to_string(), live.cost.cpu)).collect();
    costs.sort();
    costs
}

#[test]
fn one_stream_at_a_time_is_the_threads_own() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, preface());
    for key in [1, 3] {
        host.waits(5, true).reads(5, 1, ask(key, "/a")).works(5, 100).sends(5, 1, answer(key));
    }
    let spans = host.finish();
    assert_eq!(cpu(&spans), [("/a".into(), 100), ("/a".into(), 100)]);
    assert!(spans.iter().all(|(live, _)| live.outcome == Some(Outcome::Complete)));
}

#[test]
fn a_read_of_several_streams_has_no_owner_and_each_send_is_its_streams() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, preface()).waits(5, true);
    host.reads(5, 1, [ask(1, "/a"), ask(3, "/b")].concat());
    host.works(5, 100).sends(5, 1, answer(3)).works(5, 40).sends(5, 1, answer(1));
    let spans = host.finish();
    assert_eq!(cpu(&spans), [("/a".into(), 40), ("/b".into(), 100)]);
    assert!(spans.iter().all(|(_, verdicts)| verdicts.grade != Grade::Certain), "{spans:?}");
}

#[test]
fn a_send_for_several_is_shared_and_says_so() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, preface()).waits(5, true);
    host.reads(5, 1, [ask(1, "/a"), ask(3, "/b"), ask(5, "/c")].concat());
    host.works(5, 100).sends(5, 1, [answer(5), answer(1), answer(3)].concat());
    let spans = host.finish();
    let costs = cpu(&spans);
    assert_eq!(costs.iter().map(|(_, cpu)| cpu).sum::<u64>(), 100);
    assert!(costs.iter().all(|(_, cpu)| (33..=34).contains(cpu)), "{costs:?}");
    assert!(spans.iter().all(|(_, verdicts)| verdicts.grade == Grade::Ambiguous));
    assert_eq!(host.overhead(), 0);
}

#[test]
fn a_call_made_beside_streams_is_never_certain() {
    for several in [false, true] {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).reads(5, 1, preface()).waits(5, true);
        let asked = if several { [ask(1, "/a"), ask(3, "/b")].concat() } else { ask(1, "/a") };
        host.reads(5, 1, asked).works(5, 10).opens(2, (0, 0)).sends(5, 2, GET);
        host.waits(5, true).reads(5, 2, OK).works(5, 10).sends(5, 1, answer(1));
        if several {
            host.sends(5, 1, answer(3));
        }
        let spans = host.finish();
        let calls: Vec<_> = spans.iter().filter(|(live, _)| live.side == tracer_model::Side::Client).collect();
        let [(_, verdicts)] = calls[..] else { panic!("{spans:?}") };
        // If several were read at once, any of them may have caused the call; with a single one, its answer confirms it
        // later.
        assert_ne!(verdicts.grade, Grade::Certain, "{several}");
        assert_eq!(verdicts.grade == Grade::Confirmed, !several, "{verdicts:?}");
    }
}

#[test]
fn a_late_record_is_no_evidence_of_another_thread() {
    let mut host = Host::new(Limits::default());
    // Thread 6 holds a request when the record of thread 7's call arrives late.
    host.opens(1, (0, 0)).reads(6, 1, GET).opens(2, (0, 0)).sends(6, 2, preface());
    let (early, late) = (ask(1, "/early"), ask(3, "/late"));
    host.recorded(0, |host| {
        host.sends(7, 2, &early);
    });
    host.works(6, 10).sends(6, 2, late);
    let before = host.engine.world.counters.gap_bytes;
    // The lost record never comes: the buffered data is parsed after a time-out.
    host.nanos += 1_000_000_000;
    host.engine.world.now = host.nanos;
    host.engine.expire(false, &mut host.out);
    assert!(host.engine.world.counters.gap_bytes >= before + early.len() as u64);
    host.sends(6, 1, OK);
    let spans = host.finish();
    let call = spans.iter().find(|(live, _)| &*live.request.path == "/late").expect("the call");
    assert_eq!(call.1.grade, Grade::Orphan, "{call:?}");
}

#[test]
fn who_sends_a_call_by_a_connection_of_many_threads_need_not_have_made_it() {
    for shared in [false, true] {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).opens(2, (0, 0)).opens(3, (0, 0));
        host.reads(5, 1, "GET /1 HTTP/1.1\r\n\r\n").reads(6, 2, "GET /2 HTTP/1.1\r\n\r\n");
        host.works(5, 10).sends(5, 3, [preface(), ask(1, "/a")].concat());
        if shared {
            host.works(6, 10).sends(6, 3, ask(3, "/b"));
        }
        host.reads(5, 3, answer(1));
        if shared {
            host.reads(5, 3, answer(3));
        }
        host.works(5, 10).sends(5, 1, OK).works(6, 10).sends(6, 2, OK);
        let spans = host.finish();
        let calls = spans.iter().filter(|(live, _)| live.side == tracer_model::Side::Client);
        let grades: Vec<Grade> = calls.map(|(_, verdicts)| verdicts.grade).collect();
        let expected = if shared { vec![Grade::Ambiguous; 2] } else { vec![Grade::Confirmed] };
        assert_eq!(grades, expected, "shared: {shared}");
    }
}
