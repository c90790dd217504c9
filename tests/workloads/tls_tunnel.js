// Requests by TLS through tunnels: `proxy` answers CONNECT and prints its port; `ask PROXY PORT N PATH` makes N requests, each
// in a tunnel of its own, and ends.
"use strict";

const http = require("node:http");
const https = require("node:https");
const net = require("node:net");

function proxy() {
  const server = http.createServer();
  server.on("connect", (request, near) => {
    const [host, port] = request.url.split(":");
    const far = net.connect(port, host, () => {
      near.write("HTTP/1.1 200 Connection established\r\n\r\n");
      near.pipe(far).pipe(near);
    });
    for (const socket of [near, far]) {
      socket.on("error", () => [near, far].forEach((end) => end.destroy()));
    }
  });
  server.listen(0, "127.0.0.1", () => console.log("PORT", server.address().port));
}

const tunnel = (near, port) =>
  new Promise((done, failed) => {
    const ask = http.request({ host: "127.0.0.1", port: near, method: "CONNECT", path: `127.0.0.1:${port}` });
    ask.on("connect", (reply, socket) => done(socket));
    ask.on("error", failed);
    ask.end();
  });

const get = (socket, port, path) =>
  new Promise((done, failed) => {
    const options = { host: "127.0.0.1", port, path, socket, agent: false, rejectUnauthorized: false };
    const ask = https.get(options, (reply) => {
      reply.resume();
      reply.on("end", done);
    });
    ask.on("error", failed);
  });

async function ask(near, port, count, path) {
  for (let n = 0; n < count; n += 1) {
    const socket = await tunnel(near, port);
    await get(socket, port, path);
    socket.destroy();
  }
}

const [mode, near, port, count, path] = process.argv.slice(2);
if (mode === "proxy") {
  proxy();
} else {
  ask(Number(near), Number(port), Number(count), path);
}
