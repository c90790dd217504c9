"""Calls whose network is known from the program's own side: how long connects and handshakes took, and what TCP_INFO says.

network.py serve ADDRESS CERTIFICATE KEY: serves HTTP/1.1, and the same over TLS. Says both ports.
network.py ask ADDRESS PORT CONNECTIONS REQUESTS SIZE [tls]: posts SIZE bytes and gets as many. One line of JSON a request.
network.py fail ADDRESS PORT TIMES [SECONDS]: connects and is refused, or gives up after SECONDS.
"""

import json
import socket
import ssl
import struct
import sys
import threading
import time

mode, address, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]


def read_head(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(1 << 16)
        if not piece:
            return None, b""
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def read_message(connection):
    head, rest = read_head(connection)
    if head is None:
        return None
    length = int(next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))[15:])
    left = length - len(rest)
    while left > 0:
        piece = connection.recv(min(left, 1 << 16))
        if not piece:
            sys.exit("a message was cut")
        left -= len(piece)
    return length


def serve(certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def one(connection, wrap):
        connection = context.wrap_socket(connection, server_side=True) if wrap else connection
        while (length := read_message(connection)) is not None:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + b"x" * length)

    def accept(listener, wrap):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=one, args=(connection, wrap), daemon=True).start()

    listeners = [socket.create_server((address, 0), backlog=512) for _ in range(2)]
    for wrap, listener in enumerate(listeners):
        threading.Thread(target=accept, args=(listener, wrap), daemon=True).start()
    print("PORTS", *(listener.getsockname()[1] for listener in listeners), flush=True)
    threading.Event().wait()


def info(connection):
    """Smoothed and shortest round-trip time, microseconds, and retransmits so far (struct tcp_info)."""
    data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 152)
    return struct.unpack_from("I", data, 68)[0], struct.unpack_from("I", data, 148)[0], struct.unpack_from("I", data, 100)[0]


def ask(port, connections, requests, size, tls=None):
    lines = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def one(number):
        connection = socket.socket()
        connection.settimeout(30)
        begun = time.monotonic()
        connection.connect((address, int(port)))
        connected = time.monotonic()
        if tls:
            connection = context.wrap_socket(connection)
        secured = time.monotonic()
        for request in range(int(requests)):
            # What was sent again to open the connection was for its first call.
            before = info(connection)[2] if request else 0
            path = f"/{tls or 'plain'}/{number}/{request}"
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
            connection.sendall(head.encode() + b"x" * int(size))
            read_message(connection)
            rtt, rtt_min, after = info(connection)
            line = {"path": path, "rtt": rtt, "rtt_min": rtt_min, "retransmits": after - before}
            if request == 0:
                line |= {"connect": connected - begun, "tls": secured - connected if tls else None}
            lines.append(json.dumps(line))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(int(connections))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*lines, sep="\n", flush=True)


def fail(port, times, seconds=None):
    for _ in range(int(times)):
        connection = socket.socket()
        connection.settimeout(float(seconds) if seconds else None)
        try:
            connection.connect((address, int(port)))
            sys.exit("it was connected")
        except OSError as error:
            print(error, flush=True)
        connection.close()


{"serve": serve, "ask": ask, "fail": fail}[mode](*arguments)
