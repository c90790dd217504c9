// Charts over time (uPlot), sparklines and bars.

import { h, svg, show, empty } from "./dom.js";
import { parts, range, asked, choose, keepsHistory } from "./data.js";
import { time } from "./format.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Where a request's time goes, as one bar. */
export function bar(one) {
  const all = parts(one);
  const whole = Math.max(one.mean_s + one.queue_s, all.reduce((sum, [, , seconds]) => sum + seconds, 0), 1e-9);
  let left = 0;
  const rects = all.map(([name, words, seconds]) => {
    const width = (seconds / whole) * 100;
    const rect = width < 0.5 ? null : svg("rect", { class: name, x: left.toFixed(2), width: width.toFixed(2), height: 10 }, svg("title", null, `${words} ${time(seconds)}`));
    left += width;
    return rect;
  });
  const words = all.filter(([, , seconds]) => seconds > 0).map(([, name, seconds]) => `${name} ${time(seconds)}`).join(", ");
  return svg("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": words }, rects);
}

export function legend(more = []) {
  const names = [...more, ["queue", "queue"], ["cpu", "on CPU"], ["runq", "run queue"], ["down", "downstream"], ["blocked", "blocked otherwise"]];
  return h("p", { class: "legend" }, names.map(([name, words]) => h("span", null, svg("svg", { class: "key" }, svg("rect", { class: name, width: 12, height: 12 })), words)));
}

/** The shape of the last values. */
export function spark(values) {
  const known = (values || []).slice(-40).map((value) => value ?? 0);
  if (known.length < 2) return h("span", { class: "dim", title: "A trend needs two measurements" }, "…");
  const most = Math.max(...known, 1e-9);
  const points = known.map((value, index) => `${((index / (known.length - 1)) * 72).toFixed(1)},${(17 - (value / most) * 15).toFixed(1)}`);
  return svg("svg", { class: "spark", viewBox: "0 0 72 18", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }));
}

const LINES = ["accent", "cpu", "ok", "queue", "runq", "bad", "some", "blocked"];

/** The chart in which a drag began: the others follow the cursor, and hear of the drag, too. */
let dragged = null;

/**
 * A chart of lines over time; `stacked` draws areas upon each other. Dragging across it chooses a time range for the whole page, in its
 * address, and a double click takes it back; where a page has no range to choose (`ranged` is false), only the chart zooms.
 */
export class Chart {
  constructor({ unit = time, stacked = false, height = 190, ranged = true }) {
    Object.assign(this, { unit, stacked, height, ranged });
    this.element = h("div", { class: "chart" });
    this.observer = new ResizeObserver(() => this.plot && this.plot.setSize(this.size()));
    this.observer.observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.last && this.draw(...this.last, true));
  }

  size() {
    return { width: Math.max(this.element.clientWidth, 200), height: this.height };
  }

  /** `lines`: { label, values, color }; `t`: seconds since the epoch. */
  draw(t, lines, again = false) {
    this.last = [t, lines];
    if (t.length < 2) {
      if (this.plot) this.plot.destroy();
      this.plot = null;
      const advice = asked().from ? "Nothing was measured in the chosen time: go back, or choose another one." : keepsHistory === false
        ? "This agent keeps no history: the page draws what it sees from now on, a point every 5 seconds."
        : "Choose a longer time range above, or send some requests.";
      show(this.element, empty("No points yet.", advice));
      return;
    }
    const data = [t, ...this.values(lines)];
    const names = lines.map((line) => line.label).join("\n");
    if (this.plot && this.names === names && !again) {
      // The cursor and a zoomed range stay.
      this.plot.setData(data, !this.zoomed);
      return;
    }
    if (this.plot) this.plot.destroy();
    this.names = names;
    show(this.element);
    this.plot = new uPlot(this.options(lines), data, this.element);
  }

  values(lines) {
    if (!this.stacked) return lines.map((line) => line.values);
    const sums = [];
    let below = null;
    for (const line of lines) {
      below = line.values.map((value, index) => (value ?? 0) + (below ? below[index] : 0));
      sums.push(below);
    }
    return sums;
  }

  options(lines) {
    const series = lines.map((line, index) => {
      const stroke = color(line.color || LINES[index % LINES.length]);
      return {
        label: line.label, stroke, width: this.stacked ? 1 : 1.5, points: { show: false },
        // Stacked areas reach down to the line below; the lowest one to the axis.
        fill: this.stacked && index === 0 ? stroke : undefined,
        value: (plot, value, at, point) => {
          if (point === null || point === undefined) return "–";
          const own = this.stacked ? this.last[1][index].values[point] : value;
          return own === null || own === undefined ? "–" : this.unit(own);
        },
      };
    });
    const bands = this.stacked ? lines.slice(1).map((line, index) => ({ series: [index + 2, index + 1], fill: color(line.color || LINES[index + 1]) })) : [];
    const axis = { stroke: color("dim"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 }, font: "11px system-ui" };
    return {
      ...this.size(), series: [{ label: "time", value: "{HH}:{mm}:{ss}" }, ...series], bands,
      axes: [{ ...axis, values: [[3600, "{HH}:{mm}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"]], space: 70 }, { ...axis, size: 64, values: (plot, splits) => splits.map((value) => this.unit(value)) }],
      scales: { y: { range: (plot, least, most) => [0, Math.max((most || 0) * 1.08, 1e-6)] } },
      legend: { markers: { fill: (plot, index) => plot.series[index].stroke() } },
      cursor: { drag: { x: true, y: false, dist: 6, setScale: !this.ranged }, sync: { key: "tracer" }, ...(this.ranged ? { bind: { dblclick: () => () => choose() } } : {}) },
      hooks: {
        setScale: [(plot, key) => { if (key === "x") this.zoomed = !this.ranged && this.isZoomed(plot); }],
        ready: [(plot) => plot.over.addEventListener("mousedown", () => { dragged = this; })],
        setSelect: [(plot) => this.select(plot)],
      },
    };
  }

  /** A drag ended. */
  select(plot) {
    const { left, width } = plot.select;
    if (!this.ranged || !width) return;
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (dragged !== this) return;
    dragged = null;
    const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    // Two points at least: less is no line.
    if (plot.data[0].filter((at) => at >= from && at <= to).length >= 2) choose(from, to);
  }

  isZoomed(plot) {
    const all = plot.data[0];
    return plot.scales.x.min > all[0] + 1 || plot.scales.x.max < all[all.length - 1] - 1;
  }
}

/** A series without what is older than the range in the address. */
export function within(series) {
  if (!series || !series.t.length) return { t: [] };
  const query = asked();
  const [, , seconds] = range();
  // The agent selects what lies between two instants by itself; what this page has seen holds all.
  const [from, to] = query.since ? [series.t[series.t.length - 1] - seconds, Infinity] : [Number(query.from ?? 0) / 1e9, Number(query.to ?? Infinity) / 1e9];
  const inside = series.t.map((at) => at >= from && at <= to);
  return Object.fromEntries(Object.entries(series).map(([name, values]) => [name, Array.isArray(values) ? values.filter((_, index) => inside[index]) : values]));
}

/** Lines of several series on one axis of times. */
export function aligned(all, value) {
  const t = [...new Set(all.flatMap(([, series]) => series.t))].sort((a, b) => a - b);
  const lines = all.map(([label, series]) => {
    const at = new Map(series.t.map((when, index) => [when, value(series, index)]));
    return { label, values: t.map((when) => at.get(when) ?? null) };
  });
  return [t, lines];
}
