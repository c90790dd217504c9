// A server of Node's http that calls by @grpc/grpc-js: GET /MODE/ID calls /b/ID/kN/dT of the upstream.
'use strict';
const grpc = require('@grpc/grpc-js');
const http = require('http');

const client = new grpc.Client(`127.0.0.1:${process.env.UPSTREAM_PORT}`, grpc.credentials.createInsecure());
const same = (bytes) => bytes;

const nap = (most) => new Promise((done) => setTimeout(done, Math.random() * most));
const ask = (id, number) => new Promise((done, failed) => {
  const path = `/b/${id}/k${number}/d${500 + Math.floor(Math.random() * 6000)}`;
  client.makeUnaryRequest(path, same, same, Buffer.from('x'), (error, reply) => (error ? failed(error) : done(reply)));
});

const modes = {
  direct: (id) => ask(id, 0),
  row: async (id) => { await ask(id, 0); await ask(id, 1); },
  naps: async (id) => { await nap(4); await ask(id, 0); },
};

const server = http.createServer((request, response) => {
  const [, mode, id] = request.url.split('/');
  modes[mode](id).then(() => response.end('ok\n'));
});
server.listen(0, '127.0.0.1', 1024, () => console.log(`PORT ${server.address().port}`));
