"""What must not be touched: each on a connection of its own, and behind it something that looks like a request."""

import socket
import sys

host, port = sys.argv[1], int(sys.argv[2])
NEXT = b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n"
CASES = [
    # A handshake of TLS, as far as anybody here can see.
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2, NEXT],
    [b"GET /own HTTP/1.1\r\nHost: a\r\nTraceParent: 00-%s-%s-01\r\n\r\n" % (b"1" * 32, b"2" * 16)] * 2,
    [b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"\x81\x82abcdef", NEXT],
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", NEXT],
    [b"GET /parts HTTP/1.1\r\nHost: a\r\n", b"A: b\r\n\r\n", NEXT],
    [b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", NEXT],
]
for case in CASES:
    with socket.create_connection((host, port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in case:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
