"""Runs the statement of standard input with ClickHouse (chdb); its rows go to standard output, as JSON."""

import json
import sys

import chdb

answer = chdb.query(sys.stdin.read(), "JSONCompact")
json.dump(json.loads(str(answer))["data"], sys.stdout)
