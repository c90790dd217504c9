"""The demo's second service, called by the shop."""

import time

from flask import Flask

app = Flask(__name__)


@app.get("/price/<int:item>")
def price(item):
    """Waits 10 ms as if for a disk, then computes little."""
    time.sleep(0.01)
    return f"{item % 97 + 0.99}\n"
