//! One transaction as a tree: every span below its cause, with its time, its CPU and how sure its parent is.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::report::time;
use crate::http;
use crate::shell;

/// Protocols an order goes through; see `demo/shop.py`.
const TIERS: [&str; 3] = ["http", "redis", "postgresql"];
/// Transactions to search for a whole one.
const LOOK: usize = 50;

/// Prints one order. Fails if no kept transaction went through every tier as one tree.
pub(super) fn show(console: SocketAddr) -> Result<()> {
    let list = get(console, &format!("/api/v1/transactions?service=nginx&limit={LOOK}&class={}", order(console)?))?;
    let list = list["transactions"].as_array().context("/api/v1/transactions has no list")?.clone();
    let mut best: Option<(Vec<Value>, usize)> = None;
    for one in &list {
        let id = one["trace_id"].as_str().context("a transaction has no id")?;
        // The agent may have evicted it in between.
        let Ok(found) = get(console, &format!("/api/v1/transactions/{id}")) else { continue };
        let spans = found["spans"].as_array().cloned().unwrap_or_default();
        let tiers = TIERS.iter().filter(|tier| spans.iter().any(|span| span["protocol"] == **tier)).count();
        let roots = spans.iter().filter(|span| above(&spans, span).is_none()).count();
        let whole = if roots == 1 { tiers } else { 0 };
        if best.as_ref().is_none_or(|(_, before)| whole > *before) {
            best = Some((spans, whole));
        }
    }
    let Some((spans, whole)) = best else { bail!("no order is kept as a transaction") };
    shell::print("");
    shell::print("One order, from the user's request to the database");
    shell::print("");
    print(&spans);
    if whole < TIERS.len() {
        bail!("no order of the last {} is one tree through every tier", list.len());
    }
    Ok(())
}

/// Prints spans as trees. With several hosts, each span also shows its host and id, and an edge between hosts its
/// network time.
pub(super) fn print(spans: &[Value]) {
    let top = spans.iter().filter(|span| above(spans, span).is_none());
    top.for_each(|span| below(spans, span, 0));
}

fn get(console: SocketAddr, target: &str) -> Result<Value> {
    let reply = http::get(console, target)?;
    if reply.status != 200 {
        bail!("the agent answered {} to {target}: {}", reply.status, reply.text.trim());
    }
    serde_json::from_str(&reply.text).with_context(|| format!("{target} is not JSON"))
}

/// The class of orders as a query value, looked up because the agent chooses its name.
fn order(console: SocketAddr) -> Result<String> {
    let classes = get(console, "/api/v1/classes?service=nginx")?;
    let names = classes["classes"].as_array().into_iter().flatten().filter_map(|class| class["request_class"].as_str());
    let found = names.filter(|name| name.contains("/order/")).max_by_key(|name| name.len());
    Ok(http::encode(found.context("no order was seen")?))
}

/// The span that caused `span`, if it is among `spans`.
fn above<'a>(spans: &'a [Value], span: &Value) -> Option<&'a Value> {
    let parent = span["parent_span_id"].as_str()?;
    spans.iter().find(|other| other["span_id"] == parent)
}

fn below(spans: &[Value], span: &Value, depth: usize) {
    let text = |key: &str| span[key].as_str().unwrap_or("?").to_owned();
    let seconds = |value: &Value| time(value.as_f64().unwrap_or(f64::NAN));
    let (call, far) = (text("side") == "client", &span["attributes"]["tracer.remote.host"]);
    let host = if spans.iter().any(|other| other["host"] != span["host"]) { text("host") + " " } else { String::new() };
    let name = format!(
        "{}{}{host}{} {}",
        "   ".repeat(depth),
        if call { "→ " } else { "" },
        text("service_name"),
        text("request_class")
    );
    let mut line = format!("{name:<64} {:>10}", seconds(&span["duration_s"]));
    if !host.is_empty() {
        line += &format!("   {}", text("span_id"));
    }
    if call {
        line += &format!("   {}: {}", text("grade"), text("evidence"));
        if span["attributes"]["tracer.network.time"].is_number() {
            line += &format!(", network {}", seconds(&span["attributes"]["tracer.network.time"]));
        }
    } else {
        let [cpu, queue, runqueue] = ["cpu_s", "queue_s", "runqueue_s"].map(|key| seconds(&span[key]));
        line += &format!("   on CPU {cpu}, queue {queue}, run queue {runqueue}");
        if let Some(far) = far.as_str() {
            line += &match &*text("parent_from") {
                "relay" => format!("; called from {far}: its agent reported the same sequence numbers (relay)"),
                carrier => format!("; called from {far}: {carrier}"),
            };
        }
    }
    shell::print(line);
    // A tree this deep is a cycle.
    if depth < 16 {
        let children = spans.iter().filter(|other| other["parent_span_id"] == span["span_id"]);
        children.for_each(|child| below(spans, child, depth + 1));
    }
}
