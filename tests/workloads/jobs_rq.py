"""Jobs by RQ: serves GET /push/N, which puts the job N into the queue `reports`, and has the functions that the worker calls.
Each calls GET /b/NAME/N/k0/d1 of the upstream."""

import http.client
import http.server
import os

import redis
import rq


def ask(name, number):
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ["UPSTREAM_PORT"]))
    connection.request("GET", f"/b/{name}/{number}/k0/d1")
    connection.getresponse().read()


def report(number, secret):
    ask("report", number)


def mail(number, secret):
    ask("mail", number)


class Pushes(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        number = int(self.path.rpartition("/")[2])
        QUEUE.enqueue(f"jobs_rq.{'mail' if number % 3 == 0 else 'report'}", number, "planted-value")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    QUEUE = rq.Queue("reports", connection=redis.Redis(port=int(os.environ["REDIS_PORT"])))
    server = http.server.HTTPServer(("127.0.0.1", 0), Pushes)
    print("PORT", server.server_port, flush=True)
    server.serve_forever()
