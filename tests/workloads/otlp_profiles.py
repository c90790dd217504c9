"""Receives OpenTelemetry profiles by OTLP/HTTP, reads them by OpenTelemetry's own generated messages, and writes each request as a
line of JSON: its samples with everything they refer to, and what is wrong with it. The first requests are answered with 503, as
many as the argument says: the same must come again."""
import gzip
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
from opentelemetry.proto.profiles.v1development import profiles_pb2 as profiles

busy = int(sys.argv[1])


def value(any_value):
    kind = any_value.WhichOneof("value")
    return getattr(any_value, kind) if kind else None


def read(request):
    tables, wrong = request.dictionary, []
    for field in tables.DESCRIPTOR.fields:
        table = getattr(tables, field.name)
        first = table[0] if len(table) else None
        if field.name == "link_table":
            empty = profiles.Link(trace_id=bytes(16), span_id=bytes(8))
        elif field.name == "string_table":
            empty = ""
        else:
            empty = type(first)() if first is not None else None
        if first != empty or first is None:
            wrong.append(f"{field.name} begins with {first!r}")
        entries = list(table) if field.name == "string_table" else [one.SerializeToString(deterministic=True) for one in table]
        if len(set(entries)) != len(entries):
            wrong.append(f"{field.name} has something twice")

    def text(index):
        return tables.string_table[index]

    def attributes(indices):
        all_of_them = [tables.attribute_table[index] for index in indices]
        found = {text(one.key_strindex): value(one.value) for one in all_of_them}
        if len(found) != len(all_of_them):
            wrong.append(f"attributes with one key: {all_of_them}")
        return found

    def frame(index):
        location = tables.location_table[index]
        if index == 0 or len(location.lines) != 1:
            wrong.append(f"location {index}: {location}")
        line = location.lines[0]
        function = tables.function_table[line.function_index]
        return {
            "function": text(function.name_strindex),
            "file": text(function.filename_strindex),
            "line": function.start_line or line.line,
            "mapping": text(tables.mapping_table[location.mapping_index].filename_strindex),
            "type": attributes(location.attribute_indices).get("profile.frame.type", ""),
        }

    resources = []
    for of in request.resource_profiles:
        found = {pair.key: value(pair.value) for pair in of.resource.attributes}
        for profile in [profile for scope in of.scope_profiles for profile in scope.profiles]:
            seen, samples = set(), []
            for sample in profile.samples:
                identity = (sample.stack_index, frozenset(sample.attribute_indices), sample.link_index)
                if identity in seen or len(sample.values) != 1 or sample.timestamps_unix_nano:
                    wrong.append(f"sample {sample}")
                seen.add(identity)
                stack = tables.stack_table[sample.stack_index]
                samples.append({
                    "attributes": attributes(sample.attribute_indices),
                    "frames": [frame(index) for index in reversed(stack.location_indices)],
                    "value": sample.values[0],
                })
            resources.append({
                "resource": found,
                "id": profile.profile_id.hex(),
                "type": [text(profile.sample_type.type_strindex), text(profile.sample_type.unit_strindex)],
                "period": profile.period,
                "start": profile.time_unix_nano,
                "duration": profile.duration_nano,
                "samples": samples,
            })
    return {"profiles": resources, "wrong": wrong}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global busy
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer, code = service.ExportProfilesServiceResponse().SerializeToString(), 200
        if busy > 0:
            busy, answer, code = busy - 1, b"", 503
        else:
            size = len(body)
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            found = read(service.ExportProfilesServiceRequest.FromString(body))
            found["path"], found["bytes"], found["sent_bytes"] = self.path, len(body), size
            found["gzip"] = self.headers.get("Content-Encoding") == "gzip"
            sys.stdout.write("REQUEST " + json.dumps(found) + "\n")
            sys.stdout.flush()
        self.send_response(code)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("PORT", server.server_port, flush=True)
server.serve_forever()
