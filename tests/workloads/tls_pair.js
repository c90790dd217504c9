// HTTPS by Node.js, whose TLS objects read and write memory instead of sockets.
//
// tls_pair.js serve CERTIFICATE KEY LOG: serves until it is ended, and logs "PATH STATUS" before each reply. Says its port.
// tls_pair.js ask PORT LABEL VERSION CONNECTIONS REQUESTS: CONNECTIONS at once, each asks REQUESTS times for paths with
// LABEL, every fifth time for /e/, which is answered 500.
const fs = require('fs');
const https = require('https');

const [mode, ...given] = process.argv.slice(2);

function serve(certificate, key, log) {
  const options = { cert: fs.readFileSync(certificate), key: fs.readFileSync(key) };
  const server = https.createServer(options, (request, reply) => {
    const status = request.url.startsWith('/e/') ? 500 : 200;
    setTimeout(() => {
      fs.appendFileSync(log, `${request.url} ${status}\n`);
      reply.writeHead(status);
      reply.end('x'.repeat(request.url.startsWith('/big/') ? 300000 : 3000));
    }, Math.random() * 5);
  });
  server.listen(0, '127.0.0.1', () => console.log(`PORT ${server.address().port}`));
}

async function ask(port, label, version, connections, requests) {
  const one = async (number) => {
    const agent = new https.Agent({
      keepAlive: true, maxSockets: 1, rejectUnauthorized: false, maxVersion: `TLSv${version}`, maxCachedSessions: 0,
    });
    for (let request = 0; request < requests; request++) {
      const kind = request % 5 === 4 ? 'e' : request % 5 === 2 ? 'big' : 'js';
      await new Promise((resolve, reject) => {
        const options = { agent, port, host: '127.0.0.1', path: `/${kind}/${label}-${number}-${request}` };
        https.get(options, (reply) => reply.on('end', resolve).resume()).on('error', reject);
      });
    }
    agent.destroy();
  };
  await Promise.all([...Array(Number(connections)).keys()].map(one));
}

({ serve, ask })[mode](...given);
