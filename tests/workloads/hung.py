"""A server with a thread for each connection, whose requests hang at known places until /release."""
import http.client
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

released = threading.Event()
silent = socket.create_server(("127.0.0.1", 0))
children = []
ends = []


def at_a_lock():
    released.wait()


def in_sleep():
    while not released.is_set():
        time.sleep(0.2)


def on_a_cpu():
    while not released.is_set():
        pass


def for_a_child():
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    children.append(child)
    child.wait()


def at_a_socket():
    connection = socket.create_connection(silent.getsockname())
    ends.append(connection)
    connection.recv(1)


def in_a_call():
    upstream = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    upstream.request("GET", "/lock")
    upstream.getresponse().read()


def release():
    released.set()
    for child in children:
        child.stdin.close()
    for connection in ends:
        connection.shutdown(socket.SHUT_RDWR)


PLACES = {
    "/lock": at_a_lock, "/sleep": in_sleep, "/cpu": on_a_cpu, "/child": for_a_child, "/socket": at_a_socket,
    "/call": in_a_call, "/release": release, "/quick": lambda: None,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        PLACES[self.path]()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("PORT", server.server_address[1], flush=True)
server.serve_forever()
