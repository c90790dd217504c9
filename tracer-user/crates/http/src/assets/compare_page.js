// Compares two sides: two periods, two classes or two builds. Figures, where time goes, and the differential flame graph. All of
// it is in the address.

import { h, show, card, empty } from "./dom.js";
import { get, json, optional, moment } from "./data.js";
import { time, rate, percent, short, count, link, serviceLink, classLink } from "./format.js";
import { bar, legend } from "./charts.js";
import { FlameGraph } from "./flame_graph.js";

const MINUTE = 60e9;
const WINDOW = 10e9;
const SIDES = [["before_", "Before"], ["", "After"]];
const MODES = [["cpu", "on CPU"], ["offcpu", "off CPU"], ["wall", "wall"], ["wakers", "lock wakers"]];
/** A change below this is within what windows differ by anyway. */
const NOISE = 0.05;

/** Nanoseconds since the epoch, as an input of date and time has it, and back; local time. */
const local = (ns) => {
  const date = new Date(ns / 1e6);
  return new Date(date - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
};
const nanoseconds = (text) => new Date(text).getTime() * 1e6;
const whole = (ns) => String(BigInt(Math.round(ns)));

/** One row of figures for several classes: sums, and means by request. Percentiles of several classes are not known. */
export function together(classes) {
  if (classes.length <= 1) return classes[0] || null;
  const sum = (field) => classes.reduce((all, one) => all + one[field], 0);
  const requests = sum("count") || 1;
  const mean = (field) => classes.reduce((all, one) => all + one[field] * one.count, 0) / requests;
  const means = Object.fromEntries(["mean_s", "queue_s", "cpu_s", "runqueue_s", "blocked_s", "downstream_s"].map((field) => [field, mean(field)]));
  return { count: sum("count"), errors: sum("errors"), rate_per_s: sum("rate_per_s"), cpu_total_s: sum("cpu_total_s"), p50_s: null, p95_s: null, p99_s: null, ...means };
}

const FIGURES = [
  ["requests", (one) => one.count, count, 0], ["rate", (one) => one.rate_per_s, rate, 0], ["errors", (one) => (one.count ? one.errors / one.count : 0), percent, 1],
  ["mean", (one) => one.mean_s, time, 1], ["p50", (one) => one.p50_s, time, 1], ["p95", (one) => one.p95_s, time, 1], ["p99", (one) => one.p99_s, time, 1],
  ["CPU each", (one) => one.cpu_s, time, 1], ["queue", (one) => one.queue_s, time, 1], ["run queue", (one) => one.runqueue_s, time, 1],
  ["downstream", (one) => one.downstream_s, time, 1], ["blocked otherwise", (one) => Math.max(one.blocked_s - one.downstream_s, 0), time, 1], ["CPU in all", (one) => one.cpu_total_s, time, 0],
];

export class ComparePage {
  constructor(place) {
    this.asked = new URLSearchParams(location.search);
    this.mode = MODES.some(([mode]) => mode === this.asked.get("mode")) ? this.asked.get("mode") : "cpu";
    this.fields = Object.fromEntries(SIDES.map(([side, title]) => [side, this.side(side, title)]));
    this.table = h("tbody");
    this.nothing = h("div");
    this.heads = h("tr");
    this.summary = h("p", { class: "sub", role: "status" });
    this.flame = new FlameGraph();
    this.modes = h("span", { class: "seg", role: "group", "aria-label": "Kind of profile" }, MODES.map(([mode, words]) => h("button", { type: "button", "data-mode": mode, "aria-pressed": String(mode === this.mode), onclick: () => this.choose(mode) }, words)));
    this.file = h("a", null, "as SVG");
    this.crumb = h("p", { class: "crumb" });
    const preset = (words, title, act) => h("button", { type: "button", class: "pill", title, onclick: act }, words);
    show(place, this.crumb, h("h1", null, "Compare"),
      h("div", { class: "two" }, SIDES.map(([side, title]) => card(title, null, this.fields[side].element))),
      h("p", { class: "presets" }, preset("last 5 minutes, and those before", "Two periods of the class of the right side", () => this.recent(5)), preset("last 15 minutes, and those before", "Two periods of the class of the right side", () => this.recent(15)), preset("swap", "Before becomes after", () => this.swap()),
        this.builds = h("button", { type: "button", class: "pill", hidden: true, onclick: () => this.lastBuilds() }, "last two builds")),
      card("Figures", "of the windows that begin within each period; means per request", this.summary, this.nothing, h("div", { class: "scroll" }, h("table", { class: "figures" }, h("thead", null, this.heads), this.table)), legend()),
      h("section", { class: "card" }, h("h2", null, "What the time is used for, after against before", h("small", null, this.file), this.modes), h("p", { class: "sub" }, "Width: the profile of the right side. Red: more than before, for as many requests; blue: less."), this.flame.element));
    this.ready = this.fill();
  }

  /** The fields of one side. */
  side(side, title) {
    const change = () => this.apply();
    const service = h("select", { name: `${side}name`, "aria-label": `Service, ${title.toLowerCase()}`, onchange: () => { this.classes(side, ""); change(); } });
    const name = h("select", { name: `${side}class`, "aria-label": `Request class, ${title.toLowerCase()}`, onchange: change });
    const [from, to] = ["from", "to"].map((end) => h("input", { type: "datetime-local", step: 1, name: side + end, "aria-label": `${end}, ${title.toLowerCase()}`, onchange: change }));
    const build = h("select", { "aria-label": `Build, ${title.toLowerCase()}`, onchange: (event) => this.build(side, event.target.value) });
    const builds = h("label", { hidden: true }, "build", build);
    const element = h("form", { class: "side", onsubmit: (event) => event.preventDefault() }, h("label", null, "service", service), h("label", null, "class", name), h("label", null, "from", from), h("label", null, "to", to), builds);
    return { service, name, from, to, build, builds, element };
  }

  /** What can be chosen; what the address does not say is the last five minutes and those before. */
  async fill() {
    const [{ classes }, { builds }] = await Promise.all([json("/api/v1/classes"), optional("/api/v1/builds", {}, { builds: [] })]);
    Object.assign(this, { all: classes.filter((one) => one.side === "server"), programs: builds });
    const { asked } = this;
    const now = Math.floor(Date.now() * 1e6 / WINDOW) * WINDOW;
    const to = Number(asked.get("to")) || now;
    const from = Number(asked.get("from")) || to - 5 * MINUTE;
    const times = { "": [from, to], before_: [Number(asked.get("before_from")) || from - (to - from), Number(asked.get("before_to")) || from] };
    if (asked.has("before_class") && !asked.has("before_from")) times.before_ = [from, to];
    for (const [side] of SIDES) {
      const fields = this.fields[side];
      const services = [...new Set(this.all.map((one) => one.service_name))].sort();
      const service = asked.get(`${side}name`) || asked.get("name") || services[0] || "";
      if (service && !services.includes(service)) services.push(service);
      show(fields.service, services.map((name) => h("option", { value: name, selected: name === service }, name)));
      this.classes(side, asked.get(`${side}class`) ?? (service === asked.get("name") ? asked.get("class") : "") ?? "");
      [fields.from.value, fields.to.value] = times[side].map(local);
    }
    this.apply(false);
  }

  classes(side, chosen) {
    const { service, name, build, builds } = this.fields[side];
    const names = [...new Set(this.all.filter((one) => one.service_name === service.value).map((one) => one.request_class))].sort();
    if (chosen && !names.includes(chosen)) names.push(chosen);
    show(name, h("option", { value: "" }, "all classes"), names.map((one) => h("option", { value: one, selected: one === chosen }, one)));
    const own = this.programs.filter((one) => one.service_name === service.value);
    builds.hidden = own.length < 2;
    show(build, h("option", { value: "" }, "choose a build"), own.map((one, at) => h("option", { value: String(at) }, `${one.build.slice(0, 8)}, ${moment(one.from)} to ${moment(one.to)}`)));
    this.builds.hidden = this.programs.filter((one) => one.service_name === this.fields[""].service.value).length < 2;
  }

  /** The time of a build. */
  build(side, at) {
    const one = this.programs.filter((known) => known.service_name === this.fields[side].service.value)[Number(at)];
    if (at === "" || !one) return;
    const fields = this.fields[side];
    [fields.from.value, fields.to.value] = [local(one.from), local(one.to)];
    this.apply();
  }

  lastBuilds() {
    const service = this.fields[""].service.value;
    const [then, now] = this.programs.filter((one) => one.service_name === service).slice(-2);
    this.same();
    for (const [side, one] of [["before_", then], ["", now]]) [this.fields[side].from.value, this.fields[side].to.value] = [local(one.from), local(one.to)];
    this.apply();
  }

  /** The left side's service and class become the right side's. */
  same() {
    this.fields.before_.service.value = this.fields[""].service.value;
    this.classes("before_", this.fields[""].name.value);
  }

  recent(minutes) {
    const now = Math.floor(Date.now() * 1e6 / WINDOW) * WINDOW;
    this.same();
    const at = (ago) => local(now - ago * MINUTE);
    [this.fields.before_.from.value, this.fields.before_.to.value] = [at(2 * minutes), at(minutes)];
    [this.fields[""].from.value, this.fields[""].to.value] = [at(minutes), at(0)];
    this.apply();
  }

  swap() {
    const values = SIDES.map(([side]) => ["service", "name", "from", "to"].map((name) => this.fields[side][name].value));
    values.reverse().forEach(([service, name, from, to], at) => {
      const [side] = SIDES[at];
      const fields = this.fields[side];
      fields.service.value = service;
      this.classes(side, name);
      [fields.from.value, fields.to.value] = [from, to];
    });
    this.apply();
  }

  choose(mode) {
    this.mode = mode;
    for (const button of this.modes.children) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    this.apply();
  }

  /** What a side asks the API for. */
  query(side) {
    const { service, name, from, to } = this.fields[side];
    const end = (field) => (field.value ? whole(nanoseconds(field.value)) : null);
    return { service: service.value || null, class: name.value || null, from: end(from), to: end(to) };
  }

  apply(refresh = true) {
    const address = new URL(location.href);
    for (const [side] of SIDES) {
      const { service, class: name, from, to } = this.query(side);
      for (const [key, value] of [["name", service], ["class", name], ["from", from], ["to", to]]) {
        if (value) address.searchParams.set(side + key, value);
        else address.searchParams.delete(side + key);
      }
    }
    if (this.mode === "cpu") address.searchParams.delete("mode");
    else address.searchParams.set("mode", this.mode);
    history.replaceState(null, "", address);
    const { service, class: name } = this.query("");
    show(this.crumb, h("a", { href: link("/", {}) }, "services"), service ? [" / ", h("a", { href: serviceLink(service) }, service)] : null, service && name ? [" / ", h("a", { href: classLink(service, name) }, name)] : null);
    if (refresh) this.load();
  }

  async refresh(health) {
    this.hertz = health.sampling_hertz;
    await this.ready;
    await this.load();
  }

  async load() {
    const asked = SIDES.map(([side]) => this.query(side));
    if (!asked[1].service) return void show(this.nothing, empty("No requests yet.", "There is nothing to compare until this host serves some."));
    // While one end is being changed: nothing to ask yet.
    const reversed = asked.findIndex(({ from, to }) => from && to && BigInt(to) <= BigInt(from));
    if (reversed >= 0) return void show(this.nothing, empty(`${SIDES[reversed][1]}: the end is not after the beginning.`, "Choose a later end, or an earlier beginning."));
    const turn = this.turn = (this.turn || 0) + 1;
    const answers = await Promise.all(asked.map((query) => json("/api/v1/classes", query).catch((error) => ({ classes: [], error }))));
    if (turn !== this.turn) return;
    const wrong = answers.find((one) => one.error);
    const rows = answers.map(({ classes }) => together(classes.filter((one) => one.side === "server")));
    show(this.heads, h("th", { class: "text", scope: "col" }, ""), SIDES.map(([, title], at) => h("th", { scope: "col", title: this.title(asked[at]) }, title)), h("th", { scope: "col" }, "change"));
    show(this.nothing, wrong ? empty("This cannot be compared.", wrong.error.message) : rows.map((row, at) => (row ? null : empty(`No requests ${SIDES[at][1].toLowerCase()}.`, this.missing(answers[at].range)))));
    show(this.table, FIGURES.map((figure) => this.row(figure, rows)), h("tr", null, h("td", { class: "text" }, "where time goes"), rows.map((row) => h("td", null, row ? bar(row) : "–")), h("td", null)));
    this.summary.textContent = SIDES.map(([, title], at) => `${title}: ${this.title(asked[at])}`).join(". ") + ".";
    await this.profile(asked, turn);
  }

  title({ service, class: name, from, to }) {
    return `${service}${name ? ` · ${name}` : ""}, ${moment(Number(from))} to ${moment(Number(to))}`;
  }

  missing(range) {
    return range?.kept_from ? "None of these windows had any. Take another period." : "The agent keeps two hours, and nothing from before it started. Take a later period.";
  }

  row([title, of, words, bad], [before, after]) {
    const [then, now] = [before, after].map((one) => (one ? of(one) : null));
    const known = then !== null && then !== undefined && now !== null && now !== undefined;
    const ratio = known && then > 0 ? now / then : null;
    const change = !known ? "–" : then === 0 ? (now === 0 ? "same" : "new") : now === 0 ? "gone" : Math.abs(ratio - 1) < NOISE ? "same" : `× ${short(ratio)}`;
    // Times below a microsecond a request are no news, whatever their ratio.
    const worse = bad && known && change !== "same" && now > then && (words !== time || now - then > 1e-6);
    const better = bad && known && change !== "same" && now < then;
    return h("tr", null, h("td", { class: "text" }, title), [then, now].map((value) => h("td", null, value === null || value === undefined ? "–" : words(value))), h("td", { class: worse ? "err" : better ? "better" : "dim" }, change));
  }

  async profile([before, after], turn) {
    const asked = Object.fromEntries(Object.entries({ ...after, kind: this.mode, before_service: before.service, before_class: before.class, before_from: before.from, before_to: before.to }).filter(([, value]) => value !== null));
    this.file.setAttribute("href", `/flamegraph.svg?${new URLSearchParams(asked)}`);
    try {
      const text = await (await get("/profile.folded", asked)).text();
      if (turn === this.turn) this.flame.show(text, this.hertz === 0 ? "Sampling is off: start the agent with --hertz 99." : "Samples are kept by 10 s for 15 minutes and by minute for an hour; only those wholly within a period count.", true);
    } catch (error) {
      if (turn === this.turn) this.flame.show("", error.message, true);
    }
  }
}
