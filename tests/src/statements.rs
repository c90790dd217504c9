//! Statements of databases: the class that a statement expects, and what the agent counted of them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::agent::Agent;
use crate::metrics::Metrics;
use crate::wait;

/// Queries carry their expected class in a comment: `/*=CLASS=*/`.
const MARK: [&str; 2] = ["/*=", "=*/"];

/// The class that a query's text expects.
pub fn marked(sql: &str) -> Option<&str> {
    Some(sql.split_once(MARK[0])?.1.split_once(MARK[1])?.0)
}

/// Waits until no more spans of a database's protocol come.
pub fn settled(agent: &Agent, protocol: &str) -> Metrics {
    let mut last = 0.0;
    wait("the last statements", Duration::from_secs(60), || {
        let metrics = agent.metrics();
        let now = metrics.sum("tracer_requests_total", &[("protocol", protocol)])
            + metrics.sum("db_client_operation_duration_seconds_count", &[("db_system_name", protocol)]);
        let still = now > 0.0 && (now - last).abs() < 0.5;
        last = now;
        std::thread::sleep(Duration::from_millis(1500));
        still.then_some(metrics)
    })
}

/// Statements that failed at the server of a database, by the kind of their error.
pub fn errors(metrics: &Metrics, protocol: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for series in metrics.of("db_server_operation_duration_seconds_count", &[("db_system_name", protocol)]) {
        let kind = series.labels.get("db_response_status_code").cloned().unwrap_or_default();
        if !kind.is_empty() {
            *found.entry(kind).or_default() += series.value as u64;
        }
    }
    found
}
