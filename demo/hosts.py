"""The application of `cargo xtask demo --hosts`: every order puts a basket into Redis and a row into PostgreSQL, each on
another host. Both hold as many bytes as the order's number says, so that whoever sees one knows which order it is of."""

import os
import threading

import psycopg2
import redis
from flask import Flask, jsonify

app = Flask(__name__)
baskets = redis.Redis.from_url(os.environ["REDIS"])
own = threading.local()


def database():
    if not hasattr(own, "connection"):
        own.connection = psycopg2.connect(os.environ["DATABASE"])
        own.connection.autocommit = True
    return own.connection.cursor()


@app.get("/order/<int:number>")
def order(number):
    baskets.set("basket", "b" * number)
    with database() as cursor:
        cursor.execute("INSERT INTO orders (note) VALUES (%s)", ("n" * number,))
    return jsonify(order=number)
