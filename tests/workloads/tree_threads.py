"""A server with a thread for each connection that makes its calls there or in a pool: GET /MODE/ID calls /b/ID/kN/dT of the upstream."""

import http.client
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tree_entry import Server

UPSTREAM = int(os.environ["UPSTREAM_PORT"])
POOL = ThreadPoolExecutor(16)
OWN = threading.local()


def ask(ident, number):
    """One call, on a connection of this thread."""
    connection = getattr(OWN, "connection", None)
    if connection is None:
        connection = OWN.connection = http.client.HTTPConnection("127.0.0.1", UPSTREAM, timeout=30)
    connection.request("GET", f"/b/{ident}/k{number}/d{random.randrange(500, 6500)}")
    connection.getresponse().read()


def later(ident, number):
    time.sleep(random.random() * 0.002)
    ask(ident, number)


def several(ident):
    later(ident, 0)
    later(ident, 1)


def nothing():
    time.sleep(random.random() * 0.002)


def same(ident):
    time.sleep(random.random() * 0.008)
    ask(ident, 0)
    ask(ident, 1)


def pool(ident):
    POOL.submit(later, ident, 0).result()


def at_once(ident):
    POOL.submit(ask, ident, 0).result()


def in_turn(ident):
    POOL.submit(several, ident).result()


def two(ident):
    for future in [POOL.submit(later, ident, 0), POOL.submit(later, ident, 1)]:
        future.result()


def forgotten(ident):
    POOL.submit(later, ident, 0)
    if random.randrange(2):
        POOL.submit(ask, ident, 1).result()


def hole(ident):
    """A call nobody waits for, and a job without a call that somebody waits for, on the same workers."""
    if random.randrange(2):
        POOL.submit(ask, ident, 0)
    else:
        POOL.submit(nothing).result()


MODES = {
    "same": same,
    "pool": pool,
    "once": at_once,
    "turn": in_turn,
    "two": two,
    "forgotten": forgotten,
    "hole": hole,
}


if __name__ == "__main__":
    Server(MODES).serve_forever()
