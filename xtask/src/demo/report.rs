//! What the agent says, by its HTTP API: classes, capture ratio, losses, and where to look further.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::http;
use crate::shell::print;

/// Rows printed; the console has the rest.
const ROWS: usize = 40;

/// Prints everything; fails when the agent has seen no class.
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
    rows.sort_by(|a, b| (&a.service, &b.side, b.count).cmp(&(&b.service, &a.side, a.count)));
    let left_out = rows.len().saturating_sub(ROWS);
    rows.truncate(ROWS);

    print("");
    print("Classes of requests (times per request: mean but for the percentiles)");
    print("");
    table(&rows).into_iter().for_each(print);
    if left_out > 0 {
        print(format!("… and {left_out} more on the console"));
    }

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
    let mut seen = Vec::new();
    for row in &rows {
        let key = (&row.service, &row.class);
        if !seen.contains(&key) {
            seen.push(key);
            let (service, class) = (http::encode(&row.service), http::encode(&row.class));
            print(format!(
                "  {:<34} http://{console}/flamegraph.svg?service={service}&class={class}&kind=cpu",
                row.label()
            ));
        }
    }
    print("");
    Ok(())
}

/// One class as the API has it.
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

/// Lines of a table, columns as wide as they must be; words left, numbers right.
fn table(rows: &[Row]) -> Vec<String> {
    let mut cells: Vec<Vec<String>> = Vec::with_capacity(rows.len() + 1);
    let heads = ["service", "side", "class", "count", "rate/s", "errors"];
    cells.push(heads.into_iter().chain(TIMES.map(|(_, head)| head)).map(String::from).collect());
    for row in rows {
        let mut line = vec![
            row.service.clone(),
            row.side.clone(),
            row.class.clone(),
            row.count.to_string(),
            format!("{:.1}", row.rate),
            row.errors.to_string(),
        ];
        line.extend(row.times.iter().map(|seconds| time(*seconds)));
        cells.push(line);
    }
    let widths: Vec<usize> = (0..heads.len() + TIMES.len())
        .map(|n| cells.iter().map(|line| line[n].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |cells: &Vec<String>| {
        let padded = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(n, (cell, width))| if n < 3 { format!("{cell:<width$}") } else { format!("{cell:>width$}") });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}

/// Seconds for people.
fn time(seconds: f64) -> String {
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
        let lines = table(&Row::all(&json).expect("rows"));
        assert!(lines[0].starts_with("service  side    class            count"), "{}", lines[0]);
        assert!(lines[1].starts_with("shop     server  GET /users/{id}     12"), "{}", lines[1]);
        assert!(lines[1].contains("400 µs"));
        assert!(Row::all(&serde_json::json!({})).is_none());
    }
}
