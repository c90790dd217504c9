// Which lines make the calls of a class: of the class itself, where a service calls, or of those that call it.

import { h, show, card, empty } from "./dom.js";
import { optional, asked, range } from "./data.js";
import { percent, count } from "./format.js";
import { Table } from "./table.js";

/** Classes of calls that are asked about for one page. */
const ASKED = 6;

/** A place: the function, and the end of its file's path with the line. */
export function placeName({ function: name, file, line }) {
  if (!name) return "no function of the application";
  const end = (file || "").split("/").slice(-2).join("/");
  return [name, end ? h("small", { class: "dim", title: file }, ` ${end}${line ? `:${line}` : ""}`) : null];
}

/** The same as text. */
export const placeText = ({ function: name, file, line }) => `${name}${file ? ` (${file}${line ? `:${line}` : ""})` : ""}`;

export class CallSitesCard {
  constructor() {
    this.none = h("div");
    this.sites = new Table({ name: "sites", sort: "-calls", key: (one) => `${one.service}\n${one.call}\n${one.function}\n${one.file}\n${one.line}`, columns: COLUMNS, rowsMost: 60, first: 10 });
    this.sites.element.classList.add("cards");
    this.stacks = h("div");
    this.element = card("Called from", "the lines that make these calls, by the stacks of a share of them", this.sites.element, this.stacks, this.none);
  }

  /** Of calls that `service` makes itself, and of those of other services that `edges` lead here. */
  async refresh(service, name, edges) {
    const [, , seconds] = range();
    // Stacks go back an hour.
    const when = asked().since ? { since: `${Math.min(seconds, 3600)}s` } : asked();
    const into = edges.filter((edge) => edge.callee_service === service && edge.callee_class === name);
    const pairs = new Map([[`${service}\n${name}`, [service, name]], ...into.map((edge) => [`${edge.caller_service}\n${edge.call_class}`, [edge.caller_service, edge.call_class]])]);
    const found = await Promise.all([...pairs.values()].slice(0, ASKED).map(async ([caller, call]) => {
      const answer = await optional("/api/v1/call-sites", { service: caller, class: call, limit: 50, ...when }, { sites: [] });
      return answer.sites.map((site) => ({ ...site, service: caller, call }));
    }));
    const rows = found.flat();
    this.element.hidden = !rows.length && !into.length;
    this.sites.element.hidden = !rows.length;
    this.sites.show(rows);
    const top = [...rows].sort((a, b) => b.calls - a.calls).slice(0, 5);
    // What was opened stays open.
    const open = new Set([...this.stacks.querySelectorAll("details[open]")].map((one) => one.dataset.key));
    show(this.stacks, top.filter((one) => one.stacks.length).map((one) => stacks(one, open)));
    show(this.none, rows.length ? [] : empty("No stacks of these calls yet.", "They are taken of a share of the calls, within the overhead budget; protocols that send for several requests at once, and callers on other hosts, have none."));
  }
}

/** The stacks of a place, folded. */
function stacks(one, open) {
  const key = `${one.service} ${placeText(one)}`;
  const frame = (of) => h("li", { class: of.code === "application" ? null : "dim" }, of.code === "application" ? h("b", null, of.function) : of.function, of.file ? h("small", { class: "dim", title: of.file }, ` ${of.file.split("/").slice(-2).join("/")}${of.line ? `:${of.line}` : ""}`) : null);
  const stack = ({ calls, frames }) => [h("p", { class: "sub" }, `${count(calls)} calls`), h("ol", { class: "stack" }, [...frames].reverse().map(frame))];
  const more = one.more_stacks ? h("p", { class: "sub" }, `and ${count(one.more_stacks)} more stacks`) : null;
  return h("details", { "data-key": key, open: open.has(key) }, h("summary", null, "Stacks of ", placeName(one)), one.stacks.map(stack), more);
}

const COLUMNS = [
  { key: "place", title: "place", text: true, value: (one) => one.function || "", cell: placeName },
  { key: "callers", title: "called by", hint: "functions of the application that called this one", text: true, cell: (one) => one.callers.slice(0, 3).map((caller, at) => [at ? ", " : null, h("span", { title: placeText(caller) }, caller.function, h("small", { class: "dim" }, `${caller.line ? `:${caller.line}` : ""} (${percent(caller.calls / Math.max(one.calls, 1))})`))]) },
  { key: "service", title: "service", text: true, value: (one) => one.service, cell: (one) => one.service },
  { key: "calls", title: "calls", hint: "whose stack was taken, and their share of the service's calls of this class", value: (one) => one.calls, cell: (one) => `${count(one.calls)} · ${percent(one.share)}` },
];
