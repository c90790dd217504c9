// Starts the page that the document names, and what all pages share: time range, search, refreshing, keys.

import { h, show } from "./dom.js";
import { RANGES, RANGE_CHOSEN, range, asked, choose, moment, json, keepsHistory } from "./data.js";
import { serviceLink, classLink, transactionLink, percent, count } from "./format.js";
import { HomePage } from "./home_page.js";
import { ServicePage } from "./service_page.js";
import { ClassPage } from "./class_page.js";
import { FindingPage } from "./finding_page.js";
import { HealthPage } from "./health_page.js";
import { TransactionPage } from "./transaction_page.js";
import { TransactionsPage } from "./transactions_page.js";
import { ComparePage } from "./compare_page.js";
import { RunningPage } from "./running_page.js";
import { WorkloadsPage } from "./workloads_page.js";

const PAGES = { home: HomePage, service: ServicePage, class: ClassPage, finding: FindingPage, health: HealthPage, transaction: TransactionPage, transactions: TransactionsPage, compare: ComparePage, running: RunningPage, workloads: WorkloadsPage };
const EVERY = 5000;
const tools = document.getElementById("tools");
const app = document.getElementById("app");
const Kind = PAGES[document.body.dataset.page];

let live = sessionStorage.getItem("tracer.live") !== "off";
const page = Kind ? new Kind(app) : null;

const nav = h("nav", { class: "seg", "aria-label": "Time range" });
const times = h("button", { type: "button", class: "pill", title: "Back to the range of before", onclick: () => choose() });

/** The ranges to choose from, and the times that were chosen by dragging across a chart. */
function ranges() {
  const [chosen] = range();
  const { since, from, to } = asked();
  show(nav, RANGES.map(([name, words]) => {
    const address = new URL(location.href);
    for (const end of ["from", "to"]) address.searchParams.delete(end);
    address.searchParams.set("range", name);
    return h("a", { href: address.pathname + address.search, "aria-current": name === chosen && since ? "true" : null }, words);
  }));
  times.hidden = Boolean(since);
  if (!since) show(times, document.createTextNode(`${from ? moment(Number(from)) : ""} – ${to ? moment(Number(to)) : "now"} ✕`));
}

const toggle = h("button", { type: "button", class: "pill", onclick: () => setLive(!live) });

function setLive(on) {
  live = on;
  sessionStorage.setItem("tracer.live", on ? "on" : "off");
  toggle.textContent = on ? "live, 5 s" : "paused";
  toggle.setAttribute("aria-pressed", String(on));
  toggle.title = on ? "Figures refresh every 5 seconds; press p to pause" : "Press p to refresh again";
  if (on) refresh();
}

// Suggestions of the search: services and classes whose names contain the text, or a trace id.
const found = h("ul", { class: "found", id: "found", role: "listbox", hidden: true });
const search = h("input", {
  type: "search", placeholder: "Find a service, class or trace id  /", "aria-label": "Find a service, class or trace id",
  autocomplete: "off", spellcheck: "false", oninput: suggest, onkeydown: pick,
});
let names = null;

async function suggest() {
  const text = search.value.trim().toLowerCase();
  if (page && page.filter) page.filter(text);
  if (!text) return void (found.hidden = true);
  if (/^[0-9a-f]{32}$/.test(text)) {
    show(found, h("li", null, h("a", { href: transactionLink(text) }, `transaction ${text}`)));
    found.hidden = false;
    return;
  }
  names = names || await json("/api/v1/classes").then((answer) => answer.classes, () => []);
  const services = [...new Set(names.map((one) => one.service_name))].filter((name) => name.toLowerCase().includes(text));
  const classes = names.filter((one) => one.side === "server" && one.request_class.toLowerCase().includes(text));
  show(found,
    services.slice(0, 5).map((name) => h("li", null, h("a", { href: serviceLink(name) }, name))),
    classes.slice(0, 8).map((one) => h("li", null, h("a", { href: classLink(one.service_name, one.request_class) }, `${one.service_name} · ${one.request_class}`))));
  found.hidden = found.children.length === 0;
}

function pick(event) {
  const links = [...found.querySelectorAll("a")];
  if (event.key === "Enter" && links.length) links[0].click();
  if (event.key === "ArrowDown" && links.length) {
    event.preventDefault();
    links[0].focus();
  }
  if (event.key === "Escape") {
    search.value = "";
    suggest();
    search.blur();
  }
}

found.addEventListener("keydown", (event) => {
  const links = [...found.querySelectorAll("a")];
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = links.indexOf(document.activeElement) + step;
  (links[next] || search).focus();
});

document.addEventListener("click", (event) => {
  if (!event.target.closest(".search")) found.hidden = true;
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  if (event.key === "/") {
    event.preventDefault();
    search.focus();
  }
  if (event.key === "p") setLive(!live);
});

/** The header's figures of the agent. */
function header(health) {
  const notices = health.not_ready.length + health.degraded.length + (health.shed?.level > 0 ? 1 : 0);
  const state = document.getElementById("state");
  state.className = `pill state-${health.not_ready.length ? "bad" : notices ? "some" : "ok"}`;
  state.textContent = health.not_ready.length ? "not ready" : notices === 0 ? "healthy" : notices === 1 ? "1 notice" : `${notices} notices`;
  const capture = document.getElementById("capture");
  const ratio = health.capture_ratio === null ? "–" : health.capture_ratio.toFixed(3);
  show(capture, document.createTextNode("capture ratio "), h("b", null, ratio));
  const cpu = health.cpu_s;
  const share = (part) => percent(part / cpu.system_busy);
  capture.title = `CPU attributed ÷ CPU that the system says was used: 1 = nothing is missing.\nRequests ${share(cpu.requests)}, overhead of services ${share(cpu.overhead)}, kernel ${share(cpu.kernel)}, unreported ${share(cpu.unreported)}.`;
  const lost = document.getElementById("lost");
  show(lost, document.createTextNode("lost "), h("b", { class: health.events_lost ? "err" : null }, count(health.events_lost)));
  if (health.fleet) {
    lost.title = "Records that all hosts lost in the windows that were read; the history has no reasons.";
    return;
  }
  const reasons = Object.entries(health.events_lost_by_reason).map(([why, many]) => `${why}: ${count(many)}`);
  lost.title = reasons.length ? `Records lost since the start, by reason:\n${reasons.join("\n")}` : "No record was lost since the agent started.";
}

const problem = h("p", { class: "note", role: "status", hidden: true });
let busy = false;
let again = false;

/** Another time range: what is shown now is of the one before. */
function follow() {
  ranges();
  again = busy;
  refresh();
}

async function refresh() {
  if (!page || busy) return;
  busy = true;
  try {
    const health = await json("/api/v1/health");
    header(health);
    await page.refresh(health);
    if (keepsHistory === false) nav.title = "This agent keeps no history: charts begin when the console was opened in this tab. Profiles go back an hour.";
    problem.hidden = true;
  } catch (error) {
    // The figures on the page stay: they are the last ones known.
    problem.textContent = error.status === 404 || error.status === 400 ? error.message : `The agent does not answer (${error.message}). The page shows the last figures and tries again.`;
    problem.hidden = false;
  } finally {
    busy = false;
  }
  if (again) {
    again = false;
    refresh();
  }
}

if (page) {
  app.before(problem);
  // Pages of a fixed time have no range to choose.
  const fixed = ["transaction", "transactions", "compare", "finding", "health", "workloads"].includes(document.body.dataset.page);
  show(tools, h("div", { class: "search" }, search, found), fixed ? null : [nav, times], toggle);
  if (!fixed) {
    ranges();
    addEventListener(RANGE_CHOSEN, follow);
    addEventListener("popstate", follow);
  }
  setLive(live);
  if (!live) refresh();
  setInterval(() => {
    if (live && !document.hidden) refresh();
  }, EVERY);
  document.addEventListener("visibilitychange", () => {
    if (live && !document.hidden) refresh();
  });
}
