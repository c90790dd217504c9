"""A WSGI application that asks an upstream for the path it was asked for."""

import http.client
import os

UPSTREAM = int(os.environ["UPSTREAM_PORT"])


def app(environ, start_response):
    connection = http.client.HTTPConnection("127.0.0.1", UPSTREAM, timeout=10)
    connection.request("GET", environ["PATH_INFO"])
    body = connection.getresponse().read()
    connection.close()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
