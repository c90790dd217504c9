// A list of transactions: those of a class, a time and a latency, page by page.

import { h, show, card, narrow, empty } from "./dom.js";
import { json, moment } from "./data.js";
import { time, count, clock, link, serviceLink, classLink, transactionLink } from "./format.js";
import { Table } from "./table.js";

/** Rows of a page. */
const ROWS = narrow() ? 20 : 100;
/** Parameters of the address that the API takes by the same name. */
const TAKEN = ["class", "from", "to", "since", "min_ms", "max_ms", "status", "sort"];

export class TransactionsPage {
  constructor(place) {
    this.asked = new URLSearchParams(location.search);
    this.fields = Object.fromEntries([["min_ms", "at least, ms"], ["max_ms", "below, ms"], ["status", "status (ok, error, 5xx)"]].map(([name, words]) => [name, h("input", { name, value: this.asked.get(name) || "", placeholder: words, "aria-label": words })]));
    this.order = h("select", { "aria-label": "Order", name: "sort" }, [["newest", "newest first"], ["slowest", "slowest first"]].map(([value, words]) => h("option", { value, selected: value === (this.asked.get("sort") || "newest") }, words)));
    this.form = h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); this.apply(); } }, Object.values(this.fields), this.order, h("button", { type: "submit", class: "pill" }, "apply"));
    this.order.addEventListener("change", () => this.apply());
    this.table = new Table({ name: "list", sort: null, key: (one) => one.trace_id, columns: COLUMNS, rowsMost: 10000 });
    this.table.element.classList.add("cards");
    this.note = h("p", { class: "sub", role: "status" });
    this.nothing = h("div");
    this.more = h("button", { type: "button", class: "pill", hidden: true, onclick: () => this.next() }, "more");
    const service = this.asked.get("name");
    const name = this.asked.get("class");
    show(place, h("p", { class: "crumb" }, h("a", { href: link("/", {}) }, "services"), service ? [" / ", h("a", { href: serviceLink(service) }, service)] : null, service && name ? [" / ", h("a", { href: classLink(service, name) }, name)] : null),
      h("h1", null, "Transactions"), card("", null, h("p", { class: "sub" }, this.words()), this.form, this.note, this.nothing, this.table.element, this.more));
    this.pages = [];
  }

  /** What is listed, in words. */
  words() {
    const asked = this.asked;
    const end = (name) => moment(Number(asked.get(name)));
    const parts = [asked.get("from") || asked.get("to") ? `that ended ${asked.get("from") ? `from ${end("from")}` : ""} ${asked.get("to") ? `to ${end("to")}` : ""}`.trim() : null,
      asked.get("min_ms") ? `took at least ${time(asked.get("min_ms") / 1e3)}` : null, asked.get("max_ms") ? `took less than ${time(asked.get("max_ms") / 1e3)}` : null];
    const words = parts.filter(Boolean).join(", ");
    return words ? `Those ${words}. ` : "The newest, slowest and failed that the agent keeps. ";
  }

  /** Another selection is another address. */
  apply() {
    const address = new URL(location.href);
    for (const [name, value] of [...Object.entries(this.fields).map(([name, field]) => [name, field.value.trim()]), ["sort", this.order.value]]) {
      if (value && !(name === "sort" && value === "newest")) address.searchParams.set(name, value);
      else address.searchParams.delete(name);
    }
    location.assign(address);
  }

  ask(cursor) {
    const asked = Object.fromEntries(TAKEN.map((name) => [name, this.asked.get(name)]));
    return json("/api/v1/transactions", { ...asked, service: this.asked.get("name"), limit: ROWS, cursor });
  }

  async next() {
    const page = await this.ask(this.cursor);
    this.pages.push(page.transactions);
    this.draw(page);
  }

  draw(page) {
    this.cursor = page.next_cursor;
    this.more.hidden = !this.cursor;
    const rows = this.pages.flat();
    this.table.show(rows);
    const { memory } = page;
    const forgot = memory.forgotten ? ` Of ${count(memory.forgotten + memory.transactions)} transactions the agent keeps ${count(memory.transactions)}: all since ${memory.complete_from ? clock(memory.complete_from) : "–"}, before that only the slowest, the failed and a sample of each class.` : " Nothing is forgotten yet.";
    this.note.textContent = `${count(rows.length)} of ${count(page.matched)} that fit.${forgot} A row can be opened for ${page.fresh.for_s} s after it was listed.`;
    show(this.nothing, rows.length ? [] : empty("No transaction fits.", memory.forgotten ? "The requests were counted, but the agent keeps only the newest, the slowest, the failed and a sample of each class. Choose a later time, or --save-transactions to keep more on disk." : "Take a wider range of time or latency."));
  }

  async refresh() {
    // Rows that were added by hand stay until they are no longer fresh to the reader: only a single page refreshes.
    if (this.pages.length > 1) return;
    const page = await this.ask();
    this.pages = [page.transactions];
    this.draw(page);
  }
}

const COLUMNS = [
  { key: "start", title: "start", text: true, cell: (one) => h("a", { href: transactionLink(one.trace_id) }, clock(one.start_ns)) },
  { key: "name", title: "service · class", text: true, cell: (one) => [h("a", { href: serviceLink(one.service_name) }, one.service_name), h("span", { class: "dim" }, " · "), h("a", { href: classLink(one.service_name, one.request_class) }, one.request_class)] },
  { key: "duration", title: "duration", cell: (one) => time(one.duration_s) },
  { key: "status", title: "status", cell: (one) => h("span", { class: one.error ? "err" : null }, String(one.status ?? one.failure ?? one.process_end ?? one.outcome)) },
  { key: "spans", title: "spans", cell: (one) => [String(one.spans), one.failed_spans ? h("span", { class: "err" }, ` (${one.failed_spans} failed)`) : null] },
];
