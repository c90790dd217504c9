"""Requests in TCP segments that this program makes itself, with the options it is told, as OpenTelemetry's eBPF
instrumentation sends them: its option stands behind the kernel's timestamps, and no-operations fill the header.

SOURCE DESTINATION PORT FIRST_SOURCE_PORT FILE, which holds a connection a line: `ack` or `early` (whether the first
request comes with the segment that completes the handshake), then PATH=OPTION, with the option's bytes as digits or none.
The kernel of this host must not reset what it does not know."""

import os
import socket
import struct
import sys
import time

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
FAMILY = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
SOURCE, DESTINATION = sys.argv[1], sys.argv[2]
PORT, FIRST = int(sys.argv[3]), int(sys.argv[4])


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Connection:
    def __init__(self, port):
        self.port = port
        self.next = struct.unpack("!I", os.urandom(4))[0]
        self.theirs = 0
        self.echo = 0
        self.socket = socket.socket(FAMILY, socket.SOCK_RAW, socket.IPPROTO_TCP)
        self.socket.settimeout(20)
        self.socket.bind((SOURCE, 0))

    def send(self, flags, options=b"", payload=b""):
        stamp = b"\x01\x01\x08\x0a" + struct.pack("!II", int(time.monotonic() * 1000) & 0xFFFFFFFF, self.echo)
        options = (b"\x02\x04\x05\xa0" if flags & SYN else b"") + stamp + options
        options += b"\x01" * (-len(options) % 4)
        words = 5 + len(options) // 4
        fields = [self.port, PORT, self.next & 0xFFFFFFFF, self.theirs, words << 4, flags, 64240, 0, 0]
        packed = struct.pack("!HHIIBBHHH", *fields) + options + payload
        addresses = socket.inet_pton(FAMILY, SOURCE) + socket.inet_pton(FAMILY, DESTINATION)
        fields[7] = checksum(addresses + struct.pack("!II", len(packed), socket.IPPROTO_TCP) + packed)
        self.socket.sendto(struct.pack("!HHIIBBHHH", *fields) + options + payload, (DESTINATION, 0))
        self.next += len(payload) + (1 if flags & (SYN | FIN) else 0)

    def receive(self):
        """Flags and payload of the next segment in order; what holds something is acknowledged by what is sent next."""
        while True:
            packet = self.socket.recv(65536)
            if FAMILY == socket.AF_INET:
                packet = packet[(packet[0] & 15) * 4 :]
            near, far, number, _, words, flags = struct.unpack("!HHIIBB", packet[:14])
            if (near, far) != (PORT, self.port):
                continue
            assert not flags & RST, "reset"
            size = (words >> 4) * 4
            options, payload = packet[20:size], packet[size:]
            if not flags & SYN and number != self.theirs:
                continue
            while options and options[0]:
                length = 1 if options[0] == 1 else options[1]
                if options[0] == 8:
                    self.echo = struct.unpack("!I", options[2:6])[0]
                options = options[length:]
            self.theirs = (number + len(payload) + (1 if flags & (SYN | FIN) else 0)) & 0xFFFFFFFF
            return flags, payload

    def open(self, alone):
        self.send(SYN)
        while not self.receive()[0] & SYN:
            pass
        if alone:
            self.send(ACK)

    def ask(self, path, option):
        self.send(PSH | ACK, option, f"GET {path} HTTP/1.1\r\nHost: segments\r\n\r\n".encode())
        reply = b""
        while True:
            _, payload = self.receive()
            if payload:
                reply += payload
                self.send(ACK)
            head, end, body = reply.partition(b"\r\n\r\n")
            if end:
                length = next(int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: "))
                if len(body) >= length:
                    assert head.startswith(b"HTTP/1.1 200 "), head
                    return

    def close(self):
        self.send(FIN | ACK)
        while not self.receive()[0] & FIN:
            pass
        self.send(ACK)
        self.socket.close()


for index, line in enumerate(open(sys.argv[5])):
    kind, *requests = line.split()
    connection = Connection(FIRST + index)
    connection.open(kind == "ack")
    for request in requests:
        path, _, option = request.partition("=")
        connection.ask(path, bytes.fromhex(option))
    connection.close()
print("DONE", flush=True)
