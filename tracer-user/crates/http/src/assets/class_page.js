// A request class: latency, where time goes, flame graph, callers, callees, transactions.

import { h, show, card, narrow, empty } from "./dom.js";
import { get, json, optional, classes, series, seriesKey, parts, range, asked } from "./data.js";
import { rate, time, percent, count, clock, link, serviceLink, transactionLink, transactionsLink, compareLink } from "./format.js";
import { Chart, within } from "./charts.js";
import { Heatmap } from "./heatmap.js";
import { FlameGraph } from "./flame_graph.js";
import { callers, callees, table } from "./neighbours.js";
import { Table } from "./table.js";
import { findings } from "./findings.js";
import { ActivityCard } from "./activity.js";
import { TiersCard } from "./tiers.js";
import { CallSitesCard } from "./call_sites.js";

const MODES = [["cpu", "on CPU"], ["offcpu", "off CPU"], ["wall", "wall"], ["wakers", "lock wakers"]];

export class ClassPage {
  constructor(place) {
    const asked = new URLSearchParams(location.search);
    this.service = asked.get("name");
    this.name = asked.get("class");
    this.mode = MODES.some(([mode]) => mode === asked.get("mode")) ? asked.get("mode") : "cpu";
    this.part = asked.get("dimension") && asked.get("value") ? { dimension: asked.get("dimension"), value: asked.get("value") } : {};
    this.links = h("p", { class: "presets" });
    this.kpi = h("div", { class: "kpi" });
    this.findings = h("div", { class: "findings" });
    this.heatmap = new Heatmap(this.service, this.name);
    this.latency = new Chart({});
    this.where = new Chart({ stacked: true });
    this.flame = new FlameGraph();
    this.modes = h("span", { class: "seg", role: "group", "aria-label": "Kind of profile" }, MODES.map(([mode, words]) => h("button", { type: "button", "data-mode": mode, onclick: () => this.choose(mode) }, words)));
    this.parts = h("select", { "aria-label": "Requests that count", hidden: true, onchange: () => this.divide(this.parts.value) });
    this.hot = new Table({ name: "hot", sort: "-self", key: (one) => `${one.function} ${one.file}`, columns: HOTSPOTS, rowsMost: 100, first: narrow() ? 6 : 20 });
    this.hot.element.classList.add("cards");
    this.noHot = h("div");
    this.callers = table("callers", "caller");
    this.callees = table("callees", "callee");
    this.slow = new Table({ name: "slow", sort: "-duration", key: (one) => one.trace_id, columns: TRANSACTIONS, rowsMost: 10 });
    this.recent = new Table({ name: "recent", sort: "-start", key: (one) => one.trace_id, columns: TRANSACTIONS, rowsMost: 10 });
    this.usual = new ActivityCard();
    this.cost = new TiersCard();
    this.sites = new CallSitesCard();
    this.noCallers = h("div");
    this.noCallees = h("div");
    this.file = h("a", null, "as SVG");
    this.pprof = h("a", null, "as pprof");
    this.speedscope = h("a", null, "for speedscope");
    const flame = h("section", { class: "card" }, h("h2", null, "Flame graph", h("small", null, this.file, " · ", this.pprof, " · ", this.speedscope), this.parts, this.modes), this.flame.element);
    show(place, h("p", { class: "crumb" }, h("a", { href: link("/", {}) }, "services"), " / ", h("a", { href: serviceLink(this.service) }, this.service)), h("h1", null, this.name),
      this.links, this.findings,
      card("", null, this.kpi),
      h("div", { class: "two" }, card("Latency", "darker: more requests; a cell opens its transactions", this.heatmap.element), card("Distribution", "all requests of this time range", this.heatmap.distribution)),
      h("div", { class: "two" }, card("Percentiles", "p50, p95, p99 over time; drag to choose a time", this.latency.element), card("Where a request's time goes", "mean, stacked, over time", this.where.element)),
      this.cost.element,
      flame,
      card("Hotspots", "functions by their own time, of the kind chosen above; where the code is not the application's, what called it", this.hot.element, this.noHot),
      this.usual.element,
      this.sites.element,
      h("div", { class: "two" }, card("Called by", "on this host", this.callers.element, this.noCallers), card("Calls", "made by these requests", this.callees.element, this.noCallees)),
      h("div", { class: "two" }, card("Slowest transactions", "of those kept", this.slow.element), card("Recent transactions", null, this.recent.element)));
    this.mark();
  }

  mark() {
    for (const button of this.modes.children) button.setAttribute("aria-pressed", String(button.dataset.mode === this.mode));
  }

  choose(mode) {
    this.mode = mode;
    this.flame.remember("mode", mode === "cpu" ? null : mode);
    this.mark();
    this.profile();
  }

  /** Shows only requests with one value of a declared dimension, or all again. */
  divide(text) {
    this.part = text ? JSON.parse(text) : {};
    this.flame.remember("dimension", this.part.dimension ?? null);
    this.flame.remember("value", this.part.value ?? null);
    this.profile();
  }

  async offer() {
    const { dimensions } = await optional("/api/v1/dimensions", {}, { dimensions: [] });
    const seen = ({ requests }) => requests > 0;
    const options = dimensions.flatMap(({ name, values }) => values.filter(seen).map(({ value }) => ({ dimension: name, value })));
    this.parts.hidden = options.length === 0;
    const key = JSON.stringify(options);
    if (key === this.offered) return;
    this.offered = key;
    const option = (part) => h("option", { value: JSON.stringify(part) }, `${part.dimension}: ${part.value}`);
    show(this.parts, h("option", { value: "" }, "all requests"), options.map(option));
    this.parts.value = this.part.value ? JSON.stringify(this.part) : "";
  }

  async profile() {
    const [, , seconds] = range();
    // Profiles go back an hour.
    const when = asked().since ? { since: `${Math.min(seconds, 3600)}s` } : asked();
    const wanted = Object.fromEntries(Object.entries({ service: this.service, class: this.name, ...when, ...this.part, kind: this.mode }).filter(([, value]) => value));
    const query = new URLSearchParams(wanted).toString();
    this.file.setAttribute("href", `/flamegraph.svg?${query}`);
    this.pprof.setAttribute("href", `/profile.pb.gz?${query}`);
    this.speedscope.setAttribute("href", `/profile.speedscope.json?${query}`);
    const { mode, part } = this;
    this.hotspots(wanted);
    try {
      const text = await (await get("/profile.folded", { ...wanted, annotate: "code" })).text();
      // Another kind may have been chosen meanwhile.
      if (mode === this.mode && part === this.part) this.flame.show(text, this.hertz === 0 ? "Sampling is off: start the agent with --hertz 99." : "Samples come with CPU that requests of this class use; rare or cheap ones need a while.");
    } catch (error) {
      if (mode === this.mode && part === this.part) this.flame.show("", error.status === 400 ? `This agent does not record such stacks (${error.message}).` : error.message);
    }
  }

  async hotspots(wanted) {
    const { mode, part } = this;
    const found = await optional("/api/v1/hotspots", { ...wanted, limit: 100 }, { functions: [] });
    if (mode !== this.mode || part !== this.part) return;
    this.hot.show(named(found.functions));
    show(this.noHot, found.functions.length ? [] : empty("No samples yet.", "Functions appear with the first samples of this class."));
  }

  async refresh(health) {
    const [service, name] = [this.service, this.name];
    this.hertz = health.sampling_hertz;
    show(this.links, h("a", { class: "pill", href: transactionsLink(service, name) }, "its transactions"), h("a", { class: "pill", href: compareLink(service, name) }, "compare with another time, class or build"));
    const pick = { service, class: name };
    const [all, { edges }, newest, slowest, found] = await Promise.all([
      classes(service), optional("/api/v1/edges", { service }, { edges: [] }), json("/api/v1/transactions", { ...pick, limit: 10 }),
      json("/api/v1/transactions", { ...pick, limit: 10, sort: "slowest" }), findings(pick), this.profile(), this.usual.refresh(service, name), this.cost.refresh(service, name), this.offer(),
    ]);
    const durations = await optional("/api/v1/durations", { ...pick, ...asked() }, null);
    if (durations) this.heatmap.show(durations);
    const own = all.find((one) => one.request_class === name && one.side === "server") || all.find((one) => one.request_class === name);
    show(this.findings, found);
    if (!own) return void show(this.kpi, empty("No finished requests of this class yet.", "The page fills in with the first one."));
    const cpu = health.cpu_s.system_busy || 1;
    // Of chosen times the host's CPU is not known.
    const sinceStart = asked().since ? [[percent(own.cpu_total_s / cpu), "of the host's busy CPU"], [count(own.count), "requests since the start"]] : [[count(own.count), "requests in this time"]];
    show(this.kpi, [
      [rate(own.rate_per_s), "rate"], [percent(own.errors / Math.max(own.count, 1)), "errors", own.errors > 0], [time(own.p50_s), "p50"], [time(own.p95_s), "p95"], [time(own.p99_s), "p99"],
      [time(own.cpu_s), "CPU each"], ...sinceStart,
    ].map(([value, words, bad]) => h("div", null, h("b", { class: bad ? "err" : null }, value), words)));
    const known = await series(pick);
    const line = within(known.get(seriesKey(own)));
    const blank = line.t.map(() => null);
    this.latency.draw(line.t, ["p50_s", "p95_s", "p99_s"].map((field, index) => ({ label: field.slice(0, 3), values: line[field] || blank, color: ["accent", "queue", "bad"][index] })));
    const points = line.t.map((_, at) => parts(Object.fromEntries(["queue_s", "cpu_s", "runqueue_s", "downstream_s", "blocked_s"].map((field) => [field, line[field][at]]))));
    this.where.draw(line.t, parts(own).map(([color, label], index) => ({ color, label, values: points.map((point) => point[index][2]) })));
    this.sites.refresh(service, name, edges);
    const [above, below] = [callers(edges, service, name), callees(edges, service, name)];
    this.callers.show(above);
    this.callees.show(below);
    show(this.noCallers, above.length ? [] : empty("No callers seen on this host.", "Requests come from outside, or from connections that the agent does not follow."));
    show(this.noCallees, below.length ? [] : empty("No calls seen.", "These requests are answered without calls, or by protocols that are not decoded."));
    this.recent.show(newest.transactions);
    this.slow.show(slowest.transactions);
  }
}

const TRANSACTIONS = [
  { key: "start", title: "start", text: true, value: (one) => one.start_ns, cell: (one) => h("a", { href: transactionLink(one.trace_id) }, clock(one.start_ns)) },
  { key: "duration", title: "duration", value: (one) => one.duration_s, cell: (one) => time(one.duration_s) },
  { key: "status", title: "status", value: (one) => one.status ?? 0, cell: (one) => h("span", { class: one.error ? "err" : null }, one.status ?? one.failure ?? one.process_end ?? one.outcome) },
  { key: "spans", title: "spans", value: (one) => one.spans, cell: (one) => [String(one.spans), one.failed_spans ? h("span", { class: "err" }, ` (${one.failed_spans} failed)`) : null] },
];

const OWNERS = { application: "application", third_party: "library, runtime", kernel: "kernel", unknown: "unknown" };

/** Shares of a function in the service's other classes, the largest first. */
function elsewhere(one, name) {
  return one.classes.filter((other) => other.request_class !== name && other.total_share >= 0.001)
    .sort((a, b) => b.total_share - a.total_share).slice(0, 3).map((other) => `${other.request_class} ${percent(other.total_share)}`).join(", ");
}

/** A function's name; of one without a symbol, the file that it is in. */
const functionName = (one) => (one.function === "[unknown]" && one.file ? `[unknown] in ${one.file.split("/").pop()}` : one.function);

/** Functions that no other row is called like; of others, so much of the file's path that it tells them apart. */
function named(functions) {
  const parts = (one) => (one.file || "").split("/").filter(Boolean);
  return functions.map((one) => {
    const alike = functions.filter((other) => other !== one && functionName(other) === functionName(one));
    if (!alike.length) return { ...one, place: null };
    const own = parts(one);
    const end = (path, many) => path.slice(-many).join("/");
    let many = 1;
    while (many < own.length && alike.some((other) => end(parts(other), many) === end(own, many))) many += 1;
    return { ...one, place: own.length ? end(own, many) : "no file" };
  });
}

/** Between what a share is with a probability of 95 %, by its number of samples. */
const between = ({ self_share_interval: [low, high] }) => `${percent(low).replace(" %", "")}–${percent(high)}`;

const HOTSPOTS = [
  { key: "function", title: "function", text: true, value: functionName, cell: (one) => h("span", { title: one.file || "" }, functionName(one), one.place ? h("small", { class: "dim" }, ` ${one.place}`) : null) },
  { key: "code", title: "code", text: true, value: (one) => one.code, cell: (one) => OWNERS[one.code] || one.code },
  { key: "self", title: "self", hint: "in the function itself", value: (one) => one.self_s, cell: (one) => h("span", { title: `${count(one.samples)} samples: with a probability of 95 % the share is ${between(one)}` }, `${time(one.self_s)} · ${percent(one.self_share)}`, h("small", { class: "dim" }, ` (${between(one)})`)) },
  { key: "total", title: "total", hint: "in the function and what it called", value: (one) => one.total_s, cell: (one) => `${time(one.total_s)} · ${percent(one.total_share)}` },
  { key: "caller", title: "called by", hint: "the function of the application that it was called for", text: true, value: (one) => one.called_by[0]?.function || "", cell: (one) => one.called_by.map(functionName).join(", ") },
  { key: "elsewhere", title: "in other classes", hint: "its total share in the service's other classes", text: true, cell: (one) => elsewhere(one, new URLSearchParams(location.search).get("class")) },
];
