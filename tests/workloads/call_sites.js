// One query from three functions, each on a connection of its own: PORT PORT PORT SECONDS. Prints how often each sent it.
"use strict";
const net = require("net");

const QUERY = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
const [ports, seconds] = [process.argv.slice(2, 5).map(Number), Number(process.argv[5])];
const sockets = ports.map((port) => net.connect(port, "127.0.0.1").setNoDelay(true));
const answer = (socket) => new Promise((resolve) => socket.once("data", resolve));

function first() { // line: first
  sockets[0].write(QUERY);
  return answer(sockets[0]);
}

const second = () => { // line: second
  sockets[1].write(QUERY);
  return answer(sockets[1]);
};

class Third {
  third() { // line: third
    sockets[2].write(QUERY);
    return answer(sockets[2]);
  }
}

async function main() {
  await Promise.all(sockets.map((socket) => new Promise((resolve) => socket.once("connect", resolve))));
  const counts = [0, 0, 0];
  const end = Date.now() + 1000 * seconds;
  while (Date.now() < end) {
    await first();
    counts[0] += 1;
    for (let i = 0; i < 2; i += 1) {
      await second();
      counts[1] += 1;
    }
    await new Third().third();
    counts[2] += 1;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  console.log("COUNTS", ...counts);
  process.exit(0);
}

main();
