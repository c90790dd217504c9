"""Stands between clients and a server and writes down what they say, as fixtures of the protocols' tests hold it.

relay.py LISTEN SERVER FILE: ports (`udp:PORT` for datagrams), or paths of UNIX sockets. Each line is a read by the server
(`rx`) or a send (`tx`), in hexadecimal; a line `new` begins a connection, which is written when it is over. Of datagrams all
are of the server's one socket. Ends three seconds after the last one.
"""

import os
import selectors
import socket
import sys
import threading


def end(where):
    return (socket.AF_INET, ("127.0.0.1", int(where))) if where.isdigit() else (socket.AF_UNIX, where)


def relay(client):
    family, address = end(server)
    upstream = socket.socket(family)
    upstream.connect(address)
    lines = ["new\n"]
    waiting = selectors.DefaultSelector()
    waiting.register(client, selectors.EVENT_READ, ("rx", upstream))
    waiting.register(upstream, selectors.EVENT_READ, ("tx", client))
    open_ends = 2
    while open_ends:
        ready = waiting.select(3)
        if not ready:
            break
        for key, _ in ready:
            word, other = key.data
            try:
                data = key.fileobj.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if data:
                lines.append(f"{word} {data.hex()}\n")
                other.sendall(data)
            else:
                waiting.unregister(key.fileobj)
                try:
                    other.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # It was reset.
                open_ends -= 1
    client.close()
    upstream.close()
    with lock, open(path, "a") as out:
        out.writelines(lines)


def relay_datagrams(listen, server):
    own, address = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), ("127.0.0.1", server)
    own.bind(("127.0.0.1", listen))
    waiting = selectors.DefaultSelector()
    waiting.register(own, selectors.EVENT_READ, None)
    # By client, so that the server's answers find back.
    upstreams = {}
    print("READY", flush=True)
    with open(path, "a") as out:
        while ready := waiting.select(3):
            for key, _ in ready:
                data, sender = key.fileobj.recvfrom(1 << 16)
                if key.data:
                    own.sendto(data, key.data)
                elif sender in upstreams:
                    upstreams[sender].sendto(data, address)
                else:
                    upstreams[sender] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    upstreams[sender].sendto(data, address)
                    waiting.register(upstreams[sender], selectors.EVENT_READ, sender)
                print("tx" if key.data else "rx", data.hex(), file=out, flush=True)


listen, server, path = sys.argv[1:]
if listen.startswith("udp:"):
    open(path, "w").close()
    relay_datagrams(int(listen[4:]), int(server[4:]))
    sys.exit()
lock = threading.Lock()
open(path, "w").close()
family, address = end(listen)
listener = socket.socket(family)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if family == socket.AF_UNIX and os.path.exists(address):
    os.unlink(address)
listener.bind(address)
listener.listen(16)
listener.settimeout(3)
print("READY", flush=True)
connections = []
while True:
    try:
        client, _ = listener.accept()
    except TimeoutError:
        if any(connection.is_alive() for connection in connections):
            continue
        break
    connections.append(threading.Thread(target=relay, args=(client,)))
    connections[-1].start()
