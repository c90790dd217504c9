#!/usr/bin/env bash
# A Linux process of npm's `bun` has two program names: `bun` in /proc/PID/comm, `bun.exe` behind /proc/PID/exe.
#
# Version: bun 1.4.5 from npm, Linux x86-64.
# Expected: a program file called `bun`, as every other distribution of it has.
# Seen: the package's `bin` entries name `bin/bun.exe` on every platform, and its install step puts the platform's ELF file
# there. The kernel names a process after the path that was executed, here the link `.bin/bun`; the file behind
# `/proc/PID/exe` keeps its own name. Tools that name processes by one of the two disagree with those that use the other.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund bun@1.4.5
seen=$(node_modules/.bin/bun --eval '
  const fs = require("fs");
  const comm = fs.readFileSync("/proc/self/comm", "utf8").trim();
  const program = fs.readlinkSync("/proc/self/exe").split("/").pop();
  const magic = fs.readFileSync("/proc/self/exe").subarray(1, 4).toString();
  console.log(Bun.version, comm, program, magic);
')
echo "$seen"
[ "$seen" = "1.4.5 bun bun.exe ELF" ] || {
    echo "it is different now: version, name, program and format were 1.4.5 bun bun.exe ELF" >&2
    exit 1
}
