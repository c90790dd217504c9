"""Runs the statements of standard input with DuckDB; the rows of the last one go to standard output, as JSON."""

import json
import sys

import duckdb

rows = duckdb.sql(sys.stdin.read()).fetchall()
json.dump(rows, sys.stdout, default=str)
