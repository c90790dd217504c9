"""A server of Twisted, on asyncio's loop with `-X reactor=asyncio`: GET /MODE/ID calls /b/ID/k0/dT and /b/ID/k1/dT of the upstream.
The first requests wait before they call, as programs do that fill their caches: an agent that met the process with them knows its
runtime by then."""

import os
import random
import sys
import time

if sys._xoptions.get("reactor") == "asyncio":
    from twisted.internet import asyncioreactor

    asyncioreactor.install()

from twisted.internet import defer, reactor, task
from twisted.web import client, resource, server

UPSTREAM = os.environ["UPSTREAM_PORT"]
POOL = client.HTTPConnectionPool(reactor)
POOL.maxPersistentPerHost = 8
AGENT = client.Agent(reactor, pool=POOL)


def ask(ident, number):
    url = f"http://127.0.0.1:{UPSTREAM}/b/{ident}/k{number}/d{random.randrange(500, 6500)}"
    return AGENT.request(b"GET", url.encode()).addCallback(client.readBody)


def callbacks(ident):
    return ask(ident, 0).addCallback(lambda _: ask(ident, 1))


@defer.inlineCallbacks
def generator(ident):
    yield ask(ident, 0)
    yield ask(ident, 1)


def coroutine(ident):
    async def calls():
        await ask(ident, 0)
        await ask(ident, 1)

    return defer.ensureDeferred(calls())


def filled():
    """Fires at once, except for requests of the first tenth of a second."""
    FIRST.append(time.monotonic())
    cold = FIRST[-1] - FIRST[0] < 0.1
    return task.deferLater(reactor, 0.15 + random.random() * 0.1) if cold else defer.succeed(None)


FIRST = []
MODES = {"callbacks": callbacks, "generator": generator, "coroutine": coroutine}


class Front(resource.Resource):
    isLeaf = True

    def render_GET(self, request):
        _, mode, ident = request.path.decode().split("/")

        def answer(_):
            request.write(b"ok\n")
            request.finish()

        calls = filled().addCallback(lambda _: MODES[mode](ident))
        calls.addCallback(answer).addErrback(lambda failure: failure.printTraceback())
        return server.NOT_DONE_YET


port = reactor.listenTCP(0, server.Site(Front()), backlog=1024, interface="127.0.0.1")
print("PORT", port.getHost().port, flush=True)
reactor.run()
