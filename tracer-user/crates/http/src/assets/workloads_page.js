// The host's CPU by command, user, cgroup and unit, and the books of databases.

import { h, show, card, narrow, empty } from "./dom.js";
import { json } from "./data.js";
import { count, counted, percent, short, time } from "./format.js";
import { Table } from "./table.js";

const GROUPINGS = ["command", "user", "cgroup", "unit"];

const text = (key, title) => ({ key, title, text: true, value: (row) => row[key], cell: (row) => row[key] });
const seconds = (key, title, hint) => ({ key, title, hint, value: (row) => row[key], cell: (row) => time(row[key]) });
const number = (key, title, hint) => ({ key, title, hint, value: (row) => row[key], cell: (row) => count(row[key]) });

export class WorkloadsPage {
  constructor(place) {
    const asked = new URLSearchParams(location.search).get("by");
    this.by = GROUPINGS.includes(asked) ? asked : "command";
    this.text = "";
    this.groupings = h("nav", { class: "seg", "aria-label": "Group by" }, GROUPINGS.map((by) =>
      h("a", { href: `/workloads?by=${by}`, "aria-current": by === this.by ? "true" : null }, by)));
    this.sums = h("div", { class: "kpi" });
    this.groups = new Table({ name: "workloads", sort: "-cores", key: (row) => row.name, first: narrow() ? 8 : 20, searched: true, columns: [
      text("name", this.by),
      { key: "cores", title: "cores", hint: "CPUs used over the last minute", value: (row) => row.cores, cell: (row) => short(row.cores) },
      seconds("cpu_s", "CPU", "since the agent started"),
      seconds("requests_cpu_s", "for requests", "part of it for requests that these processes serve"),
      number("processes", "processes", "now"),
    ] });
    this.groups.element.classList.add("cards");
    this.databases = h("div", { class: "stack" });
    this.tables = new Map();
    show(place, h("h1", null, "Workloads"),
      card("CPU of this host", "every process is in one group, so the groups add up to the host's CPU", this.groupings, this.sums, this.groups.element),
      this.databases);
  }

  filter(words) {
    this.text = words;
    this.draw();
  }

  draw() {
    if (this.rows) this.groups.show(this.rows.filter((row) => row.name.toLowerCase().includes(this.text)));
  }

  /** The card of a database; its tables stay the same from one time to the next. */
  database(one) {
    const key = `${one.system} ${one.instance} ${one.pid}`;
    let tables = this.tables.get(key);
    if (!tables) {
      tables = {
        users: new Table({ name: "users", sort: "-cpu_s", key: (row) => `${row.user} ${row.database}`, columns: [
          { key: "user", title: "user", text: true, value: (row) => row.user, cell: (row) => row.user || "not known" },
          text("database", "database"), seconds("cpu_s", "CPU"), seconds("requests_cpu_s", "requests"),
          seconds("connection_cpu_s", "connection", "CPU of its sessions outside requests"),
          seconds("workers_cpu_s", "workers", "CPU of parallel workers"), number("sessions", "sessions"),
        ] }),
        components: new Table({ name: "components", sort: "-cpu_s", key: (row) => row.component, columns: [
          text("component", "component"), seconds("cpu_s", "CPU"),
        ] }),
        note: h("p", { class: "dim" }),
      };
      tables.users.element.classList.add("cards");
      tables.card = card(`${one.service_name}`, one.instance || one.system, tables.note, h("div", { class: "stack" }, tables.users.element, tables.components.element));
      this.tables.set(key, tables);
    }
    // Of systems without users in their protocol all is one row without a name.
    tables.users.element.hidden = one.users.every((row) => !row.user);
    tables.users.show(one.users);
    tables.components.show(one.components);
    const ratio = one.capture_ratio === null ? "not known yet" : one.capture_ratio.toFixed(3);
    const own = one.own ? ` The server says ${time(one.own.cpu_s)} where this book has ${time(one.own.book_cpu_s)}.` : "";
    show(tables.note, `${time(one.cpu_s)} CPU in ${counted(one.processes, "process", "processes")}, capture ratio ${ratio}: CPU in this book ÷ what /proc says.${own}`);
    return tables.card;
  }

  async refresh() {
    const [groups, { subsystems }] = await Promise.all([json(`/api/v1/workloads?by=${this.by}`), json("/api/v1/subsystems")]);
    this.rows = groups.workloads;
    this.draw();
    const figure = (value, words, hint) => h("div", { title: hint }, h("b", null, value), words);
    const share = (part) => percent(part / groups.system_cpu_s);
    show(this.sums, figure(share(groups.workloads_cpu_s), "processes"), figure(share(groups.kernel_cpu_s), "kernel", "the kernel's own threads and interrupts"),
      figure(share(groups.unreported_cpu_s), "unreported", "measured, but not yet reported by thread"),
      figure(groups.capture_ratio === null ? "–" : groups.capture_ratio.toFixed(4), "capture ratio", "their sum ÷ CPU that the system says was used"));
    if (!subsystems.length) show(this.databases, card("Databases", null, empty("No database runs here.", "PostgreSQL, MariaDB and Redis are recognised by their programs.")));
    else if (subsystems.map((one) => this.database(one)).some((element, index) => this.databases.children[index] !== element)) {
      show(this.databases, subsystems.map((one) => this.database(one)));
    }
  }
}
