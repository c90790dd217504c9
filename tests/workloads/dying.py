"""Servers whose processes end with requests in their hands, each in the way that the path says.

`forked`: a process for each connection. `threads`: a thread for each, in one process. `socket`: as `forked`, on a UNIX socket.
"""

import ctypes
import os
import resource
import socket
import sys
import threading
import time

kind = sys.argv[1]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def say(text):
    os.write(1, (text + "\n").encode())


def request(conn):
    """The path of the next request; None: the peer sends no more."""
    text = b""
    while b"\r\n\r\n" not in text:
        more = conn.recv(65536)
        if not more:
            return None
        text += more
    return text.split(b" ")[1].decode()


def answer(conn, path):
    """Answers, or does not."""
    way = path.split("/")[1]
    if way == "segv":
        ctypes.string_at(0)
    elif way == "abort":
        os.abort()
    elif way == "exit3":
        os._exit(3)
    elif way == "exit0":
        os._exit(0)
    elif way == "raise4":
        # The interpreter closes the connection while it cleans up.
        raise SystemExit(4)
    elif way == "term":
        os.kill(os.getpid(), 15)
        time.sleep(60)
    elif way == "part":
        # Some of a body of known length.
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        ctypes.string_at(0)
    elif way == "close":
        # Some of a body that ends with its connection.
        conn.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc")
        ctypes.string_at(0)
    elif way == "whole":
        # All of it: a process for one request ends like this.
        conn.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc")
        os._exit(0)
    elif way == "calls":
        # With a call of its own in its hands as well.
        call = socket.create_connection(address)
        call.sendall(b"GET /leave" + path.encode() + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        ctypes.string_at(0)
    elif way == "held":
        say(f"HELD {path} {os.getpid()}")
        time.sleep(600)
    elif way == "leave":
        # Until the client has left.
        say(f"HELD {path} {os.getpid()}")
        conn.recv(1)
        conn.close()
        return False
    elif way == "drop":
        conn.shutdown(socket.SHUT_RDWR)
        conn.close()
        return False
    else:
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    return True


def serve(conn):
    while (path := request(conn)) is not None:
        if not answer(conn, path):
            return


if kind == "socket":
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[2])
    listener.listen(64)
    say("PORT 1")
else:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    address = listener.getsockname()
    say(f"PORT {address[1]}")

while True:
    conn, _ = listener.accept()
    if kind == "threads":
        threading.Thread(target=serve, args=(conn,), daemon=True).start()
    elif os.fork() == 0:
        listener.close()
        serve(conn)
        os._exit(0)
    conn = None
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
