"""WebSocket sessions whose truth is known: `sockets.py serve` prints PORT and, at the end of each session, a line of JSON;
`sockets.py call PORT` makes them. /close/CODE/ID ends with that code from the client, /told/CODE/ID from the server,
/broken/ID by a reset connection.
"""

import asyncio
import json
import os
import sys
import time

import websockets


def say(**fields):
    print(json.dumps(fields), flush=True)


async def serve():
    async def session(socket, path):
        begin = last = time.monotonic()
        kind, *rest = path.strip("/").split("/")
        count = 0
        try:
            async for message in socket:
                count += 1
                await socket.send(message)
                last = time.monotonic()
                if kind == "told":
                    await socket.close(int(rest[0]), "planted-reason")
        except websockets.ConnectionClosed:
            pass
        code = int(rest[0]) if kind != "broken" else 0
        say(path=path, code=code, messages=count, spoke=last - begin, seconds=time.monotonic() - begin)

    async with websockets.serve(session, "127.0.0.1", 0, max_size=None, compression=None) as server:
        print("PORT", server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()


async def one(port, path, size):
    kind, *rest = path.strip("/").split("/")
    async with websockets.connect(f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None) as socket:
        for length in (5, 200, size):
            await socket.send(("planted-message" * (length // 15 + 1))[:length])
            await socket.recv()
            if kind == "told":
                break
            await asyncio.sleep(0.002)
        if kind == "close":
            await socket.close(int(rest[0]), "planted-reason")
        elif kind == "told":
            await socket.wait_closed()
        else:
            socket.transport.abort()


async def call(port):
    paths = [f"/{kind}/{code}/{n}" for n in range(12) for kind in ("close", "told") for code in (1000, 1001, 1011, 4001)]
    paths += [f"/broken/{n}" for n in range(6)]
    for at in range(0, len(paths), 6):
        await asyncio.gather(*(one(port, path, 100 + 1000 * (at % 40)) for path in paths[at : at + 6]))
    print("DONE", len(paths), flush=True)


asyncio.run(serve() if sys.argv[1] == "serve" else call(int(sys.argv[2])))
os._exit(0)
