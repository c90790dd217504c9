"""An ASGI application under uvicorn, on the loop named by `-X loop=`: GET /MODE/ID calls /b/ID/kN/dT of the upstream."""

import asyncio
import os
import random
import socket
import sys
import urllib.request

import uvicorn
from aiohttp import ClientSession, TCPConnector

UPSTREAM = int(os.environ["UPSTREAM_PORT"])
SESSION = []


def url(ident, number):
    return f"http://127.0.0.1:{UPSTREAM}/b/{ident}/k{number}/d{random.randrange(500, 6500)}"


async def ask(ident, number):
    if not SESSION:
        SESSION.append(ClientSession(connector=TCPConnector(limit=0)))
    async with SESSION[0].get(url(ident, number)) as reply:
        await reply.read()


async def later(ident, number):
    await asyncio.sleep(random.random() * 0.003)
    await ask(ident, number)


def block(ident, number):
    with urllib.request.urlopen(url(ident, number)) as reply:
        reply.read()


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    _, mode, ident = scope["path"].split("/")
    if mode == "naps":
        await later(ident, 0)
        await later(ident, 1)
    elif mode == "gather":
        await asyncio.gather(later(ident, 0), later(ident, 1))
    elif mode == "thread":
        await asyncio.to_thread(block, ident, 0)
    else:
        await ask(ident, 0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": b"ok\n"})


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print("PORT", listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, loop=sys._xoptions["loop"], log_level="warning", lifespan="off", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])
