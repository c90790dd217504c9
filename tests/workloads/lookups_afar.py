"""Asks a name server on another host questions of which each has a name of its own, but for those that are asked again.

lookups_afar.py SERVER WORD PID SILENT PORT: addresses of the server and of a place that reads nothing; what names begin with;
the server's process, which is stopped for questions that are asked again, 0: none are; a port to ask from.
Prints how many questions of each kind there were.
"""

import json
import os
import signal
import socket
import struct
import sys
import threading
import time

server, word, process, silent, twin = sys.argv[1:]
process = int(process)
ROUNDS = 40


def question(number, name):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", number, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)


def opened(to=None, port=0):
    datagrams = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.settimeout(20)
    if port:
        datagrams.bind(("", port))
    if to:
        datagrams.connect((to, 53))
    return datagrams


asked = {}

# One socket without a peer, several questions at once.
with opened() as datagrams:
    for start in range(0, ROUNDS, 10):
        for which in range(start, start + 10):
            datagrams.sendto(question(which, f"{word}-open{which}.org"), (server, 53))
        for which in range(10):
            datagrams.recvfrom(4096)
asked["open"] = ROUNDS


# Threads, each with a socket: the same numbers at the same time.
def one(thread):
    with opened(server) as datagrams:
        for which in range(ROUNDS // 4):
            datagrams.send(question(which, f"{word}-thread{thread}of{which}.org"))
            datagrams.recv(4096)


threads = [threading.Thread(target=one, args=(thread,)) for thread in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
asked["thread"] = ROUNDS

# What another socket of this host and one of another host ask as well, all by the same number, those of the hosts by one port.
with opened(server, int(twin)) as first, opened(server) as second:
    for which in range(ROUNDS // 2):
        for datagrams in (first, second):
            datagrams.send(question(7, f"{word[:-1]}-twin{which}.org"))
        for datagrams in (first, second):
            datagrams.recv(4096)
asked["twin"] = ROUNDS

# By the same socket and number again, at once.
with opened(server) as datagrams:
    for which in range(ROUNDS // 4):
        for again in range(2):
            datagrams.send(question(8, f"{word}-reused{which}.org"))
            datagrams.recv(4096)
asked["reused"] = 2 * (ROUNDS // 4)

# Asked again while the server does not answer: both questions are read, and one lookup is over with the first answer.
asked["again"] = 0
for which in range(ROUNDS // 10 if process else 0):
    with opened(server) as datagrams:
        os.kill(process, signal.SIGSTOP)
        for again in range(2):
            datagrams.send(question(9, f"{word}-again{which}.org"))
            time.sleep(0.02)
        os.kill(process, signal.SIGCONT)
        datagrams.recv(4096)
        datagrams.recv(4096)
    asked["again"] += 2

# Nobody answers.
with opened(silent) as datagrams:
    for which in range(ROUNDS // 10):
        datagrams.send(question(which, f"{word}-silent{which}.org"))
print("ASKED", json.dumps(asked), flush=True)
