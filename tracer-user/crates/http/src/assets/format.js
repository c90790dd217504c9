// Numbers as people read them.

/** Three significant digits without exponent. */
function digits(number) {
  if (number >= 100) return String(Math.round(number));
  return String(Number(number.toPrecision(2)));
}

/** A number with two significant digits, at most four decimals. */
export function short(number) {
  return Number.isFinite(number) ? digits(Number(number.toFixed(4))) : "–";
}

/** Seconds in a fitting unit. */
export function time(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0";
  if (seconds < 1e-3) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 1) return `${digits(seconds * 1e3)} ms`;
  return `${digits(seconds)} s`;
}

/** A rate per second. */
export function rate(perSecond) {
  if (!Number.isFinite(perSecond)) return "–";
  if (perSecond === 0) return "0";
  if (perSecond >= 1e6) return `${digits(perSecond / 1e6)} M/s`;
  if (perSecond >= 1000) return `${digits(perSecond / 1000)} k/s`;
  if (perSecond < 0.01) return "< 0.01/s";
  return `${digits(perSecond)}/s`;
}

/** A share between 0 and 1 as percent. */
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  if (share === 0) return "0";
  const value = share * 100;
  if (value < 0.1) return "< 0.1 %";
  return `${value >= 10 ? Math.round(value) : Number(value.toFixed(1))} %`;
}

/** A count with thousands apart. */
export function count(number) {
  return Math.round(number).toLocaleString("en");
}

/** A count of things: "1 process", "2 processes". */
export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** Time of day of an instant in nanoseconds since the epoch. */
export function clock(nanoseconds) {
  const date = new Date(nanoseconds / 1e6);
  return `${date.toTimeString().slice(0, 8)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** An address of the console: a path with parameters, and the time of this page. */
export function link(path, parameters) {
  const query = new URLSearchParams(parameters);
  const own = new URLSearchParams(location.search);
  // A list of transactions and a comparison have their own times.
  if (own.has("range") && !query.has("range") && !query.has("from")) query.set("range", own.get("range"));
  // So do charts across which somebody dragged; classes, services and transactions are then of the same time.
  const ranged = ["/service", "/class"].includes(location.pathname) && ["/", "/service", "/class", "/transactions"].includes(path);
  for (const end of ["from", "to"]) if (ranged && own.has(end) && !query.has(end)) query.set(end, own.get(end));
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

export const serviceLink = (name) => link("/service", { name });
export const classLink = (name, one) => link("/class", { name, class: one });
export const compareLink = (name, one) => link("/compare", one ? { name, class: one } : { name });
export const transactionsLink = (name, one) => link("/transactions", one ? { name, class: one } : { name });
export const transactionLink = (id) => `/transaction?id=${encodeURIComponent(id)}`;
export const findingLink = (id) => link("/finding", { id });
