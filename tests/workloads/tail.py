"""A server whose requests for /item/N ask it for /leaf/N: every FAILS-th leaf fails, and every SLOW-th item is a second late. Others
come once."""
import http.client
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAILS, SLOW = int(sys.argv[1]), int(sys.argv[2])
connections = threading.local()


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def leaf(self, number):
        if not hasattr(connections, "one"):
            connections.one = http.client.HTTPConnection("127.0.0.1", self.server.server_address[1])
        connections.one.request("GET", f"/leaf/{number}")
        reply = connections.one.getresponse()
        reply.read()
        return reply.status

    def do_GET(self):
        kind, _, number = self.path.strip("/").partition("/")
        status = 200
        if kind == "leaf" and int(number) % FAILS == 0:
            status = 500
        elif kind == "item":
            if int(number) % SLOW == 1:
                time.sleep(1)
            status = self.leaf(number)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = Server(("127.0.0.1", 0), Handler)
print(f"PORT {server.server_address[1]}", flush=True)
server.serve_forever()
