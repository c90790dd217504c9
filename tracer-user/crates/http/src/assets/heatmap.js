// A latency heatmap: windows from left to right, durations from bottom to top, darker where there were more requests. Each cell is
// a link to the transactions that ended then and took so long. Beside it the distribution over the whole range.

import { h, svg, show, empty } from "./dom.js";
import { time, count, percent, link } from "./format.js";

/** Rows and columns at most: more than that no one distinguishes, and a finger does not hit. */
const ROWS = 16;
const COLUMNS = 60;
const SHADES = 6;
const LEFT = 58;
const BOTTOM = 20;

/** Sums the API's windows and steps into cells: { columns: [{ from, to }], rows: [{ low, high }], cells: [[count]], … }. */
export function cells({ windows, bounds_s: bounds }, most = COLUMNS) {
  const filled = windows.filter((one) => one.steps.length);
  if (!filled.length) return null;
  const first = Math.min(...filled.map((one) => one.steps[0]));
  const last = Math.max(...filled.map((one) => one.steps.at(-1)));
  const merge = Math.max(1, Math.ceil((last - first + 1) / ROWS));
  const height = Math.ceil((last - first + 1) / merge);
  const start = windows[0].start_ns;
  const end = windows.at(-1).start_ns + windows.at(-1).length_s * 1e9;
  // A column holds whole windows, as many in each; they last a little longer or shorter, so their middles decide.
  const usual = [...windows].sort((one, other) => one.length_s - other.length_s)[Math.floor(windows.length / 2)].length_s * 1e9;
  const times = Math.max(1, Math.round((end - start) / usual));
  const number = Math.ceil(times / Math.ceil(times / most));
  const width = (end - start) / number;
  const columns = Array.from({ length: number }, (_, at) => ({ from: start + at * width, to: start + (at + 1) * width }));
  const column = (one) => Math.min(Math.max(Math.floor((one.start_ns + one.length_s * 5e8 - start) / width), 0), number - 1);
  columns.forEach((one, at) => {
    const own = windows.filter((other) => column(other) === at);
    // Exactly its windows: a cell leads to the requests that it counts.
    if (own.length) Object.assign(one, { from: own[0].start_ns, to: own.at(-1).start_ns + own.at(-1).length_s * 1e9 });
  });
  const rows = Array.from({ length: height }, (_, at) => ({ low: bounds[first + at * merge], high: bounds[Math.min(first + (at + 1) * merge, bounds.length - 1)] }));
  const counts = columns.map(() => rows.map(() => 0));
  for (const one of windows) {
    const sums = counts[column(one)];
    one.steps.forEach((step, at) => { sums[Math.floor((step - first) / merge)] += one.counts[at]; });
  }
  return { columns, rows, counts, most: Math.max(...counts.flat()), all: counts.flat().reduce((sum, one) => sum + one, 0) };
}

/** A shade by the logarithm: a single slow request has to be seen beside thousands of fast ones. */
const shade = (number, most) => Math.max(1, Math.ceil((Math.log1p(number) / Math.log1p(most)) * SHADES));
const hour = (ns) => new Date(ns / 1e6).toTimeString().slice(0, 8);
const whole = (ns) => String(BigInt(Math.round(ns)));

/** Where a cell leads: transactions of the class that ended in these times and took so long. */
export function cellLink(service, name, { from, to }, { low, high }) {
  return link("/transactions", { name: service, class: name, from: whole(from), to: whole(to), min_ms: Number((low * 1e3).toPrecision(6)), max_ms: Number((high * 1e3).toPrecision(6)) });
}

export class Heatmap {
  constructor(service, name) {
    Object.assign(this, { service, name });
    this.place = h("div", { class: "heatmap" });
    this.status = h("p", { class: "status-line", "aria-live": "polite" });
    this.element = h("div", null, this.place, this.status);
    this.distribution = h("div", { class: "distribution" });
    new ResizeObserver(() => this.known && this.width !== this.place.clientWidth && this.draw()).observe(this.place);
    this.place.addEventListener("keydown", (event) => this.key(event));
    this.at = [0, 0];
  }

  show(answer) {
    this.answer = answer;
    this.draw();
  }

  draw() {
    this.width = Math.max(this.place.clientWidth, 200);
    // On a phone a column is still as wide as a finger needs.
    const known = cells(this.answer, Math.max(8, Math.min(COLUMNS, Math.floor((this.width - LEFT) / 9))));
    this.known = known;
    if (!known) {
      show(this.place, empty("No windows with requests yet.", "A window ends every few seconds; choose a longer time range above, or send some requests."));
      show(this.distribution, empty("No requests in this range.", "The distribution appears with the heatmap."));
      this.status.textContent = "";
      return;
    }
    const { columns, rows, counts, most } = known;
    const focused = this.place.contains(document.activeElement);
    const wide = (this.width - LEFT) / columns.length;
    const tall = 190 / rows.length;
    this.at = [Math.min(this.at[0], columns.length - 1), Math.min(this.at[1], rows.length - 1)];
    const [focusX, focusY] = this.nearest(...this.at) || [];
    const drawn = columns.flatMap((column, x) => rows.map((row, y) => {
      const number = counts[x][y];
      if (!number) return null;
      const words = `${count(number)} ${number === 1 ? "request" : "requests"} between ${time(row.low)} and ${time(row.high)}, ${hour(column.from)} to ${hour(column.to)}`;
      return svg("a", { href: cellLink(this.service, this.name, column, row), class: "cell", "data-at": `${x},${y}`, tabindex: x === focusX && y === focusY ? 0 : -1, "aria-label": `${words}: their transactions`, onfocus: () => { this.at = [x, y]; this.say(words); }, onmouseenter: () => this.say(words) },
        svg("title", null, `${words}. Click: their transactions.`),
        svg("rect", { class: `shade${shade(number, most)}`, x: (LEFT + x * wide).toFixed(1), y: (190 - (y + 1) * tall).toFixed(1), width: Math.max(wide - 1, 1).toFixed(1), height: Math.max(tall - 1, 1).toFixed(1), rx: 1.5 }));
    }));
    const every = Math.max(1, Math.ceil(rows.length / 6));
    const labels = rows.map((row, y) => (y % every ? null : svg("text", { class: "dim", x: LEFT - 6, y: 190 - y * tall, "text-anchor": "end" }, time(row.low))));
    const marks = Math.max(1, Math.ceil(columns.length / Math.max(2, Math.floor((this.width - LEFT) / 90))));
    const hours = columns.map((column, x) => (x % marks || LEFT + x * wide > this.width - 56 ? null : svg("text", { class: "dim", x: (LEFT + x * wide).toFixed(1), y: 190 + BOTTOM - 5 }, hour(column.from))));
    show(this.place, svg("svg", { width: this.width, height: 190 + BOTTOM, viewBox: `0 0 ${this.width} ${190 + BOTTOM}`, role: "group", "aria-label": "Latency heatmap" }, labels, hours, drawn));
    if (focused) this.place.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
    this.say("");
    this.drawDistribution();
  }

  /** Requests by duration over the whole range, as bars; each leads to its transactions. */
  drawDistribution() {
    const { rows, counts, columns, all } = this.known;
    const sums = rows.map((_, y) => counts.reduce((sum, column) => sum + column[y], 0));
    const most = Math.max(...sums);
    let below = 0;
    const whole = { from: columns[0].from, to: columns.at(-1).to };
    const lines = rows.map((row, y) => {
      below += sums[y];
      if (!sums[y]) return null;
      const words = `${count(sums[y])} ${sums[y] === 1 ? "request" : "requests"} between ${time(row.low)} and ${time(row.high)}; ${percent(below / all)} take at most that`;
      return h("tr", { title: words },
        h("td", { class: "text" }, h("a", { href: cellLink(this.service, this.name, whole, row) }, `${time(row.low)} – ${time(row.high)}`)),
        h("td", { class: "fill" }, svg("svg", { class: "share", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": words }, svg("rect", { class: "shade4", width: Math.max((sums[y] / most) * 100, 0.5).toFixed(2), height: 10 }))),
        h("td", null, count(sums[y])), h("td", { class: "dim" }, percent(below / all)));
    });
    show(this.distribution, h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, h("th", { class: "text", scope: "col" }, "duration"), h("th", null), h("th", { scope: "col" }, "requests"), h("th", { scope: "col", title: "share of requests that take at most that" }, "up to here"))), h("tbody", null, lines.reverse()))));
  }

  say(words) {
    this.status.textContent = words || `${count(this.known.all)} requests. A cell opens its transactions; arrows move between cells.`;
  }

  /** The filled cell next to a place. */
  nearest(x, y) {
    let best = null;
    let distance = Infinity;
    this.known.counts.forEach((column, atX) => column.forEach((number, atY) => {
      const far = Math.abs(atX - x) + Math.abs(atY - y);
      if (number && far < distance) [best, distance] = [[atX, atY], far];
    }));
    return best;
  }

  /** Arrows move to the next filled cell in that direction; Enter is the link's own. */
  key(event) {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!step || !this.known) return;
    event.preventDefault();
    let [x, y] = this.at;
    const { counts } = this.known;
    for (;;) {
      [x, y] = [x + step[0], y + step[1]];
      if (!counts[x] || counts[x][y] === undefined) return;
      // Left and right: whatever is filled in the next column, the closest in height.
      const at = step[0] ? counts[x].map((number, index) => [number, index]).filter(([number]) => number).sort((a, b) => Math.abs(a[1] - y) - Math.abs(b[1] - y))[0]?.[1] : counts[x][y] ? y : undefined;
      if (at === undefined) continue;
      this.place.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
      const next = this.place.querySelector(`[data-at="${x},${at}"]`);
      next.setAttribute("tabindex", "0");
      next.focus();
      return;
    }
  }
}
