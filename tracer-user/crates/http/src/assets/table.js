// A table that sorts by its heads, filters, and changes only the rows that changed: scrolling and focus stay.

import { h } from "./dom.js";

/**
 * `columns`: { key, title, hint, value(row) to sort by, cell(row) → text or nodes, text: whether it is text }.
 * `key(row)` names a row. The order is in the address, so that it can be shared. The `first` rows are shown until all are asked for; the
 * search of the page narrows it down if it is `searched`.
 */
export class Table {
  constructor({ columns, key, sort, name, rowsMost = 100, first = rowsMost, searched = false }) {
    Object.assign(this, { columns, key, name, rowsMost, first, searched });
    const asked = new URLSearchParams(location.search).get(`${name}.sort`) || sort || "";
    this.descending = asked.startsWith("-");
    this.by = asked.replace("-", "");
    this.body = h("tbody");
    this.heads = columns.map((column) =>
      h("th", { class: column.text ? "text" : null, title: column.hint, scope: "col" },
        column.value ? h("button", { type: "button", onclick: () => this.sortBy(column) }, column.title) : column.title));
    this.more = h("p", { class: "dim" });
    this.all = h("button", { type: "button", class: "pill", hidden: true, onclick: () => { this.first = this.rowsMost; this.show(this.rows); } });
    this.element = h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, this.heads)), this.body), this.all, this.more);
    this.rows = [];
    this.known = new Map();
  }

  sortBy(column) {
    this.descending = this.by === column.key ? !this.descending : !column.text;
    this.by = column.key;
    const address = new URL(location.href);
    address.searchParams.set(`${this.name}.sort`, (this.descending ? "-" : "") + this.by);
    history.replaceState(null, "", address);
    this.show(this.rows);
  }

  show(rows) {
    this.rows = rows;
    const column = this.columns.find((one) => one.key === this.by && one.value) || this.columns.find((one) => one.value);
    const sign = this.descending ? -1 : 1;
    // Rows of a table without sortable columns come in their order.
    const sorted = !column ? [...rows] : [...rows].sort((a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      const order = typeof x === "string" ? x.localeCompare(y) : (x ?? -1) - (y ?? -1);
      return sign * order || this.key(a).localeCompare(this.key(b));
    });
    this.heads.forEach((head, index) => {
      const own = column && this.columns[index] === column;
      if (own) head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const shown = sorted.slice(0, Math.min(this.first, this.rowsMost));
    const known = new Map();
    const wanted = shown.map((row) => {
      const key = this.key(row);
      const fresh = h("tr", null, this.columns.map((one) => h("td", { class: one.text ? "text" : null, "data-label": one.title }, one.cell(row))));
      const old = this.known.get(key);
      // Only cells that differ are replaced: a focused link keeps its focus.
      if (old) {
        [...old.children].forEach((cell, index) => {
          if (!cell.isEqualNode(fresh.children[index])) cell.replaceWith(fresh.children[index].cloneNode(true));
        });
      }
      known.set(key, old || fresh);
      return old || fresh;
    });
    this.known = known;
    const now = [...this.body.children];
    if (now.length !== wanted.length || now.some((row, index) => row !== wanted[index])) {
      const focused = document.activeElement;
      this.body.replaceChildren(...wanted);
      if (focused && this.body.contains(focused)) focused.focus({ preventScroll: true });
    }
    const most = Math.min(sorted.length, this.rowsMost);
    this.all.hidden = shown.length === most;
    this.all.textContent = `show ${most}`;
    const hidden = sorted.length - most;
    this.more.textContent = hidden > 0 ? `${hidden} more${this.searched ? ": search to narrow down" : ""}.` : "";
  }
}
