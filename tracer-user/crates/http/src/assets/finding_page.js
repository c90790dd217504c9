// A finding: what changed, and what says so. Cost against expectation, the host, predicted CPU, service time free of load,
// and the flame graph of the class after the change, coloured by how it differs from before.

import { h, show, card, empty } from "./dom.js";
import { get, json } from "./data.js";
import { time, percent, short, count } from "./format.js";
import { Chart } from "./charts.js";
import { FlameGraph } from "./flame_graph.js";
import { Table } from "./table.js";
import { KINDS, times, places } from "./findings.js";

/** Of the profile before the change, at most; seconds. */
const BEFORE = 300;
const WORDS = {
  application_change: "Requests cost another amount than before, whatever their number, mix and size.",
  workload_change: "Other requests, or another number of them. What each costs did not change.",
  environment: "Something outside the service: another process, the hypervisor, the clock of the CPU, or a slower callee.",
  anomaly: "A deviation that no lasting change of code, load or host explains.",
};

export class FindingPage {
  constructor(place) {
    this.id = new URLSearchParams(location.search).get("id");
    this.title = h("h1", null, "Finding");
    this.words = h("div", { class: "findings" });
    this.kpi = h("div", { class: "kpi" });
    this.cost = new Chart({ ranged: false });
    this.costNote = h("p", { class: "sub" });
    this.host = new Chart({ unit: percent, ranged: false });
    this.cpu = new Chart({ ranged: false });
    this.cpuNote = h("p", { class: "sub" });
    this.flame = new FlameGraph();
    this.flameTitle = h("span");
    this.flameNote = h("p", { class: "sub" });
    this.file = h("a", null, "as SVG");
    this.signature = new Table({ name: "signature", sort: "utilisation", key: (one) => String(one.utilisation), columns: SIGNATURE, rowsMost: 10 });
    this.demands = new Table({ name: "demands", sort: "-after", key: (one) => one.request_class, columns: DEMANDS, rowsMost: 14 });
    for (const table of [this.signature, this.demands]) table.element.classList.add("cards");
    this.none = h("div");
    this.flameCard = h("section", { class: "card" }, h("h2", null, this.flameTitle, h("small", null, this.file)), this.flameNote, this.flame.element);
    this.ofClass = h("div", { class: "stack" },
      h("div", { class: "two" }, card("Cost per request", "measured, and expected by what came before", this.cost.element, this.costNote), card("CPU of the host", null, this.host.element)),
      this.flameCard,
      h("div", { class: "two" }, card("CPU of the service", "measured, and predicted by a regression of the windows before", this.cpu.element, this.cpuNote), card("Service time by utilisation of the host", "own time without queues: 10th to 90th percentile of windows", this.signature.element)),
      card("CPU per request by class", "measured, and by regression ± standard error: they agree where all work is attributed", this.demands.element));
    show(place, h("p", { class: "crumb" }, h("a", { href: "/" }, "services")), this.title, this.words, card("", null, this.kpi), this.none, this.ofClass);
  }

  async refresh(health) {
    const one = await json(`/api/v1/findings/${encodeURIComponent(this.id)}`);
    const { windows, signature, regression } = one;
    this.title.textContent = KINDS[one.kind] || one.kind;
    show(this.words, h("div", { class: `finding kind-${one.kind}${one.until_ns ? " over" : ""}` }, h("b", null, one.summary), h("small", null, ` · ${times(one)}`, places(one).flatMap((place) => [" · ", place]))), h("p", { class: "sub" }, WORDS[one.kind]));
    show(this.kpi, [
      [one.change_ratio === 1 ? "–" : `× ${short(one.change_ratio)}`, "after ÷ before"], [one.resource, "resource"], [percent(one.confidence), "confidence"],
      [one.until_ns ? "over" : "lasts", "state"], [time((one.found_ns - one.since_ns) / 1e9), "from change to finding"],
      [signature.ratio === null ? "–" : `× ${short(signature.ratio)}`, "service time"],
    ].map(([value, words]) => h("div", null, h("b", null, value), words)));
    const { t } = windows;
    const mark = t.map((at) => (at * 1e9 >= one.since_ns - 1e6 && (!one.until_ns || at * 1e9 < one.until_ns) ? 1 : null));
    this.host.draw(t, [{ label: "used", values: windows.utilisation, color: "accent" }, { label: "others", values: windows.foreign, color: "bad" }, { label: "stolen", values: windows.steal, color: "some" }]);
    if (!windows.requests.length || !regression) {
      show(this.none, card("CPU of the host", null, this.host.element));
      this.ofClass.hidden = true;
      return;
    }
    const each = (values) => windows.requests.map((n, at) => (n > 0 ? values[at] / n : null));
    const cost = each(windows.cost);
    this.cost.unit = one.resource === "downstream" && one.cause.includes("number of calls") ? short : time;
    this.cost.draw(t, [{ label: "measured", values: cost, color: "cpu" }, { label: "expected", values: each(windows.expected), color: "accent" }, { label: "changed", values: cost.map((value, at) => (mark[at] ? value : null)), color: "bad" }]);
    this.costNote.textContent = `${count(windows.requests.reduce((sum, n) => sum + n, 0))} requests. Red: since the change.`;
    this.cpu.draw(t, [{ label: "measured", values: regression.cpu_s, color: "cpu" }, { label: "predicted", values: regression.predicted_s || t.map(() => null), color: "accent" }]);
    const kinds = regression.segments.filter((segment) => segment.kind).map((segment) => `${KINDS[segment.kind].toLowerCase()} at ${new Date(segment.since_ns / 1e6).toTimeString().slice(0, 8)}`);
    this.cpuNote.textContent = `Seconds a window. Regression alone would say: ${kinds.length ? kinds.join(", ") : "nothing"}. It judges nothing here: it is right in a third of the cases.`;
    const after = new Map(signature.after.map((bucket) => [bucket.utilisation, bucket]));
    const before = new Map(signature.before.map((bucket) => [bucket.utilisation, bucket]));
    this.signature.show([...new Set([...before.keys(), ...after.keys()])].map((utilisation) => ({ utilisation, before: before.get(utilisation), after: after.get(utilisation) })));
    this.demands.show(regression.classes.filter((row) => row.measured_before_s > 0 || row.measured_after_s > 0));
    await this.profile(one, health);
  }

  /** The flame graph after the change, against the one before it. */
  async profile(one, health) {
    const offCpu = one.resource === "blocked" || one.resource === "downstream";
    this.flameTitle.textContent = offCpu ? "What it waits for, against before" : "What its CPU is used for, against before";
    const asked = {
      service: one.service_name, class: one.request_classes.length === 1 ? one.request_classes[0] : null, kind: offCpu ? "offcpu" : "cpu",
      from_ns: one.since_ns, until_ns: one.until_ns || Math.round(Date.now() / 1000) * 1e9,
      before_from_ns: one.since_ns - BEFORE * 1e9, before_until_ns: one.since_ns,
    };
    const known = Object.entries(asked).filter(([, value]) => value !== null);
    this.file.setAttribute("href", `/flamegraph.svg?${new URLSearchParams(known)}`);
    this.flameNote.textContent = "Width: the profile since the change. Red: more than before for as many requests; blue: less. Samples are kept by 10 s, those that hold the change itself are left out.";
    const advice = health.sampling_hertz === 0 ? "Sampling is off: start the agent with --hertz 99." : "Profiles go back an hour; a change of the last seconds has no samples yet.";
    try {
      const text = await (await get("/profile.folded", Object.fromEntries(known))).text();
      this.flame.show(text, advice, true);
    } catch (error) {
      this.flame.show("", error.message);
    }
  }
}

const span = (bucket) => (bucket ? `${time(bucket.p10_s)} – ${time(bucket.p90_s)}` : "–");

const SIGNATURE = [
  { key: "utilisation", title: "utilisation", value: (one) => one.utilisation, cell: (one) => `${Math.round(one.utilisation * 100)} to ${Math.round(one.utilisation * 100) + 10} %` },
  { key: "before", title: "before", value: (one) => (one.before ? one.before.p50_s : 0), cell: (one) => span(one.before) },
  { key: "after", title: "after", value: (one) => (one.after ? one.after.p50_s : 0), cell: (one) => span(one.after) },
  { key: "cpu", title: "of which CPU", value: (one) => (one.after ? one.after.cpu_s : 0), cell: (one) => `${one.before ? time(one.before.cpu_s) : "–"} → ${one.after ? time(one.after.cpu_s) : "–"}` },
  { key: "blocked", title: "blocked", value: (one) => (one.after ? one.after.blocked_s : 0), cell: (one) => `${one.before ? time(one.before.blocked_s) : "–"} → ${one.after ? time(one.after.blocked_s) : "–"}` },
];

const regressed = (demand, error) => (demand === null ? "–" : `${time(demand)}${error === null ? "" : ` ± ${time(error)}`}`);

const DEMANDS = [
  { key: "class", title: "class", text: true, value: (one) => one.request_class, cell: (one) => one.request_class },
  { key: "before", title: "measured before", value: (one) => one.measured_before_s, cell: (one) => time(one.measured_before_s) },
  { key: "after", title: "measured after", value: (one) => one.measured_after_s, cell: (one) => time(one.measured_after_s) },
  { key: "rbefore", title: "regression before", value: (one) => one.regression_before_s || 0, cell: (one) => regressed(one.regression_before_s, one.regression_before_error_s) },
  { key: "rafter", title: "regression after", value: (one) => one.regression_after_s || 0, cell: (one) => regressed(one.regression_after_s, one.regression_after_error_s) },
];
