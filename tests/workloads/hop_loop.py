"""One hop of a chain of hosts, by one thread: answers GET /hop/ID after it has asked UPSTREAM=HOST:PORT for the same.
It reads all requests there are, then sends calls when each request's own nap is over: the request read last is mostly
not the one a call is for."""

import heapq
import os
import random
import selectors
import socket
import time

host, port = os.environ["UPSTREAM"].rsplit(":", 1)
poll, due, free = selectors.DefaultSelector(), [], []
random.seed(7)


def accept(listener, _):
    client, _ = listener.accept()
    poll.register(client, selectors.EVENT_READ, (asked, b""))


def asked(client, before):
    data = client.recv(65536)
    if not data:
        poll.unregister(client)
        return client.close()
    if not (before + data).endswith(b"\r\n\r\n"):
        return poll.modify(client, selectors.EVENT_READ, (asked, before + data))
    heapq.heappush(due, (time.monotonic() + random.uniform(0.0005, 0.006), id(client), client, before + data))
    poll.modify(client, selectors.EVENT_READ, (asked, b""))


def call(client, request):
    upstream = free.pop() if free else socket.create_connection((host, int(port)))
    upstream.sendall(request)
    poll.register(upstream, selectors.EVENT_READ, (answered, (client, b"")))


def answered(upstream, state):
    client, before = state
    reply = before + upstream.recv(65536)
    if not reply.endswith(b"\r\n\r\nok"):
        return poll.modify(upstream, selectors.EVENT_READ, (answered, (client, reply)))
    poll.unregister(upstream)
    free.append(upstream)
    client.sendall(reply)


listener = socket.create_server(("0.0.0.0", int(os.environ.get("PORT", "0"))), backlog=256)
poll.register(listener, selectors.EVENT_READ, (accept, None))
print("PORT", listener.getsockname()[1], flush=True)
while True:
    wait = max(0, due[0][0] - time.monotonic()) if due else None
    for key, _ in poll.select(wait):
        act, state = key.data
        act(key.fileobj, state)
    while due and due[0][0] <= time.monotonic():
        _, _, client, request = heapq.heappop(due)
        call(client, request)
