"""Functions whose stacks are known, behind HTTP: each route burns CPU, sleeps, or waits for a lock, below a chain of functions."""

import asyncio
import os
import random
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECONDS = 0.2
DATA = random.Random(7).randbytes(1 << 20) if hasattr(random.Random, "randbytes") else os.urandom(1 << 20)


def c(seconds):
    until = time.thread_time() + seconds
    total = 0
    while time.thread_time() < until:  # line: c asks
        for _ in range(5000):
            total += 1  # line: c adds
    return total


def b(seconds):
    # A table of lines has more than one entry.
    before = [
        seconds,
    ]
    c(before[0])  # line: b calls
    return before


def a(seconds):
    try:
        return b(seconds)  # line: a calls
    finally:
        seconds = None


def nested(seconds):
    c(seconds)  # line: nested calls
    yield 1


def producer(seconds):
    yield from nested(seconds)  # line: producer yields


def consumer(seconds):
    for _ in producer(seconds):  # line: consumer asks
        pass


class Key:
    def __init__(self, seconds):
        self.seconds = seconds

    def of(self, _):
        c(self.seconds)  # line: Key.of calls
        return 1


def by_key(seconds):
    return sorted([1], key=Key(seconds).of)  # line: by_key sorts


class Made:
    """Its creation burns: since 3.13 a frame without a function stands between."""

    def __init__(self, seconds):
        c(seconds)  # line: Made calls


def maker(seconds):
    return Made(seconds)  # line: maker makes


def squeeze(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        zlib.compress(DATA, 9)  # line: squeeze calls


async def inner(seconds):
    await asyncio.sleep(0)
    c(seconds)  # line: inner calls


async def outer(seconds):
    await inner(seconds)  # line: outer awaits


def asynchronous(seconds):
    asyncio.run(outer(seconds))


def deep(seconds, depth=30):
    if depth:
        deep(seconds, depth - 1)  # line: deep calls
    else:
        c(seconds)


def sleeper(seconds):
    time.sleep(seconds / 10)  # line: sleeper sleeps


def waiter(seconds):
    sleeper(seconds)  # line: waiter calls


def keeper(lock, seconds):
    time.sleep(seconds / 10)
    lock.release()  # line: keeper releases


def locked(seconds):
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=keeper, args=(lock, seconds))
    thread.start()
    lock.acquire()  # line: locked waits
    thread.join()


ROUTES = {
    "/burn": a,
    "/generator": consumer,
    "/callback": by_key,
    "/made": maker,
    "/extension": squeeze,
    "/asyncio": asynchronous,
    "/deep": deep,
    "/sleep": waiter,
    "/lock": locked,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        ROUTES[self.path](SECONDS)  # line: do_GET calls
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print("PORT", server.server_address[1], flush=True)
    server.serve_forever()
