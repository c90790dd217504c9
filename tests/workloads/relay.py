"""Stands between a client and a server and writes down what they say, as fixtures of the protocols' tests hold it.

relay.py LISTEN SERVER FILE: ports, or paths of UNIX sockets; one connection after the other. Each line is a read by the
server (`rx`) or a send (`tx`), in hexadecimal; a line `new` begins a connection. Ends after three idle seconds.
"""

import os
import selectors
import socket
import sys


def end(where):
    return (socket.AF_INET, ("127.0.0.1", int(where))) if where.isdigit() else (socket.AF_UNIX, where)


listen, server, path = sys.argv[1:]
family, address = end(listen)
listener = socket.socket(family)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if family == socket.AF_UNIX and os.path.exists(address):
    os.unlink(address)
listener.bind(address)
listener.listen(16)
listener.settimeout(3)
print("READY", flush=True)
with open(path, "w") as out:
    while True:
        try:
            client, _ = listener.accept()
        except TimeoutError:
            break
        family, address = end(server)
        upstream = socket.socket(family)
        upstream.connect(address)
        out.write("new\n")
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
                    out.write(f"{word} {data.hex()}\n")
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
