"""Sends and consumes a known number of messages: amqp.py consume PORT ROUNDS, amqp.py produce PORT ROUNDS. The consumer says
READY, then how many messages it got.
"""

import sys

import pika

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def connected(port, password="planted-password"):
    credentials = pika.PlainCredentials("planted-user", password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, credentials=credentials))


def consume(port, rounds):
    connection = connected(port)
    channel = connection.channel()
    channel.exchange_declare("events", exchange_type="topic", auto_delete=True)
    for queue, key in (("made", "user.*.made"), ("quiet", "control.quiet")):
        channel.queue_declare(queue, auto_delete=True)
        channel.queue_bind(queue, "events", key)
    channel.queue_declare("jobs", auto_delete=True)
    counts = {"made": 0, "jobs": 0, "quiet": 0}

    def got(kind):
        counts[kind] += 1
        if counts == {"made": 2 * rounds, "jobs": rounds, "quiet": 1}:
            channel.stop_consuming()

    def made(channel, method, properties, body):
        channel.basic_ack(method.delivery_tag)
        got("made")

    def job(channel, method, properties, body):
        # Every tenth is refused; the others are acknowledged by twos and threes.
        number = counts["jobs"] + 1
        if number % 10 == 0:
            channel.basic_nack(method.delivery_tag, requeue=False)
        elif number % 5 in (2, 4):
            channel.basic_ack(method.delivery_tag, multiple=True)
        got("jobs")

    def quiet(channel, method, properties, body):
        got("quiet")

    channel.basic_qos(prefetch_count=20)
    channel.basic_consume("made", made)
    channel.basic_consume("jobs", job)
    channel.basic_consume("quiet", quiet, auto_ack=True)
    print("READY", flush=True)
    channel.start_consuming()
    connection.close()
    print("GOT", counts["made"], counts["jobs"], counts["quiet"], flush=True)


def produce(port, rounds):
    try:
        connected(port, "planted-wrong-password")
    except pika.exceptions.AMQPConnectionError:
        pass
    connection = connected(port)
    plain, sure = connection.channel(), connection.channel()
    sure.confirm_delivery()
    linked = pika.BasicProperties(headers={"n": 1, "traceparent": CONTEXT}, content_type="text/plain")
    for i in range(rounds):
        plain.basic_publish("events", f"user.{i}.made", b"planted-body", properties=linked)
        # What follows a long message without an answer, in one read of the broker, would lie beyond what is captured.
        sure.basic_publish("events", f"user.{i}.made", b"planted-body" * 30_000)
        sure.basic_publish("", "jobs", b"planted-body" * 10)
        if i % 10 == 0:
            try:
                sure.basic_publish("events", "nowhere", b"planted-body", mandatory=True)
            except pika.exceptions.UnroutableError:
                pass
    plain.queue_declare("drawn", auto_delete=True)
    for i in range(rounds):
        plain.basic_publish("", "drawn", b"planted-body")
        plain.basic_ack(plain.basic_get("drawn")[0].delivery_tag)
    # Empty by now.
    plain.basic_get("drawn")
    try:
        connection.channel().queue_declare("missing", passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        pass
    plain.basic_publish("events", "control.quiet", b"planted-body")
    connection.close()


if sys.argv[1] == "consume":
    consume(int(sys.argv[2]), int(sys.argv[3]))
else:
    produce(int(sys.argv[2]), int(sys.argv[3]))
