"""Speaks what the agent recognises and does not read: TLS 1.2 and 1.3, SMTP with STARTTLS, and a protocol of its own.

turns.py CERTIFICATE KEY TLS_PORT MAIL_PORT OWN_PORT; says how many turns there were of each, and how long they took, as
JSON.
"""

import json
import smtplib
import socket
import ssl
import statistics
import sys
import threading
import time

from aiosmtpd.controller import Controller

certificate, key, tls_port, mail_port, own_port = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
CONNECTIONS, TURNS = 6, 15


def answer(stream):
    """Answers ten bytes with three pieces, some time apart."""
    while True:
        asked = b""
        while len(asked) < 10:
            piece = stream.recv(10 - len(asked))
            if not piece:
                return
            asked += piece
        for _ in range(3):
            time.sleep(0.007)
            stream.sendall(b"\x01answer 90" * 10)


def serve(port, version):
    listener = socket.create_server(("127.0.0.1", port))
    context = None
    if version:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.maximum_version = version

    def one(stream):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            answer(context.wrap_socket(stream, server_side=True) if context else stream)
        except OSError:
            pass

    def loop():
        while True:
            threading.Thread(target=one, args=listener.accept()[:1], daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()


def ask(port, tls):
    took = []
    for _ in range(CONNECTIONS):
        stream = socket.create_connection(("127.0.0.1", port))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.set_alpn_protocols(["h2", "http/1.1"])
            stream = context.wrap_socket(stream, server_hostname="shop.example.org")
        for _ in range(TURNS):
            begin = time.perf_counter()
            stream.sendall(b"\x01question!")
            got = 0
            while got < 300:
                got += len(stream.recv(4096))
            took.append(time.perf_counter() - begin)
        stream.close()
    return statistics.median(took)


class Handler:
    heard = 0

    async def handle_EHLO(self, server, session, envelope, hostname, responses):
        Handler.heard += 1
        session.host_name = hostname
        return responses

    async def handle_MAIL(self, server, session, envelope, address, options):
        Handler.heard += 1
        envelope.mail_from = address
        return "250 OK"

    async def handle_RCPT(self, server, session, envelope, address, options):
        Handler.heard += 1
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        # The command, and the message.
        Handler.heard += 2
        return "250 OK"

    async def handle_QUIT(self, server, session, envelope):
        Handler.heard += 1
        return "221 Bye"


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
mail = Controller(Handler(), hostname="127.0.0.1", port=mail_port, tls_context=context)
mail.start()
serve(tls_port, ssl.TLSVersion.TLSv1_3)
serve(tls_port + 1, ssl.TLSVersion.TLSv1_2)
serve(own_port, None)

said = {"connections": CONNECTIONS, "turns": TURNS}
said["tls13_s"] = ask(tls_port, True)
said["tls12_s"] = ask(tls_port + 1, True)
said["own_s"] = ask(own_port, False)
for _ in range(5):
    client = smtplib.SMTP("127.0.0.1", mail_port, local_hostname="client.example")
    client.sendmail("planted@example.org", ["b@example.org"], "Subject: planted-subject\r\n\r\nhello\r\n")
    client.quit()
said["mail"], Handler.heard = Handler.heard, 0
trusting = ssl.create_default_context()
trusting.check_hostname = False
trusting.verify_mode = ssl.CERT_NONE
for _ in range(5):
    client = smtplib.SMTP("127.0.0.1", mail_port, local_hostname="client.example")
    client.starttls(context=trusting)
    client.sendmail("planted@example.org", ["b@example.org"], "Subject: planted-subject\r\n\r\nhello\r\n")
    client.quit()
# The greeting before the change of protocol was heard in the clear, STARTTLS by nobody here.
said["mail"] += 2 * 5
said["mail_tls"] = Handler.heard - 5
print("TRUTH", json.dumps(said), flush=True)
mail.stop()
