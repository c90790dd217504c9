"""Requests that wait before they are read, in the listener's queue or in the socket's, and how long by our own clock.

A server process does what its client tells it by a pipe: `accept`, then `read` and answer. The client prints one line for
each request: path, whether it was sent before its connection was accepted, and from when to when (CLOCK_MONOTONIC,
nanoseconds) it was sent, accepted and read."""

import fcntl
import os
import random
import socket
import struct
import sys
import termios
import time

EACH = 4
now = time.monotonic_ns


def serve(listener, commands, answers):
    connection = None
    for command in commands:
        begin = now()
        if command == "accept\n":
            connection = listener.accept()[0]
        else:
            connection.recv(4096)
        answers.write(f"{begin} {now()}\n")
        answers.flush()
        if command == "read\n":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


class Client:
    def __init__(self, family, address, commands, answers):
        self.family, self.address, self.commands, self.answers = family, address, commands, answers

    def tell(self, command):
        """The server does it: when it began to and when it had."""
        self.commands.write(command + "\n")
        self.commands.flush()
        return tuple(map(int, self.answers.readline().split()))

    def send(self, connection, path):
        """A request is sent: before when, and by when it had arrived."""
        begin = now()
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: queues\r\n\r\n".encode())
        # On a busy machine loopback may deliver later; what was acknowledged has arrived. A UNIX socket's is there at once.
        while self.family != "unix" and struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]:
            time.sleep(0.0005)
        return begin, now()

    def exchange(self, connection, path, accepted):
        """A request on `connection`, which was accepted then, or (None) is accepted once it has waited."""
        sent = self.send(connection, path)
        time.sleep(random.uniform(0.02, 0.08))
        early = accepted is None
        if early:
            accepted = self.tell("accept")
            time.sleep(random.uniform(0.02, 0.08))
        read = self.tell("read")
        connection.recv(4096)
        print("REQUEST", path, int(early), *sent, *accepted, *read, flush=True)
        return accepted

    def connect(self):
        kind = {"tcp4": socket.AF_INET, "tcp6": socket.AF_INET6, "unix": socket.AF_UNIX}[self.family]
        connection = socket.socket(kind)
        connection.connect(self.address)
        return connection

    def run(self):
        for number in range(EACH):
            path = f"/{self.family}/{{}}/n{number}"
            # It waits for accept, then in the socket; the next on its connection only in the socket.
            connection = self.connect()
            accepted = self.exchange(connection, path.format("queued"), None)
            self.exchange(connection, path.format("second"), accepted)
            # The connection waits for accept, and the request comes after.
            other = self.connect()
            time.sleep(random.uniform(0.02, 0.08))
            accepted = self.tell("accept")
            self.exchange(other, path.format("accepted"), accepted)


def main(family, path):
    if family == "unix":
        listener, address = socket.socket(socket.AF_UNIX), path
        listener.bind(path)
    else:
        kind, host = (socket.AF_INET, "127.0.0.1") if family == "tcp4" else (socket.AF_INET6, "::1")
        listener = socket.socket(kind)
        listener.bind((host, 0))
        address = listener.getsockname()
    listener.listen(16)
    commands, told = os.pipe()
    answered, answers = os.pipe()
    if os.fork() == 0:
        os.close(told)
        os.close(answered)
        serve(listener, open(commands), open(answers, "w"))
        os._exit(0)
    os.close(commands)
    os.close(answers)
    listener.close()
    Client(family, address, open(told, "w"), open(answered)).run()


main(sys.argv[1], sys.argv[2])
