// A flame graph of folded stacks: colours by kind of code, zoom and search in the address, keys.

import { h, svg, show, empty } from "./dom.js";
import { percent, time } from "./format.js";

const ROW = 20;
/** How names of functions of libraries and runtimes end, with `annotate=code`. */
const LIBRARY = "_[l]";
/** Frames narrower than this many pixels are not drawn. */
const NARROWEST = 0.6;

/** A name for a path of frames that fits into an address (FNV-1a). */
function hash(text, from = 0x811c9dc5) {
  let value = from;
  for (let index = 0; index < text.length; index += 1) value = Math.imul(value ^ text.charCodeAt(index), 0x01000193);
  return value >>> 0;
}

/** Folded stacks as a tree. With `difference` a line has two numbers: before and now. */
export function tree(folded, difference = false) {
  const root = { name: "all", value: 0, before: 0, own: 0, children: new Map(), depth: 0, id: 0, parent: null };
  for (const line of folded.split("\n")) {
    let end = line.lastIndexOf(" ");
    const micros = Number(line.slice(end + 1));
    let before = 0;
    if (difference && end > 0) {
      const middle = line.lastIndexOf(" ", end - 1);
      before = Number(line.slice(middle + 1, end));
      end = middle;
    }
    if (end < 1 || !(micros || before)) continue;
    let at = root;
    root.value += micros;
    root.before += before;
    for (const written of line.slice(0, end).split(";")) {
      let next = at.children.get(written);
      if (!next) {
        const library = written.endsWith(LIBRARY);
        const name = library ? written.slice(0, -LIBRARY.length) : written;
        next = { name, library, value: 0, before: 0, own: 0, children: new Map(), depth: at.depth + 1, id: hash(`;${name}`, at.id || undefined), parent: at };
        at.children.set(written, next);
      }
      next.value += micros;
      next.before += before;
      at = next;
    }
    at.own += micros;
  }
  return root;
}

/** Between samples that are closer than this, microseconds, what both have in common is drawn on: a thread waits for a CPU now and then. */
const BRIDGED = 10_000;

/** Samples of one thread in the order of time, as a tree whose children stand one behind the other. A sample stands for the time before it; frames
 * that follow themselves are one. `seconds`: how long all took. */
export function timeline(samples, seconds) {
  let made = 0;
  const make = (name, parent) => ({ name, library: false, gap: !name, value: 0, before: 0, own: 0, children: new Map(), depth: parent ? parent.depth + 1 : 0, id: parent ? hash(`${(made += 1)};${name}`, parent.id || undefined) : 0, parent });
  const root = { ...make("all", null), timed: true };
  const add = (parent, name, micros = 0) => {
    const node = make(name, parent);
    node.value = micros;
    parent.children.set(parent.children.size, node);
    return node;
  };
  let [end, open] = [0, []];
  for (const { at_s: at, weight_s: weight, stack } of samples) {
    const until = at * 1e6;
    const from = Math.max(until - weight * 1e6, end);
    if (until <= from) continue;
    const gap = from - end;
    if (gap > 0) {
      let common = 0;
      while (gap <= BRIDGED && common < open.length && open[common].name === stack[common]) common += 1;
      open = open.slice(0, common);
      for (const node of open) node.value += gap;
      add(open.at(-1) || root, "", gap);
    }
    let [parent, same] = [root, true];
    open = stack.map((name, depth) => {
      same = same && open[depth]?.name === name;
      parent = same ? open[depth] : add(parent, name);
      parent.value += until - from;
      return parent;
    });
    parent.own += until - from;
    // What it calls later stands behind this.
    add(parent, "", until - from);
    end = until;
  }
  root.value = samples.length ? Math.max(end, seconds * 1e6) : 0;
  return root;
}

/** What kind of code a frame is, by how the agent writes names; `library`: whether it says that it is not the application's. */
function kind({ name, library }) {
  if (/_\[k\]$|^\[kernel|^(entry_SYSCALL|do_syscall|x64_sys|__x64_sys|asm_|sys_)/.test(name)) return "kern";
  if (/_\[j\]$|^(LazyCompile|Function|Script|JS|py::|Builtin|BytecodeHandler):?/.test(name)) return "jit";
  if (/^(_?Py[A-Z]|_PyEval|pymain|method_vectorcall|cfunction_|slot_tp|PyObject|Py_|builtin_|vm_exec|rb_|zend_|execute_ex|v8::|node::|lj_)/.test(name)) return "interp";
  if (library) return "lib";
  if (/^\[(callers|stack|not named|no |unknown|unwind)/.test(name)) return "other";
  return "app";
}

/** How much more of all that is sampled now a frame takes than before, in steps. */
const CHANGES = [["more3", "much more"], ["more2", "more"], ["more1", "a little more"], ["same", "as before"], ["less1", "a little less"], ["less2", "less"], ["less3", "much less"]];

const KINDS = [["app", "application"], ["interp", "interpreter"], ["lib", "library, runtime"], ["jit", "compiled at run time"], ["kern", "kernel"], ["other", "unnamed"]];

export class FlameGraph {
  constructor() {
    this.search = h("input", { type: "search", placeholder: "Search functions", "aria-label": "Search functions", oninput: () => this.find() });
    this.reset = h("button", { type: "button", class: "pill", onclick: () => this.zoom(null), hidden: true }, "reset zoom");
    this.turn = h("button", { type: "button", class: "pill", onclick: () => this.flip() }, "icicle");
    this.hits = h("span", { class: "dim" });
    this.place = h("div", { class: "flame" });
    this.status = h("p", { class: "status-line", "aria-live": "polite" });
    this.missing = h("p", { class: "sub" });
    this.legend = h("p", { class: "legend" });
    this.element = h("div", null, h("div", { class: "flame-tools" }, this.search, this.turn, this.reset, this.hits), this.place, this.status, this.legend, this.missing);
    const asked = new URLSearchParams(location.search);
    this.search.value = asked.get("search") || "";
    this.zoomed = asked.get("zoom");
    this.down = asked.get("view") === "icicle";
    this.text = "";
    new ResizeObserver(() => this.root && this.width !== this.place.clientWidth && this.draw()).observe(this.place);
    this.place.addEventListener("keydown", (event) => this.key(event));
  }

  /** Puts what is shown into the address. */
  remember(name, value) {
    const address = new URL(location.href);
    if (value) address.searchParams.set(name, value);
    else address.searchParams.delete(name);
    history.replaceState(null, "", address);
  }

  /** `folded`: a line has microseconds, with `difference` those before, too; `advice`: for no stacks. */
  show(folded, advice, difference = false) {
    if (folded === this.text && this.root && folded) return;
    Object.assign(this, { text: folded, advice, difference });
    this.root = tree(folded, difference);
    this.draw();
  }

  /** Samples of one thread in the order of time. */
  showTimeline(samples, seconds, advice) {
    Object.assign(this, { text: null, advice, difference: false });
    this.root = timeline(samples, seconds);
    this.draw();
  }

  flip() {
    this.down = !this.down;
    this.remember("view", this.down ? "icicle" : null);
    this.draw();
  }

  zoom(node) {
    this.zoomed = node && node.parent ? node.id.toString(16) : null;
    this.remember("zoom", this.zoomed);
    this.draw();
    this.place.querySelector(`[data-id="${this.zoomed || 0}"]`)?.focus({ preventScroll: true });
  }

  find() {
    this.remember("search", this.search.value.trim());
    this.draw();
  }

  draw() {
    const { root } = this;
    this.turn.textContent = this.down ? "flame" : "icicle";
    if (!root || !root.value) {
      this.reset.hidden = true;
      show(this.legend);
      show(this.hits);
      show(this.missing);
      show(this.place, empty("No samples yet.", this.advice));
      return;
    }
    this.width = this.place.clientWidth || 600;
    let focus = root;
    if (this.zoomed) {
      const wanted = Number.parseInt(this.zoomed, 16);
      walk(root, (node) => { if (node.id === wanted) focus = node; });
    }
    this.reset.hidden = focus === root;
    const scale = this.width / focus.value;
    const shown = [];
    let deepest = 0;
    const place = (node, x) => {
      const width = node.value * scale;
      if (width < NARROWEST) return;
      shown.push([node, x, width]);
      deepest = Math.max(deepest, node.depth);
      let left = x;
      const children = [...node.children.values()];
      if (!root.timed) children.sort((a, b) => (a.name < b.name ? -1 : 1));
      for (const child of children) {
        if (!child.gap) place(child, left);
        left += child.value * scale;
      }
    };
    place(focus, 0);
    for (let above = focus.parent; above; above = above.parent) shown.push([above, 0, this.width, true]);
    const height = (deepest + 1) * ROW;
    const wanted = this.search.value.trim().toLowerCase();
    const matches = (node) => wanted && node.name.toLowerCase().includes(wanted);
    const kinds = new Set();
    const frames = shown.map(([node, x, width, faded]) => {
      // The lowest frame is the service.
      const what = this.difference ? this.changed(node) : node.depth > 1 ? kind(node) : "other";
      kinds.add(what);
      const y = this.down ? node.depth * ROW : height - (node.depth + 1) * ROW;
      const room = Math.floor((width - 8) / 6.6);
      const label = room < 3 ? null : node.name.length <= room ? node.name : `${node.name.slice(0, room - 1)}…`;
      const words = this.words(node);
      return svg("g", { class: `frame ${what}${faded ? " faded" : ""}${matches(node) ? " hit" : ""}`, tabindex: node === focus ? 0 : -1, "data-id": node.id.toString(16), role: "button", "aria-label": words,
        onclick: () => this.zoom(node), onfocus: () => this.say(words), onmouseenter: () => this.say(words) },
        svg("title", null, words),
        svg("rect", { x: x.toFixed(1), y, width: Math.max(width - 1, 0.5).toFixed(1), height: ROW - 1, rx: 2 }),
        label ? svg("text", { x: (x + 4).toFixed(1), y: y + 14 }, label) : null);
    });
    show(this.place, svg("svg", { width: this.width, height, viewBox: `0 0 ${this.width} ${height}` }, frames));
    if (!this.down) this.place.scrollTop = this.place.scrollHeight;
    show(this.legend, (this.difference ? CHANGES : KINDS).filter(([name]) => kinds.has(name)).map(([name, words]) => h("span", null, svg("svg", { class: "key" }, svg("rect", { class: name, width: 12, height: 12 })), words)));
    this.count(wanted, focus);
    this.sayMissing();
    this.say("");
  }

  /** A frame's colour where profiles are compared. */
  changed(node) {
    if (!this.root.before) return "same";
    const by = (node.value - node.before) / Math.max(this.root.value, this.root.before, 1);
    const step = Math.abs(by) < 0.01 ? 0 : Math.abs(by) < 0.05 ? 1 : Math.abs(by) < 0.15 ? 2 : 3;
    return step === 0 ? "same" : `${by > 0 ? "more" : "less"}${step}`;
  }

  /** How many stacks lack their outer frames, and why: the agent writes the reason as the frame above the service. */
  sayMissing() {
    const reasons = new Map();
    for (const service of this.root.children.values()) {
      for (const { name, value } of service.children.values()) {
        if (!/^\[(stack incomplete|callers unknown)/.test(name)) continue;
        reasons.set(name, (reasons.get(name) || 0) + value);
      }
    }
    const words = [...reasons].map(([name, value]) => `${percent(value / this.root.value)} ${name}`);
    if (this.difference && !this.root.before) return void (this.missing.textContent = "Nothing was sampled before: there is nothing to compare with.");
    this.missing.textContent = words.length ? `Stacks that lack their outer frames: ${words.join(", ")}. docs/profiling.md says why and what to do.` : "";
  }

  /** Time under frames that match, each once. */
  count(wanted, focus) {
    if (!wanted) return void (this.hits.textContent = "");
    let sum = 0;
    const look = (node) => {
      if (node.name.toLowerCase().includes(wanted)) sum += node.value;
      else for (const child of node.children.values()) look(child);
    };
    look(focus);
    this.hits.textContent = `${percent(sum / focus.value)} match`;
  }

  amount(node) {
    return time(node.value * 1e-6);
  }

  words(node) {
    if (this.difference && this.root.before) return `${node.name}: ${this.amount(node)}; before ${this.amount({ value: node.before })} for as many requests`;
    return `${node.name}: ${this.amount(node)}, ${percent(node.value / this.root.value)} of all${node.own ? `, ${percent(node.own / this.root.value)} in itself` : ""}`;
  }

  say(words) {
    this.status.textContent = words || `${this.amount(this.root)}. Click a frame, or press Enter on it, to zoom; Escape zooms out.`;
  }

  /** Arrows move between frames, Enter zooms, Escape zooms out. */
  key(event) {
    const frame = event.target.closest(".frame");
    if (!frame) return;
    let node = null;
    walk(this.root, (one) => { if (one.id.toString(16) === frame.dataset.id) node = one; });
    if (!node) return;
    const siblings = node.parent ? [...node.parent.children.values()].sort((a, b) => (a.name < b.name ? -1 : 1)) : [node];
    const at = siblings.indexOf(node);
    const child = [...node.children.values()].sort((a, b) => b.value - a.value)[0];
    const [outer, inner] = this.down ? ["ArrowUp", "ArrowDown"] : ["ArrowDown", "ArrowUp"];
    const next = { ArrowRight: siblings[at + 1], ArrowLeft: siblings[at - 1], [outer]: node.parent, [inner]: child }[event.key];
    if (event.key === "Enter" || event.key === " ") this.zoom(node);
    else if (event.key === "Escape") this.zoom(null);
    else if (next) this.place.querySelector(`[data-id="${next.id.toString(16)}"]`)?.focus({ preventScroll: false });
    else return;
    event.preventDefault();
  }
}

function walk(node, visit) {
  visit(node);
  for (const child of node.children.values()) walk(child, visit);
}
