"""A server of threads whose work takes the shapes it takes in applications: GET /MODE/ID calls /b/ID/kN/dT of the upstream.

`-X shape=` says who serves: `threads` (this process), `forked` (two processes that accept from one listening socket), `passed`
(a process that accepts and passes each connection to another one). An upstream may listen at upstream.sock too.
Of calls to stores it prints `CALL STORE ID PORT`, its own end's port, in their order on each connection."""

import http.client
import multiprocessing
import os
import queue
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from tree_entry import Server

UPSTREAM = int(os.environ["UPSTREAM_PORT"])
SHAPE = sys._xoptions.get("shape", "threads")
OWN = threading.local()
SAY = threading.Lock()
# Threads of a pool are processes' own: made by who uses them first.
POOLS = {}


def pool(name, workers):
    with SAY:
        if name not in POOLS:
            POOLS[name] = ThreadPoolExecutor(workers)
        return POOLS[name]


def path(ident, number, most=6500):
    return f"/b/{ident}/k{number}/d{random.randrange(500, most)}"


def own():
    """A connection of this thread."""
    connection = getattr(OWN, "connection", None)
    if connection is None:
        connection = OWN.connection = http.client.HTTPConnection("127.0.0.1", UPSTREAM, timeout=30)
    return connection


def ask(ident, number, connection=None):
    connection = connection or own()
    connection.request("GET", path(ident, number))
    connection.getresponse().read()


def nap():
    time.sleep(random.random() * 0.003)


def retry(ident):
    """The first try is given up; the second goes over a new connection."""
    nap()
    hasty = http.client.HTTPConnection("127.0.0.1", UPSTREAM, timeout=0.02)
    hasty.request("GET", f"/b/{ident}/k0/d60000")
    try:
        hasty.getresponse()
    except TimeoutError:
        pass
    hasty.close()
    again = http.client.HTTPConnection("127.0.0.1", UPSTREAM, timeout=30)
    ask(ident, 1, again)
    again.close()


CONNECTIONS = queue.LifoQueue()


def shared(ident):
    """Connections go from thread to thread."""
    for number in range(2):
        nap()
        try:
            connection = CONNECTIONS.get_nowait()
        except queue.Empty:
            connection = http.client.HTTPConnection("127.0.0.1", UPSTREAM, timeout=30)
        ask(ident, number, connection)
        CONNECTIONS.put(connection)


def nested(ident):
    """Handed over twice: a job of one pool waits for a job of another, which calls."""

    def outer():
        nap()
        pool("inner", 16).submit(ask, ident, 0).result()

    pool("outer", 16).submit(outer).result()


def fan(ident):
    """Four at once, joined."""
    jobs = [pool("fan", 32).submit(ask, ident, number) for number in range(4)]
    for job in jobs:
        job.result()


class Background:
    """A client that sends from a thread of its own, everybody's requests over one connection, and reads in another."""

    def __init__(self):
        self.stream = socket.create_connection(("127.0.0.1", UPSTREAM))
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wanted, self.sent = queue.SimpleQueue(), queue.SimpleQueue()
        threading.Thread(target=self.send, daemon=True).start()
        threading.Thread(target=self.read, daemon=True).start()

    def ask(self, target):
        done = threading.Event()
        self.wanted.put((target, done))
        done.wait()

    def send(self):
        while True:
            target, done = self.wanted.get()
            self.sent.put(done)
            self.stream.sendall(f"GET {target} HTTP/1.1\r\nHost: b\r\n\r\n".encode())

    def read(self):
        replies = self.stream.makefile("rb")
        while replies.readline():
            length = 0
            while (line := replies.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            replies.read(length)
            self.sent.get().set()


def background(ident):
    with SAY:
        if "background" not in POOLS:
            POOLS["background"] = Background()
    nap()
    # Replies come in the order of requests: none is slow.
    POOLS["background"].ask(path(ident, 0, 501))


class Local(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect("upstream.sock")


def local(ident):
    """Over a UNIX socket."""
    for number in range(2):
        nap()
        if getattr(OWN, "local", None) is None:
            OWN.local = Local("unix")
        ask(ident, number, OWN.local)


def direct(ident):
    nap()
    ask(ident, 0)


def fork(ident):
    """A child made for the request calls and ends."""
    nap()
    child = os.fork()
    if child == 0:
        ask(ident, 0, http.client.HTTPConnection("127.0.0.1", UPSTREAM, timeout=30))
        os._exit(0)
    os.waitpid(child, 0)


def command(ident):
    """A shell runs a program that calls, and another one."""
    nap()
    urls = [f"http://127.0.0.1:{UPSTREAM}{path(ident, number)}" for number in range(2)]
    subprocess.run(["sh", "-c", 'curl -s -o /dev/null "$0"; curl -s -o /dev/null "$1"', *urls], check=True)


def detached(ident):
    """A program that nobody waits for calls while the request is answered, or right after."""
    nap()
    url = f"http://127.0.0.1:{UPSTREAM}{path(ident, 0)}"
    child = subprocess.Popen(["curl", "-s", "-o", "/dev/null", url])
    threading.Thread(target=child.wait, daemon=True).start()


def workers(ident):
    """A pool's worker processes, forked by the first requests, work for all of them."""
    with SAY:
        if "workers" not in POOLS:
            POOLS["workers"] = ProcessPoolExecutor(4, multiprocessing.get_context("fork"))
    nap()
    POOLS["workers"].submit(ask, ident, 0).result()


def call(store, ident, port):
    with SAY:
        print("CALL", store, ident, port, flush=True)


def asked_of_stores(ident):
    import psycopg2
    import redis

    if getattr(OWN, "redis", None) is None:
        OWN.redis = redis.connection.Connection(port=int(os.environ["REDIS_PORT"]))
        OWN.redis.connect()
        OWN.database = psycopg2.connect("")
        OWN.database.autocommit = True
        ends = [OWN.redis._sock, socket.socket(fileno=os.dup(OWN.database.fileno()))]
        OWN.ports = [end.getsockname()[1] for end in ends]
    nap()
    call("redis", ident, OWN.ports[0])
    OWN.redis.send_command("GET", ident)
    OWN.redis.read_response()
    nap()
    call("postgresql", ident, OWN.ports[1])
    with OWN.database.cursor() as cursor:
        cursor.execute(f"SELECT /* {ident} */ 1")
        cursor.fetchall()


def stores(ident):
    asked_of_stores(ident)


def stores_pool(ident):
    pool("stores", 16).submit(asked_of_stores, ident).result()


MODES = {
    "retry": retry,
    "shared": shared,
    "nested": nested,
    "fan": fan,
    "background": background,
    "local": local,
    "direct": direct,
    "fork": fork,
    "command": command,
    "detached": detached,
    "workers": workers,
    "stores": stores,
    "stores-pool": stores_pool,
}


def passing(server):
    """Accepts here and serves in a child."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    if os.fork() == 0:
        here.close()
        server.socket.close()
        while True:
            _, descriptors, _, _ = socket.recv_fds(there, 1, 1)
            connection = socket.socket(fileno=descriptors[0])
            server.process_request(connection, ("127.0.0.1", 0))
    there.close()
    while True:
        connection, _ = server.socket.accept()
        socket.send_fds(here, [b"c"], [connection.fileno()])
        connection.close()


def main():
    server = Server(MODES)
    if SHAPE == "passed":
        passing(server)
    if SHAPE == "forked":
        os.fork()
    server.serve_forever()


if __name__ == "__main__":
    main()
