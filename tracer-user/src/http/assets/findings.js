// What the agent found by itself: changes of classes and services.

import { h } from "./dom.js";
import { optional } from "./data.js";
import { serviceLink, classLink } from "./format.js";

/** Findings as elements; none when this agent finds nothing, or cannot. */
export async function findings(parameters) {
  const { findings: all } = await optional("/api/v1/findings", parameters, { findings: [] });
  return (all || []).slice(0, 10).map((one) => {
    const where = [
      one.service_name ? h("a", { href: serviceLink(one.service_name) }, one.service_name) : null,
      one.request_class ? h("a", { href: classLink(one.service_name, one.request_class) }, one.request_class) : null,
    ].filter(Boolean);
    const words = one.summary || one.text || one.message || "";
    return h("div", { class: "finding" }, h("b", null, one.title || one.kind || "Finding"), " · ", where.flatMap((part) => [part, " · "]), words);
  });
}
