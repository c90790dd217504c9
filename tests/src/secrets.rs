//! Whether anything of what was planted in traffic shows in what the agent says.

use std::collections::BTreeSet;
use std::path::Path;

use crate::agent::Agent;

/// Stops the agent, whose files are in `dir`, and looks for `planted` in its pages, its metrics, its API, its output and
/// its files; panics where it finds one. `telling` must show, so that something was looked at.
pub fn none_shows(agent: Agent, dir: &Path, planted: &[&str], telling: &str) {
    none_shows_with(agent, dir, planted, telling, Vec::new);
}

/// The same, with places of the test's own, by name, which are asked for when the agent has ended. Gives how many places
/// were looked at.
pub fn none_shows_with(
    agent: Agent,
    dir: &Path,
    planted: &[&str],
    telling: &str,
    more: impl FnOnce() -> Vec<(String, String)>,
) -> usize {
    let mut said: Vec<(String, String)> = Vec::new();
    let listed = "/api/v1/transactions?limit=1000";
    for target in ["/", "/metrics", "/api/v1/services", "/api/v1/classes", "/api/v1/health", listed] {
        said.push((target.into(), agent.text(target)));
    }
    for target in ["/flamegraph.svg", "/profile.folded"] {
        said.push((target.into(), agent.text(target)));
    }
    // Those that have requests have pages.
    let classes = agent.json("/api/v1/classes");
    let classes = classes["classes"].as_array().into_iter().flatten();
    let names: BTreeSet<&str> = classes.filter_map(|one| one["service_name"].as_str()).collect();
    for name in names {
        let target = format!("/service?name={}", name.replace(' ', "%20"));
        said.push((target.clone(), agent.text(&target)));
    }
    let failed = agent.json("/api/v1/transactions?status=error&limit=20");
    for one in failed["transactions"].as_array().into_iter().flatten() {
        let id = one["trace_id"].as_str().unwrap_or_else(|| panic!("a transaction without an id: {one}"));
        for target in [format!("/api/v1/transactions/{id}"), format!("/transaction?id={id}")] {
            said.push((target.clone(), agent.text(&target)));
        }
    }
    let units = agent.transactions.clone();
    said.push(("output".into(), agent.stop().said));
    let units = std::fs::read_to_string(&units).unwrap_or_else(|error| panic!("{}: {error}", units.display()));
    said.push(("units".into(), units));
    let mut files = vec![dir.to_path_buf()];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            // The test's own are beside the agent's.
            let named = |name: &str| path != dir || name.starts_with("agent");
            let entries = entries.filter_map(Result::ok);
            files.extend(entries.filter(|entry| named(&entry.file_name().to_string_lossy())).map(|entry| entry.path()));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        said.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
    }
    said.extend(more());
    let places = said.len();
    assert!(said.iter().any(|(_, text)| text.contains(telling)), "{telling} shows nowhere");
    for (place, text) in said {
        let lower = text.to_lowercase();
        for secret in planted {
            assert!(!lower.contains(&secret.to_lowercase()), "{secret} shows in {place}");
        }
    }
    places
}
