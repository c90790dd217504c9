"""A server whose requests burn CPU in a pool's threads: GET /KIND. It keeps books of what each kind used, by the clock of the
thread that used it, and tells them at /truth."""

import http.client
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

UPSTREAM = int(os.environ["UPSTREAM_PORT"])
POOL = ThreadPoolExecutor(8)
OWN = threading.local()
LOCK = threading.Lock()
BOOKS = {}


def ask(ident):
    connection = getattr(OWN, "connection", None)
    if connection is None:
        connection = OWN.connection = http.client.HTTPConnection("127.0.0.1", UPSTREAM, timeout=30)
    connection.request("GET", f"/b/{ident or 1}/k0/d800")
    connection.getresponse().read()


def burn(milliseconds):
    end = time.thread_time() + milliseconds / 1000
    while time.thread_time() < end:
        pass


# Long beside what a request costs before its handler begins, which the books do not have.
def own(ident):
    burn(6)
    ask(ident)


def before(ident):
    burn(6)
    ask(ident)


def after(ident):
    ask(ident)
    burn(6)


def bare(_):
    burn(5)


def job(what, ident):
    start = time.thread_time_ns()
    what(ident)
    return time.thread_time_ns() - start


KINDS = {"own": own, "before": before, "after": after, "bare": bare}


def book(kind, nanos):
    with LOCK:
        count, sum = BOOKS.get(kind, (0, 0))
        BOOKS[kind] = (count + 1, sum + nanos)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        start = time.thread_time_ns()
        kind, _, ident = self.path[1:].partition("/")
        if kind == "truth":
            with LOCK:
                books = {name: {"count": count, "seconds": sum / 1e9} for name, (count, sum) in BOOKS.items()}
            text = json.dumps(books | {"process": {"seconds": time.process_time()}})
            return self.answer(text + "\n")
        elsewhere = job(KINDS[kind], ident) * 0 if kind == "own" else POOL.submit(job, KINDS[kind], ident).result()
        self.answer("ok\n")
        book(kind, elsewhere + time.thread_time_ns() - start)

    def answer(self, text):
        # One write: head and body.
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text.encode()))

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
print("PORT", server.server_address[1], flush=True)
server.serve_forever()
