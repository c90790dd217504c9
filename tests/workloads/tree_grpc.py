"""A server with a thread for each connection that calls by gRPC: GET /MODE/ID calls /b/ID.kN.dT of the upstream."""

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from tree_entry import Server

UPSTREAM = f"127.0.0.1:{os.environ['UPSTREAM_PORT']}"
POOL = ThreadPoolExecutor(16)
SHARED = grpc.insecure_channel(UPSTREAM)
OWN = threading.local()


def own():
    """A channel, and so a connection, of this thread."""
    if not hasattr(OWN, "channel"):
        OWN.channel = grpc.insecure_channel(UPSTREAM, options=[("grpc.use_local_subchannel_pool", 1)])
    return OWN.channel


def ask(channel, ident, number):
    channel.unary_unary(f"/b/{ident}.k{number}.d{random.randrange(500, 6500)}")(b"x", timeout=30)


def naps(channel, ident):
    for number in range(2):
        time.sleep(random.random() * 0.004)
        ask(channel, ident, number)


MODES = {
    "same": lambda ident: naps(SHARED, ident),
    "own": lambda ident: naps(own(), ident),
    "pool": lambda ident: POOL.submit(ask, SHARED, ident, 0).result(),
}


if __name__ == "__main__":
    Server(MODES).serve_forever()
