// HTTP/1.1 and HTTP/2 over TLS by Node.js, whose TLS objects read and write memory instead of sockets.
//
// tls_node.js serve CERTIFICATE KEY LOG [UPSTREAM]: serves until it is ended, and appends "PATH STATUS" before each reply. Says
// its port. /e/... is answered 500, /big/... with 300 kB, /now at once and without a line. Of these, it first calls /b/KIND/ID/kN of the port UPSTREAM:
//   /direct/ID at once, /row/ID twice in turn, /nap/ID after a timer, /fetch/ID by fetch.
// tls_node.js ask PORT LABEL VERSION CONNECTIONS REQUESTS [KINDS] [h2]: CONNECTIONS at once, each asks REQUESTS times for
// paths with LABEL, of the KINDS (node,e,big) in turn; by h2 four at a time.
//
// Replies take different times, so that connections alternate in every order.
'use strict';
const fs = require('node:fs');
const http2 = require('node:http2');
const https = require('node:https');

process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0';
process.removeAllListeners('warning');

const [mode, ...rest] = process.argv.slice(2);
const nap = (most) => new Promise((done) => setTimeout(done, Math.random() * most));

// Resolves to the status once the reply is whole.
function get(port, path, agent) {
  return new Promise((done, failed) => {
    const call = https.get({ host: '127.0.0.1', port, path, agent }, (reply) => {
      reply.resume();
      reply.on('end', () => done(reply.statusCode));
    });
    call.on('error', failed);
  });
}

function pool(version, size) {
  return new https.Agent({ keepAlive: true, maxSockets: size, maxVersion: `TLSv${version}` });
}

function serve(certificate, key, log, upstream) {
  const lines = fs.openSync(log, 'a');
  const pools = [pool('1.2', 64), pool('1.3', 64)];
  let calls = 0;
  const call = (path, number) => get(upstream, `/b${path}/k${number}`, pools[calls++ % 2]);
  const kinds = {
    direct: (path) => call(path, 0),
    row: async (path) => {
      await call(path, 0);
      await call(path, 1);
    },
    nap: async (path) => {
      await nap(4);
      await call(path, 0);
    },
    fetch: async (path) => {
      const reply = await fetch(`https://127.0.0.1:${upstream}/b${path}/k0`);
      await reply.arrayBuffer();
    },
  };
  const page = Buffer.alloc(612, 'x');
  const options = { cert: fs.readFileSync(certificate), key: fs.readFileSync(key), allowHTTP1: true };
  const server = http2.createSecureServer(options, async (request, reply) => {
    const path = request.url.split('?')[0];
    const kind = path.split('/')[1];
    if (kind === 'now') {
      reply.end(page);
      return;
    }
    if (upstream && kinds[kind]) {
      await kinds[kind](path);
    } else if (Math.random() < 0.5) {
      await nap(5);
    }
    const status = kind === 'e' ? 500 : 200;
    fs.writeSync(lines, `${path} ${status}\n`);
    reply.statusCode = status;
    reply.end(Buffer.alloc(kind === 'big' ? 300_000 : 3000, 'x'));
  });
  server.listen(0, '127.0.0.1', () => console.log('PORT', server.address().port));
}

async function ask(port, label, version, connections, requests, kinds = 'node,node,big,node,e', protocol = 'h1') {
  const words = kinds.split(',');
  const path = (connection, request) => `/${words[request % words.length]}/${label}-${connection}-${request}`;
  const one = async (connection) => {
    const agent = pool(version, 1);
    for (let request = 0; request < Number(requests); request++) {
      await get(port, path(connection, request), agent);
    }
    agent.destroy();
  };
  const streams = async (connection) => {
    const session = http2.connect(`https://127.0.0.1:${port}`, { maxVersion: `TLSv${version}` });
    const stream = (request) => new Promise((done, failed) => {
      const sent = session.request({ ':path': path(connection, request) });
      sent.on('error', failed);
      sent.on('end', done);
      sent.resume();
    });
    for (let first = 0; first < Number(requests); first += 4) {
      const count = Math.min(4, Number(requests) - first);
      await Promise.all(Array.from({ length: count }, (_, n) => stream(first + n)));
    }
    session.close();
  };
  await Promise.all(Array.from({ length: Number(connections) }, (_, n) => (protocol === 'h2' ? streams : one)(n)));
}

({ serve, ask })[mode](...rest);
