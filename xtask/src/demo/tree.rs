//! One transaction as a tree: every unit of work below what caused it, with its time, its CPU and how sure its place is.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::report::time;
use crate::http;
use crate::shell;

/// Protocols an order goes through; see `demo/shop.py`.
const TIERS: [&str; 3] = ["http", "redis", "postgresql"];
/// Transactions looked through for a whole one.
const LOOK: usize = 50;

/// Prints one order. Fails when none of those kept went through every tier as one tree.
pub(super) fn show(console: SocketAddr) -> Result<()> {
    let list = get(console, &format!("/api/v1/transactions?service=nginx&limit={LOOK}&class={}", order(console)?))?;
    let list = list["transactions"].as_array().context("/api/v1/transactions has no list")?.clone();
    let mut best: Option<(Vec<Value>, usize)> = None;
    for one in &list {
        let id = one["trace_id"].as_str().context("a transaction has no id")?;
        // It may have been let go in between.
        let Ok(found) = get(console, &format!("/api/v1/transactions/{id}")) else { continue };
        let units = found["units"].as_array().cloned().unwrap_or_default();
        let tiers = TIERS.iter().filter(|tier| units.iter().any(|unit| unit["protocol"] == **tier)).count();
        let roots = units.iter().filter(|unit| above(&units, unit).is_none()).count();
        let whole = if roots == 1 { tiers } else { 0 };
        if best.as_ref().is_none_or(|(_, before)| whole > *before) {
            best = Some((units, whole));
        }
    }
    let Some((units, whole)) = best else { bail!("no order is kept as a transaction") };
    shell::print("");
    shell::print("One order, from the user's request to the database");
    shell::print("");
    print(&units);
    if whole < TIERS.len() {
        bail!("no order of the last {} is one tree through every tier", list.len());
    }
    Ok(())
}

/// Prints units as trees. Where they are of several hosts, each says of which, its id, and an edge between hosts its time on the way.
pub(super) fn print(units: &[Value]) {
    let top = units.iter().filter(|unit| above(units, unit).is_none());
    top.for_each(|unit| below(units, unit, 0));
}

fn get(console: SocketAddr, target: &str) -> Result<Value> {
    let reply = http::get(console, target)?;
    if reply.status != 200 {
        bail!("the agent answered {} to {target}: {}", reply.status, reply.text.trim());
    }
    serde_json::from_str(&reply.text).with_context(|| format!("{target} is not JSON"))
}

/// The class of orders, as it is in a query: what the value is called is the agent's choice.
fn order(console: SocketAddr) -> Result<String> {
    let classes = get(console, "/api/v1/classes?service=nginx")?;
    let names = classes["classes"].as_array().into_iter().flatten().filter_map(|class| class["request_class"].as_str());
    let found = names.filter(|name| name.contains("/order/")).max_by_key(|name| name.len());
    Ok(http::encode(found.context("no order was seen")?))
}

/// The unit that caused `unit`, where it is among `units`.
fn above<'a>(units: &'a [Value], unit: &Value) -> Option<&'a Value> {
    let parent = unit["parent_id"].as_str()?;
    units.iter().find(|other| other["unit_id"] == parent)
}

fn below(units: &[Value], unit: &Value, depth: usize) {
    let text = |key: &str| unit[key].as_str().unwrap_or("?").to_owned();
    let seconds = |value: &Value| time(value.as_f64().unwrap_or(f64::NAN));
    let (call, far) = (text("side") == "client", &unit["attributes"]["tracer.far.host"]);
    let host = if units.iter().any(|other| other["host"] != unit["host"]) { text("host") + " " } else { String::new() };
    let name = format!(
        "{}{}{host}{} {}",
        "   ".repeat(depth),
        if call { "→ " } else { "" },
        text("service_name"),
        text("request_class")
    );
    let mut line = format!("{name:<64} {:>10}", seconds(&unit["duration_s"]));
    if !host.is_empty() {
        line += &format!("   {}", text("unit_id"));
    }
    if call {
        line += &format!("   {}: {}", text("grade"), text("evidence"));
        if unit["attributes"]["tracer.network_s"].is_number() {
            line += &format!(", network {}", seconds(&unit["attributes"]["tracer.network_s"]));
        }
    } else {
        let [cpu, queue, runqueue] = ["cpu_s", "queue_s", "runqueue_s"].map(|key| seconds(&unit[key]));
        line += &format!("   on CPU {cpu}, queue {queue}, run queue {runqueue}");
        if let Some(far) = far.as_str() {
            line += &match &*text("parent_from") {
                "relay" => format!("; called from {far}: its agent told of the same sequence numbers (relay)"),
                carrier => format!("; called from {far}: {carrier}"),
            };
        }
    }
    shell::print(line);
    // A tree as deep as this is a circle.
    if depth < 16 {
        let children = units.iter().filter(|other| other["parent_id"] == unit["unit_id"]);
        children.for_each(|child| below(units, child, depth + 1));
    }
}
