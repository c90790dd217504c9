// Requests that are open now: how long, what their threads do, which calls they wait for.

import { h, show, card, narrow, empty } from "./dom.js";
import { json } from "./data.js";
import { classLink, count, counted, serviceLink, short, time } from "./format.js";
import { Table } from "./table.js";

const LIMIT = 1000;

const STATES = {
  running: "on a CPU, or waits for one", lock: "waits for a lock or another thread", socket: "waits for a socket",
  pipe: "waits for a pipe or terminal", disk: "waits for a file or disk", poll: "waits for any of several descriptors",
  sleep: "sleeps", child: "waits for a child process", stopped: "is stopped", other: "waits",
};

/** What a request does, in a few words. */
function doing(row) {
  if (row.calls_open > 0) {
    const call = row.calls[0];
    const to = `${call.request_class} to ${call.peer}:${call.peer_port}`;
    const more = row.calls_open > 1 ? ` and ${count(row.calls_open - 1)} more` : "";
    return h("span", { title: call.certain ? null : "probably its call: its process runs several requests at once" }, `call open for ${time(call.age_s)}: ${to}${more}`);
  }
  if (row.side === "client") return h("span", { title: "A call that no open request of this host is known to have made." }, `waits for ${row.peer}:${row.peer_port}`);
  if (!row.thread) return h("span", { class: "dim", title: "No thread works for this request alone: an event loop, or tasks." }, "not known");
  const kernel = row.thread.kernel_function ? `in the kernel: ${row.thread.kernel_function}` : null;
  return h("span", { title: kernel }, STATES[row.thread.state]);
}

export class RunningPage {
  constructor(place) {
    this.text = "";
    const seconds = (key, title, hint) => ({ key, title, hint, value: (row) => row[key], cell: (row) => time(row[key]) });
    this.sums = h("div", { class: "kpi" });
    this.nothing = h("div");
    this.table = new Table({ name: "running", sort: "-age_s", key: (row) => row.span_id, first: narrow() ? 10 : 30, rowsMost: LIMIT, searched: true, columns: [
      { key: "service_name", title: "service", text: true, value: (row) => row.service_name, cell: (row) => h("a", { href: serviceLink(row.service_name) }, row.service_name) },
      { key: "request_class", title: "class", text: true, value: (row) => row.request_class,
        // A class without a finished request has no page yet.
        cell: (row) => [row.side === "client" ? "→ " : "", row.p99_s === null ? row.request_class : h("a", { href: classLink(row.service_name, row.request_class) }, row.request_class)] },
      { key: "age_s", title: "open for", value: (row) => row.age_s, cell: (row) => h("b", { class: row.longer_than_p99 ? "err" : null, title: row.p99_s === null ? null : `99 % of its class took at most ${time(row.p99_s)}` }, time(row.age_s)) },
      { key: "doing", title: "now", text: true, cell: doing },
      seconds("cpu_s", "CPU", "charged so far"),
      seconds("blocked_s", "blocked", "charged so far: up to the last record of its thread"),
      { key: "thread", title: "thread", text: true, value: (row) => row.thread?.name || "", cell: (row) => `${row.thread?.name || ""} ${row.tid}` },
    ] });
    this.table.element.classList.add("cards");
    show(place, h("h1", null, "Running now"),
      card("Open requests", "red: open for longer than 99 % of its class took", this.sums, this.nothing, this.table.element));
  }

  filter(words) {
    this.text = words;
    this.draw();
  }

  draw() {
    if (!this.rows) return;
    const fits = (row) => `${row.service_name} ${row.request_class}`.toLowerCase().includes(this.text);
    this.table.show(this.rows.filter(fits));
  }

  async refresh() {
    const answer = await json(`/api/v1/running?limit=${LIMIT}`);
    this.rows = answer.running;
    const late = this.rows.filter((row) => row.longer_than_p99).length;
    const figure = (value, words) => h("div", null, h("b", null, value), words);
    const oldest = this.rows.length ? time(this.rows[0].age_s) : "–";
    show(this.sums, figure(count(answer.running_total), answer.running_total === 1 ? "open request" : "open requests"), figure(count(late), "longer than usual"), figure(oldest, "the oldest"));
    show(this.nothing, this.rows.length ? null : empty("No request is open.", "Each is listed from its first byte to the last byte of its reply."));
    this.table.element.hidden = this.rows.length === 0;
    if (answer.running_total > this.rows.length) show(this.nothing, h("p", { class: "dim" }, `The ${counted(this.rows.length, "oldest one", "oldest")} of ${short(answer.running_total)}.`));
    this.draw();
  }
}
