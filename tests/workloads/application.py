"""An application behind a web server (WSGI): what it answers depends on the last word of the path."""

import time

ANSWER = b"planted-answer"


def application(environ, start_response):
    name = environ["PATH_INFO"].rsplit("/", 1)[-1]
    plain = [("Content-Type", "text/plain")]
    if name == "ok":
        start_response("200 OK", [*plain, ("Content-Length", str(len(ANSWER)))])
        return [ANSWER]
    if name == "post":
        body = environ["wsgi.input"].read()
        start_response("201 Created", plain)
        return [str(len(body)).encode()]
    if name == "big":
        start_response("200 OK", plain)
        return [ANSWER * 700] * 40
    if name == "slow":
        time.sleep(0.02)
        start_response("200 OK", plain)
        return [ANSWER]
    if name == "parts":
        start_response("200 OK", plain)
        return parts()
    if name == "moved":
        start_response("302 Found", [*plain, ("Location", "/elsewhere?planted-query")])
        return [b""]
    if name == "fail":
        start_response("500 Internal Server Error", plain)
        return [ANSWER]
    if name == "silent":
        raise ValueError("planted-note")
    start_response("404 Not Found", plain)
    return [b"nothing here"]


def parts():
    for _ in range(3):
        yield ANSWER
        time.sleep(0.003)
