// A server on Node's event loop with a pool of connections: GET /MODE/ID calls /b/ID/kN/dT of the upstream.
"use strict";

const http = require("node:http");

const agent = new http.Agent({ keepAlive: true, maxSockets: 512, maxFreeSockets: 512 });
const random = (below) => Math.floor(Math.random() * below);
const nap = (most) => new Promise((done) => setTimeout(done, random(most)));

function ask(ident, number) {
  return new Promise((done, failed) => {
    const path = `/b/${ident}/k${number}/d${500 + random(6000)}`;
    const call = http.get({ host: "127.0.0.1", port: process.env.UPSTREAM_PORT, path, agent }, (reply) => {
      reply.resume();
      reply.on("end", done);
    });
    call.on("error", failed);
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
  all: (ident) => Promise.all([ask(ident, 0), nap(3).then(() => ask(ident, 1))]),
};

const server = http.createServer(async (request, reply) => {
  const [, mode, ident] = request.url.split("/");
  await modes[mode](ident);
  reply.writeHead(200, { "Content-Length": 3 });
  reply.end("ok\n");
});
server.keepAliveTimeout = 60000;
server.listen({ host: "127.0.0.1", port: 0, backlog: 1024 }, () => console.log("PORT", server.address().port));
