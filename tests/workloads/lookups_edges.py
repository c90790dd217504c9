"""Asks a name server questions of which each has a name of its own, so that it can be told which call a question came of.

lookups_edges.py PORT PID: where the server listens, and its process, which is stopped for questions that are asked again.
Prints how many questions of each kind there were, and the port of each process that asks what another one asks.
"""

import json
import os
import signal
import socket
import struct
import sys
import threading
import time

port, server = map(int, sys.argv[1:])
ROUNDS = 60


def question(number, name, kind=1):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", number, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def opened(family=socket.AF_INET, host=None):
    datagrams = socket.socket(family, socket.SOCK_DGRAM)
    datagrams.settimeout(20)
    if host:
        datagrams.connect((host, port))
    return datagrams


asked = {}

# The C library: A and AAAA at once, on a connected socket.
for which in range(ROUNDS):
    try:
        socket.getaddrinfo(f"resolver{which}.org", 80, type=socket.SOCK_STREAM)
    except socket.gaierror:
        pass
asked["resolver"] = 2 * ROUNDS

# One socket without a peer, several questions at once, all with numbers that others use as well.
for family, host, what in ((socket.AF_INET, "127.0.0.1", "four"), (socket.AF_INET6, "::1", "six")):
    with opened(family) as datagrams:
        for round in range(ROUNDS // 10):
            for which in range(10):
                datagrams.sendto(question(which, f"{what}{10 * round + which}.org"), (host, port))
            for which in range(10):
                datagrams.recvfrom(4096)
    asked[what] = ROUNDS


# Threads, each with a socket: the same numbers at the same time.
def one(thread):
    with opened(host="127.0.0.1") as datagrams:
        for which in range(ROUNDS // 4):
            datagrams.send(question(which, f"thread{thread}of{which}.org"))
            datagrams.recv(4096)


threads = [threading.Thread(target=one, args=(thread,)) for thread in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
asked["thread"] = 8 * (ROUNDS // 4)

# Two processes that ask the same with the same number at the same time, and use their numbers again.
ports = {}
gates = [os.pipe() for _ in range(2)]
for mine, theirs in ((0, 1), (1, 0)):
    own = opened()
    own.bind(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        for which in range(ROUNDS):
            # Whoever comes first waits for the other.
            os.write(gates[theirs][1], b".")
            os.read(gates[mine][0], 1)
            own.sendto(question(7, f"same{which % (ROUNDS // 2)}.org"), ("127.0.0.1", port))
            own.recvfrom(4096)
        os._exit(0)
    ports[child] = own.getsockname()[1]
    own.close()
for child in ports:
    assert os.waitpid(child, 0)[1] == 0
asked["same"] = 2 * ROUNDS

# Asked again while the server does not answer: both questions are read, and one lookup is over with the first answer.
for which in range(ROUNDS // 10):
    with opened(host="127.0.0.1") as datagrams:
        os.kill(server, signal.SIGSTOP)
        for again in range(2):
            datagrams.send(question(9, f"again{which}.org"))
            time.sleep(0.05)
        os.kill(server, signal.SIGCONT)
        datagrams.recv(4096)
        datagrams.recv(4096)
asked["again"] = 2 * (ROUNDS // 10)
print("ASKED", json.dumps({"asked": asked, "ports": ports}), flush=True)
