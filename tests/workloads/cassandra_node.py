"""A node of Cassandra as far as its Python driver needs it (`peer.py` says how it counts), versions 4 and 5 of the protocol.
What a table is called decides what is answered: `slow` late and out of turn, `missing` and `denied` with errors, `long` with
long rows, `huge` with rows of which each is longer than a segment, `edge` with ones that are about as long.
"""

import re
import struct
import threading
import time

from cassandra.segment import CRC32_INITIAL, compute_crc24, compute_crc32

from peer import Peer

ERRORS = {"missing": 0x2200, "denied": 0x2100}
LOCAL = {"key": "local", "cluster_name": "scripted", "data_center": "one", "rack": "one", "release_version": "4.0.0",
         "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner", "cql_version": "3.4.5"}
SUPPORTED = b"\0\2\0\x0bCQL_VERSION\0\1\0\x053.4.5\0\x0bCOMPRESSION\0\0"
TEXT = struct.pack(">H", 0x0D)


def words(text):
    """What a statement does, and to which table."""
    verb = text.split()[0].upper()
    table = re.search(r"(?:FROM|INTO|UPDATE)\s+(\S+)", text, re.I)
    return f"{verb} {table.group(1)}" if table else verb


def short(data):
    data = data.encode() if isinstance(data, str) else data
    return struct.pack(">H", len(data)) + data


def rows(table, columns, all):
    head = struct.pack(">iii", 2, 1, len(columns)) + short("planted_keyspace") + short(table)
    head += b"".join(short(column) + TEXT for column in columns) + struct.pack(">i", len(all))
    cell = lambda value: struct.pack(">i", len(value)) + value.encode()
    return head + b"".join(cell(value) for row in all for value in row)


class Node:
    def __init__(self, peer, connection):
        self.peer, self.connection = peer, connection
        self.segments, self.lock, self.prepared, self.edge = False, threading.Lock(), {}, 0

    def envelopes(self):
        """Envelopes, each with when its first byte was read."""
        while True:
            if not self.segments:
                head = self.connection.exactly(9, first=True)
                began = self.connection.began
                yield head + self.connection.exactly(struct.unpack(">i", head[5:])[0]), began
                continue
            data = b""
            while True:
                head = int.from_bytes(self.connection.exactly(6, first=not data)[:3], "little")
                if not data:
                    began = self.connection.began
                data += self.connection.exactly(head & 0x1FFFF)
                self.connection.exactly(4)
                if head >> 17 or len(data) == 9 + struct.unpack(">i", data[5:9])[0]:
                    break
            while data:
                size = 9 + struct.unpack(">i", data[5:9])[0]
                yield data[:size], began
                data = data[size:]

    def send(self, version, stream, kind, body):
        data = struct.pack(">BBhBi", version | 0x80, 0, stream, kind, len(body)) + body
        with self.lock:
            if self.segments:
                whole, parts = len(data) <= 0x1FFFF, []
                for at in range(0, len(data), 0x1FFFF):
                    part = data[at:at + 0x1FFFF]
                    header = len(part) | whole << 17
                    parts.append(header.to_bytes(3, "little") + compute_crc24(header, 3).to_bytes(3, "little"))
                    parts.append(part + compute_crc32(part, CRC32_INITIAL).to_bytes(4, "little"))
                data = b"".join(parts)
            self.connection.sock.sendall(data)

    def reply(self, version, stream, began, name, kind, body, error=None):
        self.send(version, stream, kind, body)
        self.peer.count(name, time.monotonic() - began, error and f"0x{error:04X}")

    def result(self, version, stream, began, name, table):
        table = table.split(".")[-1]
        error = ERRORS.get(table)
        if error:
            body = struct.pack(">i", error) + short("planted-message")
            return self.reply(version, stream, began, name, 0, body, error)
        if name.startswith("SELECT"):
            row = ["planted-value" * {"long": 30, "huge": 40_000}.get(table, 1)]
            if table == "edge":
                self.edge += 1
                row = ["v" * (65_400 + self.edge % 40 * 5)]
            all = {"local": [list(LOCAL.values())], "peers": [], "peers_v2": []}.get(table, [row] * (200 if table == "long" else 2))
            body = rows(table, list(LOCAL) if table in ("local", "peers", "peers_v2") else ["name"], all)
        else:
            body = struct.pack(">i", 1)
        self.reply(version, stream, began, name, 8, body)

    def answer(self, envelope, began):
        version, _, stream, kind, _ = struct.unpack(">BBhBi", envelope[:9])
        body = envelope[9:]
        name, table = None, ""
        if kind == 0x05:
            return self.reply(version, stream, began, "OPTIONS", 6, SUPPORTED)
        if kind == 0x01:
            # In version 5 all that follows is in segments.
            self.reply(version, stream, began, "STARTUP", 3, short("org.apache.cassandra.auth.PasswordAuthenticator"))
            self.segments = version == 5
            return None
        if kind == 0x0F:
            return self.reply(version, stream, began, "AUTHENTICATE", 0x10, struct.pack(">i", -1))
        if kind == 0x0B:
            return self.reply(version, stream, began, "REGISTER", 2, b"")
        if kind in (0x07, 0x09):
            size = struct.unpack(">i", body[:4])[0]
            text = body[4:4 + size].decode()
            name = words(text)
            if kind == 0x09:
                number = struct.pack(">QQ", 7, len(self.prepared))
                self.prepared[number] = name
                count = text.count("?")
                spec = short("planted_keyspace") + short("t") + b"".join(short(f"c{i}") + TEXT for i in range(count))
                body = struct.pack(">i", 4) + short(number) + (short(number) if version == 5 else b"")
                body += struct.pack(">iii", 1, count, 0) + spec
                body += struct.pack(">ii", 4, 0)
                return self.reply(version, stream, began, f"PREPARE {name}", 8, body)
        elif kind == 0x0A:
            size = struct.unpack(">H", body[:2])[0]
            name = self.prepared[body[2:2 + size]]
        elif kind == 0x0D:
            count, at, names = struct.unpack(">H", body[1:3])[0], 3, []
            for _ in range(count):
                form, at = body[at], at + 1
                if form == 0:
                    size = struct.unpack_from(">i", body, at)[0]
                    at += 4 + size
                    names.append(words(body[at - size:at].decode()))
                else:
                    size = struct.unpack_from(">H", body, at)[0]
                    at += 2 + size
                    names.append(self.prepared[body[at - size:at]])
                values, at = struct.unpack_from(">H", body, at)[0], at + 2
                for _ in range(values):
                    at += 4 + max(struct.unpack_from(">i", body, at)[0], 0)
            name = f"BATCH {names[0]}" if len(set(names)) == 1 else "BATCH"
        table = name.split()[-1]
        if table == "slow":
            later = threading.Timer(0.02, self.result, (version, stream, began, name, table))
            later.daemon = True
            return later.start()
        return self.result(version, stream, began, name, table)


def serve(peer, connection):
    node = Node(peer, connection)
    for envelope, began in node.envelopes():
        node.answer(envelope, began)


Peer(serve).run()
