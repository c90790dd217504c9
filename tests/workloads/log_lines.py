"""A server with a thread for each connection that logs with Python's logging, to a file and to standard output. Every line of a
request has its path. What fails is logged with its stack."""

import logging
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

log = logging.getLogger("shop")
log.setLevel(logging.INFO)
for handler in (logging.FileHandler(sys.argv[1]), logging.StreamHandler(sys.stdout)):
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        log.info("begins path=%s", self.path)
        status = 200
        try:
            if self.path.startswith("/fail/"):
                # The line of code is in the stack, and must not look like a line of the log.
                text = "path" + "=" + self.path
                raise ValueError(text)
        except ValueError:
            log.exception("failed path=%s", self.path)
            status = 500
        self.send_response(status)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")
        log.info("answered path=%s", self.path)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("PORT", server.server_address[1], flush=True)
server.serve_forever()
