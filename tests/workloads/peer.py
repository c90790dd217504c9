"""What scripted servers share: they answer real clients as a script says, and keep count of what they were asked and what
they answered. With no connection open, the file named by the first argument holds that as JSON: for each class what was
asked of it, what failed how, and how long each took by the server's own clock, seconds.
"""

import json
import os
import socket
import sys
import threading
import time


class Peer:
    def __init__(self, serve):
        self.serve = serve
        self.path = sys.argv[1]
        self.lock = threading.Lock()
        self.open = self.served = 0
        self.classes = {}

    def count(self, name, seconds=None, error=None):
        """One request of class `name` was answered (`seconds` after it came), or needs no answer."""
        with self.lock:
            known = self.classes.setdefault(name, {"count": 0, "errors": {}, "seconds": []})
            known["count"] += 1
            if error is not None:
                known["errors"][str(error)] = known["errors"].get(str(error), 0) + 1
            if seconds is not None:
                known["seconds"].append(seconds)

    def changed(self, by):
        with self.lock:
            self.open += by
            self.served += by < 0
            with open(self.path + ".new", "w") as out:
                json.dump({"open": self.open, "served": self.served, "classes": self.classes}, out)
            os.replace(self.path + ".new", self.path)

    def connection(self, sock):
        try:
            self.serve(self, Connection(sock))
        except (ConnectionError, EOFError):
            pass
        finally:
            sock.close()
            self.changed(-1)

    def run(self):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        self.address = listener.getsockname()
        print("PORT", self.address[1], flush=True)
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.changed(1)
            threading.Thread(target=self.connection, args=(sock,), daemon=True).start()


class Connection:
    """Reads exactly so many bytes; knows when the first of a message came."""

    def __init__(self, sock):
        self.sock = sock
        self.began = 0

    def exactly(self, size, first=False):
        parts = []
        while size > 0:
            part = self.sock.recv(min(size, 1 << 16))
            if not part:
                raise EOFError
            if first:
                self.began, first = time.monotonic(), False
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def send(self, data):
        """Sends; gives the seconds since the message came that is answered."""
        self.sock.sendall(data)
        return time.monotonic() - self.began
