// A server of Node's http that calls by gRPC, as @grpc/grpc-js does: by one session of Node's http2 that all requests share.
// GET /MODE/ID calls /b/ID.kN.dT of the upstream.
'use strict';
const http = require('http');
const http2 = require('http2');

const session = http2.connect(`http://127.0.0.1:${process.env.UPSTREAM_PORT}`);
const MESSAGE = Buffer.from([0, 0, 0, 0, 1, 0x78]);

const nap = (most) => new Promise((done) => setTimeout(done, Math.random() * most));
const ask = (id, number) => new Promise((done, failed) => {
  const path = `/b/${id}.k${number}.d${500 + Math.floor(Math.random() * 6000)}`;
  const call = session.request({ ':path': path, ':method': 'POST', te: 'trailers', 'content-type': 'application/grpc' });
  call.on('trailers', (trailers) => (trailers['grpc-status'] === '0' ? done() : failed(new Error(path))));
  call.on('error', failed);
  call.resume();
  call.end(MESSAGE);
});

const modes = {
  row: async (id) => { await ask(id, 0); await ask(id, 1); },
  naps: async (id) => { await nap(4); await ask(id, 0); },
};

const server = http.createServer((request, response) => {
  const [, mode, id] = request.url.split('/');
  modes[mode](id).then(() => response.end('ok\n'));
});
server.listen(0, '127.0.0.1', 1024, () => console.log(`PORT ${server.address().port}`));
