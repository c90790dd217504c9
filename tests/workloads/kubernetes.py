"""Renders the Helm chart with Helm's own engine, and holds what comes out to Kubernetes' schemas.

usage: kubernetes.py HELM SCHEMAS CHART [--values JSON] [--plain FILE [--write]]

HELM is a server (JSON-RPC on its standard input) around Helm's libraries; SCHEMAS a directory with a directory of JSON schemas
for each version of Kubernetes. FILE has the same documents for those without Helm, and a namespace for them; --write makes it.
Prints the documents as a JSON array; exits with 1, and says where, when one is wrong.
"""

import argparse
import json
import os
import re
import subprocess
import sys

import yaml


class Helm:
    def __init__(self, program):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.number = 0
        self.ask(
            "initialize",
            {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
        )
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, method, params):
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == self.number:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']}")
                return message["result"]
        sys.exit("helm ended")

    def call(self, tool, arguments):
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        text = "".join(part.get("text", "") for part in result["content"])
        if result.get("isError"):
            sys.exit(f"{tool}: {text}")
        return text

    def end(self):
        self.process.stdin.close()
        self.process.wait(10)


class Schemas:
    """The part of JSON Schema that Kubernetes' schemas use; anything else in a schema is an error."""

    KNOWN = {"$ref", "$schema", "additionalProperties", "default", "description", "enum", "format", "items", "oneOf",
             "properties", "required", "type"}
    TYPES = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}

    def __init__(self, directory):
        self.directory = directory
        with open(os.path.join(directory, "_definitions.json"), encoding="utf-8") as file:
            self.definitions = json.load(file)["$defs"]

    def of(self, document):
        """The schema of the document's version and kind."""
        wanted = [document["apiVersion"], document["kind"]]
        for schema in self.definitions.values():
            properties = schema.get("properties", {})
            if [properties.get(key, {}).get("enum") for key in ("apiVersion", "kind")] == [[one] for one in wanted]:
                return schema
        sys.exit(f"{self.directory} does not know {wanted}")

    def check(self, value, schema, where):
        for key in schema:
            if key not in self.KNOWN and not key.startswith("x-kubernetes"):
                sys.exit(f"{where}: the schema has {key}")
        if "$ref" in schema:
            return self.check(value, self.definitions[schema["$ref"].rsplit("/", 1)[1]], where)
        if "oneOf" in schema:
            found = [list(self.check(value, one, where)) for one in schema["oneOf"]]
            return [] if [] in found else found[0]
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if kinds and not any(self.fits(value, kind) for kind in kinds):
            return [f"{where}: {value!r} is not {kinds}"]
        wrong = []
        if "enum" in schema and value not in schema["enum"]:
            wrong.append(f"{where}: {value!r} is none of {schema['enum']}")
        if isinstance(value, dict):
            properties, others = schema.get("properties", {}), schema.get("additionalProperties", False)
            wrong += [f"{where}: {key} is missing" for key in schema.get("required", []) if key not in value]
            for key, one in value.items():
                inner = properties.get(key, others)
                if inner is False and properties:
                    wrong.append(f"{where}: there is no {key}")
                elif isinstance(inner, dict):
                    wrong += self.check(one, inner, f"{where}.{key}")
        if isinstance(value, list):
            for index, one in enumerate(value):
                wrong += self.check(one, schema.get("items", {}), f"{where}[{index}]")
        return wrong

    def fits(self, value, kind):
        if kind == "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        if kind == "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        return isinstance(value, self.TYPES[kind])


NAMESPACE = """# Made of the chart beside it, with its default values: tests/workloads/kubernetes.py --plain FILE --write. A test compares them.
apiVersion: v1
kind: Namespace
metadata:
  name: tracer
  labels:
    # hostPID and hostPath.
    pod-security.kubernetes.io/enforce: privileged
"""


def main():
    parser = argparse.ArgumentParser()
    for name in ("helm", "schemas", "chart"):
        parser.add_argument(name)
    parser.add_argument("--values", type=json.loads, default={})
    parser.add_argument("--plain")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    helm = Helm(given.helm)
    print(helm.call("helm_lint", {"paths": [given.chart], "strict": True}), file=sys.stderr)
    text = helm.call(
        "helm_template",
        {"release_name": "tracer", "chart": given.chart, "namespace": "tracer", "values": given.values},
    )
    helm.end()
    text = NAMESPACE + text.replace("# Source: tracer/templates/", "# chart/templates/").rstrip() + "\n"
    documents = [one for one in yaml.safe_load_all(text) if one]
    # The oldest one that knows all fields of the chart is 1.30.
    versions = re.findall(r"v1\.\d+\.\d+-local-strict", " ".join(sorted(os.listdir(given.schemas))))
    versions = [version for version in versions if int(version.split(".")[1]) >= 30]
    wrong = []
    for version in versions:
        known = Schemas(os.path.join(given.schemas, version))
        for document in documents:
            where = f"{version}: {document['kind']} {document['metadata']['name']}"
            wrong += known.check(document, known.of(document), where)
    if given.write:
        with open(given.plain, "w", encoding="utf-8") as file:
            file.write(text)
    elif given.plain:
        with open(given.plain, encoding="utf-8") as file:
            if [one for one in yaml.safe_load_all(file) if one] != documents:
                wrong.append(f"{given.plain} has other documents than the chart: write it again")
    if wrong or not versions:
        sys.exit("\n".join(wrong) or "no schemas")
    print(f"{len(documents)} documents fit {len(versions)} versions of Kubernetes", file=sys.stderr)
    print(json.dumps(documents))


main()
