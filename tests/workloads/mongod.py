"""MongoDB as far as PyMongo needs it (`peer.py` says how it counts). What a command is about decides what is answered:
collection `slow` late, `duplicate` with a write error, `missing` and `strange` with errors, `long` with long documents,
`streamed` in several messages.
"""

import struct
import time
import zlib

import bson

from peer import Peer

FAILURES = {
    "missing": {"ok": 0.0, "errmsg": "planted-message", "code": 26, "codeName": "NamespaceNotFound"},
    "strange": {"ok": 0.0, "errmsg": "planted-message", "code": 5107200, "codeName": "Location5107200"},
}
HELLO = ("hello", "isMaster", "ismaster")


def reply_to(name, command, collection):
    """What is answered, and the code of its error."""
    if collection in FAILURES:
        return FAILURES[collection], FAILURES[collection]["code"]
    if collection == "slow":
        time.sleep(0.02)
    if name in HELLO:
        hello = {
            "ismaster": True, "helloOk": True, "maxBsonObjectSize": 16 << 20, "maxMessageSizeBytes": 48000000,
            "maxWriteBatchSize": 100000, "localTime": bson.datetime.datetime.utcnow(), "minWireVersion": 0, "maxWireVersion": 13,
            "logicalSessionTimeoutMinutes": 30, "readOnly": False, "ok": 1.0,
            "topologyVersion": {"processId": bson.ObjectId("5fffffffffffffffffffffff"), "counter": bson.Int64(1)},
        }
        if "zlib" in command.get("compression", []):
            hello["compression"] = ["zlib"]
        return hello, None
    if name == "saslStart":
        return {"conversationId": 1, "done": True, "payload": b"", "ok": 1.0}, None
    if name in ("find", "aggregate"):
        batch = [{"_id": i, "n": i, "text": "planted-value" * (200 if collection == "long" else 1)} for i in range(100)]
        cursor = 7 if collection == "batches" else 0
        return {"cursor": {"firstBatch": batch, "id": bson.Int64(cursor), "ns": f"planted_db.{collection}"}, "ok": 1.0}, None
    if name == "getMore":
        return {"cursor": {"nextBatch": [{"_id": 1}], "id": bson.Int64(0), "ns": f"planted_db.{collection}"}, "ok": 1.0}, None
    if collection == "duplicate":
        error = {"index": 0, "code": 11000, "errmsg": "planted-message", "keyValue": {"_id": "planted-value"}}
        return {"n": 0, "writeErrors": [error], "ok": 1.0}, 11000
    if name == "distinct":
        return {"values": ["planted-value"], "ok": 1.0}, None
    if name == "findAndModify":
        return {"value": {"_id": 1, "text": "planted-value"}, "ok": 1.0}, None
    return {"n": 1, "nModified": 1, "ok": 1.0}, None


class Sender:
    """What one connection sends: messages with numbers of their own."""

    def __init__(self):
        self.number = 1000

    def message(self, to, kind, body):
        self.number += 1
        return struct.pack("<iiii", 16 + len(body), self.number, to, kind) + body


def document(body, at):
    size = struct.unpack_from("<i", body, at)[0]
    return bson.decode(body[at:at + size]), at + size


def op_msg(body):
    """The command of a message, and its flags."""
    flags = struct.unpack_from("<I", body)[0]
    at, command = 4, {}
    while at < len(body):
        kind, at = body[at], at + 1
        if kind == 0:
            command, at = document(body, at)
        else:
            at += struct.unpack_from("<i", body, at)[0]
    return command, flags


def serve(peer, connection):
    sender = Sender()
    while True:
        size, number, _, kind = struct.unpack("<iiii", connection.exactly(16, first=True))
        body = connection.exactly(size - 16)
        packed = kind == 2012
        if packed:
            kind = struct.unpack_from("<i", body)[0]
            body = zlib.decompress(body[9:])
        flags = 0
        if kind == 2004:
            command, _ = document(body, body.index(b"\0", 4) + 9)
        else:
            command, flags = op_msg(body)
        name, value = next(iter(command.items()))
        collection = command["collection"] if name == "getMore" else value if isinstance(value, str) else None
        about = f"{name} {collection}" if collection else name
        about = "_COMPRESSED" if packed else about
        if flags & 2:
            peer.count(about)
            continue
        answer, error = reply_to(name, command, collection)
        if kind == 2004:
            raw = struct.pack("<iqii", 8, 0, 0, 1) + bson.encode(answer)
            peer.count(about, connection.send(sender.message(number, 1, raw)), error)
            continue
        # Several messages, each of which answers the one before.
        following = 3 if collection == "streamed" and flags & 1 << 16 else 0
        if name in HELLO and flags & 1 << 16:
            # Told for as long as anybody listens; what was asked is answered by the first.
            peer.count(about)
            while True:
                connection.send(sender.message(number, 2013, struct.pack("<IB", 2, 0) + bson.encode(answer)))
                number = sender.number
                time.sleep(0.05)
        for left in range(following, -1, -1):
            raw = struct.pack("<IB", 2 if left else 0, 0) + bson.encode(answer)
            if packed:
                raw = struct.pack("<iiB", 2013, len(raw), 2) + zlib.compress(raw)
            data = sender.message(number, 2012 if packed else 2013, raw)
            number = sender.number
            seconds = connection.send(data)
            if left:
                time.sleep(0.002)
        peer.count(about, seconds, error)


Peer(serve).run()
