"""What must not be touched, by real libraries: HTTP in TLS on one connection that is kept, and WebSocket.

serve ADDRESS TLS_PORT WEBSOCKET_PORT KEY CERTIFICATE, or ask ADDRESS TLS_PORT WEBSOCKET_PORT."""

import asyncio
import http.client
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import websockets

what, address, secret, upgraded = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
REQUEST = b"GET /inner HTTP/1.1\r\nHost: a\r\n\r\n"


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert "traceparent" not in self.headers
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


async def echo(socket, *_):
    async for message in socket:
        await socket.send(message)


async def serve():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[6], sys.argv[5])
    server = ThreadingHTTPServer((address, secret), Echo)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    async with websockets.serve(echo, address, upgraded):
        print("READY", flush=True)
        await asyncio.Future()


async def talk():
    async with websockets.connect(f"ws://{address}:{upgraded}/ws", compression=None) as socket:
        for size in [1, 100, 5000, 70_000]:
            for message in [REQUEST * size if size < 200 else REQUEST, bytes(range(256)) * size]:
                await socket.send(message[:900_000])
                assert await socket.recv() == message[:900_000]


if what == "serve":
    asyncio.run(serve())
else:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(address, secret, timeout=20, context=context)
    for i in range(50):
        body = REQUEST * (i * i + 1)
        connection.request("POST", f"/secret-{i}", body)
        assert connection.getresponse().read() == body
    asyncio.run(talk())
