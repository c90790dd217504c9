"""Sends and consumes a known number of messages by STOMP: stomp_messages.py consume PORT ROUNDS, stomp_messages.py produce
PORT ROUNDS. The consumer says READY, then how many messages it got.
"""

import queue
import sys
import threading

import stomp

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Listener(stomp.ConnectionListener):
    """Frames of the server, in the order they come; receipts and errors by themselves."""

    def __init__(self):
        self.messages = queue.Queue()
        self.answers = queue.Queue()

    def on_message(self, frame):
        self.messages.put(frame)

    def on_receipt(self, frame):
        self.answers.put(frame.headers["receipt-id"])

    def on_error(self, frame):
        self.answers.put("error")

    def on_disconnected(self):
        self.answers.put("gone")


def connected(port, version, password="planted-password"):
    kind = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}[version]
    host = {} if version == "1.0" else {"vhost": "/"}
    connection = kind([("127.0.0.1", port)], reconnect_attempts_max=1, **host)
    listener = Listener()
    connection.set_listener("", listener)
    connection.connect("planted-user", password, wait=True)
    return connection, listener


def leave(connection, listener):
    connection.disconnect(receipt="bye")
    # The library may close before it tells of the receipt.
    found = listener.answers.get(timeout=60)
    assert found in ("bye", "gone"), found


def answered(listener, expected):
    found = listener.answers.get(timeout=60)
    assert found == expected, f"{found} for {expected}"


def consume(port, rounds):
    connection, listener = connected(port, "1.2")
    # Each by itself, all up to one, and not at all.
    connection.subscribe("/topic/events.#", id="1", ack="client-individual", receipt="events")
    connection.subscribe("/queue/jobs", id="2", ack="client", receipt="jobs")
    connection.subscribe("/topic/quiet", id="3", receipt="quiet")
    for name in ("events", "jobs", "quiet"):
        answered(listener, name)
    print("READY", flush=True)
    counts = {"1": 0, "2": 0, "3": 0}
    while counts != {"1": 2 * rounds, "2": rounds, "3": 1}:
        headers = listener.messages.get(timeout=60).headers
        subscription = headers["subscription"]
        counts[subscription] += 1
        number = counts[subscription]
        if subscription == "1" and number % 10 == 0:
            connection.nack(headers["ack"], requeue="false")
        elif subscription == "1" or subscription == "2" and number % 5 == 0:
            connection.ack(headers["ack"])
    for number, name in (("1", "events"), ("2", "jobs")):
        connection.unsubscribe(number, receipt=f"no-{name}")
        answered(listener, f"no-{name}")
    leave(connection, listener)
    print("GOT", counts["1"], counts["2"], counts["3"], flush=True)


def produce(port, rounds):
    try:
        connected(port, "1.1", "planted-wrong-password")
    except stomp.exception.ConnectFailedException:
        pass
    # A consumer of the oldest version beside, whose acknowledgements name messages.
    old, told = connected(port, "1.0")
    old.subscribe("/queue/old", ack="client", headers={"receipt": "old"})
    answered(told, "old")
    connection, listener = connected(port, "1.1")
    for i in range(rounds):
        connection.send(f"/topic/events.{i}.made", "planted-body", "text/plain", traceparent=CONTEXT)
        connection.send(f"/topic/events.{i}.made", "planted-body" * 3000, receipt=f"made-{i}")
        answered(listener, f"made-{i}")
        connection.send("/queue/jobs", "planted-body" * 10, receipt=f"job-{i}")
        answered(listener, f"job-{i}")
    connection.begin("t1")
    connection.send("/queue/old", "planted-body", transaction="t1")
    connection.commit("t1", receipt="committed")
    answered(listener, "committed")
    old.ack(told.messages.get(timeout=60).headers["message-id"])
    connection.send("/topic/quiet", "planted-body")
    failing, failed = connected(port, "1.2")
    failing.send("/nowhere/planted", "planted-body", receipt="lost")
    answered(failed, "error")
    leave(connection, listener)
    leave(old, told)


if sys.argv[1] == "consume":
    consume(int(sys.argv[2]), int(sys.argv[3]))
else:
    produce(int(sys.argv[2]), int(sys.argv[3]))
