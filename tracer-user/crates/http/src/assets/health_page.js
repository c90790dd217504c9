// Health of the agent: what it cannot see, what was lost, what it costs, and agents of other hosts.

import { h, show, card, empty } from "./dom.js";
import { json, moment } from "./data.js";
import { count, percent, time } from "./format.js";
import { Table } from "./table.js";

const PART = {
  requests: "charged to requests", overhead: "overhead of services: work for no request", kernel: "the kernel's own threads and interrupts",
  unreported: "measured, but not yet reported by thread",
};

export class HealthPage {
  constructor(place) {
    this.notices = h("div");
    this.cpu = h("div", { class: "kpi" });
    this.agent = h("div", { class: "kpi" });
    this.budget = h("p");
    this.functions = new Table({ name: "functions", sort: "-cpu", key: (one) => `${one.program} ${one.function}`, columns: [
      { key: "function", title: "function", text: true, value: (one) => one.function, cell: (one) => h("span", { title: one.program }, one.function) },
      { key: "state", title: "state", text: true, value: (one) => one.state, cell: (one) => h("span", { title: one.detail ?? "" }, [one.state, one.reason].filter(Boolean).join(": ")) },
      { key: "cpu", title: "CPU of the host", value: (one) => one.cpu_ratio, cell: (one) => percent(one.cpu_ratio) },
      { key: "cost", title: "its probes", value: (one) => one.cost_ratio, cell: (one) => percent(one.cost_ratio) },
      { key: "rate", title: "calls a second", value: (one) => one.calls_per_second ?? -1, cell: (one) => one.calls_per_second === null ? "–" : count(one.calls_per_second) },
      { key: "mean", title: "mean", value: (one) => one.mean_s ?? -1, cell: (one) => one.mean_s === null ? "–" : time(one.mean_s) },
    ] });
    this.decisions = new Table({ name: "decisions", sort: "-at", key: (one) => `${one.at_ns} ${one.function} ${one.action}`, columns: [
      { key: "at", title: "time", value: (one) => one.at_ns, cell: (one) => moment(one.at_ns) },
      { key: "function", title: "function", text: true, value: (one) => one.function, cell: (one) => h("span", { title: one.program }, one.function) },
      { key: "action", title: "decision", text: true, value: (one) => one.action, cell: (one) => h("span", { title: one.detail ?? "" }, `${one.action}: ${one.reason}`) },
    ] });
    this.instrumentation = card("Instrumented hotspots", "functions traced without being declared, within a budget", this.budget, this.functions.element, h("h3", null, "Decisions"), this.decisions.element);
    this.lost = new Table({ name: "lost", sort: "-count", key: ([reason]) => reason, columns: [
      { key: "reason", title: "reason", text: true, value: ([reason]) => reason, cell: ([reason]) => reason },
      { key: "count", title: "records", value: ([, many]) => many, cell: ([, many]) => count(many) },
    ] });
    this.noLoss = h("div");
    this.peers = new Table({ name: "peers", sort: "address", key: (one) => one.address, columns: [
      { key: "address", title: "address", text: true, value: (one) => one.address, cell: (one) => one.address },
      { key: "host", title: "host", text: true, value: (one) => one.host, cell: (one) => one.host },
      { key: "state", title: "session", text: true, value: (one) => one.state, cell: (one) => `${one.direction}, ${one.state}` },
      { key: "sent", title: "sent", value: (one) => one.sent, cell: (one) => count(one.sent) },
      { key: "received", title: "received", value: (one) => one.received, cell: (one) => count(one.received) },
      { key: "error", title: "last error", text: true, value: (one) => one.error, cell: (one) => one.error },
    ] });
    this.noPeers = h("div");
    show(place, h("h1", null, "Health of the agent"), card("Notices", "what the agent cannot see here, and why", this.notices),
      card("CPU of this host", "since the agent started", this.cpu, h("p", null, h("a", { href: "/workloads" }, "By command, user, cgroup, unit and database"))), card("The agent itself", null, this.agent),
      this.instrumentation, card("Lost records", "by reason, since the agent started", this.lost.element, this.noLoss),
      card("Agents of other hosts", null, this.peers.element, this.noPeers));
  }

  async refresh(health) {
    const [{ enabled, peers }, instrumentation] = await Promise.all([json("/api/v1/peers"), json("/api/v1/instrumentation")]);
    this.instrumentation.hidden = !instrumentation.enabled;
    show(this.budget, `Their probes take ${percent(instrumentation.cost_ratio)} of the host's CPU, of ${percent(instrumentation.budget_ratio)} that they may.`);
    this.functions.show(instrumentation.functions);
    this.decisions.show(instrumentation.decisions);
    const notes = [...health.not_ready.map((note) => `Not ready: ${note}`), ...health.degraded];
    if (health.shed.level > 0) notes.push(`Load is shed (level ${health.shed.level} of 4): ${health.shed.meaning}.`);
    show(this.notices, notes.length ? notes.map((note) => h("p", { class: "note" }, note)) : empty("Nothing is missing.", "Every hook is attached and nothing is shed."));
    const cpu = health.cpu_s;
    const figure = (value, words, hint) => h("div", { title: hint }, h("b", null, value), words);
    show(this.cpu, figure(health.capture_ratio === null ? "–" : health.capture_ratio.toFixed(4), "capture ratio", "CPU attributed ÷ CPU that the system says was used"),
      ["requests", "overhead", "kernel", "unreported"].map((name) => figure(percent(cpu[name] / cpu.system_busy), name, PART[name])));
    const agent = health.agent;
    show(this.agent, figure(time(agent.cpu_s), "CPU since the start"), figure(agent.cpu_cores.toFixed(3), agent.max_cpu_cores ? `cores, of ${agent.max_cpu_cores} allowed` : "cores now"),
      figure(`${(agent.rss_bytes / 1e6).toFixed(0)} MB`, "resident memory"), figure(`${health.profiler.hertz} Hz`, health.profiler.hertz < health.profiler.max_hertz ? `stack sampling, of ${health.profiler.max_hertz} allowed` : "stack sampling"),
      figure(percent(health.profiler.cost_ratio), `of the host's CPU for stacks, of ${percent(health.profiler.budget_ratio)}`, "The sampling rate follows what samples cost: see --overhead-budget and docs/profiling.md."),
       figure(count(health.otlp_spans_dropped), "spans not exported"), figure(health.shed.what, "shed under load", health.shed.meaning));
    const lost = Object.entries(health.events_lost_by_reason);
    this.lost.show(lost);
    show(this.noLoss, lost.length ? [] : empty("No record was lost.", "Counts appear here if rings or tables overflow."));
    this.peers.show(peers);
    show(this.noPeers, peers.length ? [] : empty(enabled ? "No agent has connected." : "The relay is off.", "Agents of several hosts join transactions across hosts: see --relay and docs/multi-host.md."));
  }
}
