"""The functions of frames.py behind Flask, for gunicorn."""

import flask

import frames

app = flask.Flask(__name__)


@app.get("/burn")
def burn_view():
    frames.a(frames.SECONDS)
    return "burnt\n"


@app.get("/callback")
def callback_view():
    frames.by_key(frames.SECONDS)
    return "sorted\n"


@app.get("/sleep")
def sleep_view():
    frames.waiter(frames.SECONDS)
    return "slept\n"
