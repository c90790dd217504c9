"""Asks a name server in every way applications do: the C library's resolver (A and AAAA in one sendmmsg on a connected
socket), and datagrams on a socket without a peer (sendto, sendmsg), over IPv4 and IPv6.

lookups.py PORT: the port for datagrams; the C library's server is that of /etc/resolv.conf. Prints how many lookups of
each type there were.
"""

import json
import socket
import struct
import sys

port = int(sys.argv[1])
asked = {"A": 0, "AAAA": 0, "MX": 0}


def question(number, name, kind):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", number, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


for round in range(20):
    for name in ("www.example.org", "planted-none.example.org"):
        try:
            socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)
        except socket.gaierror:
            pass
        asked["A"] += 1
        asked["AAAA"] += 1
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(20)
        for number in range(15):
            datagrams.sendto(question(number, "www.example.org", 1), (host, port))
            datagrams.recvfrom(4096)
            datagrams.sendmsg([question(100 + number, "www.example", 15)[:12], question(0, "www.example.org", 15)[12:]], [], 0, (host, port))
            datagrams.recvmsg(4096)
            asked["A"] += 1
            asked["MX"] += 1
print("ASKED", json.dumps(asked), flush=True)
