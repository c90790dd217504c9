"""A server whose requests each wait for a job of a pool of two threads: GET /w/ID calls /b/ID/k0/dT of the upstream there. Prints
when the request gave the job, when it had given it, and when the job began: CLOCK_MONOTONIC, nanoseconds."""

import os
import random
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

UPSTREAM = ("127.0.0.1", int(os.environ["UPSTREAM_PORT"]))
JOBS = ThreadPoolExecutor(2)
OWN = threading.local()


def job(ident):
    began = time.monotonic_ns()
    connection = getattr(OWN, "connection", None)
    if connection is None:
        connection = OWN.connection = socket.create_connection(UPSTREAM)
    connection.sendall(f"GET /b/{ident}/k0/d{random.randrange(2000, 8000)} HTTP/1.1\r\nHost: upstream\r\n\r\n".encode())
    connection.recv(4096)
    return began


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        ident = self.path.removeprefix("/w/")
        before = time.monotonic_ns()
        future = JOBS.submit(job, ident)
        after = time.monotonic_ns()
        began = future.result()
        sys.stdout.write(f"JOB {self.path} {before} {after} {began}\n")
        self.wfile.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
print("PORT", server.server_address[1], flush=True)
server.serve_forever()
