"""An HTTP server of raw sockets that answers in every way HTTP/1 allows; the path says how. Prints its port."""

import socket
import sys
import threading

REPLY_BODY = b"x" * 1000
EVENTS = b"b\r\ndata: one\n\n\r\n", b"e\r\ndata: [DONE]\n\n\r\n"
TRAILERS = b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nExpires: never\r\nX-Sum: 1\r\n\r\n"


class Gone(Exception):
    """The client closed."""


class Connection:
    def __init__(self, sock):
        self.sock = sock
        self.have = b""

    def more(self):
        data = self.sock.recv(65536)
        if not data:
            raise Gone
        self.have += data

    def until(self, mark):
        while mark not in self.have:
            self.more()
        part, self.have = self.have.split(mark, 1)
        return part

    def exactly(self, n):
        while len(self.have) < n:
            self.more()
        part, self.have = self.have[:n], self.have[n:]
        return part

    def body(self, headers):
        if headers.get("transfer-encoding") == "chunked":
            while size := int(self.until(b"\r\n").split(b";")[0], 16):
                self.exactly(size + 2)
            while self.until(b"\r\n"):
                pass
        else:
            self.exactly(int(headers.get("content-length", "0")))

    def send(self, *parts):
        self.sock.sendall(b"".join(parts))


def head(status, *lines):
    return b"\r\n".join([b"HTTP/1.1 " + status, *lines, b"", b""])


def length(n):
    return b"Content-Length: %d" % n


def answer(c, method, path, headers):
    """Replies; whether the connection goes on as HTTP."""
    kind = path.split("/")[2] if path.startswith("/edge/") else ""
    if method == "CONNECT":
        c.send(head(b"200 OK"))
        # Behind some names is another server of HTTP, which is this one.
        return path.startswith("http.") or tunnel(c)
    if kind == "refused":
        c.send(head(b"417 Expectation Failed", length(0)))
        return True
    if headers.get("expect") == "100-continue":
        c.send(head(b"100 Continue"))
    c.body(headers)
    if kind == "chunked":
        c.send(head(b"200 OK", b"Transfer-Encoding: chunked"))
        for at in range(0, len(TRAILERS), 7):
            c.send(TRAILERS[at : at + 7])
    elif kind == "chunked-once":
        c.send(head(b"200 OK", b"Transfer-Encoding: chunked"), TRAILERS)
    elif method == "HEAD":
        c.send(head(b"200 OK", length(123456)))
    elif kind == "204":
        c.send(head(b"204 No Content"))
    elif kind == "304":
        c.send(head(b"304 Not Modified", length(500)))
    elif kind == "early":
        c.send(head(b"103 Early Hints", b"Link: </s.css>"))
        c.send(head(b"200 OK", length(1000)), REPLY_BODY)
    elif kind == "upgrade":
        c.send(head(b"101 Switching Protocols", b"Connection: Upgrade", b"Upgrade: noise"))
        return tunnel(c)
    elif kind == "close":
        c.send(head(b"200 OK"), REPLY_BODY)
        c.send(REPLY_BODY)
        return False
    elif kind == "gone":
        c.send(head(b"200 OK", length(5000)), REPLY_BODY)
        c.more()
    elif kind == "silent":
        c.more()
    elif kind == "sentinel":
        c.send(head(b"200 OK", b"Content-Type: text/event-stream", b"Transfer-Encoding: chunked"))
        for event in EVENTS:
            c.send(event)
        c.more()
    elif kind == "bighead":
        c.send(head(b"200 OK", b"X-Big: " + b"b" * 12000, length(1000)), REPLY_BODY)
    elif kind == "500":
        c.send(head(b"500 Oh No", length(1000)), REPLY_BODY)
    elif kind == "bytes":
        for byte in head(b"200 OK", length(3)) + b"abc":
            c.send(bytes([byte]))
    else:
        c.send(head(b"200 OK", length(1000)), REPLY_BODY)
    return True


def tunnel(c):
    """Sends back what comes, changed, until the other side closes."""
    while True:
        if c.have:
            c.send(bytes(byte ^ 0x55 for byte in c.have))
            c.have = b""
        c.more()


def handle(sock):
    c = Connection(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with sock:
        try:
            while True:
                line, fields = c.until(b"\r\n").decode("latin-1"), []
                if line.count(" ") == 1:
                    # HTTP/0.9: a line is a request, and its reply has no head.
                    c.send(REPLY_BODY)
                    return
                while field := c.until(b"\r\n").decode("latin-1"):
                    fields.append(field)
                method, target, _ = line.split(" ")
                headers = {}
                for field in fields:
                    name, _, value = field.partition(":")
                    headers[name.lower()] = value.strip().lower()
                path = "/" + target.split("/", 3)[3] if target.startswith("http://") else target
                if not answer(c, method, path, headers):
                    return
        except Gone:
            pass
        except (OSError, ValueError, IndexError):
            pass


def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print("PORT", listener.getsockname()[1], flush=True)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=handle, args=(sock,), daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
