// Server-Sent Events: `events.js` prints PORT and, for each reply that is over, a line of JSON: what it sent and for how
// long. /ends/N/ID ends after N events; others last until the client goes.
'use strict';
const http = require('http');

const server = http.createServer((request, reply) => {
  const begin = process.hrtime.bigint();
  let last = begin, events = 0, bytes = 0;
  const [kind, count] = request.url.slice(1).split('/');
  reply.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
  const event = () => {
    const text = `id: ${events}\ndata: planted-event ${'x'.repeat(events * 37 % 900)}\n\n`;
    reply.write(text);
    // With what frames a chunk.
    bytes += text.length + text.length.toString(16).length + 4;
    events += 1;
    last = process.hrtime.bigint();
    if (kind === 'ends' && events === Number(count)) reply.end();
  };
  const timer = setInterval(event, 10);
  event();
  reply.on('close', () => {
    clearInterval(timer);
    const seconds = (at) => Number(at - begin) / 1e9;
    process.stdout.write(JSON.stringify({
      path: request.url, events, bytes: bytes + 5, ended: reply.writableFinished,
      seconds: seconds(last), closed: seconds(process.hrtime.bigint()),
    }) + '\n');
  });
});
server.keepAliveTimeout = 60000;
server.listen(0, '127.0.0.1', () => process.stdout.write(`PORT ${server.address().port}\n`));
