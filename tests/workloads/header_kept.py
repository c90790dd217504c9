"""Requests in turn on connections that are kept, then a connection each on which a request has a chunked body.

ADDRESS PORT CONNECTIONS ROUNDS. Paths say what a request can get: /any-, /own- (it has a traceparent), /chunked-, /after-."""

import http.client
import sys

host, port, connections, rounds = sys.argv[1], *map(int, sys.argv[2:5])
OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LARGE = bytes(range(251)) * 12533


def answered(connection):
    reply = connection.getresponse()
    body = reply.read()
    assert reply.status == 200 and body == b"ok", (reply.status, body)


def ask(connection, method, path, body=None, headers={}, chunked=False):
    # The same host whatever the port.
    connection.request(method, path, body, {"Host": "a", **headers}, encode_chunked=chunked)
    answered(connection)


def opened():
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.connect()
    return connection


kept = [opened() for _ in range(connections)]
for i in range(rounds):
    for c, connection in enumerate(kept):
        name = f"{c}-{i}"
        if i == rounds // 2:
            ask(connection, "POST", f"/any-{name}", LARGE)
        elif i % 10 == 3:
            # Head and body in sends of their own.
            ask(connection, "POST", f"/any-{name}", b"GET /inner HTTP/1.1\r\nHost: a\r\n\r\n" + b"x" * (i % 700))
        elif i % 10 == 5:
            ask(connection, "GET", f"/any-{name}", headers={"tracestate": f"vendor={i},other=1", "X-Long": "v" * (i % 900)})
        elif i % 10 == 7:
            ask(connection, "GET", f"/own-{name}", headers={"traceparent": OWN, "tracestate": "vendor=1"})
        elif i % 10 == 9:
            # Both in one.
            body = b"y" * (i % 300)
            head = f"PUT /any-{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            connection.sock.sendall(head + body)
            reply = http.client.HTTPResponse(connection.sock, method="PUT")
            reply.begin()
            assert reply.status == 200 and reply.read() == b"ok"
        else:
            ask(connection, "GET", f"/any-{name}")
for c in range(connections):
    connection = opened()
    for i in range(3):
        ask(connection, "GET", f"/any-chunks-{c}-{i}")
    parts = (bytes([c + i & 0xFF]) * (i * 5000 + 1) for i in range(20))
    ask(connection, "POST", f"/chunked-{c}", parts, {"Transfer-Encoding": "chunked"}, chunked=True)
    ask(connection, "POST", f"/after-{c}-large", LARGE)
    for i in range(5):
        ask(connection, "GET", f"/after-{c}-{i}")
    connection.close()
for connection in kept:
    connection.close()
