// A service: its classes over time, where time goes, who calls it and what it calls.

import { h, show, card, empty } from "./dom.js";
import { json, optional, classes, series, seriesKey, parts } from "./data.js";
import { rate, time, percent, count, counted, link, classLink, transactionsLink, compareLink } from "./format.js";
import { Chart, aligned, within, legend } from "./charts.js";
import { Table } from "./table.js";
import { CLASSES } from "./home_page.js";
import { callers, callees, table } from "./neighbours.js";
import { findings } from "./findings.js";

const MOST = 8;
// The service is in the heading.
const OWN = [{ key: "name", title: "class", text: true, value: (one) => one.request_class, cell: (one) => h("a", { href: classLink(one.service_name, one.request_class) }, one.request_class) }, ...CLASSES.slice(1)];
const SHOWN = [
  ["rate", "rate", rate, (one, at) => one.rate_per_s[at]],
  ["errors", "errors", percent, (one, at) => (one.rate_per_s[at] ? one.error_rate_per_s[at] / one.rate_per_s[at] : 0)],
  ["p50", "p50", time, (one, at) => one.p50_s[at]],
  ["p95", "p95", time, (one, at) => one.p95_s[at]],
  ["p99", "p99", time, (one, at) => one.p99_s[at]],
  ["cpu", "CPU each", time, (one, at) => one.cpu_s[at]],
];

export class ServicePage {
  constructor(place) {
    this.name = new URLSearchParams(location.search).get("name");
    this.links = h("p", { class: "presets" });
    this.kpi = h("div", { class: "kpi" });
    this.runtimes = h("div");
    this.containers = h("div");
    this.findings = h("div", { class: "findings" });
    this.charts = SHOWN.map(([, , unit]) => new Chart({ unit, height: 170 }));
    this.where = new Chart({ stacked: true });
    this.classes = new Table({ name: "classes", sort: "-share", key: seriesKey, columns: OWN });
    this.classes.element.classList.add("cards");
    this.callers = table("callers", "caller");
    this.callees = table("callees", "callee");
    this.noCallers = h("div");
    this.noCallees = h("div");
    const graph = h("a", { href: `/flamegraph.svg?service=${encodeURIComponent(this.name)}` }, "flame graph of the whole service");
    show(place, h("p", { class: "crumb" }, h("a", { href: link("/", {}) }, "services")), h("h1", null, this.name),
      this.links, this.findings, card("", null, this.kpi, this.runtimes, this.containers, h("p", { class: "sub" }, graph)),
      card("Request classes", "served here", this.classes.element, legend()),
      card("Where time goes", "mean per request, all classes, stacked; drag across a chart to choose a time", this.where.element),
      h("div", { class: "two" }, SHOWN.map(([, title], index) => card(title, `by class, the ${MOST} busiest`, this.charts[index].element))),
      h("div", { class: "two" }, card("Called by", "on this host", this.callers.element, this.noCallers), card("Calls", "by this service", this.callees.element, this.noCallees)));
  }

  async refresh() {
    const name = this.name;
    const [{ services }, all, { edges }, found] = await Promise.all([json("/api/v1/services"), classes(name), optional("/api/v1/edges", { service: name }, { edges: [] }), findings({ service: name })]);
    const known = await series({ service: name });
    const own = services.find((one) => one.service_name === name);
    const served = all.filter((one) => one.side === "server");
    const cpu = served.reduce((sum, one) => sum + one.cpu_total_s, 0) || 1;
    const rows = served.map((one) => ({ ...one, share: one.cpu_total_s / cpu, series: within(known.get(seriesKey(one))) }));
    show(this.findings, found);
    show(this.links, h("a", { class: "pill", href: transactionsLink(name) }, "its transactions"), h("a", { class: "pill", href: compareLink(name) }, "compare with another time, service or build"));
    const worst = (field) => Math.max(0, ...served.map((one) => one[field]));
    show(this.kpi, [
      [rate(own.rate_per_s), "rate"], [percent(own.count ? own.errors / own.count : 0), "errors", own.errors > 0], [time(worst("p95_s")), "p95 of its slowest class"],
      [`${own.cpu_requests_cores.toFixed(3)}`, "cores for requests"], [`${own.cpu_overhead_cores.toFixed(3)}`, "cores of overhead"], [count(own.count), "requests since the start"],
    ].map(([value, words, bad]) => h("div", null, h("b", { class: bad ? "err" : null }, value), words)));
    show(this.runtimes, (own.runtimes ?? []).map((one) => h("p", { class: "sub" }, `${one.name} ${one.version} in ${counted(one.processes, "process", "processes")}: ${one.meaning}${one.wakes_meaning ? `; ${one.wakes_meaning}` : ""}.`)));
    show(this.containers, (own.containers ?? []).map((one) => h("p", { class: "sub" }, container(one))));
    this.classes.show(rows);
    const busiest = [...rows].sort((a, b) => b.rate_per_s - a.rate_per_s).slice(0, MOST).filter((one) => one.series.t.length);
    SHOWN.forEach(([, , , value], index) => this.charts[index].draw(...aligned(busiest.map((one) => [one.request_class, one.series]), value)));
    this.where.draw(...whole(rows.filter((one) => one.series.t.length)));
    const [above, below] = [callers(edges, name), callees(edges, name)];
    this.callers.show(above);
    this.callees.show(below);
    show(this.noCallers, above.length ? [] : empty("No callers seen on this host.", "Requests come from outside, or their callers use a connection that the agent does not follow."));
    show(this.noCallees, below.length ? [] : empty("No calls seen.", "This service answers by itself, or calls by a protocol that is not decoded."));
  }
}

/** A container in words: by the name that its engine gave it, else by its id. */
function container(one) {
  const id = one.id.slice(0, 12);
  const called = one.name ? `${one.name} (${[one.runtime, id].filter(Boolean).join(" ")})` : `${id}${one.runtime ? ` (${one.runtime})` : ""}`;
  const pod = one.pod ? `, pod ${one.namespace ? `${one.namespace}/` : ""}${one.pod}` : one.pod_uid ? `, pod ${one.pod_uid}` : "";
  return `${one.processes} of its processes in container ${called}${one.image ? `, image ${one.image}` : ""}${pod}.`;
}

/** Where the time of all classes' requests goes: means, weighted by rate. */
function whole(rows) {
  const [t] = aligned(rows.map((one) => [one.request_class, one.series]), () => 0);
  const at = rows.map((one) => new Map(one.series.t.map((when, index) => [when, index])));
  const names = parts(rows[0] || {}).map(([color, label]) => ({ color, label, values: [] }));
  for (const when of t) {
    const sums = [0, 0, 0, 0, 0];
    let weight = 0;
    rows.forEach((one, row) => {
      const index = at[row].get(when);
      if (index === undefined) return;
      const own = one.series;
      const each = own.rate_per_s[index];
      weight += each;
      const point = Object.fromEntries(["queue_s", "cpu_s", "runqueue_s", "downstream_s", "blocked_s"].map((field) => [field, own[field][index]]));
      parts(point).forEach(([, , seconds], part) => { sums[part] += seconds * each; });
    });
    names.forEach((line, part) => line.values.push(weight ? sums[part] / weight : 0));
  }
  return [t, names];
}
