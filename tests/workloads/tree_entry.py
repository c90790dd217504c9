"""What applications with a thread for each connection are entered by: GET /MODE/ID does what the mode does, then answers."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        _, mode, ident = self.path.split("/")
        self.server.modes[mode](ident)
        # One write: head and body.
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    """Listens; its address is printed, and whoever made it lets it serve."""

    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, modes):
        super().__init__(("127.0.0.1", 0), Handler)
        self.modes = modes
        print("PORT", self.server_address[1], flush=True)
