"""A server of asyncio streams that calls by grpc.aio: GET /MODE/ID calls /b/ID.kN.dT of the upstream."""

import asyncio
import os
import random

import grpc

UPSTREAM = f"127.0.0.1:{os.environ['UPSTREAM_PORT']}"


async def ask(channel, ident, number):
    await channel.unary_unary(f"/b/{ident}.k{number}.d{random.randrange(500, 6500)}")(b"x", timeout=30)


async def later(channel, ident, number):
    await asyncio.sleep(random.random() * 0.004)
    await ask(channel, ident, number)


async def naps(channel, ident):
    await later(channel, ident, 0)
    await later(channel, ident, 1)


async def gather(channel, ident):
    await asyncio.gather(later(channel, ident, 0), later(channel, ident, 1))


MODES = {"naps": naps, "gather": gather}


async def main():
    channel = grpc.aio.insecure_channel(UPSTREAM)

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, mode, ident = head.split(b" ")[1].decode().split("/")
                await MODES[mode](channel, ident)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print("PORT", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
