"""Sends and consumes a known number of messages: mqtt.py consume PORT, mqtt.py produce PORT ROUNDS. The consumer says READY,
then how many messages it got, by quality. Both speak MQTT 5; a stranger, who is refused, 3.1.1.
"""

import sys
import threading

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def connected(port, name, password="planted-password", protocol=mqtt.MQTTv5):
    client = mqtt.Client(client_id=f"planted-{name}", protocol=protocol)
    client.username_pw_set("planted-user", password)
    answer = threading.Event()
    codes = []

    def on_connect(client, data, flags, code, *rest):
        codes.append(code)
        answer.set()

    client.on_connect = on_connect
    client.connect("127.0.0.1", port)
    client.loop_start()
    assert answer.wait(30)
    return client, codes[0]


def consume(port):
    client, _ = connected(port, "consumer", protocol=mqtt.MQTTv5)
    counts = [0, 0, 0]
    over, subscribed = threading.Event(), threading.Semaphore(0)

    def on_message(client, data, message):
        counts[message.qos] += 1
        if message.topic == "control/stop":
            over.set()

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.release()
    for topic, qos in (("sensors/+/temperature", 0), ("orders/#", 1), ("jobs/new", 2), ("control/stop", 2)):
        client.subscribe(topic, qos)
        assert subscribed.acquire(timeout=30)
    print("READY", flush=True)
    assert over.wait(60)
    client.disconnect()
    client.loop_stop()
    print("GOT", *counts, flush=True)


def produce(port, rounds):
    refused, code = connected(port, "stranger", password="planted-wrong-password", protocol=mqtt.MQTTv311)
    assert code != 0
    refused.disconnect()
    refused.loop_stop()
    client, code = connected(port, "producer")
    assert code == 0
    for i in range(rounds):
        linked = Properties(PacketTypes.PUBLISH)
        linked.UserProperty = ("traceparent", CONTEXT)
        for j in range(5):
            client.publish(f"sensors/{i * 5 + j}/temperature", b"planted-body", qos=0)
        client.publish(f"orders/{i}/made", b"planted-body" * 10, qos=1, properties=linked)
        client.publish("orders/all", b"planted-body" * 10_000, qos=1)
        client.publish("jobs/new", b"planted-body", qos=2).wait_for_publish(30)
    client.publish("control/stop", b"", qos=2).wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


if sys.argv[1] == "consume":
    consume(int(sys.argv[2]))
else:
    produce(int(sys.argv[2]), int(sys.argv[3]))
