"""Requests whose sender lends the kernel its memory (MSG_ZEROCOPY) until that says, by the number of the send, that it is done.

ADDRESS PORT WHEN BYTES COUNT: memory is lent from before the connection is made (`before`), from right after (`after`), or after
a plain request and its reply (`later`). Says how many sends there were; each must be said to be done with once."""

import socket
import struct
import sys
import time

SO_ZEROCOPY, MSG_ERRQUEUE, MSG_ZEROCOPY, ORIGIN = 60, 0x2000, 0x4000000, 5
address, port, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
length, count = map(int, sys.argv[4:6])
BODY = (bytes(range(251)) * (length // 251 + 1))[:length]


def completed(connection, until):
    """Numbers of the sends the kernel is done with, in the order it says so; waits for so many, and for no more."""
    numbers, end = [], time.monotonic() + 20
    while time.monotonic() < end:
        try:
            _, control, _, _ = connection.recvmsg(0, 512, MSG_ERRQUEUE)
        except BlockingIOError:
            if len(numbers) >= until:
                return numbers
            time.sleep(0.01)
            continue
        for _, _, value in control:
            _, origin, _, _, _, first, last = struct.unpack("IBBBBII", value[:16])
            if origin == ORIGIN:
                numbers.extend(range(first, last + 1))
    return numbers


def answered(connection):
    reply = b""
    while not reply.endswith(b"ok"):
        part = connection.recv(65536)
        assert part, "closed"
        reply += part


connection = socket.socket()
connection.settimeout(20)
if when == "before":
    connection.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
connection.connect((address, port))
if when == "later":
    connection.sendall(b"GET /plain HTTP/1.1\r\nHost: a\r\n\r\n")
    answered(connection)
connection.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
sends, lent = 0, []
for i in range(count):
    request = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (i, len(BODY)) + BODY
    # It must stay as it is until the kernel is done with it.
    lent.append(request)
    rest = memoryview(request)
    while rest:
        rest = rest[connection.send(rest, MSG_ZEROCOPY) :]
        sends += 1
    answered(connection)
connection.setblocking(False)
numbers = completed(connection, sends)
assert sorted(numbers) == list(range(sends)), (sends, numbers)
print("SENDS", sends, flush=True)
