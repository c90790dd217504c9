"""HTTP/1.1 over TLS by asyncio, whose TLS objects read and write memory instead of sockets.

tls_asyncio.py serve CERTIFICATE KEY LOG: serves until it is ended, and logs "PATH STATUS" before each reply. Says its port.
/e/... is answered 500, /big/... with 300 kB.
tls_asyncio.py ask PORT LABEL VERSION CONNECTIONS REQUESTS [BATCH]: CONNECTIONS at once on one loop, each asks REQUESTS
times, BATCH requests at a time, for paths with LABEL.

Replies take different times, so that connections alternate in every order. Every third request is sent in two pieces.
With `-X loop=uvloop`, uvloop's event loop.
"""

import asyncio
import random
import ssl
import sys

mode, arguments = sys.argv[1], sys.argv[2:]
if sys._xoptions.get("loop") == "uvloop":
    import uvloop

    uvloop.install()


async def serve(certificate, key, log):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    lines = open(log, "w", buffering=1)

    async def handle(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode()
                if random.random() < 0.5:
                    await asyncio.sleep(random.random() / 200)
                status = 500 if path.startswith("/e/") else 200
                body = b"x" * (300_000 if path.startswith("/big/") else 3000)
                lines.write(f"{path} {status}\n")
                writer.write(f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n\r\n".encode())
                writer.write(body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    print("PORT", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def ask(port, label, version, connections, requests, batch="1"):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2 if version == "1.2" else ssl.TLSVersion.TLSv1_3
    batch = int(batch)

    async def connection(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port), ssl=context)
        for first in range(0, int(requests), batch):
            for request in range(first, first + batch):
                kind = "e" if request % 5 == 4 else "big" if request % 5 == 2 else "py"
                head = f"GET /{kind}/{label}-{number}-{request} HTTP/1.1\r\n"
                if request % 3 == 2:
                    writer.write(head.encode())
                    head = ""
                writer.write(f"{head}Host: localhost\r\n\r\n".encode())
            await writer.drain()
            for _ in range(batch):
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r")[0]))
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(connection(number) for number in range(int(connections))))


asyncio.run({"serve": serve, "ask": ask}[mode](*arguments))
