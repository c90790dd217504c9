//! A proxy's thread, scripted and random: which request each of its calls forwards.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::evidence::{Evidence, Reason};

const PROXY: u32 = 9;

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")
}

fn reply(status: u16) -> String {
    format!("HTTP/1.1 {status} A\r\nContent-Length: 0\r\n\r\n")
}

/// Behaves like HAProxy: reads all requests, forwards them in another order, reads all replies, then answers.
fn rounds(host: &mut Host, rounds: u64, target: impl Fn(u64, u64) -> String) {
    let all = [0, 1, 2, 3];
    for client in all {
        host.opens(1 + client, (0, 0)).opens(101 + client, (0, 0));
    }
    for round in 0..rounds {
        for client in all {
            host.reads(PROXY, 1 + client, get(&target(round, client))).works(PROXY, 10);
        }
        for client in [2, 0, 3, 1] {
            host.works(PROXY, 5).sends(PROXY, 101 + client, get(&target(round, client)));
        }
        host.waits(PROXY, true);
        for client in [1, 3, 2, 0] {
            host.reads(PROXY, 101 + client, OK);
        }
        for client in [3, 0, 1, 2] {
            host.works(PROXY, 7).sends(PROXY, 1 + client, OK);
        }
        host.waits(PROXY, true);
    }
}

/// Calls with their verdicts and the path of the parent.
fn calls(spans: &[(Box<OpenSpan>, Verdicts)]) -> Vec<(&OpenSpan, Verdicts, Option<&str>)> {
    let path = |verdicts: &Verdicts| {
        let parent = verdicts.parent?;
        spans.iter().find(|(live, _)| live.id == parent).map(|(live, _)| &*live.request.path)
    };
    let calls = spans.iter().filter(|(live, _)| live.side == Side::Client);
    calls.map(|(live, verdicts)| (&**live, *verdicts, path(verdicts))).collect()
}

#[test]
fn a_proxy_that_reads_before_it_sends_is_recognised_by_what_it_forwards() {
    let mut host = Host::new(Limits::default());
    rounds(&mut host, 10, |round, client| format!("/{round}/{client}"));
    let spans = host.finish();
    let calls = calls(&spans);
    // The first rounds show that it is a proxy.
    for (call, verdicts, parent) in &calls[16..] {
        assert_eq!((verdicts.grade, *parent), (Grade::Confirmed, Some(&*call.request.path)), "{verdicts:?}");
    }
    assert!(calls.iter().all(|(call, _, parent)| parent.is_none_or(|path| path == &*call.request.path)));
    assert!(host.engine.forwarding.is_empty());
}

#[test]
fn queries_tell_requests_apart_and_like_ones_stay_ambiguous() {
    for (unlike, expected) in [(true, Grade::Confirmed), (false, Grade::Ambiguous)] {
        let mut host = Host::new(Limits::default());
        rounds(&mut host, 10, |_, client| format!("/same?client={}", if unlike { client } else { 0 }));
        let spans = host.finish();
        for (_, verdicts, _) in &calls(&spans)[20..] {
            assert_eq!(verdicts.grade, expected, "{verdicts:?}");
            assert_eq!(verdicts.parent.is_some(), unlike, "{verdicts:?}");
        }
    }
}

/// More alike requests than are listed: those that are only counted keep the listed ones ambiguous.
#[test]
fn a_long_pipeline_of_like_requests_stays_ambiguous() {
    let mut host = Host::new(Limits::default());
    // It is a proxy.
    rounds(&mut host, 10, |round, client| format!("/{round}/{client}"));
    let many = 50;
    host.reads(PROXY, 1, get("/same").repeat(many)).reads(PROXY, 2, get("/other")).works(PROXY, 10);
    for _ in 0..many {
        host.sends(PROXY, 101, get("/same")).reads(PROXY, 101, OK).sends(PROXY, 1, OK);
    }
    host.sends(PROXY, 2, OK).waits(PROXY, true);
    let spans = host.finish();
    let calls = calls(&spans);
    let same: Vec<_> = calls.iter().filter(|(call, ..)| &*call.request.path == "/same").collect();
    assert_eq!(same.len(), many);
    // The last ones are the only request that is still open.
    let sure = same.iter().filter(|(_, verdicts, _)| verdicts.reason == Reason::For(Evidence::Forwards)).count();
    assert!(sure <= 1, "{sure} calls whose request was one of {many}");
    assert!(host.engine.forwarding.is_empty());
}

#[test]
fn who_makes_calls_of_its_own_is_no_proxy() {
    let mut host = Host::new(Limits::default());
    host.opens(200, (0, 0));
    // It sends a call for one request that another client could have requested from it.
    for round in 0..10 {
        rounds(&mut host, 1, |_, client| format!("/{round}/{client}"));
        host.reads(PROXY, 1, get("/a")).reads(PROXY, 2, get("/b")).sends(PROXY, 200, get("/c"));
        host.waits(PROXY, true).reads(PROXY, 200, OK).sends(PROXY, 1, OK).sends(PROXY, 2, OK).waits(PROXY, true);
    }
    let spans = host.finish();
    assert!(calls(&spans).iter().all(|(_, verdicts, _)| verdicts.reason != Reason::For(Evidence::Forwards)));
}

/// The rule for every call with an ambiguous parent.
#[test]
fn a_guess_is_no_parent_passes_no_id_on_and_adds_nothing() {
    let mut host = Host::new(Limits::default());
    rounds(&mut host, 10, |_, _| "/same".into());
    let spans = host.finish();
    let mut ambiguous = 0;
    for (call, verdicts, _) in calls(&spans) {
        if verdicts.grade != Grade::Ambiguous {
            continue;
        }
        ambiguous += 1;
        assert_eq!(verdicts.parent, None);
        assert!(spans.iter().all(|(live, other)| live.id == call.id || other.trace != verdicts.trace), "{verdicts:?}");
        assert_eq!((call.cost.cpu, call.rare.samples.len()), (0, 0), "it is overhead");
    }
    assert!(ambiguous > 30, "{ambiguous}");
    let later = spans.iter().filter(|(live, _)| live.side == Side::Server).skip(8);
    assert_eq!(later.map(|(live, _)| live.downstream()).sum::<u64>(), 0);
    let charged: u64 = spans.iter().map(|(live, _)| live.cost.cpu).sum();
    assert_eq!(charged + host.overhead(), 10 * 4 * 22, "no CPU is lost");
}

/// Progress of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    Read,
    Sent(u64),
    Replied,
}

struct Chance<'a> {
    bytes: std::slice::Iter<'a, u8>,
}

impl Chance<'_> {
    fn below(&mut self, bound: usize) -> Option<usize> {
        self.bytes.next().map(|byte| usize::from(*byte) % bound.max(1))
    }
}

/// Plays a proxy; returns the start of each call with the start of the request it was made for.
fn play(host: &mut Host, bytes: &[u8], losses: bool) -> Option<HashMap<Nanos, Option<Nanos>>> {
    let mut chance = Chance { bytes: bytes.iter() };
    let clients = 2 + chance.below(5)?;
    let targets = 1 + chance.below(12)?;
    let own = chance.below(4)? == 0;
    let mut truth = HashMap::new();
    let mut steps = vec![(Step::Idle, String::new(), 0); clients];
    let mut idle: Vec<u64> = Vec::new();
    let mut next = 100;
    for client in 0..clients as u64 {
        host.opens(1 + client, (0, 0));
    }
    host.opens(50, (0, 0));
    while let (Some(client), Some(what)) = (chance.below(clients), chance.below(16)) {
        let (step, target, since) = steps[client].clone();
        let cookie = 1 + client as u64;
        host.works(PROXY, 3);
        let times = u32::from(!losses || what != 15);
        let at = host.nanos;
        steps[client].0 = match step {
            _ if what < 2 => {
                host.waits(PROXY, true);
                step
            }
            _ if what == 2 && own => {
                // A health check: the proxy calls a target that clients request, too.
                host.waits(PROXY, true);
                truth.insert(host.nanos, None);
                host.sends(PROXY, 50, get("/0")).waits(PROXY, true).reads(PROXY, 50, reply(200)).waits(PROXY, true);
                step
            }
            Step::Idle => {
                let target = format!("/{}", chance.below(targets)?);
                host.recorded(times, |host| {
                    host.reads(PROXY, cookie, get(&target));
                });
                (steps[client].1, steps[client].2) = (target, at);
                Step::Read
            }
            Step::Read if what == 3 => {
                // The proxy itself refuses the request.
                host.sends(PROXY, cookie, reply(503));
                Step::Idle
            }
            Step::Read => {
                let link = idle.pop().filter(|_| what > 5).unwrap_or_else(|| {
                    next += 1;
                    host.opens(next, (0, 0));
                    next
                });
                truth.insert(at, Some(since));
                host.recorded(times, |host| {
                    host.sends(PROXY, link, get(&target));
                });
                Step::Sent(link)
            }
            Step::Sent(link) => {
                host.recorded(times, |host| {
                    host.reads(PROXY, link, reply(200));
                });
                idle.push(link);
                Step::Replied
            }
            Step::Replied => {
                host.recorded(times, |host| {
                    host.sends(PROXY, cookie, reply(200));
                });
                Step::Idle
            }
        };
    }
    Some(truth)
}

fn sound(bytes: &[u8], losses: bool) -> Result<(), TestCaseError> {
    let mut host = Host::new(Limits::default());
    let Some(truth) = play(&mut host, bytes, losses) else { return Ok(()) };
    let spans = host.finish();
    for (call, verdicts) in spans.iter().filter(|(live, _)| live.side == Side::Client) {
        let sure = matches!(verdicts.grade, Grade::Certain | Grade::Confirmed);
        prop_assert!(sure || verdicts.parent.is_none(), "a guess shows: {verdicts:?}");
        // A proxy that works in any order makes the two sides of a callback group agree by chance.
        if verdicts.reason != Reason::For(Evidence::Forwards) {
            continue;
        }
        let Some(parent) = verdicts.parent.and_then(|id| spans.iter().find(|(live, _)| live.id == id)) else {
            continue;
        };
        let real = truth.get(&call.start).copied().flatten();
        prop_assert_eq!(Some(parent.0.start), real, "{} is {:?}", call.request.path, verdicts);
    }
    Ok(())
}

/// The same histories in every run; random ones, and more of them, with `PROPTEST_CASES=100000`.
fn config() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    let rng_seed = if asked.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) };
    ProptestConfig { cases: asked.unwrap_or(2000), rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_call_of_a_proxy_has_another_requests_parent(bytes in proptest::collection::vec(any::<u8>(), 0..900)) {
        sound(&bytes, false)?;
    }

    #[test]
    fn nor_where_records_are_lost(bytes in proptest::collection::vec(any::<u8>(), 0..900)) {
        sound(&bytes, true)?;
    }
}

/// A proxy that changes what it forwards, in the same order: only its callback groups show which request a call is for.
fn rewrites(host: &mut Host, clients: std::ops::Range<u64>, back: &[u64]) {
    for client in clients.clone() {
        host.reads(PROXY, 1 + client, get(&format!("/{client}"))).works(PROXY, 10);
    }
    for client in clients {
        host.works(PROXY, 5).sends(PROXY, 101 + client, get(&format!("/rewritten/{client}")));
    }
    host.waits(PROXY, true);
    for client in back {
        host.reads(PROXY, 101 + client, OK).works(PROXY, 7).sends(PROXY, 1 + client, OK).waits(PROXY, true);
    }
}

#[test]
fn a_proxy_that_reads_several_at_once_is_sure_where_it_has_one_pending_read() {
    let mut host = Host::new(Limits::default());
    for client in 0..2 {
        host.opens(1 + client, (0, 0)).opens(101 + client, (0, 0));
    }
    for _ in 0..10 {
        rewrites(&mut host, 0..2, &[1, 0]);
    }
    for _ in 0..10 {
        rewrites(&mut host, 0..1, &[]);
        rewrites(&mut host, 1..2, &[1, 0]);
    }
    let spans = host.finish();
    let calls = calls(&spans);
    let (several, one) = calls.split_at(20);
    // The first round's second call agrees at both sides before any disagreement was seen.
    for (_, verdicts, parent) in &several[2..] {
        assert_eq!((verdicts.grade, *parent), (Grade::Ambiguous, None), "{verdicts:?}");
    }
    for (call, verdicts, parent) in one {
        let rewritten = parent.map(|path| format!("/rewritten{path}"));
        assert_eq!(
            (verdicts.grade, rewritten.as_deref()),
            (Grade::Confirmed, Some(&*call.request.path)),
            "{verdicts:?}"
        );
    }
}
