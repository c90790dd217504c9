"""A server of asyncio streams with a pool of connections, on uvloop with `-X loop=uvloop`: GET /MODE/ID calls /b/ID/kN/dT of the upstream."""

import asyncio
import os
import random
import sys
import urllib.request

UPSTREAM = int(os.environ["UPSTREAM_PORT"])
FREE = []


async def ask(ident, number):
    """One call, on a connection nobody uses."""
    reader, writer = FREE.pop() if FREE else await asyncio.open_connection("127.0.0.1", UPSTREAM)
    writer.write(f"GET /b/{ident}/k{number}/d{random.randrange(500, 6500)} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split()[0])
    await reader.readexactly(length)
    FREE.append((reader, writer))


async def nap(most):
    await asyncio.sleep(random.random() * most)


async def later(ident, number):
    await nap(0.003)
    await ask(ident, number)


async def direct(ident):
    await ask(ident, 0)


async def naps(ident):
    await nap(0.008)
    await ask(ident, 0)
    await nap(0.004)
    await ask(ident, 1)


async def gather(ident):
    await asyncio.gather(later(ident, 0), later(ident, 1))


async def deep(ident, number):
    """A task in a task."""
    await nap(0.002)
    await asyncio.create_task(later(ident, number))


async def nested(ident):
    await asyncio.gather(deep(ident, 0), deep(ident, 1))


def block(ident, number):
    url = f"http://127.0.0.1:{UPSTREAM}/b/{ident}/k{number}/d{random.randrange(500, 6500)}"
    with urllib.request.urlopen(url) as reply:
        reply.read()


async def thread(ident):
    await asyncio.to_thread(block, ident, 0)


async def forgotten(ident):
    """Two calls: one that is awaited, one that is not and comes later."""
    task = asyncio.create_task(later(ident, 1))
    KEPT.add(task)
    task.add_done_callback(KEPT.discard)
    await ask(ident, 0)


async def command(ident):
    """A program makes the call."""
    await nap(0.003)
    url = f"http://127.0.0.1:{UPSTREAM}/b/{ident}/k0/d{random.randrange(500, 6500)}"
    child = await asyncio.create_subprocess_exec("curl", "-s", "-o", "/dev/null", url)
    assert await child.wait() == 0


KEPT = set()
MODES = {
    "direct": direct,
    "naps": naps,
    "gather": gather,
    "nested": nested,
    "thread": thread,
    "forgotten": forgotten,
    "command": command,
}


async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            _, mode, ident = head.split(b" ")[1].decode().split("/")
            await MODES[mode](ident)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print("PORT", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    if sys._xoptions.get("loop") == "uvloop":
        import uvloop

        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(main())
    else:
        asyncio.run(main())
