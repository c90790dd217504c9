// Home: findings, the map of services, services, and request classes.

import { h, show, card, fold, narrow, empty } from "./dom.js";
import { json, optional, classes, series, seriesKey } from "./data.js";
import { rate, time, percent, short, count, serviceLink, classLink } from "./format.js";
import { bar, spark, legend, within } from "./charts.js";
import { ServiceMap, graph } from "./service_map.js";
import { Table } from "./table.js";
import { findings } from "./findings.js";

/** Rows of a table on a phone, until all are asked for. */
const TOP = 5;

export class HomePage {
  constructor(place) {
    this.findings = h("div", { class: "findings" });
    this.map = new ServiceMap();
    const first = narrow() ? TOP : undefined;
    this.services = new Table({ name: "services", sort: "-cpu", key: (row) => row.service_name, columns: SERVICES, rowsMost: 200, first, searched: true });
    this.classes = new Table({ name: "classes", sort: "-share", key: seriesKey, columns: CLASSES, rowsMost: 100, first, searched: true });
    this.others = new Table({ name: "others", sort: "-cpu", key: (row) => row.service_name, columns: OTHERS, rowsMost: 15 });
    this.noRequests = h("div");
    this.running = h("p", null, h("a", { href: "/running" }, "Requests running now"));
    this.goals = new Table({ name: "goals", sort: "importance", key: (row) => `${row.service_class} ${row.service_name}`, columns: GOALS, rowsMost: 50 });
    this.policies = h("div");
    this.hosts = new Table({ name: "hosts", sort: "name", key: (row) => row.host, columns: HOSTS, rowsMost: 500 });
    this.hostList = h("div");
    for (const table of [this.services, this.classes]) table.element.classList.add("cards");
    const map = fold("Service map", "width = calls, red = errors above 1 %, number = p95 of the service, mean of the call", this.map.element);
    const services = fold("Services", "requests that this host serves", this.services.element);
    const classes = card("Request classes", "of all services", this.running, this.classes.element, this.noRequests, legend());
    // A phone begins with what is costly; the rest is a touch away.
    show(place, this.findings, this.hostList, narrow() ? [classes, services, map] : [map, services, classes], this.policies,
      fold("Other CPU", "programs without requests, since the agent started", this.others.element));
    map.addEventListener("toggle", () => this.graph && this.map.draw(this.graph));
    this.text = "";
  }

  filter(text) {
    this.text = text;
    this.draw();
  }

  async refresh(health) {
    this.running.hidden = Boolean(health.fleet);
    if (health.fleet) this.showHosts((await json("/api/v1/hosts")).hosts);
    const [{ services }, all, { edges }, found, policies] = await Promise.all([json("/api/v1/services"), classes(), optional("/api/v1/edges", {}, { edges: [] }), findings(), optional("/api/v1/service-classes", {}, { service_classes: [] })]);
    const known = await series();
    Object.assign(this, { all: services, each: all, known });
    show(this.findings, found);
    this.showGoals(policies);
    this.graph = graph(services, all, edges);
    this.map.draw(this.graph);
    this.draw();
  }

  /** Of a fleet. */
  showHosts(hosts) {
    this.hosts.show(hosts);
    if (!this.hostList.childElementCount) show(this.hostList, fold("Hosts", "capture ratio and lost records of the windows that were read", this.hosts.element));
  }

  showGoals({ service_classes, enforcement }) {
    const rows = service_classes.flatMap((one) => one.services.map((row) => ({ ...one, ...row })));
    this.goals.show(rows);
    if (!service_classes.length) show(this.policies);
    else if (!this.policies.childElementCount)
      show(this.policies, fold("Service classes", `goals over the last minute; enforcement: ${enforcement}`, this.goals.element));
  }

  draw() {
    if (!this.all) return;
    const matches = (row) => !this.text || row.service_name.toLowerCase().includes(this.text) || (row.request_class || "").toLowerCase().includes(this.text);
    const served = this.each.filter((one) => one.side === "server");
    const cpu = served.reduce((sum, one) => sum + one.cpu_total_s, 0) || 1;
    const rows = served.map((one) => ({ ...one, share: one.cpu_total_s / cpu, series: within(this.known.get(seriesKey(one))) }));
    this.classes.show(rows.filter(matches));
    show(this.noRequests, rows.length ? [] : empty("No requests yet.", "Send one to any server on this host, for example with curl. If none appear, the health page says what the agent cannot see."));
    const busy = this.all.filter((one) => one.count > 0);
    const trend = (name) => sum(rows.filter((one) => one.service_name === name).map((one) => one.series));
    this.services.show(busy.filter(matches).map((one) => {
      const own = rows.filter((row) => row.service_name === one.service_name);
      const weight = own.reduce((all, row) => all + row.count, 0) || 1;
      const mean = (field) => own.reduce((all, row) => all + row[field] * row.count, 0) / weight;
      const fields = ["queue_s", "cpu_s", "runqueue_s", "downstream_s", "blocked_s", "mean_s"];
      return { ...one, trend: trend(one.service_name), p95_s: Math.max(0, ...own.map((row) => row.p95_s)), ...Object.fromEntries(fields.map((field) => [field, mean(field)])) };
    }));
    this.others.show(this.all.filter((one) => one.count === 0 && one.cpu_overhead_s >= 0.005));
  }
}

/** Rates of several series, added from their ends. */
function sum(all) {
  const longest = Math.max(0, ...all.map((one) => one.t.length));
  return Array.from({ length: longest }, (_, index) => all.reduce((total, one) => total + (one.rate_per_s?.[one.t.length - longest + index] || 0), 0));
}

const errors = (one) => {
  const share = one.count ? one.errors / one.count : 0;
  return h("span", { class: share ? "err" : "dim", title: one.unfinished ? `and ${one.unfinished} whose end the agent did not see: no errors` : null }, percent(share));
};
const cores = (one) => one.cpu_requests_cores + one.cpu_overhead_cores;

const HOSTS = [
  { key: "name", title: "host", text: true, value: (one) => one.host, cell: (one) => one.host },
  { key: "services", title: "services", value: (one) => one.services, cell: (one) => count(one.services) },
  { key: "classes", title: "classes", value: (one) => one.classes, cell: (one) => count(one.classes) },
  { key: "used", title: "CPU used", hint: "in its newest window", value: (one) => one.utilisation, cell: (one) => percent(one.utilisation) },
  { key: "ratio", title: "capture ratio", hint: "CPU attributed ÷ CPU that the system says was used", value: (one) => one.capture_ratio ?? -1, cell: (one) => (one.capture_ratio === null ? "–" : one.capture_ratio.toFixed(3)) },
  { key: "lost", title: "records lost", value: (one) => one.events_lost, cell: (one) => h("span", { class: one.events_lost ? "err" : "dim" }, count(one.events_lost)) },
  { key: "findings", title: "open findings", value: (one) => one.open_findings, cell: (one) => count(one.open_findings) },
];

const SERVICES = [
  { key: "name", title: "service", text: true, value: (one) => one.service_name, cell: (one) => h("a", { href: serviceLink(one.service_name) }, one.service_name) },
  { key: "rate", title: "rate", value: (one) => one.rate_per_s, cell: (one) => rate(one.rate_per_s) },
  { key: "trend", title: "trend", cell: (one) => spark(one.trend) },
  { key: "errors", title: "errors", value: (one) => (one.count ? one.errors / one.count : 0), cell: errors },
  { key: "p95", title: "p95", hint: "of its slowest class", value: (one) => one.p95_s, cell: (one) => time(one.p95_s) },
  { key: "cpu", title: "CPU", hint: "cores: requests and overhead", value: cores, cell: (one) => h("span", { title: `${one.cpu_requests_cores.toFixed(3)} cores for requests, ${one.cpu_overhead_cores.toFixed(3)} overhead` }, `${short(cores(one))} cores`) },
  { key: "where", title: "where time goes", text: true, cell: bar },
  { key: "classes", title: "classes", value: (one) => one.classes, cell: (one) => String(one.classes) },
];

export const CLASSES = [
  { key: "name", title: "service · class", text: true, value: (one) => `${one.service_name} ${one.request_class}`,
    cell: (one) => [h("a", { href: serviceLink(one.service_name) }, one.service_name), h("span", { class: "dim" }, " · "), h("a", { href: classLink(one.service_name, one.request_class) }, one.request_class)] },
  { key: "rate", title: "rate", value: (one) => one.rate_per_s, cell: (one) => rate(one.rate_per_s) },
  { key: "trend", title: "trend", cell: (one) => spark(one.series?.rate_per_s) },
  { key: "errors", title: "errors", value: (one) => (one.count ? one.errors / one.count : 0), cell: errors },
  { key: "p50", title: "p50", value: (one) => one.p50_s, cell: (one) => time(one.p50_s) },
  { key: "p95", title: "p95", value: (one) => one.p95_s, cell: (one) => time(one.p95_s) },
  { key: "p99", title: "p99", value: (one) => one.p99_s, cell: (one) => time(one.p99_s) },
  { key: "each", title: "CPU each", value: (one) => one.cpu_s, cell: (one) => time(one.cpu_s) },
  { key: "share", title: "CPU share", hint: "of the CPU of all requests since the agent started", value: (one) => one.share, cell: (one) => percent(one.share) },
  { key: "where", title: "where time goes", text: true, cell: bar },
];

const actual = (one) => one[one.goal.kind === "p99" ? "p99_s" : one.goal.kind === "p95" ? "p95_s" : "mean_s"];
const attained = (one) => (one.attained === null ? h("span", { class: "dim" }, "–") : one.attained ? "yes" : h("span", { class: "err" }, "no"));
const GOALS = [
  { key: "name", title: "class · service", text: true, value: (one) => `${one.service_class} ${one.service_name}`, cell: (one) => [one.service_class, h("span", { class: "dim" }, " · "), h("a", { href: serviceLink(one.service_name) }, one.service_name)] },
  { key: "importance", title: "importance", hint: "1 is the most important", value: (one) => one.importance, cell: (one) => String(one.importance) },
  { key: "goal", title: "goal", value: (one) => one.goal.response_s ?? 0, cell: (one) => (one.goal.response_s === null ? one.goal.kind : `${one.goal.kind} ${time(one.goal.response_s)}`) },
  { key: "actual", title: "actual", value: actual, cell: (one) => (one.recent_count ? time(actual(one)) : "–") },
  { key: "attained", title: "attained", value: (one) => (one.attained === null ? 2 : Number(one.attained)), cell: attained },
  { key: "requests", title: "requests", hint: "in the last minute", value: (one) => one.recent_count, cell: (one) => String(one.recent_count) },
  { key: "cpu", title: "CPU", hint: "since the agent started", value: (one) => one.cpu_s, cell: (one) => time(one.cpu_s) },
  { key: "priority", title: "priority", text: true, value: (one) => one.cpu_priority, cell: (one) => h("span", { title: `threads changed ${one.actions.applied} times, would have been ${one.actions.would_apply} times` }, one.cpu_priority) },
];

const OTHERS = [
  { key: "name", title: "service", text: true, value: (one) => one.service_name, cell: (one) => one.service_name },
  { key: "cpu", title: "CPU", value: (one) => one.cpu_overhead_s, cell: (one) => time(one.cpu_overhead_s) },
];
