// Jobs by BullMQ: `serve` serves GET /push/N, which puts the job N into the queue `reports`; `work` does one job at a time. Each calls
// GET /b/NAME/N/k0/d1 of the upstream. The library is found by NODE_PATH.
const http = require("http");
const { Queue, Worker } = require("bullmq");

const connection = { host: "127.0.0.1", port: Number(process.env.REDIS_PORT) };

const ask = (name, number) =>
  new Promise((resolve, reject) => {
    const path = `/b/${name}/${number}/k0/d1`;
    const answered = (reply) => reply.resume().on("end", resolve);
    http.get({ host: "127.0.0.1", port: process.env.UPSTREAM_PORT, path }, answered).on("error", reject);
  });

if (process.argv[2] === "serve") {
  const queue = new Queue("reports", { connection });
  const server = http.createServer(async (request, reply) => {
    const number = Number(request.url.split("/").pop());
    await queue.add(number % 3 === 0 ? "mail" : "report", { number, secret: "planted-value" });
    reply.writeHead(200, { "Content-Length": 0 });
    reply.end();
  });
  server.listen(0, "127.0.0.1", () => console.log("PORT", server.address().port));
} else {
  const worker = new Worker("reports", (job) => ask(job.name, job.data.number), { connection });
  process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
}
