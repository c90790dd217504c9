"""Two tiers whose CPU is known by the first request of the transaction. The first serves GET /a and GET /b, asks the second for
the same page whichever it is, and Redis as often as that page needs. Both keep books by the clock of the thread: GET /truth.
With STOCK_PORT and REDIS_PORT it is the first tier, else the second."""

import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FIRST = "STOCK_PORT" in os.environ
# Milliseconds of CPU by root and tier, and how often Redis is asked.
WORK = {"a": (4, 9, 1), "b": (10, 2, 3)}
OWN = threading.local()
LOCK = threading.Lock()
BOOKS = {"a": [0, 0], "b": [0, 0]}


def burn(milliseconds):
    end = time.thread_time() + milliseconds / 1000
    while time.thread_time() < end:
        sum(range(100))


def connection(name):
    known = getattr(OWN, name, None)
    if known is None:
        known = socket.create_connection(("127.0.0.1", int(os.environ[name])))
        known.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        setattr(OWN, name, known)
    return known


def ask(name, request, ending):
    one = connection(name)
    one.sendall(request)
    answer = b""
    while not answer.endswith(ending):
        answer += one.recv(4096) or b"closed"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def reply(self, body):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    root = None

    def handle_one_request(self):
        """What the thread uses from its wait for a request to its wait for the next one is the request's."""
        start = time.thread_time_ns()
        super().handle_one_request()
        if self.root:
            with LOCK:
                BOOKS[self.root][0] += 1
                BOOKS[self.root][1] += time.thread_time_ns() - start
            self.root = None

    def do_GET(self):
        path, _, root = self.path.partition("?")
        if path == "/truth":
            with LOCK:
                self.reply(json.dumps(BOOKS).encode())
            return
        if FIRST:
            root = path.strip("/")
            first, _, times = WORK[root]
            burn(first)
            ask("STOCK_PORT", b"GET /stock?%s HTTP/1.1\r\nHost: stock\r\n\r\n" % root.encode(), b"done")
            for _ in range(times):
                ask("REDIS_PORT", b"GET key\r\n", b"\r\n")
        else:
            burn(WORK[root][1])
        self.root = root
        self.reply(b"done")

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
print("PORT", server.server_address[1], flush=True)
server.serve_forever()
