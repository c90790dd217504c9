"""gRPC in both roles. `calls_grpc.py server`: prints PORT. `calls_grpc.py client PORT N [TOKEN]`: makes calls of every
kind, each with a fresh token of TOKEN bytes in its head, and prints `CALLED METHOD CODE COUNT` for each outcome it saw. `calls_grpc.py large PORT N WORKERS FRAME`: the same with calls of
long messages, one after the other by each of so many workers, in frames no longer than that. Messages are plain bytes: no
generated code is needed."""

import collections
import secrets as randomness
import sys
import threading
import time
from concurrent import futures

import grpc

SERVICE = "shop.v1.Cart"


class Cart(grpc.GenericRpcHandler):
    def service(self, details):
        name = details.method.rsplit("/", 1)
        if name[0] != "/" + SERVICE:
            return None
        make = {
            "Get": grpc.unary_unary_rpc_method_handler(self.get),
            "Up": grpc.unary_unary_rpc_method_handler(lambda request, context: b"%d" % len(request)),
            "Down": grpc.unary_unary_rpc_method_handler(lambda request, context: b"d" * int(request)),
            "Fail": grpc.unary_unary_rpc_method_handler(self.fail),
            "Slow": grpc.unary_unary_rpc_method_handler(self.slow),
            "List": grpc.unary_stream_rpc_method_handler(self.list),
            "Add": grpc.stream_unary_rpc_method_handler(self.add),
            "Chat": grpc.stream_stream_rpc_method_handler(self.chat),
        }
        return make.get(name[1])

    def get(self, request, context):
        return request * 2

    def fail(self, request, context):
        context.abort(getattr(grpc.StatusCode, request.decode()), "planted-reason")

    def slow(self, request, context):
        time.sleep(0.3)
        return request

    def list(self, request, context):
        for n in range(int(request)):
            yield b"item %d" % n

    def add(self, requests, context):
        return b"%d" % sum(len(request) for request in requests)

    def chat(self, requests, context):
        for request in requests:
            yield request
            if request == b"out of range":
                context.abort(grpc.StatusCode.OUT_OF_RANGE, "as asked")


def server(frame):
    options = [("grpc.http2.max_frame_size", frame)]
    made = grpc.server(futures.ThreadPoolExecutor(max_workers=8), options=options)
    made.add_generic_rpc_handlers((Cart(),))
    port = made.add_insecure_port("127.0.0.1:0")
    made.start()
    print("PORT", port, flush=True)
    made.wait_for_termination()


def client(port, count, token):
    seen = collections.Counter()
    lock = threading.Lock()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def path(name, service=SERVICE):
        return f"/{service}/{name}"

    def note(name, call, service=SERVICE):
        try:
            result = call()
            if hasattr(result, "__iter__") and not isinstance(result, bytes):
                list(result)
            code = "OK"
        except grpc.RpcError as error:
            code = error.code().name
        with lock:
            seen[(f"{service}/{name}", code)] += 1

    get = channel.unary_unary(path("Get"))
    fail = channel.unary_unary(path("Fail"))
    slow = channel.unary_unary(path("Slow"))
    items = channel.unary_stream(path("List"))
    add = channel.stream_unary(path("Add"))
    chat = channel.stream_stream(path("Chat"))
    missing = channel.unary_unary(path("Missing"))
    stranger = channel.unary_unary(path("Get", "other.Service"))

    def fresh():
        return [("x-token", randomness.token_urlsafe(token)[:token])] if token else []

    # Must show nowhere.
    secrets = [("authorization", "Bearer planted-token"), ("cookie", "id=planted-cookie"), ("planted-name", "1")]

    def work(worker):
        for n in range(count):
            note("Get", lambda: get(b"planted-body" * (n % 4), metadata=secrets + fresh()))
            if n % 4 == 0:
                code = ["NOT_FOUND", "INTERNAL", "UNAVAILABLE", "PERMISSION_DENIED", "DATA_LOSS"][n // 4 % 5]
                note("Fail", lambda: fail(code.encode(), metadata=fresh()))
            if n % 5 == 0:
                note("List", lambda: items(b"7"))
                note("Add", lambda: add(iter([b"ab"] * 5)))
                note("Chat", lambda: chat(iter([b"hi"] * 4)))
            if n % 10 == 0:
                note("Chat", lambda: chat(iter([b"hi", b"out of range"])))
                note("Missing", lambda: missing(b""))
                note("Get", lambda: stranger(b""), "other.Service")
        if worker == 0:
            # The deadline passes on this side: the server only sees the call broken off.
            note("Slow", lambda: slow(b"x", timeout=0.05))
            note("Slow", lambda: slow(b"x", timeout=10))

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if token:
        # What stands behind long bodies.
        up = channel.unary_unary(path("Up"))
        for n in range(5):
            note("Up", lambda: up(b"u" * 900_000, metadata=fresh()))
            note("Fail", lambda: fail(b"NOT_FOUND", metadata=fresh()))
    channel.close()
    for (method, code), times in sorted(seen.items()):
        print("CALLED", method, code, times, flush=True)


def large(port, count, workers, frame):
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.http2.max_frame_size", frame)])
    up, down = (channel.unary_unary(f"/{SERVICE}/{name}") for name in ["Up", "Down"])

    def work():
        for n in range(count):
            size = [100_000, 30_000, 9_000, 400, 250_000][n % 5]
            assert up(b"u" * size) == b"%d" % size
            assert len(down(b"%d" % size)) == size

    each = [threading.Thread(target=work) for _ in range(workers)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    channel.close()
    for name in ["Up", "Down"]:
        print("CALLED", f"{SERVICE}/{name}", "OK", count * workers, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        server(int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 22)
    elif sys.argv[1] == "large":
        large(*map(int, sys.argv[2:6]))
    else:
        client(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 0)
