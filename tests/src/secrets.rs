//! Whether anything of what was planted in traffic shows in what the agent says.

use std::path::Path;

use crate::agent::Agent;

/// Stops the agent, whose files are in `dir`, and looks for `planted` in its pages, its metrics, its API, its output and
/// its files; panics where it finds one. `telling` must show, so that something was looked at.
pub fn none_shows(agent: Agent, dir: &Path, planted: &[&str], telling: &str) {
    let mut said: Vec<(String, String)> = Vec::new();
    let listed = "/api/v1/transactions?limit=1000";
    for target in ["/", "/metrics", "/api/v1/services", "/api/v1/classes", "/api/v1/health", listed] {
        said.push((target.into(), agent.text(target)));
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
    let files = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    for entry in files.filter_map(Result::ok).filter(|entry| entry.file_name().to_string_lossy().starts_with("agent")) {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        said.push((entry.path().display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
    }
    assert!(said.iter().any(|(_, text)| text.contains(telling)), "{telling} shows nowhere");
    for (place, text) in said {
        let lower = text.to_lowercase();
        for secret in planted {
            assert!(!lower.contains(&secret.to_lowercase()), "{secret} shows in {place}");
        }
    }
}
