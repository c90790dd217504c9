//! Cassandra: compares statements and errors with the requests that a scripted node got from the Python driver in
//! protocol versions 4 and 5, durations with both sides' own clocks, and checks that no secret shows.

use tracer_tests::agent::Agent;
use tracer_tests::peers::{self, Peer};
use tracer_tests::{begin, scratch, secrets};

const SECRETS: [&str; 5] = ["planted-user", "planted-password", "planted-value", "planted-message", "planted_keyspace"];

/// Sessions of the driver: statements as text, prepared and in batches, long ones both ways (in version 5 in several
/// segments), many concurrent ones answered out of order, errors.
const PYTHON: &str = r#"
import json, sys, threading, time
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster
from cassandra.query import BatchStatement, SimpleStatement
port, scale = int(sys.argv[1]), float(sys.argv[2])
times = {}
def timed(name, run):
    begin = time.monotonic()
    run()
    times.setdefault(name, []).append(time.monotonic() - begin)
def attempt(run):
    try:
        run()
    except Exception as error:
        if "planted-message" not in str(error):
            raise
for version in (4, 5):
    cluster = Cluster(["127.0.0.1"], port=port, protocol_version=version, schema_metadata_enabled=False, token_metadata_enabled=False,
        compression=False, auth_provider=PlainTextAuthProvider("planted-user", "planted-password"), connect_timeout=30, control_connection_timeout=30)
    session = cluster.connect()
    session.default_timeout = 30
    for i in range(int(100 * scale)):
        timed("SELECT orders", lambda: list(session.execute("SELECT name FROM orders WHERE owner = 'planted-value'")))
        timed("INSERT orders", lambda: session.execute("INSERT INTO orders (a, b) VALUES (%s, %s)", ("planted-value", i)))
    read = session.prepare("SELECT name FROM items WHERE id = ?")
    write = session.prepare("UPDATE items SET name = ? WHERE id = ?")
    for i in range(int(100 * scale)):
        timed("SELECT items", lambda: list(session.execute(read, ("planted-value",))))
        session.execute(write, ("planted-value", "planted-value"))
    for i in range(20):
        list(session.execute("SELECT name FROM long WHERE a = 'planted-value'"))
        session.execute("INSERT INTO blobs (a) VALUES (%s)", ("planted-value" * 30000,))
    # Many at once, some of which are answered late.
    pending = []
    for i in range(int(300 * scale)):
        pending.append(session.execute_async("SELECT name FROM slow" if i % 10 == 0 else "SELECT name FROM fast"))
    for one in pending:
        one.result()
    for i in range(7):
        attempt(lambda: session.execute("SELECT name FROM missing WHERE a = 'planted-value'"))
        attempt(lambda: session.execute("DELETE FROM denied WHERE a = 'planted-value'"))
    for i in range(15):
        batch = BatchStatement()
        for _ in range(3):
            batch.add(write, ("planted-value", "planted-value"))
        session.execute(batch)
    mixed = BatchStatement()
    mixed.add(SimpleStatement("INSERT INTO orders (a) VALUES ('planted-value')"))
    mixed.add(SimpleStatement("DELETE FROM orders WHERE a = 'planted-value'"))
    session.execute(mixed)
    cluster.shutdown()
print(json.dumps({name: {"seconds": all} for name, all in times.items()}))
"#;

#[test]
fn statements_errors_and_durations_are_what_the_node_says() {
    let Some(_turn) = begin("cassandra", &["python3"]) else { return };
    let dir = scratch();
    let peer = Peer::start("cassandra_node", dir.path());
    let agent = Agent::start(dir.path(), &["--port", &peer.server.address.port().to_string(), "--nice=-10"]);
    let times = peer.client(PYTHON);
    let truth = peer.truth();
    let times = serde_json::from_str(&times).expect("what the client says");
    let lost = peers::settled(&agent).lost();
    let spans = agent.transactions.clone();
    secrets::none_shows(agent, dir.path(), &SECRETS, "SELECT orders");
    peers::compare("cassandra", &spans, &truth, &peers::classes(&times), &lost);
    let failed = truth.values().flat_map(|class| class.errors.keys()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(failed.len(), 2, "{failed:?}");
}

/// Messages longer than a version 5 segment (128 KiB) and about as long, both ways, one at a time and many at once,
/// with short ones between them.
const LONG: &str = r#"
import json, sys, time
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster
from cassandra.query import BatchStatement
port, scale = int(sys.argv[1]), float(sys.argv[2])
times = {}
def timed(name, run):
    begin = time.monotonic()
    run()
    times.setdefault(name, []).append(time.monotonic() - begin)
for version in (4, 5):
    cluster = Cluster(["127.0.0.1"], port=port, protocol_version=version, schema_metadata_enabled=False, token_metadata_enabled=False,
        compression=False, auth_provider=PlainTextAuthProvider("planted-user", "planted-password"), connect_timeout=30, control_connection_timeout=30)
    session = cluster.connect()
    session.default_timeout = 60
    read = session.prepare("SELECT name FROM items WHERE id = ?")
    write = session.prepare("UPDATE items SET name = ? WHERE id = ?")
    def short():
        timed("SELECT orders", lambda: list(session.execute("SELECT name FROM orders WHERE owner = 'planted-value'")))
        timed("INSERT orders", lambda: session.execute("INSERT INTO orders (a, b) VALUES (%s, %s)", ("planted-value", 5)))
        timed("SELECT items", lambda: list(session.execute(read, ("planted-value",))))
    for size in range(130_900, 131_100, 5):
        session.execute("INSERT INTO edges (a) VALUES (%s)", ("v" * size,))
        assert len(list(session.execute("SELECT name FROM edge"))) == 2
        short()
    for i in range(int(15 * scale) + 5):
        session.execute("INSERT INTO blobs (a) VALUES (%s)", ("planted-value" * (11_000 + 7_000 * i),))
        short()
        session.execute(write, ("planted-value" * 30_000, "planted-value"))
        short()
        assert len(list(session.execute("SELECT name FROM huge WHERE a = 'planted-value'"))) == 2
        short()
        batch = BatchStatement()
        for _ in range(3):
            batch.add(write, ("planted-value" * 5_000, "planted-value"))
        session.execute(batch)
        short()
    for i in range(int(20 * scale) + 5):
        # The driver takes nothing more while a long one waits to be sent: that one stands last.
        texts = ["SELECT name FROM slow", "SELECT name FROM huge", "SELECT name FROM fast"] * 3
        pending = [session.execute_async(text) for text in texts]
        pending.append(session.execute_async(write, ("planted-value" * 15_000, "planted-value")))
        for one in pending:
            one.result()
    short()
    cluster.shutdown()
print(json.dumps({name: {"seconds": all} for name, all in times.items()}))
"#;

#[test]
fn messages_longer_than_segments() {
    let Some(_turn) = begin("cassandra_long", &["python3"]) else { return };
    let dir = scratch();
    let peer = Peer::start("cassandra_node", dir.path());
    let port = peer.server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10", "--max-cpu", "400%"]);
    let times = peer.client(LONG);
    let truth = peer.truth();
    let times = serde_json::from_str(&times).expect("what the client says");
    let lost = peers::settled(&agent).lost();
    let spans = agent.transactions.clone();
    secrets::none_shows(agent, dir.path(), &SECRETS, "SELECT orders");
    peers::compare("cassandra", &spans, &truth, &peers::classes(&times), &lost);
}
