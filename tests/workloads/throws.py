"""HTTP servers whose handlers raise, `threads` or `loop` (asyncio): the path says what, and what becomes of it. As frameworks do, both
answer 500 for whatever a handler raises, and look things up that may not be there before and after."""
import asyncio
import http.server
import sys


class NoStock(Exception):
    pass


class AnExceptionWithANameThatIsLongerThanTheSixtyThreeBytesThatAreReadAtOnceByTheKernelSide(Exception):
    pass


class Dropped(Exception):
    pass


class Shop:
    def reserve(self):
        raise NoStock("a secret")


def parse():
    return int("a secret")


def look_up():
    return {}["a secret"]


def divide():
    return 1 / 0


def chain():
    try:
        look_up()
    except KeyError as error:
        raise NoStock("a secret") from error


def long():
    raise AnExceptionWithANameThatIsLongerThanTheSixtyThreeBytesThatAreReadAtOnceByTheKernelSide()


def deep(left):
    return deep(left - 1) if left else deepest()


def deepest():
    raise NoStock("a secret")


def broken(items):
    for item in items:
        yield item
    raise RuntimeError("a secret")


def drop():
    raise Dropped()


ROUTES = {
    "stock": lambda: Shop().reserve(),
    "value": parse,
    "key": look_up,
    "division": divide,
    "chained": chain,
    "long": long,
    "deep": lambda: deep(300),
    "generator": lambda: list(broken([1, 2])),
    "drop": drop,
}


def expected():
    """What the interpreter and libraries do all the time."""
    try:
        look_up()
    except KeyError:
        pass
    try:
        raise NoStock("expected")
    except NoStock:
        pass
    getattr(sys, "nothing", None)
    return next(iter(()), None)


def handle(route):
    """The status of the answer."""
    expected()
    if route == "status":
        return 500
    if route == "expected":
        try:
            Shop().reserve()
        except NoStock:
            return 500
    if route == "handled":
        try:
            Shop().reserve()
        except Exception:
            return 200
    ROUTES.get(route, str)()
    return 200


def status_of(path):
    route = path.split("/")[1]
    try:
        return handle(route)
    except Dropped:
        raise
    except Exception:
        expected()
        return 500


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(status_of(self.path))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass


async def connected(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            # Others have their turn between the request and its end.
            await asyncio.sleep(0)
            status = await answer(head.split()[1].decode())
            writer.write(b"HTTP/1.1 %d x\r\nContent-Length: 2\r\n\r\nok" % status)
            await writer.drain()
    except Exception:
        writer.close()


async def answer(path):
    await asyncio.sleep(0)
    return status_of(path)


async def loop():
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print("PORT", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if sys.argv[1] == "loop":
    asyncio.run(loop())
else:
    with Server(("127.0.0.1", 0), Handler) as server:
        print("PORT", server.server_address[1], flush=True)
        server.serve_forever()
