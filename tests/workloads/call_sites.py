"""One query from three functions, each on a connection of its own: PORT PORT PORT SECONDS. Prints how often each sent it."""

import socket
import sys
import time

QUERY = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
first_socket, second_socket, third_socket = (
    socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:4])


def first():
    first_socket.sendall(QUERY)  # line: first
    return first_socket.recv(4096)


def second():
    answers = []
    second_socket.sendall(QUERY)  # line: second
    answers.append(second_socket.recv(4096))
    return answers


class Third:
    def third(self):
        third_socket.sendall(QUERY)  # line: third
        return third_socket.recv(4096)


end = time.monotonic() + float(sys.argv[4])
counts = [0, 0, 0]
while time.monotonic() < end:
    first()
    counts[0] += 1
    for _ in range(2):
        second()
        counts[1] += 1
    Third().third()
    counts[2] += 1
    time.sleep(0.01)
print("COUNTS", *counts, flush=True)
