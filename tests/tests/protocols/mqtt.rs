//! MQTT: compares messages of every quality of service at their producer, the broker and their consumer with the counts
//! of all three, checks their links, and that no secret shows.

use std::collections::BTreeMap;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::messaging::{compare, counts, failures, linked, workload};
use tracer_tests::mosquitto::Mosquitto;
use tracer_tests::process::Process;
use tracer_tests::{begin, scratch, secrets};

const SECRETS: [&str; 6] = [
    "planted-user",
    "planted-password",
    "planted-wrong-password",
    "planted-body",
    "planted-producer",
    "planted-consumer",
];
const ROUNDS: u64 = 60;

#[test]
fn messages_are_counted_at_their_producer_their_broker_and_their_consumer() {
    let Some(_turn) = begin("mqtt", &["mosquitto", "mosquitto_passwd", "python3"]) else { return };
    let dir = scratch();
    let server = Mosquitto::start(dir.path(), "planted-user", "planted-password");
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10"]);
    let mut consuming = workload("mqtt.py", "consumer", &["consume".into(), port.clone()]);
    let mut consumer = Process::start("consumer", &mut consuming, &dir.path().join("consumer.log"));
    consumer.line("READY", Duration::from_secs(30));
    let mut producing = workload("mqtt.py", "producer", &["produce".into(), port, ROUNDS.to_string()]);
    let produced = outcome(&mut producing, "producer");
    assert_eq!(produced.code, Some(0), "{}{}", produced.out, produced.err);
    let got = consumer.line("GOT", Duration::from_secs(30));
    consumer.wait(Duration::from_secs(30));
    let got: Vec<u64> = got.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert_eq!(got, [ROUNDS * 5, ROUNDS * 2, ROUNDS + 1], "what the consumer got, by quality");

    let messages = [
        ("sensors/{id}/temperature", ROUNDS * 5),
        ("orders/{id}/made", ROUNDS),
        ("orders/all", ROUNDS),
        ("jobs/new", ROUNDS),
        ("control/stop", 1),
    ];
    let of = |operation: &str| {
        counts(
            &messages
                .map(|(topic, count)| (format!("{operation} {topic}"), count))
                .each_ref()
                .map(|(name, count)| (name.as_str(), *count)),
        )
    };
    // The consumer's, the producer's, and a stranger's that is refused.
    let others = counts(&[
        ("connect", 3),
        ("subscribe sensors/+/temperature", 1),
        ("subscribe orders/#", 1),
        ("subscribe jobs/new", 1),
        ("subscribe control/stop", 1),
    ]);
    let together = |parts: &[&_]| parts.iter().copied().flat_map(Clone::clone).collect();
    let (sent, delivered) = (of("publish"), of("deliver"));
    let expected = [together(&[&sent, &others]), delivered.clone(), together(&[&sent, &delivered, &others])];
    let metrics = compare(&agent, "mqtt", &expected);
    // The broker's log, by topic; topics that differ in a number are one class.
    for what in ["Received", "Sending"] {
        let mut counted = BTreeMap::new();
        for (topic, count) in server.counted(what) {
            let levels = topic.split('/').map(|level| if level.parse::<u64>().is_ok() { "{id}" } else { level });
            *counted.entry(levels.collect::<Vec<_>>().join("/")).or_default() += count;
        }
        assert_eq!(counted, counts(&messages), "{what}");
    }

    assert_eq!(failures(&metrics, "NOT_AUTHORIZED"), [1, 0, 1]);
    for kind in ["aborted", "unfinished"] {
        assert_eq!(failures(&metrics, kind), [0, 0, 0], "{kind}");
    }
    linked(&agent, "consumer", "0af7651916cd43dd8448eb211c80319c", ROUNDS);
    secrets::none_shows(agent, dir.path(), &SECRETS, "NOT_AUTHORIZED");
}
