// What requests of a class cost: by the service that worked for them, and by the request that began the transaction.

import { h, svg, show, card, empty } from "./dom.js";
import { optional } from "./data.js";
import { time, percent, count, short, serviceLink, classLink } from "./format.js";
import { Table } from "./table.js";

const ROOTS = { unknown: "none known", other: "others", open: "still open" };

/** A share as a bar with its words. */
function bar(share, words) {
  const rect = svg("rect", { class: "shade4", width: (100 * share).toFixed(1), height: 10 });
  return [svg("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, rect), ` ${words}`];
}

export class TiersCard {
  constructor() {
    this.whole = h("p", { class: "dim" });
    this.none = h("div");
    this.tiers = new Table({ name: "tiers", sort: "-cpu", key: (one) => one.service_name, columns: TIERS, rowsMost: 30 });
    this.roots = new Table({ name: "roots", sort: "-cpu", key: (one) => `${one.root}\n${one.root_service}\n${one.root_class}`, columns: ROOT_COLUMNS, rowsMost: 100, first: 10 });
    for (const table of [this.tiers, this.roots]) table.element.classList.add("cards");
    this.element = h("div", { class: "two" },
      card("What a whole request costs, by tier", "on this host, since the start: requests of this class that begin transactions, with everything they cause", this.whole, this.tiers.element, this.none),
      card("By first request", "which requests of users this class works for, since the start", this.roots.element));
  }

  async refresh(service, name) {
    const pick = { service, class: name };
    const [cost, { roots }] = await Promise.all([optional("/api/v1/tiers", pick, null), optional("/api/v1/roots", pick, { roots: [] })]);
    this.element.hidden = !cost && !roots.length;
    const requests = cost?.count ?? 0;
    const tiers = requests ? cost.tiers : [];
    this.tiers.element.hidden = !tiers.length;
    show(this.whole, tiers.length ? [h("b", null, time(cost.cpu_s)), ` of CPU a request, in ${tiers.length === 1 ? "one service" : `${tiers.length} services`}; mean of ${count(requests)} requests`] : []);
    show(this.none, tiers.length ? [] : empty("These requests begin no transaction.", "The table beside shows the requests that they are a part of."));
    this.tiers.show(tiers.map((one) => ({ ...one, requests, whole: cost.cpu_total_s })));
    const served = roots.filter((one) => one.side === "server");
    const whole = served.reduce((sum, one) => sum + one.cpu_total_s, 0);
    this.roots.show(served.filter((one) => one.count || one.cpu_total_s).map((one) => ({ ...one, whole })));
  }
}

const each = (one, field) => one[field] / Math.max(one.requests, 1);
const share = (one) => (one.whole ? one.cpu_total_s / one.whole : 0);

const TIERS = [
  { key: "service", title: "service", text: true, value: (one) => one.service_name, cell: (one) => h("a", { href: serviceLink(one.service_name), title: one.classes.map((other) => other.request_class).slice(0, 10).join("\n") }, one.service_name) },
  { key: "calls", title: "requests", hint: "that it served for one whole request", value: (one) => one.count, cell: (one) => short(each(one, "count")) },
  { key: "cpu", title: "CPU each", hint: "for one whole request, and the share of all tiers", value: (one) => one.cpu_total_s, cell: (one) => bar(share(one), `${time(each(one, "cpu_total_s"))} · ${percent(share(one))}`) },
  { key: "runqueue", title: "run queue", hint: "runnable, waiting for a CPU", value: (one) => one.runqueue_total_s, cell: (one) => time(each(one, "runqueue_total_s")) },
  { key: "time", title: "time", hint: "in this service, with what it waits for", value: (one) => one.duration_total_s, cell: (one) => time(each(one, "duration_total_s")) },
  { key: "errors", title: "errors", value: (one) => one.errors, cell: (one) => h("span", { class: one.errors ? "err" : "dim" }, percent(one.errors / Math.max(one.count, 1))) },
];

function rootCell(one) {
  if (one.root !== "class") return h("span", { class: "dim" }, ROOTS[one.root] || one.root);
  const own = one.root_service === one.service_name && one.root_class === one.request_class;
  return [one.root_service, h("span", { class: "dim" }, " · "), own ? h("b", null, "itself") : h("a", { href: classLink(one.root_service, one.root_class) }, one.root_class)];
}

const ROOT_COLUMNS = [
  { key: "root", title: "first request", text: true, value: (one) => `${one.root_service} ${one.root_class}`, cell: rootCell },
  { key: "count", title: "requests", value: (one) => one.count, cell: (one) => count(one.count) },
  { key: "cpu", title: "CPU", value: (one) => one.cpu_total_s, cell: (one) => bar(share(one), `${time(one.cpu_total_s)} · ${percent(share(one))}`) },
  { key: "each", title: "CPU each", value: (one) => one.cpu_total_s / Math.max(one.count, 1), cell: (one) => time(one.count ? one.cpu_total_s / one.count : null) },
  { key: "mean", title: "mean time", value: (one) => one.duration_total_s / Math.max(one.count, 1), cell: (one) => time(one.count ? one.duration_total_s / one.count : null) },
  { key: "errors", title: "errors", value: (one) => one.errors, cell: (one) => h("span", { class: one.errors ? "err" : "dim" }, percent(one.errors / Math.max(one.count, 1))) },
];
