// A server on Node's event loop with a pool of connections: GET /MODE/ID calls /b/ID/kN/dT of the upstream.
"use strict";

const { AsyncLocalStorage } = require("node:async_hooks");
const fs = require("node:fs");
const http = require("node:http");
const { Worker } = require("node:worker_threads");

const port = process.env.UPSTREAM_PORT;
const agent = new http.Agent({ keepAlive: true, maxSockets: 512, maxFreeSockets: 512 });
const few = new http.Agent({ keepAlive: true, maxSockets: 8 });
const random = (below) => Math.floor(Math.random() * below);
const nap = (most) => new Promise((done) => setTimeout(done, random(most)));
const path = (ident, number) => `/b/${ident}/k${number}/d${500 + random(6000)}`;

// `done` is called when the reply is whole.
function get(pool, ident, number, done, failed) {
  const call = http.get({ host: "127.0.0.1", port, path: path(ident, number), agent: pool }, (reply) => {
    reply.resume();
    reply.on("end", done);
  });
  call.on("error", failed);
}

const ask = (ident, number, pool = agent) => new Promise((done, failed) => get(pool, ident, number, done, failed));
const twice = async (ident) => {
  await nap(4);
  await ask(ident, 0);
  await nap(4);
  await ask(ident, 1);
};

const local = new AsyncLocalStorage();

// A thread with a loop of its own, which says when it has slept.
let worker = null;
const waiting = new Map();
function elsewhere(ident) {
  if (!worker) {
    const body = `const { parentPort } = require("node:worker_threads");
      parentPort.on("message", (ident) => setTimeout(() => parentPort.postMessage(ident), Math.random() * 3));`;
    worker = new Worker(body, { eval: true });
    worker.on("message", (ident) => {
      waiting.get(ident)();
      waiting.delete(ident);
    });
  }
  return new Promise((done) => {
    waiting.set(ident, done);
    worker.postMessage(ident);
  });
}

const modes = {
  direct: (ident) => ask(ident, 0),
  row: async (ident) => {
    await ask(ident, 0);
    await ask(ident, 1);
  },
  naps: async (ident) => {
    await nap(8);
    await ask(ident, 0);
  },
  twice,
  all: (ident) => Promise.all([ask(ident, 0), nap(3).then(() => ask(ident, 1))]),
  fetch: async (ident) => {
    const reply = await fetch(`http://127.0.0.1:${port}${path(ident, 0)}`);
    await reply.arrayBuffer();
  },
  timers: (ident) =>
    new Promise((done, failed) => {
      setTimeout(() => get(agent, ident, 0, done, failed), random(8));
    }),
  local: (ident) => local.run({ ident }, () => twice(ident)),
  few: (ident) => ask(ident, 0, few),
  "few-twice": async (ident) => {
    await nap(4);
    await ask(ident, 0, few);
    await nap(4);
    await ask(ident, 1, few);
  },
  files: async (ident) => {
    await new Promise((done) => fs.stat("/proc/self/status", done));
    await ask(ident, 0);
    await fs.promises.stat("/proc/self/status");
    await ask(ident, 1);
  },
  worker: async (ident) => {
    await elsewhere(ident);
    await ask(ident, 0);
  },
};

const server = http.createServer(async (request, reply) => {
  const [, mode, ident] = request.url.split("/");
  await modes[mode](ident);
  reply.writeHead(200, { "Content-Length": 3 });
  reply.end("ok\n");
});
server.keepAliveTimeout = 60000;
server.listen({ host: "127.0.0.1", port: 0, backlog: 1024 }, () => console.log("PORT", server.address().port));
