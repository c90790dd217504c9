// What is usual for a request class at this hour of the week, and what deviates from it.

import { h, show, card, empty } from "./dom.js";
import { optional } from "./data.js";
import { count, rate, short, time } from "./format.js";
import { Table } from "./table.js";

const WORDS = {
  rate_per_s: "requests", error_rate_per_s: "errors", mean_s: "response time, mean", p95_s: "response time, p95", cpu_s: "CPU",
  runqueue_s: "run queue", blocked_s: "blocked", queue_s: "socket queue", downstream_s: "downstream",
};

const cell = (name, value) => (value === null || value === undefined ? "–" : name.endsWith("per_s") ? rate(value) : time(value));
const figure = (key, title, hint) => ({ key, title, hint, value: (row) => row[key] ?? 0, cell: (row) => cell(row.name, row[key]) });

export class ActivityCard {
  constructor() {
    this.note = h("p", { class: "dim" });
    this.table = new Table({ name: "usual", sort: "order", key: (row) => row.name, columns: [
      { key: "order", title: "resource", text: true, value: (row) => row.order, cell: (row) => WORDS[row.name] || row.name },
      figure("recent", "now", "mean of the newest windows"),
      { key: "deviates", title: "deviates", text: true, value: (row) => Math.abs(row.distance_sd ?? 0), cell: (row) => row.deviates ? h("span", { class: "err" }, `${row.deviates}, ${short(Math.abs(row.distance_sd))} sd`) : "" },
      figure("mean", "mean"), figure("p50", "p50"), figure("p95", "p95"), figure("p99", "p99"),
      figure("threshold", "threshold", "recommended: beyond the 99th percentile and three standard deviations"),
    ] });
    this.table.element.classList.add("cards");
    this.element = card("What is usual at this hour", "values per window, by hour of the week (UTC)", this.note, this.table.element);
  }

  async refresh(service, name) {
    const { shift, profiles } = await optional("/api/v1/profiles/activity", { service, class: name }, { profiles: [] });
    const [profile] = profiles;
    if (!profile) return void show(this.note, empty("Nothing is known yet.", "A profile begins with the first window of requests served."));
    const basis = profile.basis === "hour" ? shift : "all hours: this one has not been seen for ten minutes";
    this.note.textContent = `${count(profile.windows)} windows of ${basis}.`;
    this.table.show(Object.entries(profile.resources).map(([resource, figures], order) => ({ name: resource, order, ...figures })));
  }
}
