// Tables of callers and callees, from the edges of the API.

import { h } from "./dom.js";
import { rate, time, percent, serviceLink, classLink } from "./format.js";
import { Table } from "./table.js";

const FIGURES = [
  { key: "rate", title: "rate", value: (one) => one.rate, cell: (one) => rate(one.rate) },
  { key: "mean", title: "mean", hint: "as the caller sees it, among the newest transactions", value: (one) => one.mean ?? 0, cell: (one) => time(one.mean) },
  { key: "errors", title: "errors", value: (one) => one.errors, cell: (one) => h("span", { class: one.errors ? "err" : "dim" }, percent(one.errors)) },
];

function cell(one) {
  if (!one.service) {
    const name = one.name && one.caller ? h("a", { href: classLink(one.caller, one.name), title: "these calls, as the caller sees them" }, one.name) : one.name;
    return h("span", { title: "not seen by this agent" }, one.peer || "unknown", name ? [" · ", name] : null);
  }
  return [h("a", { href: serviceLink(one.service) }, one.service), one.name ? [h("span", { class: "dim" }, " · "), h("a", { href: classLink(one.service, one.name) }, one.name)] : null];
}

export function table(name, title) {
  const column = { key: "name", title, text: true, value: (one) => `${one.service} ${one.name}`, cell };
  const made = new Table({ name, sort: "-rate", key: (one) => `${one.service}\n${one.name}\n${one.peer}`, columns: [column, ...FIGURES], rowsMost: 30 });
  made.element.classList.add("cards");
  return made;
}

function join(edges, end) {
  const all = new Map();
  for (const edge of edges) {
    const { service, name, peer, caller } = end(edge);
    const key = `${service}\n${name}\n${peer}`;
    const sum = all.get(key) || { service, name, peer, caller, rate: 0, calls: 0, failed: 0, duration: 0 };
    sum.rate += edge.rate_per_s;
    sum.calls += edge.calls;
    sum.failed += edge.errors;
    sum.duration += (edge.mean_s || 0) * edge.calls;
    all.set(key, sum);
  }
  return [...all.values()].map((one) => ({ ...one, mean: one.calls ? one.duration / one.calls : null, errors: one.calls ? one.failed / one.calls : 0 }));
}

/** Who calls `service`, or its class. */
export function callers(edges, service, name) {
  const own = edges.filter((edge) => edge.callee_service === service && (!name || edge.callee_class === name));
  return join(own, (edge) => ({ service: edge.caller_service, name: edge.caller_class || "", peer: "" }));
}

/** What `service`, or its class, calls. */
export function callees(edges, service, name) {
  const own = edges.filter((edge) => edge.caller_service === service && (!name || edge.caller_class === name));
  return join(own, (edge) => ({ service: edge.callee_service || "", name: edge.callee_class || edge.call_class, peer: edge.peer || "", caller: edge.caller_service }));
}
