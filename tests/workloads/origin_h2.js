// HTTP/2 in the clear: answers `GET /…/dT` after T microseconds. Prints PORT.
'use strict';
const http2 = require('http2');

const listener = http2.createServer();
listener.on('stream', (stream, headers) => {
  stream.on('error', () => {});
  const delay = Number(/\/d(\d+)$/.exec(headers[':path'])?.[1] ?? 0);
  setTimeout(() => {
    if (stream.destroyed) return;
    stream.respond({ ':status': 200 });
    stream.end('x'.repeat(100));
  }, delay / 1000);
});
listener.listen(0, '127.0.0.1', 1024, () => process.stdout.write(`PORT ${listener.address().port}\n`));
