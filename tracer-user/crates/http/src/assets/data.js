// Data from the agent's JSON API, and series over time.

/** Answers of the API; an error has the agent's own words. `token`: to see what not every local user may. */
export async function get(path, parameters, token) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters || {})) if (value !== undefined && value !== null) query.set(name, value);
  const text = query.toString();
  const reply = await fetch(text ? `${path}?${text}` : path, { headers: { accept: "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) } });
  if (!reply.ok) {
    const why = await reply.json().catch(() => ({}));
    const error = new Error(why.error || `${path}: ${reply.status}`);
    error.status = reply.status;
    throw error;
  }
  return reply;
}

export const json = async (path, parameters, token) => (await get(path, parameters, token)).json();

/** Endpoints that this agent does not have. */
const missing = new Set();

/** Like `json`, but an endpoint that this agent does not have gives `otherwise`. */
export async function optional(path, parameters, otherwise) {
  if (missing.has(path)) return otherwise;
  try {
    return await json(path, parameters);
  } catch (error) {
    if (error.status !== 404 && error.status !== 400) throw error;
    if (error.message.startsWith("no such page")) missing.add(path);
    return otherwise;
  }
}

/** Seconds of the time range in the address. */
export const RANGES = [["15m", "15 min", 900], ["1h", "1 h", 3600], ["6h", "6 h", 21600], ["1d", "1 d", 86400]];

export function range() {
  const asked = new URLSearchParams(location.search).get("range");
  return RANGES.find(([name]) => name === asked) || RANGES[0];
}

/** The time range in the address as the API takes it: `from` and `to`, or how long ago. */
export function asked() {
  const query = new URLSearchParams(location.search);
  const [from, to] = ["from", "to"].map((name) => query.get(name));
  if (from || to) return { from, to };
  return { since: `${range()[2]}s` };
}

/** The event of a page whose address has another time range than before. */
export const RANGE_CHOSEN = "tracer-range";

/** Puts times into the address, seconds since the epoch; without them the range of before counts again. The page follows. */
export function choose(from, to) {
  const address = new URL(location.href);
  for (const [name, at] of [["from", from], ["to", to]]) {
    if (at === undefined) address.searchParams.delete(name);
    else address.searchParams.set(name, String(BigInt(Math.round(at * 1e3)) * 1000000n));
  }
  if (address.href === location.href) return;
  history.pushState(null, "", address);
  dispatchEvent(new Event(RANGE_CHOSEN));
}

/** An instant in nanoseconds since the epoch as people read it: the day only if it is not today. */
export function moment(nanoseconds) {
  const date = new Date(nanoseconds / 1e6);
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString("en-CA")} `;
  return day + date.toTimeString().slice(0, 8);
}

/** What a series holds of each window, beside `t` (seconds since the epoch). */
const FIELDS = ["rate_per_s", "error_rate_per_s", "p50_s", "p95_s", "p99_s", "cpu_s", "queue_s", "runqueue_s", "downstream_s", "blocked_s", "mean_s"];
const SAMPLES = 360;
const KEPT = "tracer.series";
const nameOf = (one) => `${one.side === "client" ? ">" : ""}${one.service_name}\n${one.request_class}`;

/** Series of classes while this page, or another in the same tab, was open: what an agent without history offers. */
class Sampled {
  constructor() {
    try {
      this.series = new Map(Object.entries(JSON.parse(sessionStorage.getItem(KEPT) || "{}")));
    } catch {
      this.series = new Map();
    }
    this.saved = 0;
  }

  add(classes) {
    const now = Math.round(Date.now() / 1000);
    for (const one of classes) {
      const series = this.series.get(nameOf(one)) || { t: [], ...Object.fromEntries(FIELDS.map((field) => [field, []])) };
      if (series.t.length && now - series.t[series.t.length - 1] < 3) continue;
      series.t.push(now);
      for (const field of FIELDS) series[field].push(one[field]);
      if (series.t.length > SAMPLES) for (const field of ["t", ...FIELDS]) series[field].shift();
      this.series.set(nameOf(one), series);
    }
    if (now - this.saved >= 10) this.save(now);
  }

  save(now) {
    this.saved = now;
    try {
      const busiest = [...this.series].sort(([, a], [, b]) => b.rate_per_s.at(-1) - a.rate_per_s.at(-1)).slice(0, 40);
      sessionStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(busiest)));
    } catch {
      // The browser's store is full or off: series begin anew on each page.
    }
  }
}

export const sampled = new Sampled();
addEventListener("pagehide", () => sampled.save(Date.now() / 1000));

/** Whether the agent itself keeps series: known after the first question. */
export let keepsHistory = null;

/** Series of all classes by `seriesKey`, for the range in the address. */
export async function series(parameters) {
  if (keepsHistory !== false) {
    const answer = await optional("/api/v1/series", { ...parameters, ...asked() }, null);
    keepsHistory = answer !== null;
    if (answer) return fromAgent(answer);
  }
  return sampled.series;
}

/**
 * The agent's series in the form above: { series: [{ service_name, request_class, side, t: [seconds], FIELD: [number], … }] }. A
 * field that it does not keep is unknown everywhere.
 */
function fromAgent(answer) {
  const all = new Map();
  for (const one of answer.series || []) {
    if (!Array.isArray(one.t)) continue;
    const known = Object.fromEntries(FIELDS.map((field) => [field, Array.isArray(one[field]) ? one[field] : one.t.map(() => null)]));
    all.set(nameOf(one), { t: one.t, ...known });
  }
  return all;
}

export const seriesKey = nameOf;

/** Classes as the API lists them, remembered as a sample; of the times in the address, if there are any. */
export async function classes(service) {
  const { classes: now } = await json("/api/v1/classes", { service });
  sampled.add(now);
  const { since, ...times } = asked();
  return since ? now : (await optional("/api/v1/classes", { service, ...times }, { classes: now })).classes;
}

/** Where the time of a request goes: colour, words, seconds. What is downstream is blocked time, too, and counts once. */
export function parts(one) {
  return [
    ["queue", "queue", one.queue_s],
    ["cpu", "on CPU", one.cpu_s],
    ["runq", "run queue", one.runqueue_s],
    ["down", "downstream", one.downstream_s],
    ["blocked", "blocked", Math.max(one.blocked_s - one.downstream_s, 0)],
  ];
}
