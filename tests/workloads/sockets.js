// WebSocket sessions as Node's ws has them, messages compressed: `sockets.js serve` and `sockets.js call PORT` do and say
// what sockets.py does.
'use strict';
const WebSocket = require('ws');

const compress = { threshold: 0 };

function serve() {
  const server = new WebSocket.Server({ host: '127.0.0.1', port: 0, perMessageDeflate: compress });
  server.on('listening', () => process.stdout.write(`PORT ${server.address().port}\n`));
  server.on('connection', (socket, request) => {
    const begin = process.hrtime.bigint();
    let last = begin, count = 0;
    const seconds = (at) => Number(at - begin) / 1e9;
    const [kind, code] = request.url.slice(1).split('/');
    socket.on('error', () => {});
    socket.on('message', (message, binary) => {
      count += 1;
      socket.send(message, { binary });
      last = process.hrtime.bigint();
      if (kind === 'told') socket.close(Number(code), 'planted-reason');
    });
    socket.on('close', () => process.stdout.write(JSON.stringify({
      path: request.url, code: kind === 'broken' ? 0 : Number(code), messages: count,
      spoke: seconds(last), seconds: seconds(process.hrtime.bigint()),
    }) + '\n'));
  });
}

function one(port, path, size) {
  return new Promise((done) => {
    const [kind, code] = path.slice(1).split('/');
    const socket = new WebSocket(`ws://127.0.0.1:${port}${path}`, { perMessageDeflate: compress });
    const lengths = [5, 200, size];
    const next = () => socket.send('planted-message'.repeat(size / 15 + 1).slice(0, lengths.shift()));
    socket.on('error', () => {});
    socket.on('open', next);
    socket.on('message', () => {
      if (kind === 'told') return;
      if (lengths.length) setTimeout(next, 2);
      else if (kind === 'close') socket.close(Number(code), 'planted-reason');
      else socket.terminate();
    });
    socket.on('close', done);
  });
}

async function call(port) {
  const paths = [];
  for (let n = 0; n < 12; n++)
    for (const kind of ['close', 'told'])
      for (const code of [1000, 1001, 1011, 4001]) paths.push(`/${kind}/${code}/${n}`);
  for (let n = 0; n < 6; n++) paths.push(`/broken/${n}`);
  for (let at = 0; at < paths.length; at += 6)
    await Promise.all(paths.slice(at, at + 6).map((path) => one(port, path, 100 + 1000 * (at % 40))));
  process.stdout.write(`DONE ${paths.length}\n`, () => process.exit(0));
}

if (process.argv[2] === 'serve') serve();
else call(process.argv[3]);
