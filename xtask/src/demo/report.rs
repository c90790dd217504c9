//! What the agent reports by its HTTP API: classes, capture ratio, losses, and where to look further.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::http;
use crate::shell::print;

/// Rows printed; the console has the rest.
const ROWS: usize = 40;

/// Prints everything; fails if the agent has seen no class.
pub(super) fn show(console: SocketAddr) -> Result<()> {
    let reply = http::get(console, "/api/v1/classes")?;
    if reply.status != 200 {
        bail!("the agent answered {} to /api/v1/classes: {}", reply.status, reply.text.trim());
    }
    let json: Value = serde_json::from_str(&reply.text).context("/api/v1/classes is not JSON")?;
    let mut rows = Row::all(&json).context("/api/v1/classes has no array `classes`")?;
    if rows.is_empty() {
        bail!("the agent has seen no request; `tracer doctor` says what is missing");
    }
    rows.sort_by(|a, b| (&a.service, b.count).cmp(&(&b.service, a.count)));
    let (rows, calls): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.side == "server");
    print_table("Requests each service handled (means per request, but for the percentiles)", &rows, &TIMES);
    // Only the callee can report where a call's time went.
    print_table("Calls each service made", &calls, &TIMES[..3]);

    let metrics = http::get(console, "/metrics")?;
    let samples = samples(&metrics.text);
    let sum = |name: &str| samples.iter().filter(|s| s.name == name).map(|s| s.value).sum::<f64>();
    let ratio = samples.iter().find(|s| s.name == "tracer_capture_ratio");
    let ratio = ratio.context("/metrics has no tracer_capture_ratio")?.value;
    print("");
    print(format!("capture ratio   {ratio:.4}  (CPU time accounted for / CPU time the system says was used)"));
    let lost = sum("tracer_events_lost_total");
    print(format!("events          {:.0} seen, {lost:.0} lost", sum("tracer_events_total")));
    for s in samples.iter().filter(|s| s.name == "tracer_events_lost_total" && s.value > 0.0) {
        print(format!("                lost: {:.0} {}", s.value, s.labels));
    }
    print(format!("console         http://{console}/"));
    print("flame graphs");
    let width = rows.iter().map(|row| row.label().chars().count()).max().unwrap_or(0);
    for row in rows.iter().take(ROWS) {
        let (label, service, class) = (row.label(), http::encode(&row.service), http::encode(&row.class));
        print(format!("  {label:<width$}  http://{console}/flamegraph.svg?service={service}&class={class}&kind=cpu"));
    }
    print("");
    Ok(())
}

fn print_table(title: &str, rows: &[Row], times: &[(&str, &str)]) {
    print("");
    print(title);
    print("");
    table(&rows[..rows.len().min(ROWS)], times).into_iter().for_each(print);
    if rows.len() > ROWS {
        print(format!("… and {} more on the console", rows.len() - ROWS));
    }
}

/// One class, as in the API.
struct Row {
    service: String,
    class: String,
    side: String,
    count: u64,
    errors: u64,
    rate: f64,
    /// Seconds, in the order of [`TIMES`].
    times: Vec<f64>,
}

/// Columns of seconds: the API's field and our heading.
const TIMES: [(&str, &str); 8] = [
    ("p50_s", "p50"),
    ("p95_s", "p95"),
    ("p99_s", "p99"),
    ("queue_s", "queue"),
    ("cpu_s", "cpu"),
    ("runqueue_s", "runqueue"),
    ("blocked_s", "blocked"),
    ("downstream_s", "downstream"),
];

impl Row {
    fn all(json: &Value) -> Option<Vec<Self>> {
        let text = |class: &Value, name: &str| class[name].as_str().unwrap_or("?").to_owned();
        let row = |class: &Value| Self {
            service: text(class, "service_name"),
            class: text(class, "request_class"),
            side: text(class, "side"),
            count: class["count"].as_u64().unwrap_or(0),
            errors: class["errors"].as_u64().unwrap_or(0),
            rate: class["rate_per_s"].as_f64().unwrap_or(0.0),
            times: TIMES.iter().map(|(field, _)| class[*field].as_f64().unwrap_or(f64::NAN)).collect(),
        };
        Some(json["classes"].as_array()?.iter().map(row).collect())
    }

    fn label(&self) -> String {
        format!("{} {}", self.service, self.class)
    }
}

/// Lines of a table with minimal column widths; words left, numbers right.
fn table(rows: &[Row], times: &[(&str, &str)]) -> Vec<String> {
    let mut cells: Vec<Vec<String>> = Vec::with_capacity(rows.len() + 1);
    let heads = ["service", "class", "count", "rate/s", "errors"];
    cells.push(heads.into_iter().chain(times.iter().map(|(_, head)| *head)).map(String::from).collect());
    for row in rows {
        let mut line = vec![
            row.service.clone(),
            row.class.clone(),
            row.count.to_string(),
            format!("{:.1}", row.rate),
            row.errors.to_string(),
        ];
        line.extend(row.times.iter().take(times.len()).map(|seconds| time(*seconds)));
        cells.push(line);
    }
    let widths: Vec<usize> = (0..heads.len() + times.len())
        .map(|n| cells.iter().map(|line| line[n].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |cells: &Vec<String>| {
        let padded = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(n, (cell, width))| if n < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}

/// Formats seconds for people.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        s if s.is_nan() => "–".into(),
        s if s <= 0.0 => "0".into(),
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// One sample of the Prometheus text format.
#[derive(Debug, PartialEq)]
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

fn samples(text: &str) -> Vec<Sample<'_>> {
    let sample = |line| {
        let (series, value) = str::rsplit_once(line, ' ')?;
        let (name, labels) = series.split_at(series.find('{').unwrap_or(series.len()));
        Some(Sample { name, labels, value: value.parse().ok()? })
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        for (seconds, shown) in [(0.0, "0"), (12e-6, "12 µs"), (0.0805, "80.50 ms"), (2.0, "2.00 s"), (f64::NAN, "–")]
        {
            assert_eq!(time(seconds), shown);
        }
    }

    #[test]
    fn metrics_text() {
        let text = "# HELP a b\na 1.5\nlost{reason=\"ring full\"} 3\nlost{reason=\"x\"} NaN\nbroken\n";
        let read = samples(text);
        assert_eq!(read[0], Sample { name: "a", labels: "", value: 1.5 });
        assert_eq!(read[1], Sample { name: "lost", labels: "{reason=\"ring full\"}", value: 3.0 });
        assert_eq!(read.len(), 3);
    }

    #[test]
    fn a_table_of_classes() {
        let json = serde_json::json!({"classes": [
            {"service_name": "shop", "request_class": "GET /users/{id}", "side": "server", "count": 12, "errors": 0,
             "rate_per_s": 1.25, "p50_s": 0.001, "cpu_s": 0.0004}]});
        let lines = table(&Row::all(&json).expect("rows"), &TIMES);
        assert!(lines[0].starts_with("service  class            count"), "{}", lines[0]);
        assert!(lines[1].starts_with("shop     GET /users/{id}     12"), "{}", lines[1]);
        assert!(lines[1].contains("400 µs"));
        assert!(Row::all(&serde_json::json!({})).is_none());
    }
}
