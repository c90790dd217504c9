//! Searches the agent's output for secrets planted in traffic.

use std::collections::BTreeSet;
use std::path::Path;

use crate::agent::Agent;

/// Stops the agent, whose files are in `dir`, and searches its pages, its metrics, its API, its output and its files
/// for `planted`; panics if it finds one. `telling` must appear, to prove that the search saw the traffic.
pub fn none_shows(agent: Agent, dir: &Path, planted: &[&str], telling: &str) {
    none_shows_with(agent, dir, planted, telling, Vec::new);
}

/// The same, with the test's own places, by name, which are fetched after the agent has ended. Returns how many places
/// were searched.
pub fn none_shows_with(
    agent: Agent,
    dir: &Path,
    planted: &[&str],
    telling: &str,
    more: impl FnOnce() -> Vec<(String, String)>,
) -> usize {
    let mut shown: Vec<(String, String)> = Vec::new();
    let listed = "/api/v1/transactions?limit=1000";
    for target in ["/", "/metrics", "/api/v1/services", "/api/v1/classes", "/api/v1/health", "/api/v1/edges", listed] {
        shown.push((target.into(), agent.text(target)));
    }
    for target in ["/flamegraph.svg", "/profile.folded"] {
        shown.push((target.into(), agent.text(target)));
    }
    // Classes with requests have pages.
    let classes = agent.json("/api/v1/classes");
    let classes = classes["classes"].as_array().into_iter().flatten();
    let names: BTreeSet<&str> = classes.filter_map(|one| one["service_name"].as_str()).collect();
    for name in names {
        let target = format!("/service?name={}", name.replace(' ', "%20"));
        shown.push((target.clone(), agent.text(&target)));
    }
    let failed = agent.json("/api/v1/transactions?status=error&limit=20");
    for one in failed["transactions"].as_array().into_iter().flatten() {
        let id = one["trace_id"].as_str().unwrap_or_else(|| panic!("a transaction without an id: {one}"));
        for target in [format!("/api/v1/transactions/{id}"), format!("/transaction?id={id}")] {
            shown.push((target.clone(), agent.text(&target)));
        }
    }
    let spans = agent.transactions.clone();
    shown.push(("output".into(), agent.stop().output));
    let spans = std::fs::read_to_string(&spans).unwrap_or_else(|error| panic!("{}: {error}", spans.display()));
    shown.push(("spans".into(), spans));
    let mut files = vec![dir.to_path_buf()];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            // The test's own files are beside the agent's.
            let named = |name: &str| path != dir || name.starts_with("agent");
            let entries = entries.filter_map(Result::ok);
            files.extend(entries.filter(|entry| named(&entry.file_name().to_string_lossy())).map(|entry| entry.path()));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        shown.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
    }
    shown.extend(more());
    let places = shown.len();
    assert!(shown.iter().any(|(_, text)| text.contains(telling)), "{telling} shows nowhere");
    for (place, text) in shown {
        let lower = text.to_lowercase();
        for secret in planted {
            assert!(!lower.contains(&secret.to_lowercase()), "{secret} shows in {place}");
        }
    }
    places
}
