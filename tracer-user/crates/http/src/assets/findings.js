// What the agent found by itself: changes of classes and services.

import { h } from "./dom.js";
import { optional, asked } from "./data.js";
import { clock, serviceLink, classLink, findingLink, percent } from "./format.js";

/** Kinds as people call them. */
export const KINDS = {
  application_change: "Application change",
  workload_change: "Workload change",
  environment: "Environment",
  anomaly: "Anomaly",
};

const MOST = 8;

/** When a finding began and ended. */
export function times(one) {
  const since = `since ${clock(one.since_ns).slice(0, 8)}`;
  return one.until_ns ? `${since} until ${clock(one.until_ns).slice(0, 8)}` : since;
}

/** Links to the classes of a finding, or to its service. */
export function places(one) {
  if (!one.service_name) return [];
  const classes = (one.request_classes || []).slice(0, 3).map((name) => h("a", { href: classLink(one.service_name, name) }, name));
  return [h("a", { href: serviceLink(one.service_name) }, one.service_name), ...classes];
}

/** Findings of the time range as elements; none when this agent finds nothing. Those that last come first. */
export async function findings(parameters) {
  const { findings: all } = await optional("/api/v1/findings", { ...parameters, ...asked() }, { findings: [] });
  const sorted = [...(all || [])].sort((a, b) => (a.until_ns === null ? 0 : 1) - (b.until_ns === null ? 0 : 1) || b.since_ns - a.since_ns);
  const rows = sorted.slice(0, MOST).map((one) => h("div", { class: `finding kind-${one.kind}${one.until_ns ? " over" : ""}` },
    h("a", { href: findingLink(one.id) }, h("b", null, KINDS[one.kind] || one.kind)), " · ", one.summary,
    h("small", null, ` · ${times(one)} · confidence ${percent(one.confidence)}`, places(one).flatMap((place) => [" · ", place]))));
  if (sorted.length > MOST) rows.push(h("p", { class: "sub" }, `${sorted.length - MOST} more: `, h("a", { href: "/api/v1/findings" }, "as JSON")));
  return rows;
}
