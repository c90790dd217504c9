"""Tests of the job that need no Spark: python3 -m unittest discover tracer-fleet"""

import json
import os
import stat
import tempfile
import unittest

import verdicts


def program(directory, text):
    path = os.path.join(directory, "tracer")
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n" + text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return path


class Verdicts(unittest.TestCase):
    def test_commands(self):
        self.assertEqual(
            verdicts.command("t", "s3://b/p", ["web 1"], since="1h", config="/c"),
            ["t", "verdicts", "--history", "s3://b/p", "--json", "--host", "web 1", "--since", "1h", "--config", "/c"],
        )
        self.assertEqual(
            verdicts.command("t", "/h", [], list_hosts=True), ["t", "verdicts", "--history", "/h", "--list-hosts"]
        )

    def test_rows_have_every_column_and_nothing_else(self):
        finding = {"host": "a", "id": 1, "kind": "anomaly", "change_ratio": 2, "until_ns": None, "later": [1]}
        values = dict(zip(verdicts.COLUMNS, verdicts.row(json.dumps(finding))))
        self.assertEqual(values["host"], "a")
        self.assertIsInstance(values["change_ratio"], float)
        self.assertIsNone(values["until_ns"])
        self.assertNotIn("later", values)

    def test_each_host_is_asked_for_and_a_failure_is_one(self):
        with tempfile.TemporaryDirectory() as directory:
            path = program(directory, 'echo "{\\"host\\": \\"$6\\", \\"id\\": 3}"\n')
            found = list(verdicts.judge(["a", "b"], path, "/h"))
            self.assertEqual([values[0] for values in found], ["a", "b"])
            path = program(directory, 'echo "{}"; echo "no such bucket" >&2; exit 1\n')
            with self.assertRaisesRegex(verdicts.VerdictsFailed, "no such bucket"):
                list(verdicts.judge(["a"], path, "/h"))


if __name__ == "__main__":
    unittest.main()
