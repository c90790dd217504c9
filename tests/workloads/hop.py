"""One hop of a chain of hosts: answers GET /hop/ID; with UPSTREAM=HOST:PORT it asks there for the same first, over a
connection that it keeps for each of its own. A thread serves each connection."""

import http.client
import os
import socketserver
import sys
from http.server import BaseHTTPRequestHandler

UPSTREAM = os.environ.get("UPSTREAM")


class Hop(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = None
    wbufsize = 65536

    def do_GET(self):
        body = b"ok"
        if UPSTREAM:
            if self.upstream is None:
                host, port = UPSTREAM.rsplit(":", 1)
                self.upstream = http.client.HTTPConnection(host, int(port))
            self.upstream.request("GET", self.path)
            body = self.upstream.getresponse().read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256


with Server(("0.0.0.0", int(os.environ.get("PORT", "0"))), Hop) as server:
    print("PORT", server.server_address[1], flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit()
