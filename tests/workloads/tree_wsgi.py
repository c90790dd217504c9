"""An application for gunicorn's workers: GET /MODE/ID calls /b/ID/kN/dT of the upstream."""

import http.client
import os
import random
import threading
import time

UPSTREAM = int(os.environ["UPSTREAM_PORT"])
OWN = threading.local()


def ask(connection, ident, number):
    connection.request("GET", f"/b/{ident}/k{number}/d{random.randrange(500, 6500)}")
    connection.getresponse().read()


def new():
    return http.client.HTTPConnection("127.0.0.1", UPSTREAM, timeout=30)


def own():
    """The connection of this thread or greenlet."""
    connection = getattr(OWN, "connection", None)
    if connection is None:
        connection = OWN.connection = new()
    return connection


def ask_all(mode, ident):
    for number in range(2):
        if mode in ("same", "late"):
            ask(own(), ident, number)
        else:
            connection = new()
            ask(connection, ident, number)
            connection.close()


class Late(list):
    """A response with something to do once it is sent, as of Flask's call_on_close."""

    def __init__(self, mode, ident):
        super().__init__([b"ok\n"])
        self.mode, self.ident = mode, ident

    def close(self):
        ask_all(self.mode, self.ident)


def application(environ, start):
    _, mode, ident = environ["PATH_INFO"].split("/")
    time.sleep(random.random() * 0.004)
    late = mode.startswith("late")
    if not late:
        ask_all(mode, ident)
    start("200 OK", [("Content-Length", "3")])
    return Late(mode, ident) if late else [b"ok\n"]
