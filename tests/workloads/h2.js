// HTTP/2 in both roles, as Node has it. `h2.js server`: prints PORT, and a line for each request it answered or saw
// broken off. `h2.js client PORT KIND N`: makes N requests of a kind on one connection.
'use strict';
const http2 = require('http2');

function server() {
  const done = (stream, method, path, status, bytes, ok) =>
    process.stdout.write(`SERVED ${method} ${path} ${status} ${bytes} ${ok ? 'complete' : 'aborted'}\n`);
  const listener = http2.createServer();
  listener.on('stream', (stream, headers) => {
    const method = headers[':method'];
    const path = headers[':path'];
    let sent = 0, status = 200, ended = false;
    stream.on('error', () => {});
    stream.on('close', () => done(stream, method, path, status, sent, ended && stream.rstCode === 0));
    const write = (text) => { sent += Buffer.byteLength(text); stream.write(text); };
    const end = (text = '') => { sent += Buffer.byteLength(text); ended = true; stream.end(text); };
    const kind = path.split('/')[1];
    if (kind === 'echo') {
      // The reply begins before the request has ended.
      stream.respond({ ':status': 201 });
      status = 201;
      stream.on('data', (piece) => write(piece.toString()));
      stream.on('end', () => end());
    } else if (kind === 'trailers') {
      stream.respond({ ':status': 200 }, { waitForTrailers: true });
      stream.on('wantTrailers', () => stream.sendTrailers({ 'x-sum': '1' }));
      end('with trailers');
    } else if (kind === 'push') {
      if (stream.pushAllowed) {
        stream.pushStream({ ':path': '/pushed/' + path }, (error, pushed) => {
          if (!error) { pushed.on('error', () => {}); pushed.respond({ ':status': 203 }); pushed.end('pushed'); }
          stream.respond({ ':status': 200 });
          end('pushing');
        });
      } else { stream.respond({ ':status': 200 }); end('pushing'); }
    } else if (kind === 'early') {
      stream.additionalHeaders({ ':status': 103, link: '</a.css>' });
      stream.respond({ ':status': 202 });
      status = 202;
      end('after a hint');
    } else if (kind === 'slow') {
      setTimeout(() => { if (!stream.destroyed) { stream.respond({ ':status': 200 }); end('late'); } }, 20);
    } else if (kind === 'never') {
      status = 0;
    } else if (kind === 'broken') {
      stream.respond({ ':status': 200 });
      write('a piece');
      // Its end is not sent, as `close` would.
      setTimeout(() => stream.destroy(new Error('broken')), 5);
    } else {
      stream.respond({ ':status': 404 });
      status = 404;
      end('none');
    }
  });
  listener.listen(0, '127.0.0.1', () => process.stdout.write(`PORT ${listener.address().port}\n`));
}

function client(port, kinds, count) {
  const session = http2.connect(`http://127.0.0.1:${port}`, { settings: { enablePush: true } });
  session.on('stream', (pushed) => pushed.resume());
  session.on('error', (error) => { console.error(error); process.exit(1); });
  const todo = [];
  for (let n = 0; n < count; n += 1) kinds.forEach((kind) => todo.push([kind, n]));
  let running = 0;
  // A few at once: Node sends what has piled up from hundreds of pieces in one call.
  const next = () => {
    if (todo.length === 0) { if (running === 0) session.close(); return; }
    const [kind, n] = todo.shift();
    const post = kind === 'echo';
    running += 1;
    const request = session.request({ ':path': `/${kind}/${n}`, ':method': post ? 'POST' : 'GET' }, { endStream: !post });
    request.on('error', () => {});
    request.on('close', () => { running -= 1; next(); });
    request.resume();
    if (post) {
      request.write('x'.repeat(300 + n % 7));
      setTimeout(() => request.end('y'.repeat(n % 50)), n % 5);
    }
    if (kind === 'never') setTimeout(() => request.close(http2.constants.NGHTTP2_CANCEL), 10);
  };
  for (let slot = 0; slot < 5; slot += 1) next();
}

// What a connection that is older than the agent asks for: one request for each line of its input.
function drip(port) {
  const session = http2.connect(`http://127.0.0.1:${port}`);
  require('readline').createInterface({ input: process.stdin }).on('line', (path) => {
    const request = session.request({ ':path': path });
    request.on('close', () => process.stdout.write(`DONE ${path}\n`));
    request.resume();
  }).on('close', () => session.close());
}

const [, , role, port, kinds, count] = process.argv;
if (role === 'server') server();
else if (role === 'drip') drip(port);
else client(port, kinds.split(','), Number(count));
