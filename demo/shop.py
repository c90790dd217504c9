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
# Held while the shelves are counted.
shelves = threading.Lock()


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


def incident():
    """Whether `cargo xtask demo --incident` has switched its three causes on."""
    return os.path.exists("incident")


@app.get("/shelf/<int:item>")
def shelf(item):
    """Next to nothing, under a lock; a quarter of a second while the shelves are being counted."""
    with shelves:
        left = stock.get(f"stock:{item}")
    return jsonify(item=item, left=int(left or 0))


def count_shelves():
    """Holds the lock for most of the time."""
    while True:
        if incident():
            with shelves:
                time.sleep(0.25)
        time.sleep(0.05)


threading.Thread(target=count_shelves, daemon=True).start()


class TerminalError(Exception):
    """The card terminal does not answer."""


@app.get("/pay/<int:order>")
def pay(order):
    """Charges a card, which fails for every third order."""
    charge(order)
    return jsonify(paid=order)


def charge(order):
    if incident() and order % 3 == 0:
        raise TerminalError("no answer")


BY_ITEM = "SELECT count(*) FROM orders WHERE item = %s"
# Makes 300,000 rows for the question.
BY_NEIGHBOUR = "SELECT count(*) FROM orders, generate_series(1, 300000) AS step WHERE item = %s + step"


@app.get("/sold/<int:item>")
def sold(item):
    """One statement, and one that somebody forgot to measure."""
    with database() as cursor:
        cursor.execute(BY_NEIGHBOUR if incident() else BY_ITEM, (item,))
        (number,) = cursor.fetchone()
    return jsonify(item=item, sold=number)
