"""HTTP/1.1 over TLS by Python's blocking `ssl`, or a protocol of its own.

tls_pair.py serve CERTIFICATE KEY: serves until it is ended; /e/... is answered 500. Says its port.
tls_pair.py ask [HOST:]PORT CONNECTIONS REQUESTS VERSION [PREFIX]: asks for PREFIX/py/VERSION-CONNECTION-REQUEST and,
every fifth time, /e/...
tls_pair.py own CERTIFICATE KEY TURNS: both ends of a protocol nobody knows, one connection. Says its port.
"""

import http.client
import http.server
import socket
import ssl
import sys
import threading

mode, arguments = sys.argv[1], sys.argv[2:]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b"x" * 3000
        self.send_response(500 if self.path.startswith("/e/") else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def server_context(certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def client_context():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def serve(certificate, key):
    context = server_context(certificate, key)

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def finish_request(self, request, client_address):
            super().finish_request(context.wrap_socket(request, server_side=True), client_address)

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("PORT", server.server_address[1], flush=True)
    threading.Event().wait()


def ask(port, connections, requests, version, prefix=""):
    host, _, port = port.rpartition(":")
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2 if version == "1.2" else ssl.TLSVersion.TLSv1_3
    for connection in range(int(connections)):
        client = http.client.HTTPSConnection(host or "127.0.0.1", int(port), context=context)
        for request in range(int(requests)):
            path = f"{prefix}/{'e' if request % 5 == 4 else 'py'}/{version}-{connection}-{request}"
            client.request("GET", path)
            client.getresponse().read()
        client.close()


def own(certificate, key, turns):
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        stream = server_context(certificate, key).wrap_socket(listener.accept()[0], server_side=True)
        while stream.recv(10):
            stream.sendall(b"\x01answer 90" * 10)

    thread = threading.Thread(target=answer)
    thread.start()
    port = listener.getsockname()[1]
    print("PORT", port, flush=True)
    stream = client_context().wrap_socket(socket.create_connection(("127.0.0.1", port)))
    for _ in range(int(turns)):
        stream.sendall(b"\x01question!")
        got = 0
        while got < 100:
            got += len(stream.recv(4096))
    stream.close()
    thread.join()


{"serve": serve, "ask": ask, "own": own}[mode](*arguments)
