#!/usr/bin/env python3
"""Findings of a whole fleet, computed by Spark from the history in a directory or a bucket.

    spark-submit verdicts.py --history s3://bucket/prefix --output s3a://bucket/findings

Spark only divides the work: one task judges one host, by `tracer verdicts`, the agent's own analysis. There is one
implementation of it, so a host's findings here are those of its agent. Workers need the `tracer` binary (no root) and the
credentials of the history in their environment; the driver needs both, too, to list the hosts.
"""

import argparse
import json
import subprocess
import sys

# Names and types of the columns: the fields of the API, and `host`.
SCHEMA = (
    "host string, id long, kind string, service_name string, request_classes array<string>, resource string, "
    "cause string, since_ns long, until_ns long, found_ns long, change_ratio double, confidence double, summary string"
)
COLUMNS = [column.split()[0] for column in SCHEMA.split(", ")]
# A host's history of a year is read in less.
LIMIT_S = 3600


class VerdictsFailed(Exception):
    """`tracer verdicts` ended with an error; its message is the agent's."""


def command(tracer, history, hosts, since=None, config=None, list_hosts=False):
    """Arguments of the call that judges `hosts`, or that lists all of them."""
    arguments = [tracer, "verdicts", "--history", history]
    arguments += ["--list-hosts"] if list_hosts else ["--json"]
    for host in hosts:
        arguments += ["--host", host]
    if since:
        arguments += ["--since", since]
    if config:
        arguments += ["--config", config]
    return arguments


def call(arguments):
    """Lines that the command prints. Fails when it does: a host that was not judged is no host without findings."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise VerdictsFailed(f"{arguments[0]} verdicts ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return [line for line in done.stdout.splitlines() if line]


def row(line):
    """A finding as a row: what the schema does not name is left out, what is missing is null."""
    finding = json.loads(line)
    values = [finding.get(name) for name in COLUMNS]
    # JSON has one kind of number.
    return tuple(float(v) if name in ("change_ratio", "confidence") and v is not None else v
                 for name, v in zip(COLUMNS, values))


def judge(hosts, tracer, history, since=None, config=None):
    """Rows of the findings of hosts, one call for each."""
    for host in hosts:
        for line in call(command(tracer, history, [host], since, config)):
            yield row(line)


def findings(spark, tracer, history, since=None, config=None):
    """A DataFrame of the findings of all hosts."""
    hosts = call(command(tracer, history, [], since, list_hosts=True))
    # A task for each host: they differ in size.
    tasks = spark.sparkContext.parallelize(hosts, max(len(hosts), 1))
    rows = tasks.mapPartitions(lambda part: judge(part, tracer, history, since, config))
    return spark.createDataFrame(rows, SCHEMA)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--history", required=True, help="as `tracer run --history` takes it")
    parser.add_argument("--output", help="directory or URL for Parquet files; without it the findings are printed")
    parser.add_argument("--tracer", default="tracer", help="the binary on every worker")
    parser.add_argument("--since", help="only windows of so long before now, such as 168h")
    parser.add_argument("--config", help="the agents' configuration file, on every worker")
    given = parser.parse_args(arguments)

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("tracer verdicts").getOrCreate()
    try:
        found = findings(spark, given.tracer, given.history, given.since, given.config)
        if given.output:
            found.write.mode("overwrite").partitionBy("kind").parquet(given.output)
        else:
            for one in found.orderBy("host", "since_ns", "id").toLocalIterator():
                print(json.dumps(one.asDict()))
    finally:
        spark.stop()


if __name__ == "__main__":
    # Workers unpickle functions of this file: by name, so that they need not have it.
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    main(sys.argv[1:])
