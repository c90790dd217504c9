// Requests on one connection: five GETs, a POST of 3 MB, a GET.
const http = require('http');
const [host, port] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
function ask(method, path, body) {
  return new Promise((done, failed) => {
    const headers = body ? { 'Content-Length': body.length } : {};
    const request = http.request({ host, port, agent, method, path, headers }, (reply) => {
      reply.resume();
      reply.on('end', () => (reply.statusCode === 200 ? done() : failed(new Error(reply.statusCode))));
    });
    request.on('error', failed);
    request.end(body);
  });
}
(async () => {
  for (let i = 0; i < 5; i++) await ask('GET', `/node-${i}`);
  await ask('POST', '/node-post', Buffer.alloc(3 << 20, 'abcdefghijk'));
  await ask('GET', '/node-last');
  agent.destroy();
})();
