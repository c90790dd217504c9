"""A broker of Kafka as far as kafka-python and flexible versions need it (`peer.py` says how it counts). It keeps what is
produced and gives it out again; what a topic is called decides what is answered: `slow` late, `refused` with an error.
A consumer waits for what is not there yet for as long as it allows.
"""

import struct
import threading
import time

from peer import Peer

NAMES = {0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 8: "OffsetCommit", 9: "OffsetFetch", 10: "FindCoordinator",
         11: "JoinGroup", 12: "Heartbeat", 13: "LeaveGroup", 14: "SyncGroup", 17: "SaslHandshake", 18: "ApiVersions",
         19: "CreateTopics", 36: "SaslAuthenticate"}
# What is offered: the newest of each that kafka-python speaks is not flexible.
VERSIONS = {0: (0, 9), 1: (0, 12), 2: (0, 3), 3: (0, 9), 8: (0, 3), 9: (0, 3), 10: (0, 1), 11: (0, 2), 12: (0, 1), 13: (0, 1),
            14: (0, 1), 17: (0, 1), 18: (0, 3), 19: (0, 3), 36: (0, 0)}
FLEXIBLE = {0: 9, 1: 12, 3: 9, 18: 3}
ERRORS = {"refused": 29, "gone": 3}
ERROR_NAMES = {29: "TOPIC_AUTHORIZATION_FAILED", 3: "UNKNOWN_TOPIC_OR_PARTITION", 36: "TOPIC_ALREADY_EXISTS",
               79: "MEMBER_ID_REQUIRED", 25: "UNKNOWN_MEMBER_ID", 35: "UNSUPPORTED_VERSION"}
# Topic to its batches: (first offset, count, bytes).
logs = {}
lock = threading.Lock()


class Reader:
    def __init__(self, data, flexible):
        self.data, self.at, self.flexible = data, 0, flexible

    def number(self, form):
        value = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def varint(self):
        value = shift = 0
        while True:
            byte = self.number(">B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def size(self, form):
        return self.varint() - 1 if self.flexible else self.number(form)

    def blob(self, form=">i"):
        size = self.size(form)
        if size < 0:
            return None
        self.at += size
        return self.data[self.at - size:self.at]

    def text(self):
        raw = self.blob(">h")
        return raw and raw.decode()

    def tags(self):
        if self.flexible:
            for _ in range(self.varint()):
                self.varint()
                self.at += self.varint()


class Writer:
    def __init__(self, flexible):
        self.parts, self.flexible = [], flexible

    def number(self, form, value):
        self.parts.append(struct.pack(form, value))

    def size(self, form, value):
        if not self.flexible:
            return self.number(form, value)
        value += 1
        while value > 0x7F:
            self.number(">B", value & 0x7F | 0x80)
            value >>= 7
        self.number(">B", value)

    def blob(self, value, form=">i"):
        self.size(form, -1 if value is None else len(value))
        self.parts.append(value or b"")

    def text(self, value):
        self.blob(value if value is None else value.encode(), ">h")

    def tags(self):
        if self.flexible:
            self.parts.append(b"\0")


def produce(version, body, out, peer):
    if version >= 3:
        body.text()
    acks = body.number(">h")
    body.number(">i")
    topics = []
    for _ in range(body.size(">i")):
        name = body.text()
        partitions = []
        for _ in range(body.size(">i")):
            index, records = body.number(">i"), body.blob()
            body.tags()
            error = ERRORS.get(name, 0)
            with lock:
                log = logs.setdefault(name, [])
                start = log[-1][0] + log[-1][1] if log else 0
                # Count of records, behind the rest of a batch of the newest form.
                count = struct.unpack_from(">i", records, 57)[0] if len(records) > 60 else 1
                if not error:
                    log.append((start, count, struct.pack(">q", start) + records[8:]))
            partitions.append((index, error, start))
        body.tags()
        topics.append((name, partitions))
    if any(name == "slow" for name, _ in topics):
        time.sleep(0.02)
    out.size(">i", len(topics))
    first = 0
    for name, partitions in topics:
        out.text(name)
        out.size(">i", len(partitions))
        for index, error, start in partitions:
            first = first or error
            out.number(">i", index)
            out.number(">h", error)
            out.number(">q", start)
            if version >= 2:
                out.number(">q", -1)
            if version >= 5:
                out.number(">q", 0)
            if version >= 8:
                out.size(">i", 0)
                out.text(None)
            out.tags()
        out.tags()
    out.number(">i", 0)
    out.tags()
    return topics[0][0], len(topics), first, acks != 0


def fetch(version, body, out, peer):
    body.number(">i")
    wait, least = body.number(">i"), body.number(">i")
    if version >= 3:
        body.number(">i")
    if version >= 4:
        body.number(">b")
    if version >= 7:
        body.number(">i"), body.number(">i")
    topics = []
    for _ in range(body.size(">i")):
        name = body.text()
        partitions = []
        for _ in range(body.size(">i")):
            index = body.number(">i")
            if version >= 9:
                body.number(">i")
            offset = body.number(">q")
            if version >= 12:
                body.number(">i")
            if version >= 5:
                body.number(">q")
            body.number(">i")
            body.tags()
            partitions.append((index, offset))
        body.tags()
        topics.append((name, partitions))
    end = time.monotonic() + wait / 1000

    def there():
        with lock:
            return {(name, index): b"".join(data for start, count, data in logs.get(name, ()) if start + count > offset)
                    for name, partitions in topics for index, offset in partitions}

    found = there()
    while sum(map(len, found.values())) < least and time.monotonic() < end:
        time.sleep(0.005)
        found = there()
    if version >= 1:
        out.number(">i", 0)
    if version >= 7:
        out.number(">h", 0)
        out.number(">i", 0)
    out.size(">i", len(topics))
    first = 0
    for name, partitions in topics:
        out.text(name)
        out.size(">i", len(partitions))
        for index, _ in partitions:
            error = ERRORS.get(name, 0)
            first = first or error
            with lock:
                log = logs.get(name, [])
                end_of = log[-1][0] + log[-1][1] if log else 0
            out.number(">i", index)
            out.number(">h", error)
            out.number(">q", end_of)
            if version >= 4:
                out.number(">q", end_of)
            if version >= 5:
                out.number(">q", 0)
            if version >= 4:
                out.size(">i", 0)
            if version >= 11:
                out.number(">i", -1)
            out.blob(found[name, index])
            out.tags()
        out.tags()
    out.tags()
    return topics[0][0] if topics else None, len(topics), first, True


def metadata(version, body, out, peer):
    count = body.size(">i")
    wanted = []
    for _ in range(max(count, 0)):
        wanted.append(body.text())
        body.tags()
    with lock:
        known = sorted(logs)
    names = wanted if count > 0 else known if count < 0 or version == 0 else []
    if version >= 3:
        out.number(">i", 0)
    out.size(">i", 1)
    out.number(">i", 1)
    out.text("127.0.0.1")
    out.number(">i", peer.address[1])
    if version >= 1:
        out.text(None)
    out.tags()
    if version >= 2:
        out.text("cluster")
    if version >= 1:
        out.number(">i", 1)
    out.size(">i", len(names))
    first = 0
    for nth, name in enumerate(names):
        error = 3 if name == "gone" else 0
        first = error if nth == 0 else first
        out.number(">h", error)
        out.text(name)
        if version >= 1:
            out.number(">b", 0)
        out.size(">i", 1)
        out.number(">h", 0)
        out.number(">i", 0)
        out.number(">i", 1)
        if version >= 7:
            out.number(">i", 0)
        for _ in range(2):
            out.size(">i", 1)
            out.number(">i", 1)
        if version >= 5:
            out.size(">i", 0)
        out.tags()
        if version >= 8:
            out.number(">i", 0)
        out.tags()
    if 8 <= version <= 10:
        out.number(">i", 0)
    out.tags()
    return names[0] if count > 0 else None, max(count, 0), first, True


def list_offsets(version, body, out, peer):
    body.number(">i")
    if version >= 2:
        body.number(">b")
        out.number(">i", 0)
    topics = [(body.text(), [(body.number(">i"), body.number(">q"), version or body.number(">i"))[:2]
               for _ in range(body.size(">i"))]) for _ in range(body.size(">i"))]
    out.size(">i", len(topics))
    for name, partitions in topics:
        out.text(name)
        out.size(">i", len(partitions))
        with lock:
            log = logs.get(name, [])
            end = log[-1][0] + log[-1][1] if log else 0
        for index, when in partitions:
            out.number(">i", index)
            out.number(">h", 0)
            if version == 0:
                out.size(">i", 1)
            else:
                out.number(">q", -1)
            out.number(">q", end if when == -1 else 0)
    return topics[0][0], len(topics), 0, True


def api_versions(version, body, out, peer):
    out.number(">h", 0)
    out.size(">i", len(VERSIONS))
    for api, (low, high) in VERSIONS.items():
        # What kafka-python knows of newer versions is not all right.
        high = high if version >= 3 else min(high, {0: 7, 1: 4, 3: 5}.get(api, high))
        out.number(">h", api)
        out.number(">h", low)
        out.number(">h", high)
        out.tags()
    if version >= 1:
        out.number(">i", 0)
    out.tags()
    return None, 0, 0, True


def create_topics(version, body, out, peer):
    names = []
    for _ in range(body.size(">i")):
        names.append(body.text())
        body.number(">i"), body.number(">h")
        for _ in range(body.size(">i")):
            body.number(">i")
            [body.number(">i") for _ in range(body.size(">i"))]
        for _ in range(body.size(">i")):
            body.text(), body.text()
    if version >= 2:
        out.number(">i", 0)
    out.size(">i", len(names))
    first = 0
    for nth, name in enumerate(names):
        with lock:
            error = 36 if name in logs else 0
            logs.setdefault(name, [])
        first = error if nth == 0 else first
        out.text(name)
        out.number(">h", error)
        if version >= 1:
            out.text("planted-message" if error else None)
    return names[0], len(names), first, True


def sasl_handshake(version, body, out, peer):
    out.number(">h", 0)
    out.size(">i", 1)
    out.text("PLAIN")
    return None, 0, 0, True


ANSWERS = {0: produce, 1: fetch, 2: list_offsets, 3: metadata, 17: sasl_handshake, 18: api_versions, 19: create_topics}


def serve(peer, connection):
    bare = False
    while True:
        size = struct.unpack(">i", connection.exactly(4, first=True))[0]
        data = connection.exactly(size)
        if bare:
            # User and password, by themselves.
            assert data.count(b"\0") == 2, data
            connection.send(bytes(4))
            bare = False
            continue
        api, version, correlation, client = struct.unpack_from(">hhih", data)
        flexible = version >= FLEXIBLE.get(api, 99)
        body, out = Reader(data[10 + max(client, 0):], flexible), Writer(flexible)
        body.tags()
        out.number(">i", correlation)
        if flexible and api != 18:
            out.tags()
        topic, topics, error, wanted = ANSWERS[api](version, body, out, peer)
        name = NAMES[api] + (f" {topic}" if topic else "") + (", …" if topics > 1 else "")
        bare = api == 17 and version == 0
        seconds = None
        if wanted:
            reply = b"".join(out.parts)
            seconds = connection.send(struct.pack(">i", len(reply)) + reply)
        peer.count(name, seconds, ERROR_NAMES[error] if error and wanted else None)


Peer(serve).run()
