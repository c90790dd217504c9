//! STOMP: compares messages at their producer, RabbitMQ and their consumers with the counts of all three, checks their
//! links, and that no secret shows.

use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::messaging::{compare, counts, failures, linked, workload};
use tracer_tests::process::Process;
use tracer_tests::rabbitmq::{RabbitMq, is_there};
use tracer_tests::{begin, find, say, scratch, secrets};

const SECRETS: [&str; 4] = ["planted-user", "planted-password", "planted-wrong-password", "planted-body"];
const ROUNDS: u64 = 60;

fn has_client() -> bool {
    let mut command = Command::new(find("python3").expect("python3"));
    command.args(["-c", "import stomp"]);
    outcome(&mut command, "python3").code == Some(0)
}

#[test]
fn messages_are_counted_at_their_producer_their_broker_and_their_consumers() {
    let Some(_turn) = begin("stomp", &["rabbitmq-server", "python3"]) else { return };
    if !is_there() || !has_client() {
        return say(
            "SKIPPED stomp: needs RabbitMQ as Debian installs it, and the Python library stomp.py (python3-stomp)",
        );
    }
    let dir = scratch();
    let server = RabbitMq::start_with_stomp(dir.path(), "planted-user", "planted-password");
    let port = server.stomp.expect("an address").port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10"]);
    let arguments = |what: &str| [what.to_owned(), port.clone(), ROUNDS.to_string()];
    let mut consuming = workload("stomp_messages.py", "consumer", &arguments("consume"));
    let mut consumer = Process::start("consumer", &mut consuming, &dir.path().join("consumer.log"));
    consumer.line("READY", Duration::from_secs(60));
    let produced = outcome(&mut workload("stomp_messages.py", "producer", &arguments("produce")), "producer");
    assert_eq!(produced.code, Some(0), "{}{}", produced.out, produced.err);
    let got = consumer.line("GOT", Duration::from_secs(60));
    consumer.wait(Duration::from_secs(30));
    let got: Vec<u64> = got.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert_eq!(got, [ROUNDS * 2, ROUNDS, 1], "what the consumer got");

    let refused = ROUNDS * 2 / 10;
    let sent = [
        ("publish /topic/events.{id}.made", ROUNDS * 2),
        ("publish /queue/jobs", ROUNDS),
        ("publish /queue/old", 1),
        ("publish /topic/quiet", 1),
        ("publish /nowhere/planted", 1),
    ];
    let delivered = [
        ("deliver /topic/events.{id}.made", ROUNDS * 2),
        ("deliver /queue/jobs", ROUNDS),
        ("deliver /queue/old", 1),
        ("deliver /topic/quiet", 1),
    ];
    let others = [
        // The consumer's; the producer's: one that fails, in the oldest version, in the middle one, and to an unknown
        // destination.
        ("connect", 5),
        ("subscribe /topic/events.#", 1),
        ("subscribe /queue/jobs", 1),
        ("subscribe /queue/old", 1),
        ("subscribe /topic/quiet", 1),
        ("unsubscribe", 2),
        ("commit", 1),
        ("disconnect", 3),
    ];
    let expected = [
        counts(&[&sent[..], &others].concat()),
        counts(&delivered),
        counts(&[&sent[..], &delivered, &others].concat()),
    ];
    let metrics = compare(&agent, "stomp", &expected);
    let of = |list: &[(&str, u64)]| list.iter().map(|(_, count)| count).sum::<u64>();
    let names = [
        "messages_received_total",
        "messages_delivered_total",
        "messages_acknowledged_total",
        "messages_dead_lettered_rejected_total",
    ];
    // Messages to an unknown destination are refused before they are counted.
    let acknowledged = of(&delivered) - refused - 1;
    let ours = [of(&sent) - 1, of(&delivered), acknowledged, refused];
    assert_eq!(server.counted(&names), ours, "what the broker counted: {names:?}");

    for (kind, count) in [
        ("BAD_CONNECT", [1, 0, 1]),
        ("UNKNOWN_DESTINATION", [1, 0, 1]),
        ("NACK", [0, refused, refused]),
        ("aborted", [0, 0, 0]),
        ("unfinished", [0, 0, 0]),
    ] {
        assert_eq!(failures(&metrics, kind), count, "{kind}");
    }
    linked(&agent, "consumer", "0af7651916cd43dd8448eb211c80319c", ROUNDS);
    secrets::none_shows(agent, dir.path(), &SECRETS, "UNKNOWN_DESTINATION");
}
