// A transaction: its spans as a waterfall, where each one's time went, the critical path, and the samples of its slow spans.

import { h, svg, show, card, empty } from "./dom.js";
import { get, json, optional } from "./data.js";
import { time, percent, clock, count, counted, link, serviceLink, classLink, transactionLink } from "./format.js";
import { FlameGraph } from "./flame_graph.js";
import { legend } from "./charts.js";

const GRADES = {
  certain: "certain: no other request can have made this call",
  confirmed: "confirmed: two independent observations agree",
  ambiguous: "ambiguous: two requests fit, or the evidence is one-sided; it is charged to none",
  orphan: "orphan: no request is known that made this call",
};
const FROM = {
  traceparent: "its traceparent header names it", b3: "its B3 header names it", connection: "the agent saw the call at the other end of its connection",
  relay: "another host's agent saw the call", tcp_option: "the caller's agent put it into the connection",
};
/** Share of the path below which a step is short. */
const SHORT = 0.01;

const STEPS = { queue: "in the queue", own: "its own work and waits", network: "under way: network, or not read yet", remote: "a call whose other end is not seen" };

/** Where a span's time went: colour, words, seconds. What is downstream counts once. */
function parts(span) {
  return [["cpu", "on CPU", span.cpu_s], ["runq", "run queue", span.runqueue_s], ["down", "downstream", span.downstream_s], ["blocked", "blocked otherwise", Math.max(span.blocked_s - span.downstream_s, 0)]];
}

/** How long it waited before it was read. */
function queues(span) {
  if (span.accept_queue_s === null || span.socket_queue_s === null) return [["queue", "waiting to be accepted or read", span.queue_s]];
  return [["accept", "waiting to be accepted", span.accept_queue_s], ["socket", "waiting in the socket", span.socket_queue_s]];
}

/** How the connection of a call was opened for it: colour, words, beginning, seconds. */
function opening(span) {
  const own = span.attributes;
  return [["connect", "connecting", span.connect_start_ns, own["tracer.connect.time"]], ["handshake", "TLS handshake", span.tls_start_ns, own["tracer.tls.handshake.time"]]].filter(([, , at, seconds]) => at !== undefined && seconds !== undefined);
}

/** What TCP measured of its connection, in words. */
function network(span) {
  const own = span.attributes;
  if (own["tracer.rtt.time"] === undefined) return null;
  const again = own["tracer.retransmits"];
  return `Round trips of its connection took ${time(own["tracer.rtt.time"])} (smoothed), at least ${time(own["tracer.rtt.min.time"])}${again === undefined ? "" : again ? `; ${counted(again, "segment was", "segments were")} sent again while it was open` : "; no segment was sent again"}.`;
}

/** Spans in the order of a tree, with their depth. */
export function tree(spans) {
  const known = new Set(spans.map((span) => span.span_id));
  const below = new Map();
  for (const span of spans) {
    const parent = known.has(span.parent_span_id) && span.parent_span_id !== span.span_id ? span.parent_span_id : null;
    below.set(parent, [...(below.get(parent) || []), span]);
  }
  const rows = [];
  const placed = new Set();
  const place = (span, depth) => {
    if (placed.has(span.span_id)) return;
    placed.add(span.span_id);
    rows.push([span, depth]);
    for (const child of below.get(span.span_id) || []) place(child, depth + 1);
  };
  for (const span of below.get(null) || []) place(span, 0);
  // Parents in a circle: whatever it is, it is shown.
  for (const span of spans) place(span, 0);
  return rows;
}

/** Which line made a call. */
function calledFrom({ attributes }) {
  const [name, file, line] = ["code.function.name", "code.file.path", "code.line.number"].map((key) => attributes[key]);
  return name && file ? ["Called from ", h("b", null, name), `, ${file}${line ? `:${line}` : ""}.`] : name ? ["Called from ", h("b", null, name), "."] : null;
}

/** Which exception ended it, and where that was thrown. */
function thrown({ attributes }) {
  const type = attributes["exception.type"];
  if (!type) return [];
  const [name, file, line] = ["function.name", "file.path", "line.number"].map((key) => attributes[`tracer.exception.${key}`]);
  const place = name ? [", thrown in ", h("b", null, name), file ? `, ${file}${line ? `:${line}` : ""}` : null] : null;
  const stack = attributes["exception.stacktrace"];
  return [["Ended by ", h("b", { class: "err" }, type), place, "."], stack ? h("details", null, h("summary", null, "Stack of the exception"), h("div", { class: "scroll" }, h("pre", null, stack))) : null];
}

/** Why the span has the parent that it has, in words. */
export function evidence(span) {
  if (span.side === "client") return `How sure its parent is: ${GRADES[span.grade] || span.grade}. Evidence: ${span.evidence || "none is recorded"}.`;
  if (span.parent_from) return `Its parent: ${FROM[span.parent_from] || span.parent_from}.`;
  return span.parent_span_id ? "Its parent: the call at the other end of its connection." : "It has no parent: the transaction begins here, or whoever called is not traced.";
}

export class TransactionPage {
  constructor(place) {
    this.id = new URLSearchParams(location.search).get("id");
    this.title = h("h1", null, "Transaction");
    this.crumb = h("p", { class: "crumb" });
    this.sub = h("p", { class: "sub" });
    this.rows = h("tbody");
    this.waterfall = h("div", { class: "scroll" }, h("table", { class: "fall" }, h("thead", null, h("tr", null, ["span", "duration", "on CPU", "status", "parent", "timeline"].map((name, at) => h("th", { scope: "col", class: at === 5 ? "wide" : at === 1 || at === 2 || at === 3 ? "n" : null }, name)))), this.rows));
    this.critical = h("div");
    this.detail = h("div");
    this.profiles = h("div", { class: "profiles" });
    this.logs = h("div");
    show(place, this.crumb, this.title, card("Spans", "a row opens the span's details; the line above a bar is the critical path", this.sub, this.waterfall, legend([["critical", "critical path"], ["connect", "connecting"], ["handshake", "TLS handshake"]])),
      h("div", { class: "two" }, card("Critical path", "the chain that determined when it ended: less of anything else would not have made it faster", this.critical), card("Span", "where its time went, and why it stands where it does", this.detail)), this.logs, this.profiles);
    this.chosen = new URLSearchParams(location.search).get("span");
    this.rows.addEventListener("keydown", (event) => this.key(event));
    this.known = "";
    this.graphs = new Map();
  }

  async refresh() {
    const answer = await json(`/api/v1/transactions/${encodeURIComponent(this.id)}`, undefined, this.token);
    const text = JSON.stringify(answer);
    // What is over does not change any more: the place and the focus stay.
    if (text === this.known) return;
    this.known = text;
    this.draw(answer);
    await this.samples();
  }

  draw({ trace_id: id, spans, critical_path: steps, failed_at: failedAt, log_lines: lines, log_lines_dropped: dropped, log_texts: texts }) {
    Object.assign(this, { spans, steps });
    const rows = tree(spans);
    const [top] = rows[0];
    const known = new Set(spans.map((span) => span.span_id));
    // A call that nothing known caused begins with its connection, if that was opened right before.
    const opened = (span) => (known.has(span.parent_span_id) ? [] : opening(span).map(([, , at]) => at).filter((at) => span.start_ns - at < 1e9));
    const begin = Math.min(...spans.flatMap((span) => [span.start_ns - span.queue_s * 1e9, ...opened(span)]));
    const end = Math.max(...spans.map((span) => span.start_ns + span.duration_s * 1e9));
    this.whole = [begin, Math.max(end - begin, 1)];
    const failed = spans.filter((span) => span.error).length;
    this.title.textContent = `${top.service_name} · ${top.request_class}`;
    show(this.crumb, h("a", { href: link("/", {}) }, "services"), " / ", h("a", { href: serviceLink(top.service_name) }, top.service_name), " / ", top.side === "server" ? h("a", { href: classLink(top.service_name, top.request_class) }, top.request_class) : top.request_class);
    show(this.sub, `${clock(begin)}, ${time((end - begin) / 1e9)}, ${spans.length} ${spans.length === 1 ? "span" : "spans"}`, failed ? h("span", { class: "err" }, `, ${failed} failed`) : null, failedAt ? h("span", { class: "err" }, `, at first ${failedAt.service_name} · ${failedAt.request_class}: ${failedAt.error_type}${failedAt.exception_type ? `, ${failedAt.exception_type}` : ""}${failedAt.exception_function ? ` in ${failedAt.exception_function}` : ""}`) : null, " · trace ", h("code", null, id), " · ", h("a", { href: `/api/v1/transactions/${id}` }, "as JSON"));
    this.order = rows.map(([span]) => span);
    // At first the span that most of the time was spent in.
    const on = (span) => steps.filter((step) => step.span_id === span.span_id).reduce((sum, step) => sum + step.duration_s, 0);
    if (!this.order.some((span) => span.span_id === this.chosen)) this.chosen = this.order.reduce((best, span) => (on(span) > on(best) ? span : best), top).span_id;
    show(this.rows, rows.map(([span, depth]) => this.row(span, depth)));
    this.drawCritical();
    this.drawDetail();
    this.drawLines(lines || [], dropped || 0, texts, begin);
  }

  /** What its services wrote to logs for it, where the configuration asks for that. */
  drawLines(lines, dropped, texts, begin) {
    if (!lines.length) return void show(this.logs);
    const named = new Map(this.spans.map((span) => [span.span_id, span]));
    const place = ({ file, offset, bytes }) => `${file}${offset === null ? "" : `, byte ${offset}`}, ${bytes} bytes long`;
    const row = (line) => h("tr", null, h("td", { class: "dim" }, `+${time((line.time_ns - begin) / 1e9)}`),
      h("td", { class: "text" }, named.has(line.span_id) ? h("button", { type: "button", class: "plain", onclick: () => this.choose(named.get(line.span_id)) }, line.service_name) : line.service_name),
      h("td", { class: "text line", title: place(line) }, line.text === null ? h("span", { class: "dim" }, place(line)) : h("code", null, line.text), line.cut ? h("span", { class: "dim" }, " …") : null));
    // In this page's memory only: the next user of this browser has to give it again.
    const token = h("input", { type: "password", autocomplete: "off", "aria-label": "Token" });
    const ask = (event) => {
      event.preventDefault();
      this.token = token.value.trim();
      this.refresh();
    };
    const asks = texts ? null : h("form", { class: "sub", onsubmit: ask }, "Not every user of this host may read logs: the texts need the token of the agent's --token-file. ", token, " ", h("button", { class: "pill" }, "show texts"));
    show(this.logs, card("Log lines", "written by threads that held these requests and no others; the place of each is shown when pointed at",
      h("div", { class: "scroll" }, h("table", { class: "path" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "after"), h("th", { class: "text", scope: "col" }, "service"), h("th", { class: "text", scope: "col" }, "line"))), h("tbody", null, lines.map(row)))), asks,
      dropped ? h("p", { class: "sub" }, `${counted(dropped, "line", "lines")} in between ${dropped === 1 ? "is" : "are"} not kept.`) : null));
  }

  row(span, depth) {
    const chosen = span.span_id === this.chosen;
    const on = this.steps.filter((step) => step.span_id === span.span_id);
    const call = span.side === "client";
    return h("tr", { "data-span": span.span_id, tabindex: chosen ? 0 : -1, "aria-selected": String(chosen), onclick: () => this.choose(span) },
      h("td", { class: `depth${Math.min(depth, 8)}`, title: evidence(span) }, call ? h("span", { class: "call", title: "a call this service makes" }, "→ ") : null, h("b", null, span.service_name), ` ${span.request_class}`),
      h("td", { class: "n" }, time(span.duration_s)), h("td", { class: "n" }, call ? "" : time(span.cpu_s)),
      h("td", { class: `n${span.error ? " err" : ""}` }, String(span.attributes["tracer.process.signal"] ?? span.status ?? span.failure ?? (span.attributes["tracer.outcome"] === "unfinished" ? "unfinished" : span.attributes["error.type"] ?? "–"))),
      h("td", { title: evidence(span) }, call ? span.grade : span.parent_from || (span.parent_span_id ? "connection" : "–")),
      h("td", { class: "wide" }, this.lane(span, on)));
  }

  /** Where the span lies in the transaction; below it where its time went, by shares; above it the critical path. */
  lane(span, steps) {
    const [begin, whole] = this.whole;
    const at = (ns) => ((ns - begin) / whole) * 100;
    const wide = (seconds) => ((seconds * 1e9) / whole) * 100;
    const left = at(span.start_ns);
    const rects = [];
    let end = left;
    for (const [name, words, seconds] of [...queues(span)].reverse()) {
      if (!(seconds > 0) || span.side === "client") continue;
      end -= wide(seconds);
      rects.push(svg("rect", { class: name, x: end.toFixed(3), y: 3, width: Math.max(wide(seconds), 0.1).toFixed(3), height: 5 }, svg("title", null, `${words} ${time(seconds)}`)));
    }
    for (const [name, words, start, seconds] of opening(span)) {
      // What began before the transaction did was not for it.
      if (start >= begin) rects.push(svg("rect", { class: name, x: at(start).toFixed(3), y: 3, width: Math.max(wide(seconds), 0.1).toFixed(3), height: 5 }, svg("title", null, `${words} ${time(seconds)}`)));
    }
    const width = Math.max(wide(span.duration_s), 0.3);
    rects.push(svg("rect", { class: span.side, x: left.toFixed(3), y: 3, width: width.toFixed(3), height: 5 }, svg("title", null, `${time((span.start_ns - begin) / 1e9)} after the beginning, for ${time(span.duration_s)}`)));
    if (span.side === "server") {
      let from = left;
      for (const [name, words, seconds] of parts(span)) {
        const share = Math.min(wide(seconds), left + width - from);
        if (share > 0.02) rects.push(svg("rect", { class: name, x: from.toFixed(3), y: 8.5, width: share.toFixed(3), height: 2.5 }, svg("title", null, `${words} ${time(seconds)}`)));
        from += Math.max(share, 0);
      }
    }
    for (const step of steps) rects.push(svg("rect", { class: "critical", x: at(step.start_ns).toFixed(3), y: 0, width: Math.max(wide(step.duration_s), 0.2).toFixed(3), height: 2 }, svg("title", null, `critical path: ${STEPS[step.kind]}, ${time(step.duration_s)}`)));
    return svg("svg", { class: "lane", viewBox: "0 0 100 11", preserveAspectRatio: "none", role: "img", "aria-label": `${time((span.start_ns - begin) / 1e9)} after the beginning, for ${time(span.duration_s)}${steps.length ? ", on the critical path" : ""}` }, rects);
  }

  drawCritical() {
    const whole = this.steps.reduce((sum, step) => sum + step.duration_s, 0) || 1;
    const named = new Map(this.spans.map((span) => [span.span_id, span]));
    // Short steps hide those that matter; few of them do not.
    const short = this.steps.filter((step) => step.duration_s < whole * SHORT);
    const hidden = this.everyStep || short.length < 4 ? [] : short;
    const rows = this.steps.filter((step) => !hidden.includes(step)).map((step) => {
      const span = named.get(step.span_id);
      return h("tr", null, h("td", { class: "text" }, h("button", { type: "button", class: "plain", onclick: () => this.choose(span) }, `${span.side === "client" ? "→ " : ""}${span.service_name} ${span.request_class}`)),
        h("td", { class: "text dim" }, STEPS[step.kind]), h("td", null, time(step.duration_s)), h("td", { class: "dim" }, percent(step.duration_s / whole)));
    });
    show(this.critical, rows.length ? h("div", { class: "scroll" }, h("table", { class: "path" }, h("thead", null, h("tr", null, h("th", { class: "text", scope: "col" }, "span"), h("th", { class: "text", scope: "col" }, "what"), h("th", { scope: "col" }, "time"), h("th", { scope: "col" }, "share"))), h("tbody", null, rows)), hidden.length ? h("button", { type: "button", class: "pill", onclick: () => { this.everyStep = true; this.drawCritical(); } }, `show ${hidden.length} steps below ${percent(SHORT)}, ${time(hidden.reduce((sum, step) => sum + step.duration_s, 0))} together`) : null) : empty("No path.", "No span of this transaction has begun and ended in sight."));
  }

  choose(span, focus = false) {
    this.chosen = span.span_id;
    const address = new URL(location.href);
    address.searchParams.set("span", span.span_id);
    history.replaceState(null, "", address);
    for (const row of this.rows.children) {
      const own = row.dataset.span === this.chosen;
      row.setAttribute("aria-selected", String(own));
      row.tabIndex = own ? 0 : -1;
      if (own && focus) row.focus();
    }
    this.drawDetail();
  }

  /** Arrows move between spans. */
  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.closest("tr")) return;
    event.preventDefault();
    const next = this.order[this.order.findIndex((span) => span.span_id === this.chosen) + step];
    if (next) this.choose(next, true);
  }

  drawDetail() {
    const span = this.order.find((one) => one.span_id === this.chosen);
    const figure = (value, words) => h("div", null, h("b", null, value), words);
    const server = span.side === "server";
    const figures = [figure(time(span.duration_s), "duration"), ...opening(span).map(([, words, , seconds]) => figure(time(seconds), words)), ...(server ? [...queues(span), ...parts(span)].filter(([, , seconds]) => seconds > 0).map(([, words, seconds]) => figure(time(seconds), words)) : [])];
    const extra = [
      ...thrown(span),
      calledFrom(span),
      network(span),
      span.pool_queue_s ? `Its jobs waited ${time(span.pool_queue_s)} for a free thread of the pool.` : null,
      span.after_reply_s ? `After the reply its worker went on for ${time(span.after_reply_s)}, with ${time(span.after_reply_cpu_s)} of CPU.` : null,
      span.switches ? `${counted(span.switches, "context switch", "context switches")}.` : null,
      ...(span.links || []).map((one) => h("a", { href: transactionLink(one.trace_id) }, `caused by a message of transaction ${one.trace_id}`)),
    ].filter(Boolean);
    show(this.detail, h("p", null, h("b", null, span.service_name), " · ", server ? h("a", { href: classLink(span.service_name, span.request_class) }, span.request_class) : span.request_class, h("span", { class: "dim" }, ` · ${server ? "served" : "called"} by process ${span.pid} on ${span.host}`)),
      h("div", { class: "kpi small" }, figures), h("p", { class: "evidence" }, evidence(span)), extra.map((words) => h("p", { class: "sub" }, words)),
      h("details", null, h("summary", null, "Attributes"), h("dl", null, Object.entries(span.attributes).map(([name, value]) => [h("dt", null, name), h("dd", null, String(value))]))));
  }

  /** The samples of those of its spans that were slow for their class. */
  async samples() {
    const asked = await Promise.all(this.order.filter((span) => span.side === "server").slice(0, 20).map((span) => optional("/api/v1/slow-requests", { service: span.service_name, class: span.request_class, limit: 256 }, { slow_requests: [] })));
    const own = new Map(asked.flatMap((one) => one.slow_requests).filter((one) => this.spans.some((span) => span.span_id === one.span_id)).map((one) => [one.span_id, one]));
    if (!own.size) return void show(this.profiles, card("Its own samples", null, empty("None of these spans keeps samples of its own.", "Requests that take more than twice the 99th percentile of their class do; the class's page has the flame graph of all of them.")));
    show(this.profiles, [...own.values()].map((one) => this.profile(one)));
  }

  /** The samples and waits of the thread that has most of them, from the request's first byte to the reply's last. */
  async timeline(graph, one) {
    try {
      const { taken } = await (await get(`/api/v1/slow-requests/${one.span_id}`)).json();
      const threads = new Map();
      // The times of samples that were summed were not kept.
      for (const sample of taken.filter((sample) => sample.count === 1)) threads.set(sample.thread, [...(threads.get(sample.thread) || []), sample]);
      const [most = []] = [...threads.values()].sort((a, b) => b.length - a.length);
      graph.showTimeline(most, one.duration_s, "This span has no samples whose times were kept.");
    } catch (error) {
      graph.show("", error.message);
    }
  }

  profile(one) {
    const graph = new FlameGraph();
    const modes = [["cpu", "on CPU", one.samples], ["offcpu", "off CPU", one.off_cpu_samples], ["time", "by time"]];
    const buttons = h("span", { class: "seg", role: "group", "aria-label": "Kind of profile" });
    const file = h("a", null, "as SVG");
    const choose = async (mode) => {
      for (const button of buttons.children) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
      if (mode === "time") return void this.timeline(graph, one);
      file.setAttribute("href", `/flamegraph.svg?span=${one.span_id}&kind=${mode}`);
      try {
        graph.show(await (await get("/profile.folded", { span: one.span_id, kind: mode, annotate: "code" })).text(), "This span has no samples of this kind.");
      } catch (error) {
        graph.show("", error.message);
      }
    };
    show(buttons, modes.map(([mode, words, number]) => h("button", { type: "button", "data-mode": mode, onclick: () => choose(mode) }, number === undefined ? words : `${words} (${number})`)));
    choose(one.samples || !one.off_cpu_samples ? "cpu" : "offcpu");
    return h("section", { class: "card", id: `profile-${one.span_id}` }, h("h2", null, `Its own samples: ${one.service_name} · ${one.request_class}`, h("small", null, `${time(one.duration_s)}, slower than ${time(one.threshold_s)} · `, file, " · ", h("a", { href: `/profile.speedscope.json?span=${one.span_id}` }, "for speedscope"), " · ", h("a", { href: `/api/v1/slow-requests/${one.span_id}` }, "as JSON")), buttons), graph.element);
  }
}
