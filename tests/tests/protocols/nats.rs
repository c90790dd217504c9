//! NATS: compares messages at their producer, the broker and their consumer with the counts of all three, checks their
//! links, and that no secret shows.

use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::messaging::{FAMILIES, compare, counts, failures, linked, workload};
use tracer_tests::nats::Nats;
use tracer_tests::process::Process;
use tracer_tests::{begin, find, say, scratch, secrets};

const SECRETS: [&str; 5] =
    ["planted-user", "planted-password", "planted-wrong-password", "planted-body", "planted-answer"];
const ROUNDS: u64 = 60;

fn has_client() -> bool {
    let mut command = Command::new(find("python3").expect("python3"));
    command.args(["-c", "import nats"]);
    outcome(&mut command, "python3").code == Some(0)
}

#[test]
fn messages_are_counted_at_their_producer_their_broker_and_their_consumer() {
    let Some(_turn) = begin("nats", &["nats-server", "python3"]) else { return };
    if !has_client() {
        return say("SKIPPED nats: needs the Python library nats-py (cargo xtask setup)");
    }
    let dir = scratch();
    let server = Nats::start(dir.path(), "planted-user", "planted-password");
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10"]);
    let mut consuming = workload("nats_consumer.py", "consumer", std::slice::from_ref(&port));
    let mut consumer = Process::start("consumer", &mut consuming, &dir.path().join("consumer.log"));
    consumer.line("READY", Duration::from_secs(30));
    let produced = outcome(&mut workload("nats_producer.py", "producer", &[port, ROUNDS.to_string()]), "producer");
    assert_eq!(produced.code, Some(0), "{}{}", produced.out, produced.err);
    let got = consumer.line("GOT", Duration::from_secs(30));
    consumer.wait(Duration::from_secs(30));
    let counted = server.counted();
    let got: Vec<u64> = got.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert_eq!(got, [ROUNDS * 10, ROUNDS * 2, ROUNDS + 1], "what the consumer got");

    let refused = ROUNDS.div_ceil(10);
    let sent = [
        ("publish events.{id}.made", ROUNDS * 10),
        ("request sync", ROUNDS + 1),
        ("request work.resize.{id}", ROUNDS),
        ("request work.store", ROUNDS),
        ("request nobody.there", refused),
        // The producer's two, the first of which fails, and the consumer's.
        ("connect", 3),
    ];
    let delivered = [
        ("deliver events.{id}.made", ROUNDS * 10),
        ("deliver sync", ROUNDS + 1),
        ("deliver work.resize.{id}", ROUNDS),
        ("deliver work.store", ROUNDS),
    ];
    let expected = [counts(&sent), counts(&delivered), counts(&[&sent[..], &delivered].concat())];
    let metrics = compare(&agent, "nats", &expected);
    // The broker's counts: published messages, and the replies, which are not spans of their own. It reports missing
    // responders without counting that.
    let of =
        |list: &[(&str, u64)]| list.iter().filter(|(name, _)| *name != "connect").map(|(_, count)| count).sum::<u64>();
    let answers = of(&delivered) - ROUNDS * 10;
    assert_eq!(counted.received, of(&sent) + answers, "messages the broker was sent");
    assert_eq!(counted.sent, of(&delivered) + answers, "messages the broker sent");

    assert_eq!(failures(&metrics, "AUTHORIZATION_VIOLATION"), [1, 0, 1]);
    assert_eq!(failures(&metrics, "NO_RESPONDERS"), [refused, 0, refused]);
    // Durations of requests: the client's measurement contains the agent's.
    let spent: f64 = produced.out.trim().parse().expect("seconds");
    let ours: f64 = ["sync", "work.resize.{id}", "work.store"]
        .iter()
        .map(|name| metrics.sum(&format!("{}_sum", FAMILIES[0].1), &[("messaging_destination_name", name)]))
        .sum();
    say(&format!("requests took {ours:.4} s, {spent:.4} s by the client's own clock"));
    assert!(ours > 0.0 && ours < spent, "{ours} of {spent}");
    // A tenth of the events name their producer.
    linked(&agent, "consumer", "0af7651916cd43dd8448eb211c80319c", ROUNDS);
    secrets::none_shows(agent, dir.path(), &SECRETS, "AUTHORIZATION_VIOLATION");
}
