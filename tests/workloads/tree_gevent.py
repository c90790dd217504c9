"""gevent's WSGI server: GET /MODE/ID calls /b/ID/kN/dT of the upstream."""

from gevent import monkey

monkey.patch_all()

import os
import random
import urllib.request

import gevent
from gevent.pywsgi import WSGIServer

UPSTREAM = int(os.environ["UPSTREAM_PORT"])


def ask(ident, number):
    url = f"http://127.0.0.1:{UPSTREAM}/b/{ident}/k{number}/d{random.randrange(500, 6500)}"
    with urllib.request.urlopen(url) as reply:
        reply.read()


def later(ident, number):
    gevent.sleep(random.random() * 0.003)
    ask(ident, number)


def application(environ, start):
    _, mode, ident = environ["PATH_INFO"].split("/")
    if mode == "naps":
        later(ident, 0)
        later(ident, 1)
    elif mode == "two":
        gevent.joinall([gevent.spawn(later, ident, 0), gevent.spawn(later, ident, 1)], raise_error=True)
    else:
        ask(ident, 0)
    start("200 OK", [("Content-Length", "3")])
    return [b"ok\n"]


if __name__ == "__main__":
    server = WSGIServer(("127.0.0.1", 0), application, log=None, backlog=1024)
    server.start()
    print("PORT", server.server_port, flush=True)
    server.serve_forever()
