"""A worker of a queue in Redis: takes jobs by BRPOP and calls GET /b/JOB/k0/d1 of the upstream for each. Like Sidekiq it works for one
job on the thread that took it, like RQ in a child process for the next."""

import http.client
import os
import socket

UPSTREAM = int(os.environ["UPSTREAM_PORT"])
REDIS = socket.create_connection(("127.0.0.1", int(os.environ["REDIS_PORT"])))
REPLIES = REDIS.makefile("rb")


def take():
    """The next job, or None after a second without one."""
    REDIS.sendall(b"*3\r\n$5\r\nBRPOP\r\n$4\r\njobs\r\n$1\r\n1\r\n")
    if REPLIES.readline() == b"*-1\r\n":
        return None
    for _ in range(3):
        REPLIES.readline()
    return REPLIES.readline().decode().strip()


def work(job):
    connection = http.client.HTTPConnection("127.0.0.1", UPSTREAM)
    connection.request("GET", f"/b/{job}/k0/d1")
    connection.getresponse().read()


def main():
    # Nothing is served here: the port only says that it runs.
    print("PORT", REDIS.getsockname()[1], flush=True)
    forks = False
    while True:
        job = take()
        if job is None:
            continue
        child = os.fork() if forks else None
        if child is None:
            work(job)
        elif child == 0:
            work(job)
            os._exit(0)
        else:
            os.waitpid(child, 0)
        forks = not forks


if __name__ == "__main__":
    main()
