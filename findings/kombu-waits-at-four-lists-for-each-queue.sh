#!/usr/bin/env bash
# A Celery worker's transport over Redis waits at four lists for each queue, three of which have control characters in their
# names.
#
# Version: kombu 5.5.4 with redis 5.2.1 from PyPI, Linux x86-64.
# Expected: for a queue `jobs` without priorities, BRPOP of the list `jobs`.
# Seen: BRPOP of `jobs` and of `jobs` followed by the bytes 06 16 and 3, 6 or 9: one list for each of four steps of priority,
# always. A tool that takes the first key for the queue's name is right by chance; one that shows keys shows four queues,
# three of them unprintable.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv own
own/bin/pip install --quiet kombu==5.5.4 redis==5.2.1
cat >seen.py <<'PY'
"""Commands that kombu's consumer sends to Redis, as a server sees them."""
import socket, sys, threading
import kombu

listener = socket.create_server(("127.0.0.1", 0))
seen, done = [], threading.Event()


def commands(stream):
    while line := stream.readline():
        parts = []
        for _ in range(int(line[1:])):
            length = int(stream.readline()[1:])
            parts.append(stream.read(length + 2)[:-2])
        yield parts


def serve(connection):
    stream = connection.makefile("rb")
    queued = None
    for command in commands(stream):
        name = command[0].upper()
        if name == b"MULTI":
            queued = 0
        elif name == b"EXEC":
            connection.sendall(b"*%d\r\n" % queued + b":0\r\n" * queued)
            queued = None
            continue
        elif queued is not None:
            queued += 1
            connection.sendall(b"+QUEUED\r\n")
            continue
        if name == b"BRPOP":
            seen.append(command)
            done.set()
        replies = {b"PING": b"+PONG\r\n", b"BRPOP": b"*-1\r\n", b"SMEMBERS": b"*0\r\n", b"SADD": b":1\r\n", b"LLEN": b":0\r\n"}
        connection.sendall(replies.get(name, b"+OK\r\n"))


def accept():
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


threading.Thread(target=accept, daemon=True).start()
url = "redis://127.0.0.1:%d/0" % listener.getsockname()[1]
with kombu.Connection(url) as connection:
    queue = kombu.Queue("jobs")
    with kombu.Consumer(connection, queue, callbacks=[print]):
        while not done.is_set():
            try:
                connection.drain_events(timeout=1)
            except (TimeoutError, socket.timeout):
                pass
print(kombu.__version__, [part.decode() for part in seen[0]])
PY
seen=$(timeout 60 own/bin/python seen.py)
echo "$seen"
[ "$seen" = "5.5.4 ['BRPOP', 'jobs', 'jobs\\x06\\x163', 'jobs\\x06\\x166', 'jobs\\x06\\x169', '1']" ] || {
    echo "it is different now: kombu 5.5.4 waited at jobs, and at jobs with 06 16 and 3, 6 and 9" >&2
    exit 1
}
