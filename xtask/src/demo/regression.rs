//! `cargo xtask demo --regression`: one class of the shop gets dearer while it runs, and the agent says so.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{alive, stopped, until_stopped};
use crate::http;
use crate::shell;
use crate::supervised_child::SupervisedChild;

/// What gets dearer, by half (`demo/shop.py`).
const SERVICE: &str = "shop";
const CLASS: &str = "GET /cpu";
/// Windows of a second before the change: a reference takes 24, a profile to compare with some more.
const BEFORE: usize = 45;
/// How long the agent may take to find it.
const PATIENCE: Duration = Duration::from_secs(60);
/// A profile of the time after the change is worth a look then.
const AFTER: Duration = Duration::from_secs(25);

/// Arguments of the agent: windows of a second, and their history.
pub(super) fn arguments(dir: &Path) -> Result<Vec<String>> {
    let config = dir.join("tracer.toml");
    fs::write(&config, "[history]\nwindow = \"1s\"\n").with_context(|| format!("cannot write {}", config.display()))?;
    let text = |path: &Path| path.display().to_string();
    Ok(vec!["--config".into(), text(&config), "--history".into(), text(&dir.join("history"))])
}

/// Changes the shop, waits for the finding, prints it and, unless `once` is set, waits for Ctrl-C.
pub(super) fn watch(agent: &mut SupervisedChild, dir: &Path, console: SocketAddr, once: bool) -> Result<()> {
    shell::progress(format!("learning what requests cost; console: http://{console}/"));
    until(agent, dir, Duration::from_secs(180), "the agent saw too few requests", || {
        Ok((windows(console)? >= BEFORE).then_some(()))
    })?;
    let early = findings(console)?.into_iter().find(|one| one["kind"] == "application_change");
    if let Some(early) = early {
        bail!("a change was found before there was one: {early}");
    }
    fs::write(dir.join("slower"), "").context("cannot change the shop")?;
    let changed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    shell::progress(format!("{SERVICE} {CLASS} uses half as much CPU again from now on"));
    let found = until(agent, dir, PATIENCE, "the agent did not find the change", || {
        let mine = |one: &Value| {
            let classes = one["request_classes"].as_array();
            one["kind"] == "application_change"
                && one["service_name"] == SERVICE
                && classes.is_some_and(|all| all.iter().any(|class| class == CLASS))
        };
        Ok(findings(console)?.into_iter().find(mine))
    })?;
    let after = |name: &str| found[name].as_f64().unwrap_or_default() / 1e9 - changed;
    shell::print(format!("\n{}", found["summary"].as_str().unwrap_or_default()));
    let classes: Vec<&str> =
        found["request_classes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, value) in [
        ("kind", found["kind"].as_str().unwrap_or_default().to_owned()),
        ("service", found["service_name"].as_str().unwrap_or_default().to_owned()),
        ("classes", classes.join(", ")),
        ("resource", found["resource"].as_str().unwrap_or_default().to_owned()),
        ("change", format!("× {:.2} (true: × 1.5 of the handler)", found["change_ratio"].as_f64().unwrap_or_default())),
        ("since", format!("{:+.1} s after the change", after("since_ns"))),
        ("found", format!("{:+.1} s after the change", after("found_ns"))),
        ("confidence", format!("{:.2}", found["confidence"].as_f64().unwrap_or_default())),
    ] {
        shell::print(format!("  {name:<10} {value}"));
    }
    let other = findings(console)?.into_iter().filter(|one| one["id"] != found["id"]);
    for one in other {
        let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
        shell::print(format!("  also       {}: {}", text("kind"), text("summary")));
    }
    let page = format!("http://{console}/finding?id={}", found["id"]);
    shell::print(format!("\nEvidence and the flame graph against the one before: {page}"));
    if once {
        return Ok(());
    }
    let end = Instant::now() + AFTER;
    while !stopped() && Instant::now() < end {
        alive(agent, dir)?;
        thread::sleep(Duration::from_millis(100));
    }
    until_stopped(agent, dir, console)
}

/// Asks until there is an answer.
pub(super) fn until<T>(
    agent: &mut SupervisedChild,
    dir: &Path,
    patience: Duration,
    otherwise: &str,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + patience;
    loop {
        alive(agent, dir)?;
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if stopped() {
            bail!("interrupted");
        }
        if Instant::now() > end {
            bail!("{otherwise} within {} s", patience.as_secs());
        }
        thread::sleep(Duration::from_millis(500));
    }
}

pub(super) fn json(console: SocketAddr, target: &str) -> Result<Value> {
    let reply = http::get(console, target)?;
    if reply.status != 200 {
        bail!("{target}: status {}: {}", reply.status, reply.text);
    }
    serde_json::from_str(&reply.text).with_context(|| format!("{target}: no JSON"))
}

fn findings(console: SocketAddr) -> Result<Vec<Value>> {
    Ok(json(console, "/api/v1/findings")?["findings"].as_array().cloned().unwrap_or_default())
}

/// Windows with requests of the class.
fn windows(console: SocketAddr) -> Result<usize> {
    let all = json(console, "/api/v1/series")?;
    let mine = all["series"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|one| one["service_name"] == SERVICE && one["request_class"] == CLASS && one["side"] == "server");
    Ok(mine.and_then(|one| one["t"].as_array()).map_or(0, Vec::len))
}
