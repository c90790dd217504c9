//! Kafka: requests and errors against what a scripted broker was asked by kafka-python and by flexible versions, durations
//! against both's own clocks, and no secret anywhere.

use tracer_tests::agent::Agent;
use tracer_tests::peers::{self, Classes, Peer};
use tracer_tests::{begin, scratch, secrets, units};

const SECRETS: [&str; 6] =
    ["planted-user", "planted-password", "planted-value", "planted-key", "planted-header", "planted-message"];

/// kafka-python: topics made and refused, what is produced one by one, in batches and without replies, long records, and a
/// consumer; then flexible versions, which it does not speak, with several requests in one send.
const PYTHON: &str = r#"
import json, socket, struct, sys, time
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError
port, scale = int(sys.argv[1]), float(sys.argv[2])
where = dict(bootstrap_servers=f"127.0.0.1:{port}", client_id="client", security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="PLAIN", sasl_plain_username="planted-user", sasl_plain_password="planted-password", api_version_auto_timeout_ms=30000)
def attempt(what):
    try:
        what()
    except KafkaError:
        pass
admin = KafkaAdminClient(**where)
for name in ["orders", "logs-20260101", "slow", "refused", "orders"]:
    attempt(lambda: admin.create_topics([NewTopic(name, 1, 1)], timeout_ms=5000))
admin.close()
producer = KafkaProducer(acks=1, retries=0, **where)
for i in range(int(200 * scale)):
    producer.send("orders", b"planted-value" * (1 + i % 50), key=b"planted-key", headers=[("h", b"planted-header")]).get(10)
for i in range(int(40 * scale)):
    producer.send("orders", b"planted-value" * 8000).get(10)
    producer.send("logs-20260101", b"planted-value").get(10)
for i in range(15):
    producer.send("slow", b"planted-value").get(10)
for i in range(7):
    attempt(lambda: producer.send("refused", b"planted-value").get(10))
# Several in one request, as many at once as are allowed.
for i in range(2000):
    producer.send("orders" if i % 3 else "logs-20260101", b"planted-value" * 20)
producer.flush()
producer.close()
quiet = KafkaProducer(acks=0, **where)
for i in range(20):
    quiet.send("quiet", b"planted-value").get(10)
quiet.close()
consumer = KafkaConsumer(auto_offset_reset="earliest", enable_auto_commit=False, group_id=None, fetch_max_wait_ms=60, **where)
consumer.assign([TopicPartition("orders", 0)])
got, end = 0, time.monotonic() + 10
while got < int(240 * scale) and time.monotonic() < end:
    got += sum(map(len, consumer.poll(timeout_ms=200).values()))
assert got >= int(240 * scale), got
# Nothing more comes: these wait.
consumer.seek_to_end()
for i in range(5):
    consumer.poll(timeout_ms=150)
# Nothing is asked for any more, and what was is answered.
consumer.pause(TopicPartition("orders", 0))
consumer.poll(timeout_ms=500)
consumer.close()

# Flexible versions, several requests in one send.
sock = socket.create_connection(("127.0.0.1", port))
def compact(text):
    return bytes([len(text) + 1]) + text
def size(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + size(value >> 7)
def request(api, version, correlation, body):
    data = struct.pack(">hhih", api, version, correlation, 3) + b"own" + b"\0" + body
    return struct.pack(">i", len(data)) + data
def replies(count):
    for _ in range(count):
        head = sock.recv(4, socket.MSG_WAITALL)
        sock.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
def produce(topic, correlation, values=1):
    batch = struct.pack(">qiibIhiqqqhii", 0, 49, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1) + b"planted-value" * values
    of_topic = compact(topic) + b"\2" + struct.pack(">i", 0) + size(len(batch) + 1) + batch + b"\0\0"
    return request(0, 9, correlation, b"\0" + struct.pack(">hi", 1, 1000) + b"\2" + of_topic + b"\0")
def fetch(topic, correlation, wait):
    partition = struct.pack(">iiqiqi", 0, -1, 1 << 40, -1, 0, 1 << 20) + b"\0"
    of_topic = compact(topic) + b"\2" + partition + b"\0"
    return request(1, 12, correlation, struct.pack(">iiiibii", -1, wait, 1, 1 << 20, 0, 0, -1) + b"\2" + of_topic + b"\1\1\0")
def metadata(topic, correlation):
    return request(3, 9, correlation, b"\2" + compact(topic) + b"\0" + b"\0\0\0" + b"\0")
sock.sendall(request(18, 3, 0, compact(b"planted") + compact(b"1") + b"\0"))
replies(1)
for i in range(20):
    sock.sendall(metadata(b"flexible", 10 * i + 1) + produce(b"flexible", 10 * i + 2) + metadata(b"gone", 10 * i + 3) + produce(b"refused", 10 * i + 4))
    replies(4)
for i in range(10):
    sock.sendall(fetch(b"flexible", 1000 + i, 30))
    replies(1)
# A request far behind a long one, in one send.
for i in range(5):
    sock.sendall(produce(b"long", 1100 + 2 * i, 2000) + metadata(b"behind", 1101 + 2 * i))
    replies(2)
# One at a time, by the client's own clock.
told = {}
def alone(name, data):
    begin = time.monotonic()
    sock.sendall(data)
    replies(1)
    told.setdefault(name, []).append(time.monotonic() - begin)
for i in range(20):
    alone("Metadata alone", metadata(b"alone", 2000 + i))
    alone("Produce alone", produce(b"alone", 3000 + i))
    alone("Produce slow", produce(b"slow", 4000 + i))
    alone("Fetch nothing", fetch(b"nothing", 5000 + i, 30))
told.pop("Produce slow")
sock.close()
print(json.dumps({name: {"seconds": all} for name, all in told.items()}))
"#;

#[test]
fn requests_errors_and_durations_are_what_the_broker_says() {
    let Some(_turn) = begin("kafka", &["python3"]) else { return };
    let dir = scratch();
    let peer = Peer::start("kafka_broker", dir.path());
    let agent = Agent::start(dir.path(), &["--port", &peer.server.address.port().to_string(), "--nice=-10"]);
    let told = peer.client(PYTHON);
    let truth: Classes = peer.truth();
    let truth = truth.into_iter().map(|(name, class)| (name.replace("logs-20260101", "logs-?"), class)).collect();
    let told = serde_json::from_str(&told).expect("what the client says");
    let metrics = peers::settled(&agent);
    let lost = metrics.lost();
    for (operation, kind, destination) in [("Produce", "send", "alone"), ("Fetch", "receive", "nothing")] {
        let labels = [
            ("messaging_system", "kafka"),
            ("messaging_operation_name", operation),
            ("messaging_operation_type", kind),
            ("messaging_destination_name", destination),
        ];
        let counted = metrics.sum("messaging_client_operation_duration_seconds_count", &labels);
        assert!((counted - 20.0).abs() < 0.5, "{counted} of {labels:?}");
    }
    let units = agent.transactions.clone();
    secrets::none_shows(agent, dir.path(), &SECRETS, "Produce orders");
    peers::compare("kafka", &units, &truth, &peers::classes(&told), &lost);
    let failed = truth.values().flat_map(|class| class.errors.keys()).collect::<std::collections::BTreeSet<_>>();
    let behind = units::read(&units).iter().filter(|unit| !unit.server && unit.class == "Metadata behind").count();
    assert_eq!(behind, 0, "what was not captured is not made up");
    assert_eq!(failed.len(), 3, "{failed:?}");
}
