"""The names of OpenTelemetry's semantic conventions that are not deprecated, of the families that tracer uses, for
`tracer-user/src/otlp/conventions.txt`:

    npm pack @opentelemetry/semantic-conventions@1.40.0 && tar xzf opentelemetry-semantic-conventions-1.40.0.tgz
    python3 tests/workloads/conventions.py package > tracer-user/src/otlp/conventions.txt
"""

import json
import pathlib
import re
import sys

FAMILIES = """client code container db dns enduser error host http k8s messaging network os process profile rpc server service
telemetry thread tls url""".split()
NAME = re.compile(r'(/\*\*(?:(?!\*/).)*\*/\s*)?export declare const (?:ATTR|METRIC)_\w+(?:: | = )"([^"]+)"', re.S)

package = pathlib.Path(sys.argv[1])
version = json.loads((package / "package.json").read_text())["version"]
names = set()
for kind in ("stable", "experimental"):
    for what in ("attributes", "metrics"):
        text = (package / "build/src" / f"{kind}_{what}.d.ts").read_text()
        names.update(name for comment, name in NAME.findall(text) if "@deprecated" not in comment)
print(f"https://opentelemetry.io/schemas/{version}")
for name in sorted(names):
    if name.split(".")[0] in FAMILIES:
        print(name)
