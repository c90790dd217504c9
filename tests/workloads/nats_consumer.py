"""Consumes what `nats_producer.py` sends: nats_consumer.py PORT. Says READY, then how many messages it got, by kind."""

import asyncio
import sys

import nats


async def main(port):
    connection = await nats.connect(f"nats://127.0.0.1:{port}", user="planted-user", password="planted-password")
    counts = {"events": 0, "work": 0, "sync": 0}
    over = asyncio.Event()

    async def event(message):
        counts["events"] += 1

    async def work(message):
        counts["work"] += 1
        await message.respond(b"planted-answer")

    async def sync(message):
        counts["sync"] += 1
        await message.respond(b"")
        if message.data == b"stop":
            over.set()

    await connection.subscribe("events.*.made", cb=event)
    await connection.subscribe("work.>", cb=work)
    await connection.subscribe("sync", cb=sync)
    # Of a connection's first operations little is captured, until the kernel was told what is wanted of it.
    for _ in range(40):
        await connection.flush()
        await asyncio.sleep(0.02)
    print("READY", flush=True)
    await over.wait()
    await connection.flush()
    await connection.close()
    print("GOT", counts["events"], counts["work"], counts["sync"], flush=True)


asyncio.run(main(int(sys.argv[1])))
