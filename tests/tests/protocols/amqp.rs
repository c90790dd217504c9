//! AMQP 0-9-1: compares messages at their producer, RabbitMQ and their consumer with the counts of all three, checks
//! their links, and that no secret shows.

use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::messaging::{compare, counts, failures, linked, workload};
use tracer_tests::process::Process;
use tracer_tests::rabbitmq::{RabbitMq, is_there};
use tracer_tests::{begin, say, scratch, secrets};

const SECRETS: [&str; 4] = ["planted-user", "planted-password", "planted-wrong-password", "planted-body"];
const ROUNDS: u64 = 60;

#[test]
fn messages_are_counted_at_their_producer_their_broker_and_their_consumer() {
    let Some(_turn) = begin("amqp", &["rabbitmq-server", "python3"]) else { return };
    if !is_there() {
        return say("SKIPPED amqp: needs RabbitMQ as Debian installs it");
    }
    let dir = scratch();
    let server = RabbitMq::start(dir.path(), "planted-user", "planted-password");
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10"]);
    let mut consuming = workload("amqp.py", "consumer", &["consume".into(), port.clone(), ROUNDS.to_string()]);
    let mut consumer = Process::start("consumer", &mut consuming, &dir.path().join("consumer.log"));
    consumer.line("READY", Duration::from_secs(60));
    let mut producing = workload("amqp.py", "producer", &["produce".into(), port, ROUNDS.to_string()]);
    let produced = outcome(&mut producing, "producer");
    assert_eq!(produced.code, Some(0), "{}{}", produced.out, produced.err);
    let got = consumer.line("GOT", Duration::from_secs(60));
    consumer.wait(Duration::from_secs(30));
    let got: Vec<u64> = got.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert_eq!(got, [ROUNDS * 2, ROUNDS, 1], "what the consumer got");

    let returned = ROUNDS.div_ceil(10);
    let refused = ROUNDS / 10;
    let sent = [
        ("publish events:user.{id}.made", ROUNDS * 2),
        ("publish jobs", ROUNDS),
        ("publish events:nowhere", returned),
        ("publish events:control.quiet", 1),
        ("publish drawn", ROUNDS),
    ];
    let delivered =
        [("deliver events:user.{id}.made", ROUNDS * 2), ("deliver jobs", ROUNDS), ("deliver events:control.quiet", 1)];
    let others = [
        // The consumer's, the producer's, and a failed one.
        ("connect", 3),
        ("channel.open", 4),
        // The consumer's and the producer's two; the broker closed the fourth.
        ("channel.close", 3),
        ("exchange.declare events", 1),
        ("queue.declare made", 1),
        ("queue.declare quiet", 1),
        ("queue.declare jobs", 1),
        ("queue.declare missing", 1),
        ("queue.declare drawn", 1),
        // One message each, and none.
        ("get drawn", ROUNDS + 1),
        ("queue.bind made", 1),
        ("queue.bind quiet", 1),
        ("basic.qos", 1),
        ("subscribe made", 1),
        ("subscribe jobs", 1),
        ("subscribe quiet", 1),
        ("unsubscribe", 3),
        ("confirm.select", 1),
    ];
    let expected = [
        counts(&[&sent[..], &others].concat()),
        counts(&delivered),
        counts(&[&sent[..], &delivered, &others].concat()),
    ];
    let metrics = compare(&agent, "rabbitmq", &expected);
    let of = |list: &[(&str, u64)]| list.iter().map(|(_, count)| count).sum::<u64>();
    let names = [
        "messages_received_total",
        "messages_confirmed_total",
        "messages_unroutable_returned_total",
        "messages_delivered_total",
        "messages_acknowledged_total",
        "messages_get_empty_total",
        "messages_dead_lettered_rejected_total",
    ];
    let counted = server.counted(&names);
    // Those that were got, too; without one that needs no acknowledgement.
    let acknowledged = of(&delivered) - refused - 1 + ROUNDS;
    let ours = [of(&sent), 2 * ROUNDS + returned, returned, of(&delivered) + ROUNDS, acknowledged, 1, refused];
    assert_eq!(counted, ours, "what the broker counted: {names:?}");

    for (kind, count) in [
        ("ACCESS_REFUSED", [1, 0, 1]),
        ("NO_ROUTE", [returned, 0, returned]),
        ("NACK", [0, refused, refused]),
        ("NOT_FOUND", [1, 0, 1]),
        ("aborted", [0, 0, 0]),
        ("unfinished", [0, 0, 0]),
    ] {
        assert_eq!(failures(&metrics, kind), count, "{kind}");
    }
    linked(&agent, "consumer", "0af7651916cd43dd8448eb211c80319c", ROUNDS);
    secrets::none_shows(agent, dir.path(), &SECRETS, "ACCESS_REFUSED");
}
