//! MongoDB: compares commands and errors with what a scripted server got from PyMongo, durations with both sides' own
//! clocks, and checks that no secret shows.

use std::collections::BTreeMap;

use tracer_tests::agent::Agent;
use tracer_tests::peers::{self, Peer};
use tracer_tests::{begin, scratch, secrets};

const SECRETS: [&str; 6] = [
    "planted_user",
    "planted-password",
    "planted-value",
    "planted-message",
    "plantedcommand",
    // In the client's description of itself at connect.
    "planted-application",
];

/// Sessions of PyMongo: in threads, with cursors, long documents both ways, errors, commands without a reply, and
/// compressed; then a cursor with unsolicited batches, which this PyMongo does not support.
const PYTHON: &str = r#"
import json, socket, struct, sys, threading, bson, pymongo
from pymongo import MongoClient, monitoring
port, scale = int(sys.argv[1]), float(sys.argv[2])
where = f"mongodb://planted_user:planted-password@127.0.0.1:{port}/?authMechanism=PLAIN&authSource=$external"
times, asked = {}, {}
class Listener(monitoring.CommandListener):
    """What the library itself says of commands that did not fail."""
    def started(self, event):
        value = event.command.get("collection") or event.command[event.command_name]
        asked[event.request_id] = f"{event.command_name} {value}"
    def succeeded(self, event):
        times.setdefault(asked.pop(event.request_id), []).append(event.duration_micros / 1e6)
    def failed(self, event):
        asked.pop(event.request_id)
def attempt(what, *args, **more):
    try:
        what(*args, **more)
    except pymongo.errors.PyMongoError:
        pass
def session(nth):
    for i in range(int(60 * scale)):
        list(db.orders.find({"owner": "planted-value", "n": i}))
        db.orders.insert_one({"text": "planted-value"})
        db.orders.update_one({"owner": "planted-value"}, {"$set": {"a": i}})
        db["logs-20260101"].count_documents({})
client = MongoClient(where, appname="planted-application", event_listeners=[Listener()])
db = client.planted_db
threads = [threading.Thread(target=session, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
for i in range(int(30 * scale)):
    list(db.long.find({}))
    db.long.insert_many([{"_id": n, "text": "planted-value" * 20} for n in range(500)])
    list(db.batches.find({}))
    list(db.orders.aggregate([{"$match": {"owner": "planted-value"}}]))
    db.orders.distinct("owner")
    db.orders.find_one_and_update({"_id": 1}, {"$set": {"owner": "planted-value"}})
    db.fs.chunks.delete_many({"owner": "planted-value"})
for i in range(15):
    list(db.slow.find({}))
for i in range(7):
    attempt(list, db.missing.find({}))
    attempt(list, db.strange.find({}))
for i in range(5):
    attempt(db.duplicate.insert_one, {"_id": "planted-value"})
quiet = db.get_collection("quiet", write_concern=pymongo.WriteConcern(w=0))
for i in range(20):
    quiet.insert_one({"text": "planted-value"})
db.command("ping")
attempt(db.command, "plantedcommand", "planted-value")
client.close()
packed = MongoClient(where, appname="planted-application", compressors="zlib")
for i in range(10):
    list(packed.planted_db.orders.find({}))
packed.close()
# A cursor whose batches come without being asked for.
sock = socket.create_connection(("127.0.0.1", port))
for i in range(40):
    body = struct.pack("<IB", 1 << 16, 0) + bson.encode({"getMore": bson.Int64(7), "collection": "streamed", "$db": "planted_db"})
    sock.sendall(struct.pack("<iiii", 16 + len(body), 500 + i, 0, 2013) + body)
    more = True
    while more:
        head = b""
        while len(head) < 16: head += sock.recv(16 - len(head))
        left = struct.unpack_from("<i", head)[0] - 16
        body = b""
        while len(body) < left: body += sock.recv(left - len(body))
        more = struct.unpack_from("<I", body)[0] & 2
sock.close()
print(json.dumps({name: {"seconds": all} for name, all in times.items()}))
"#;

#[test]
fn commands_errors_and_durations_are_what_the_server_says() {
    let Some(_turn) = begin("mongodb", &["python3"]) else { return };
    let dir = scratch();
    let peer = Peer::start("mongod", dir.path());
    let agent = Agent::start(dir.path(), &["--port", &peer.server.address.port().to_string(), "--nice=-10"]);
    let times = peer.client(PYTHON);
    let mut truth = peer.truth();
    peers::rename(&mut truth, "plantedcommand planted-value", "_OTHER");
    peers::rename(&mut truth, "aggregate logs-20260101", "aggregate logs-?");
    for class in truth.values_mut() {
        // A number for a place in the server's source.
        let unknown = class.errors.remove("5107200");
        class.errors.extend(unknown.map(|count| ("_OTHER".to_owned(), count)));
    }
    let times = serde_json::from_str(&times).expect("what the library says");
    // The library counts decoding time as part of the command.
    let mut called = peers::classes(&times);
    called.retain(|name, _| !name.contains("long") && truth.contains_key(name));
    let lost = peers::settled(&agent).lost();
    let spans = agent.transactions.clone();
    let failed: BTreeMap<_, _> = truth.iter().filter(|(_, class)| !class.errors.is_empty()).collect();
    assert_eq!(failed.len(), 3, "{failed:?}");
    secrets::none_shows(agent, dir.path(), &SECRETS, "find orders");
    peers::compare("mongodb", &spans, &truth, &called, &lost);
}
