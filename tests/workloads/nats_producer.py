"""Sends a known number of messages: nats_producer.py PORT ROUNDS. Says how long its requests took together, seconds."""

import asyncio
import sys
import time

import nats

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def main(port, rounds):
    async def quiet(error):
        pass

    try:
        await nats.connect(
            f"nats://127.0.0.1:{port}",
            user="planted-user",
            password="planted-wrong-password",
            allow_reconnect=False,
            error_cb=quiet,
        )
    except nats.errors.Error:
        pass
    connection = await nats.connect(f"nats://127.0.0.1:{port}", user="planted-user", password="planted-password")
    spent = 0.0
    for i in range(rounds):
        # Messages that go together, as far as fits into what is captured of an operation.
        for j in range(10):
            headers = {"traceparent": CONTEXT} if j == 0 else None
            await connection.publish(f"events.{i * 10 + j}.made", b"planted-body " * (j + 1), headers=headers)
        begun = time.perf_counter()
        await connection.request("sync", b"", timeout=30)
        await connection.request(f"work.resize.{i}", b"planted-body", timeout=30)
        # Longer than what is captured, in several sends and reads.
        await connection.request("work.store", b"planted-body" * 10_000, timeout=30)
        spent += time.perf_counter() - begun
        if i % 10 == 0:
            try:
                await connection.request("nobody.there", b"planted-body", timeout=30)
            except nats.errors.NoRespondersError:
                pass
    begun = time.perf_counter()
    await connection.request("sync", b"stop", timeout=30)
    spent += time.perf_counter() - begun
    await connection.close()
    print(spent, flush=True)


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
