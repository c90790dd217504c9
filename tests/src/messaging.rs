//! Compares the agent's spans of messages with the messages sent.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::metrics::Metrics;
use crate::{figure, find, say, wait};

/// The side a span belongs to, and the metric family that counts it.
pub const FAMILIES: [(&str, &str); 3] = [
    ("client", "messaging_client_operation_duration_seconds"),
    ("consumer", "messaging_process_duration_seconds"),
    ("broker", "messaging_server_operation_duration_seconds"),
];

/// Numbers of spans by operation and destination.
pub type Counts = BTreeMap<String, u64>;

/// Counts from a list.
pub fn counts(list: &[(&str, u64)]) -> Counts {
    list.iter().filter(|(_, count)| *count > 0).map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// A workload of `tests/workloads` and its arguments, as the service `name`.
pub fn workload(script: &str, name: &str, arguments: &[String]) -> Command {
    let mut command = Command::new(find("python3").unwrap_or_else(|| panic!("no python3")));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads").join(script)).args(arguments);
    command.env("OTEL_SERVICE_NAME", name);
    command
}

/// Spans of a family.
fn found(metrics: &Metrics, family: &str, system: &str) -> Counts {
    let mut counts = BTreeMap::new();
    for series in metrics.of(&format!("{family}_count"), &[("messaging_system", system)]) {
        let label = |name: &str| series.labels.get(name).cloned().unwrap_or_default();
        let name = format!("{} {}", label("messaging_operation_name"), label("messaging_destination_name"));
        *counts.entry(name.trim_end().to_owned()).or_default() += series.value as u64;
    }
    counts
}

/// Waits until there are as many spans as `expected` by family, and panics if one differs.
pub fn compare(agent: &Agent, system: &str, expected: &[Counts; 3]) -> Metrics {
    let all = |metrics: &Metrics| FAMILIES.map(|(_, family)| found(metrics, family, system));
    let wanted: u64 = expected.iter().flat_map(BTreeMap::values).sum();
    let mut last = 0;
    let metrics = wait("the last messages", Duration::from_secs(60), || {
        let metrics = agent.metrics();
        let now: u64 = all(&metrics).iter().flat_map(BTreeMap::values).sum();
        let still = now == std::mem::replace(&mut last, now) && now > 0;
        if now >= wanted || still {
            return Some(metrics);
        }
        std::thread::sleep(Duration::from_millis(1500));
        None
    });
    let lost = metrics.lost();
    let missed = metrics.sum("tracer_attribution_gaps_total", &[("reason", "parser_gap_bytes")]);
    say(&format!("lost: {lost:?}; {missed} bytes that could not be read"));
    let mut right = 0;
    for ((who, _), (found, expected)) in FAMILIES.iter().zip(all(&metrics).iter().zip(expected)) {
        for (name, count) in expected {
            let have = found.get(name).copied().unwrap_or_default();
            right += have.min(*count);
            say(&format!("  {who:<9} {name:<34} {count:>6} {have:>6}"));
        }
    }
    figure(&format!("{system} messages"), &format!("{right} of {wanted}"));
    for ((who, _), (found, expected)) in FAMILIES.iter().zip(all(&metrics).iter().zip(expected)) {
        assert_eq!(found, expected, "{who}; lost: {lost:?}");
    }
    metrics
}

/// Failures of a kind, by family: of clients, of consumers, of the broker.
pub fn failures(metrics: &Metrics, kind: &str) -> [u64; 3] {
    FAMILIES.map(|(_, family)| metrics.sum(&format!("{family}_count"), &[("error_type", kind)]) as u64)
}

/// Panics unless `count` spans are linked, all from the consumer's service and to this transaction.
pub fn linked(agent: &Agent, consumer: &str, trace: &str, count: u64) {
    // Spans are written a little later than counted.
    let end = Instant::now() + Duration::from_secs(10);
    let spans = loop {
        let text = std::fs::read_to_string(&agent.transactions).unwrap_or_else(|error| panic!("spans: {error}"));
        let spans = text.lines().filter(|line| line.contains("\"links\":"));
        let spans: Vec<serde_json::Value> =
            spans.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
        if spans.len() as u64 >= count || Instant::now() > end {
            break spans;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let right = spans.iter().filter(|span| span["service_name"] == consumer && span["links"][0]["trace_id"] == trace);
    assert_eq!(
        (spans.len() as u64, right.count() as u64),
        (count, count),
        "spans that are linked, and those that should be"
    );
}
