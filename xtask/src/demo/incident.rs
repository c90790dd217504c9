//! `cargo xtask demo --incident`: three things go wrong in the shop at once, and the agent is asked what docs/on-call.md asks.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::regression::{json, until};
use super::until_stopped;
use crate::http;
use crate::shell;
use crate::supervised_child::SupervisedChild;

/// The application that goes wrong (`demo/shop.py`).
const SERVICE: &str = "shop";
/// Requests of each class before the incident.
const BEFORE: u64 = 20;
/// Seconds that none of its requests take before it.
const HANGS: f64 = 0.1;
/// How long the agent may take for each answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is asked of the agent about one class of the shop.
struct Question {
    title: &'static str,
    class: &'static str,
    /// The answer, once there is one.
    ask: fn(SocketAddr, &str) -> Result<Option<Vec<String>>>,
}

const QUESTIONS: [Question; 3] = [
    Question { title: "Which requests hang, and for what?", class: "GET /shelf/{id}", ask: lock },
    Question { title: "Why do requests fail?", class: "GET /pay/{id}", ask: exception },
    Question { title: "Which line sends the slow statement?", class: "GET /sold/{id}", ask: statement },
];

/// Arguments of the agent: exceptions are looked at.
pub(super) fn arguments(dir: &Path) -> Result<Vec<String>> {
    let config = dir.join("tracer.toml");
    fs::write(&config, "[exceptions]\nenabled = true\n")
        .with_context(|| format!("cannot write {}", config.display()))?;
    Ok(vec!["--config".into(), config.display().to_string()])
}

/// Begins the incident, prints what the agent answers to each question and, unless `once` is set, waits for Ctrl-C.
pub(super) fn watch(agent: &mut SupervisedChild, dir: &Path, console: SocketAddr, once: bool) -> Result<()> {
    shell::progress(format!("learning what is usual; console: http://{console}/"));
    until(agent, dir, PATIENCE, "the agent saw too few requests", || {
        let counts = QUESTIONS.iter().map(|question| count(console, question.class)).collect::<Result<Vec<_>>>()?;
        Ok(counts.iter().all(|count| *count >= BEFORE).then_some(()))
    })?;
    fs::write(dir.join("incident"), "").context("cannot begin the incident")?;
    shell::progress("from now on a lock is held, a function throws, and a statement is slow");
    for question in &QUESTIONS {
        let otherwise = format!("the agent has no answer for {SERVICE} {}", question.class);
        let answer = until(agent, dir, PATIENCE, &otherwise, || (question.ask)(console, question.class))?;
        shell::print(format!("\n{}  {SERVICE} {}", question.title, question.class));
        for line in answer {
            shell::print(format!("  {line}"));
        }
    }
    shell::print("");
    if once { Ok(()) } else { until_stopped(agent, dir, console) }
}

/// A request of `class` that waits for a lock, and in which function of the application.
fn lock(console: SocketAddr, class: &str) -> Result<Option<Vec<String>>> {
    let running = json(console, &of("/api/v1/running", SERVICE, class))?;
    let age = |one: &Value| one["age_s"].as_f64().unwrap_or_default();
    let hangs = |one: &&Value| one["thread"]["state"] == "lock" && age(one) > HANGS;
    let Some(one) = list(&running, "running").iter().find(hangs) else { return Ok(None) };
    let waits = json(console, &(of("/api/v1/hotspots", SERVICE, class) + "&kind=offcpu&since=30s"))?;
    let Some(most) = list(&waits, "functions").first() else { return Ok(None) };
    let Some(caller) = list(most, "called_by").first() else { return Ok(None) };
    if !text(caller, "function").starts_with("shelf ") {
        return Ok(None);
    }
    let share = most["self_share"].as_f64().unwrap_or_default() * 100.0;
    Ok(Some(vec![
        format!("open for {:.0} ms so far, its thread waits for a lock", age(one) * 1e3),
        format!("{share:.0} % of the class's time off the CPU: {}", text(caller, "function")),
        format!("http://{console}/running  {}", page(console, class)),
    ]))
}

/// The exception that ended a request of `class`.
fn exception(console: SocketAddr, class: &str) -> Result<Option<Vec<String>>> {
    let failed = json(console, &(of("/api/v1/transactions", SERVICE, class) + "&status=error&limit=5"))?;
    for one in list(&failed, "transactions") {
        let id = text(one, "trace_id");
        let whole = json(console, &format!("/api/v1/transactions/{id}"))?;
        let at = &whole["failed_at"];
        if text(at, "exception_type").ends_with("TerminalError") && text(at, "exception_function") == "charge" {
            let (what, function) = (text(at, "exception_type"), text(at, "exception_function"));
            let (file, line) = (text(at, "exception_file"), &at["exception_line"]);
            return Ok(Some(vec![
                format!("{}: {what}, thrown in `{function}`, {file}, line {line}", text(at, "error_type")),
                format!("http://{console}/transaction?id={id}"),
            ]));
        }
    }
    Ok(None)
}

/// The statement that requests of `class` wait for, and the line that sends it.
fn statement(console: SocketAddr, _: &str) -> Result<Option<Vec<String>>> {
    let classes = json(console, "/api/v1/classes")?;
    let p99 = |one: &Value| one["p99_s"].as_f64().unwrap_or_default();
    let slow = |one: &&Value| {
        let is_call = one["side"] == "client" && one["service_name"] == SERVICE;
        is_call && text(one, "request_class").starts_with("SELECT") && p99(one) > HANGS / 2.0
    };
    let Some(one) = list(&classes, "classes").iter().find(slow) else { return Ok(None) };
    let class = text(one, "request_class");
    let sites = json(console, &of("/api/v1/call-sites", SERVICE, &class))?;
    let Some(site) = list(&sites, "sites").first() else { return Ok(None) };
    if text(site, "function") != "sold" {
        return Ok(None);
    }
    Ok(Some(vec![
        format!("{class}: {:.0} ms at the 99th percentile", p99(one) * 1e3),
        format!("sent by `{}`, {}, line {}", text(site, "function"), text(site, "file"), site["line"]),
        page(console, &class),
    ]))
}

/// Requests of a class of the shop so far.
fn count(console: SocketAddr, class: &str) -> Result<u64> {
    let classes = json(console, "/api/v1/classes")?;
    let mine =
        |one: &&Value| one["side"] == "server" && one["service_name"] == SERVICE && one["request_class"] == class;
    Ok(list(&classes, "classes").iter().find(mine).and_then(|one| one["count"].as_u64()).unwrap_or_default())
}

fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

fn text(one: &Value, name: &str) -> String {
    one[name].as_str().unwrap_or_default().to_owned()
}

fn of(target: &str, service: &str, class: &str) -> String {
    format!("{target}?service={}&class={}", http::encode(service), http::encode(class))
}

/// The console's page of a class of the shop.
fn page(console: SocketAddr, class: &str) -> String {
    format!("http://{console}/class?name={}&class={}", http::encode(SERVICE), http::encode(class))
}
