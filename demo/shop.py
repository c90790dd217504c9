"""The demo's application: routes whose cost is known, so that one can see whether the tracer tells the truth."""

import hashlib
import os
import threading
import time
import urllib.request

import psycopg2
import redis
from flask import Flask, abort, jsonify

app = Flask(__name__)
PRICING = os.environ["PRICING"]
# One pool for all threads, one connection to the database for each.
stock = redis.Redis.from_url(os.environ["REDIS"])
own = threading.local()


def database():
    if not hasattr(own, "connection"):
        own.connection = psycopg2.connect(os.environ["DATABASE"])
        own.connection.autocommit = True
    return own.connection.cursor()


@app.get("/")
def index():
    """Next to nothing."""
    return "welcome\n"


@app.get("/cpu")
def cpu():
    """Burns CPU in one place: the flame graph of this class is one tower."""
    digest = checksum(b"shop" * 64, 40_000)
    if os.path.exists("slower"):
        digest = audit(digest)
    return jsonify(digest=digest)


def audit(digest):
    """What `cargo xtask demo --regression` switches on while all of this runs: half as much CPU again."""
    return checksum(digest.encode(), 20_000)


def checksum(data, rounds):
    for _ in range(rounds):
        data = hashlib.sha256(data).digest()
    return data.hex()


@app.get("/sleep")
def sleep():
    """Waits 80 ms and computes nothing: slow, yet cheap."""
    time.sleep(0.08)
    return "slept\n"


@app.get("/quote/<int:item>")
def quote(item):
    """Asks another service: time spent downstream."""
    with urllib.request.urlopen(f"http://{PRICING}/price/{item}", timeout=5) as reply:
        return jsonify(item=item, price=float(reply.read()))


@app.get("/order/<int:item>")
def order(item):
    """Every tier there is: the stock in Redis, the price from the other service, the order in PostgreSQL."""
    left = stock.decr(f"stock:{item}")
    with urllib.request.urlopen(f"http://{PRICING}/price/{item}", timeout=5) as reply:
        price = float(reply.read())
    with database() as cursor:
        cursor.execute("INSERT INTO orders (item, price) VALUES (%s, %s) RETURNING id", (item, price))
        (number,) = cursor.fetchone()
    return jsonify(order=number, price=price, left=left)


@app.get("/fail")
def fail():
    """Always an error."""
    abort(500)


@app.get("/users/<int:user>")
def user(user):
    """An id in the path: one class, not one for each user."""
    return jsonify(id=user, name=f"user {user}")
