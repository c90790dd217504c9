"""aiohttp as server and client: GET /MODE/ID calls /b/ID/kN/dT of the upstream."""

import asyncio
import os
import random

from aiohttp import ClientSession, TCPConnector, web

UPSTREAM = int(os.environ["UPSTREAM_PORT"])


async def ask(session, ident, number):
    url = f"http://127.0.0.1:{UPSTREAM}/b/{ident}/k{number}/d{random.randrange(500, 6500)}"
    async with session.get(url) as reply:
        await reply.read()


async def nap(most):
    await asyncio.sleep(random.random() * most)


async def later(session, ident, number):
    await nap(0.003)
    await ask(session, ident, number)


async def handle(request):
    mode, ident = request.match_info["mode"], request.match_info["ident"]
    session = request.app["session"]
    if mode == "naps":
        await later(session, ident, 0)
        await later(session, ident, 1)
    elif mode == "gather":
        await asyncio.gather(later(session, ident, 0), later(session, ident, 1))
    else:
        await ask(session, ident, 0)
    return web.Response(text="ok\n")


async def main():
    app = web.Application()
    app["session"] = ClientSession(connector=TCPConnector(limit=0))
    app.router.add_get("/{mode}/{ident}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print("PORT", runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
