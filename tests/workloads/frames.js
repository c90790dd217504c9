'use strict';
// Functions whose stacks are known: each route burns CPU below a chain of functions of its own. With an address as argument it
// serves; with `burn NAME SECONDS` it runs one route until that much CPU is used.

const SECONDS = 0.2;

function used() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

// Not inlined, whatever the compiler thinks of it: it has more bytecode than that allows.
function c(seconds) {
  const until = used() + seconds;
  let total = 0;
  while (used() < until) {
    for (let i = 0; i < 100000; i++) {
      total = (total + i % 7) | 0;
    }
  }
  return total;
}

// As much as `c`, in a function of its own, for the class that must not be seen in others.
function d(seconds) {
  const until = used() + seconds;
  let total = 1;
  while (used() < until) {
    for (let i = 1; i < 100000; i++) {
      total = (total + i % 11) | 0;
    }
  }
  return total;
}

function b(seconds) {
  return c(seconds) + 1;
}

function a(seconds) {
  return b(seconds) + 1;
}

class Key {
  constructor(seconds) {
    this.seconds = seconds;
  }

  of() {
    return c(this.seconds);
  }
}

function by_key(seconds) {
  const key = new Key(seconds / 3);
  return [1, 2, 3].map(
    function each() {
      return key.of();
    }
  );
}

function replaced(seconds) {
  // Regular expressions run in C++, which calls back.
  return 'a-b'.replace(/-/g, function found() {
    return String(c(seconds));
  });
}

function* producer(seconds) {
  yield c(seconds);
}

function consumer(seconds) {
  for (const one of producer(seconds)) {
    return one;
  }
}

const closed = (seconds) => d(seconds);

function deep(n, seconds) {
  return n === 0 ? d(seconds) : deep(n - 1, seconds) + 1;
}

function recursive(seconds) {
  return deep(20, seconds);
}

// Three quarters of it below one function, a quarter below another.
function most(seconds) {
  return c(seconds * 0.75);
}

function least(seconds) {
  return d(seconds * 0.25);
}

function both(seconds) {
  return most(seconds) + least(seconds);
}

const ROUTES = {
  '/burn': a,
  '/callback': by_key,
  '/native': replaced,
  '/generator': consumer,
  '/closure': closed,
  '/recursive': recursive,
  '/shares': both,
};

function serve(request, response) {
  const route = ROUTES[request.url.split('?')[0]];
  if (route !== undefined) {
    route(SECONDS);
  }
  response.end('done\n');
}

const [what, name, seconds] = process.argv.slice(2);
if (what === 'burn') {
  const until = used() + Number(seconds);
  while (used() < until) {
    ROUTES[name](SECONDS);
  }
} else {
  const [host, port] = what.split(':');
  require('http').createServer(serve).listen(Number(port), host);
}
