// The service map: services as boxes, calls between them as arrows, in layers (dagre).

import { h, svg, show, empty } from "./dom.js";
import { rate, time, percent, short, serviceLink } from "./format.js";

const NODES = 40;
const [WIDTH, HEIGHT] = [172, 62];

/** Services and edges of the API as a graph of nodes by name. */
export function graph(services, classes, edges) {
  const nodes = new Map();
  for (const service of services.filter((one) => one.count > 0).slice(0, NODES)) {
    const own = classes.filter((one) => one.side === "server" && one.service_name === service.service_name);
    const calls = own.reduce((sum, one) => sum + one.count, 0) || 1;
    const p95 = Math.max(0, ...own.filter((one) => one.count >= calls / 20).map((one) => one.p95_s));
    nodes.set(service.service_name, { name: service.service_name, service, p95 });
  }
  const hidden = Math.max(services.filter((one) => one.count > 0).length - NODES, 0);
  const joined = new Map();
  for (const edge of edges) {
    const to = edge.callee_service || edge.peer;
    // Lookups of names, and this console's own requests, would hide what matters.
    if (!to || edge.protocol === "dns" || to === location.host) continue;
    // Callers that serve nothing are shown because they call.
    for (const [name, known] of [[edge.caller_service, true], [to, Boolean(edge.callee_service)]]) {
      if (nodes.has(name) || nodes.size >= NODES) continue;
      const service = services.find((one) => one.service_name === name);
      nodes.set(name, { name, service: known ? service : null, outside: !known, protocol: edge.protocol });
    }
    if (!nodes.has(edge.caller_service) || !nodes.has(to)) continue;
    const key = `${edge.caller_service}\n${to}`;
    const sum = joined.get(key) || { from: edge.caller_service, to, rate: 0, calls: 0, errors: 0, duration: 0, protocols: new Set() };
    sum.rate += edge.rate_per_s;
    sum.calls += edge.calls;
    sum.errors += edge.errors;
    sum.duration += (edge.mean_s || 0) * edge.calls;
    sum.protocols.add(edge.protocol);
    joined.set(key, sum);
  }
  return { nodes: [...nodes.values()], edges: [...joined.values()], hidden };
}

export class ServiceMap {
  constructor() {
    this.element = h("div", { class: "map" });
    this.shape = "";
  }

  draw({ nodes, edges, hidden }) {
    if (!nodes.length) {
      show(this.element, empty("No requests yet.", "Services appear here with their first request. Send one to any server on this host, for example with curl."));
      return;
    }
    // The layout changes only when a node or an edge comes or goes: figures refresh in place.
    const shape = JSON.stringify([nodes.map((one) => one.name).sort(), edges.map((one) => `${one.from}\n${one.to}`).sort()]);
    if (shape !== this.shape) this.layout = layout(nodes, edges);
    this.shape = shape;
    const busiest = Math.max(...edges.map((one) => one.rate), 1e-9);
    const { width, height } = this.layout;
    // A map that is somewhat too wide shrinks; a much wider one scrolls.
    const scale = Math.min(1, Math.max((this.element.clientWidth - 2) / width, innerWidth < 600 ? 0.75 : 0.62));
    const focused = document.activeElement?.closest?.(".map [data-key]")?.dataset.key;
    const image = svg("svg", { width: Math.floor(width * scale), height: Math.floor(height * scale), viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Service map: ${nodes.length} services, ${edges.length} edges` },
      svg("defs", null, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { class: "arrow", d: "M0 0 L8 4 L0 8 z" }))),
      edges.map((one) => this.edge(one, busiest)),
      nodes.map((one) => this.node(one)));
    show(this.element, image, hidden ? h("p", { class: "dim" }, `${hidden} services with fewer requests are in the table only.`) : null);
    if (focused) this.element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  edge(one, busiest) {
    const placed = this.layout.edges.get(`${one.from}\n${one.to}`);
    if (!placed) return null;
    const mean = one.calls ? one.duration / one.calls : null;
    const failing = one.calls > 0 && one.errors / one.calls > 0.01;
    const width = 1 + 5 * Math.sqrt(one.rate / busiest);
    const words = `${one.from} → ${one.to}: ${rate(one.rate)} by ${[...one.protocols].join(", ")}, mean ${time(mean)}, ${percent(one.errors / Math.max(one.calls, 1))} errors (among the newest transactions)`;
    const path = smooth(placed.points);
    return svg("g", { tabindex: 0, "aria-label": words }, svg("title", null, words),
      svg("path", { class: `edge${failing ? " failing" : ""}`, d: path, "stroke-width": width.toFixed(1), "marker-end": "url(#arrow)" }),
      svg("path", { class: "edge-hit", d: path }),
      svg("text", { class: "edge-label", x: placed.x, y: placed.y - 5 }, `${rate(one.rate)} · ${time(mean)}`));
  }

  node(one) {
    const { x, y } = this.layout.nodes.get(one.name);
    const service = one.service;
    const share = service && service.count ? service.errors / service.count : 0;
    const figures = service && service.count ? `${rate(service.rate_per_s)} · ${time(one.p95)}` : one.outside ? `not seen here · ${one.protocol}` : "calls only";
    const cores = service ? service.cpu_requests_cores + service.cpu_overhead_cores : 0;
    const below = service ? `${share ? `${percent(share)} errors · ` : ""}${short(cores)} cores` : "";
    const words = service
      ? `${one.name}: ${rate(service.rate_per_s)}, ${percent(share)} errors, p95 ${time(one.p95)}, ${cores.toFixed(3)} cores of CPU`
      : `${one.name}: the other end of calls; the agent sees no requests served there`;
    const box = svg("g", { class: `node${one.outside ? " outside" : ""}${share > 0.01 ? " failing" : ""}`, transform: `translate(${x - WIDTH / 2} ${y - HEIGHT / 2})`, "data-key": one.name, tabindex: one.outside ? 0 : null },
      svg("title", null, words),
      svg("rect", { width: WIDTH, height: HEIGHT, rx: 8 }),
      svg("text", { class: "name", x: 10, y: 20 }, one.name.length > 22 ? `${one.name.slice(0, 21)}…` : one.name),
      svg("text", { class: "dim", x: 10, y: 37 }, figures),
      svg("text", { class: "dim", x: 10, y: 53 }, below));
    if (one.outside || !service) return box;
    return svg("a", { href: serviceLink(one.name), "aria-label": words, "data-key": `a ${one.name}` }, box);
  }
}

function layout(nodes, edges) {
  const narrow = innerWidth < 600;
  const all = new dagre.graphlib.Graph();
  // On a phone the layers stand below each other.
  all.setGraph({ rankdir: narrow ? "TB" : "LR", nodesep: narrow ? 14 : 18, ranksep: narrow ? 46 : 110, marginx: 8, marginy: 8 });
  all.setDefaultEdgeLabel(() => ({}));
  for (const one of nodes) all.setNode(one.name, { width: WIDTH, height: HEIGHT });
  for (const one of edges) if (one.from !== one.to) all.setEdge(one.from, one.to, { width: narrow ? 10 : 96, height: 16, labelpos: "c" });
  dagre.layout(all);
  const { width, height } = all.graph();
  const placed = new Map(edges.filter((one) => one.from !== one.to).map((one) => {
    const { points, x, y } = all.edge(one.from, one.to);
    return [`${one.from}\n${one.to}`, { points, x: x ?? points[points.length >> 1].x, y: y ?? points[points.length >> 1].y }];
  }));
  for (const one of edges.filter((edge) => edge.from === edge.to)) {
    const { x, y } = all.node(one.from);
    const top = y - HEIGHT / 2;
    placed.set(`${one.from}\n${one.to}`, { points: [{ x: x - 30, y: top }, { x, y: top - 22 }, { x: x + 30, y: top }], x, y: top - 12 });
  }
  return { width: Math.ceil(width), height: Math.ceil(height), nodes: new Map(nodes.map((one) => [one.name, all.node(one.name)])), edges: placed };
}

/** A curve through the points. */
function smooth(points) {
  let path = `M${points[0].x.toFixed(1)} ${points[0].y.toFixed(1)}`;
  for (let index = 1; index < points.length - 1; index += 1) {
    const [point, next] = [points[index], points[index + 1]];
    const last = index === points.length - 2;
    const [x, y] = last ? [next.x, next.y] : [(point.x + next.x) / 2, (point.y + next.y) / 2];
    path += ` Q${point.x.toFixed(1)} ${point.y.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)}`;
  }
  return path;
}
