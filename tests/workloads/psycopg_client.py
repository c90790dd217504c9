"""Asks PostgreSQL over TLS by psycopg2, which brings its own OpenSSL.

Arguments: the directory of psycopg2, a file, sessions, rounds in each. Opens short sessions until the file is there, and
then those. The server is in the environment, as for psql.
"""

import os
import sys
import time

library, go_on, sessions, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sys.path.insert(0, library)

import psycopg2  # noqa: E402


def connect():
    connection = psycopg2.connect(sslmode="require")
    connection.autocommit = True
    return connection, connection.cursor()


def warm():
    connection, cursor = connect()
    cursor.execute("SELECT 1")
    cursor.fetchall()
    connection.close()


def session(number):
    connection, cursor = connect()
    cursor.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    assert cursor.fetchone()[0], "the session is not encrypted"
    for n in range(rounds):
        cursor.execute(f"SELECT owner FROM accounts WHERE id = {n}")
        cursor.execute(f"UPDATE accounts SET owner = 'x' WHERE id = {n}")
        cursor.execute("SELECT id, repeat(owner, 40) FROM accounts")
        assert len(cursor.fetchall()) == 900
        try:
            cursor.execute(f"SELECT * FROM nosuch WHERE owner = 'planted-{number}'")
        except psycopg2.Error as error:
            assert error.pgcode == "42P01", error
    connection.close()


while not os.path.exists(go_on):
    warm()
    time.sleep(0.1)
for number in range(sessions):
    session(number)
