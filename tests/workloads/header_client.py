"""Requests on one connection: five GETs, a POST of 3 MB in one send, one whose head and body are sent apart; or N GETs."""

import http.client
import sys

host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
connection = http.client.HTTPConnection(host, port, timeout=20)


def ask(method, path, body=None):
    connection.request(method, path, body)
    reply = connection.getresponse()
    reply.read()
    assert reply.status == 200, reply.status


for i in range(count or 5):
    ask("GET", f"/python-{i}")
if not count:
    body = bytes(range(251)) * 12533
    ask("POST", "/python-post", body)
    # What looks like a request is a body.
    inner = b"GET /inner HTTP/1.1\r\nHost: a\r\n\r\n"
    connection.putrequest("POST", "/python-apart")
    connection.putheader("Content-Length", str(len(inner)))
    connection.endheaders()
    connection.send(inner)
    assert connection.getresponse().read() == b"ok"
    ask("GET", "/python-last")
