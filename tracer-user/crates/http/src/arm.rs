//! `/api/v1/arm/…`: declared transactions as ARM reports them, as JSON and CSV.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tracer_model::DeclaredValue;
use tracer_results::metrics::{DeclaredRow, DeclaredSums};
use tracer_runtimes::declared::{Metric, MetricKind};

use super::params::Params;
use super::{App, PipelineView, Problem};

/// A row: columns and values, the same columns in all rows of a report.
type Row = Vec<(&'static str, Value)>;

/// A report: its name, its columns, its rows.
struct Report {
    name: &'static str,
    columns: &'static [&'static str],
    rows: fn(&PipelineView<'_>) -> Vec<Row>,
}

const DEFINITIONS: Report = Report {
    name: "definitions",
    columns: &["transaction", "program", "kind", "target", "user", "metrics", "declared_at"],
    rows: definitions_rows,
};
const MEASUREMENTS: Report = Report {
    name: "measurements",
    columns: &[
        "transaction",
        "service_name",
        "count",
        "failed",
        "time_s",
        "mean_s",
        "min_s",
        "max_s",
        "p50_s",
        "p95_s",
        "p99_s",
        "cpu_s",
        "cpu_unknown",
        "user_unread",
    ],
    rows: measurements_rows,
};
const USERS: Report = Report {
    name: "users",
    columns: &[
        "transaction",
        "service_name",
        "user",
        "is_other",
        "count",
        "failed",
        "time_s",
        "mean_s",
        "min_s",
        "max_s",
        "cpu_s",
        "cpu_unknown",
        "metrics",
    ],
    rows: users_rows,
};
const METRICS: Report = Report {
    name: "metrics",
    columns: &["transaction", "service_name", "metric", "type", "count", "unread", "sum", "mean", "min", "max", "last"],
    rows: metrics_rows,
};

pub(super) async fn definitions(State(app): State<Arc<App>>, params: Params) -> Result<Response, Problem> {
    answer(&app, params, &DEFINITIONS).await
}

pub(super) async fn measurements(State(app): State<Arc<App>>, params: Params) -> Result<Response, Problem> {
    answer(&app, params, &MEASUREMENTS).await
}

pub(super) async fn users(State(app): State<Arc<App>>, params: Params) -> Result<Response, Problem> {
    answer(&app, params, &USERS).await
}

pub(super) async fn metrics(State(app): State<Arc<App>>, params: Params) -> Result<Response, Problem> {
    answer(&app, params, &METRICS).await
}

async fn answer(app: &App, params: Params, report: &'static Report) -> Result<Response, Problem> {
    let params = params.only(&["format"])?;
    let is_csv = |format: &str| match format {
        "csv" => Some(true),
        "json" => Some(false),
        _ => None,
    };
    let csv = params.read("format", "csv or json", is_csv)?.unwrap_or(false);
    let rows = app.shared.ask(|view| (report.rows)(view)).await?;
    if csv {
        return Ok(([(CONTENT_TYPE, "text/csv; charset=utf-8; header=present")], written(report.columns, &rows))
            .into_response());
    }
    let rows: Vec<Value> = rows
        .into_iter()
        .map(|row| row.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into())
        .collect();
    Ok(Json(json!({ report.name: rows })).into_response())
}

/// CSV as in RFC 4180.
fn written(columns: &[&str], rows: &[Row]) -> String {
    let mut out = columns.join(",") + "\r\n";
    for row in rows {
        let fields: Vec<String> = row.iter().map(|(_, value)| field(value)).collect();
        out += &(fields.join(",") + "\r\n");
    }
    out
}

fn field(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.contains(['"', ',', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// A number as JSON has it: beyond 64 bits it is a text of digits.
fn number(number: i128) -> Value {
    i64::try_from(number)
        .map(Value::from)
        .or_else(|_| u64::try_from(number).map(Value::from))
        .unwrap_or_else(|_| Value::from(number.to_string()))
}

fn value(value: &DeclaredValue) -> Value {
    match value {
        DeclaredValue::Number(of) => number(*of),
        DeclaredValue::Text(text) => json!(&**text),
    }
}

fn definitions_rows(view: &PipelineView<'_>) -> Vec<Row> {
    let metric = |metric: &Metric| json!({ "name": &*metric.name, "type": metric.kind.name(), "value": metric.value.to_string() });
    let row = |one: &tracer_runtimes::declared::Declared| {
        vec![
            ("transaction", json!(&*one.name)),
            ("program", json!(&*one.program)),
            ("kind", json!(one.target.kind())),
            ("target", json!(one.target.to_string())),
            ("user", json!(one.user.as_ref().map(ToString::to_string))),
            ("metrics", one.metrics.iter().map(metric).collect()),
            ("declared_at", json!(&*one.place)),
        ]
    };
    view.declared.declared().map(row).collect()
}

fn measurements_rows(view: &PipelineView<'_>) -> Vec<Row> {
    let row = |row: DeclaredRow<'_>| {
        let sums = row.sums;
        let quantile = |q| json!(row.times.and_then(|times| times.at(q)));
        vec![
            ("transaction", json!(&*row.declared.name)),
            ("service_name", json!(&*view.names.service(row.service))),
            ("count", json!(sums.count)),
            ("failed", json!(sums.failed)),
            ("time_s", json!(seconds(sums.time))),
            ("mean_s", json!(sums.mean_s())),
            ("min_s", json!(seconds(sums.min))),
            ("max_s", json!(seconds(sums.max))),
            ("p50_s", quantile(0.5)),
            ("p95_s", quantile(0.95)),
            ("p99_s", quantile(0.99)),
            ("cpu_s", json!(seconds(sums.cpu))),
            ("cpu_unknown", json!(sums.cpu_unknown)),
            ("user_unread", json!(sums.user_unread)),
        ]
    };
    view.declared.totals().map(row).collect()
}

/// Sums by metric: of counters and gauges.
fn sums_of(row: &DeclaredRow<'_>, sums: &DeclaredSums) -> Value {
    let named = row.declared.metrics.iter().zip(&sums.metrics);
    let adds = named.filter(|(metric, _)| matches!(metric.kind, MetricKind::Counter | MetricKind::Gauge));
    adds.map(|(metric, sums)| (metric.name.to_string(), json!({ "count": sums.count, "sum": number(sums.sum) })))
        .collect::<Map<_, _>>()
        .into()
}

fn users_rows(view: &PipelineView<'_>) -> Vec<Row> {
    let row = |row: DeclaredRow<'_>| {
        let sums = row.sums;
        vec![
            ("transaction", json!(&*row.declared.name)),
            ("service_name", json!(&*view.names.service(row.service))),
            ("user", json!(row.user)),
            ("is_other", json!(row.user.is_none())),
            ("count", json!(sums.count)),
            ("failed", json!(sums.failed)),
            ("time_s", json!(seconds(sums.time))),
            ("mean_s", json!(sums.mean_s())),
            ("min_s", json!(seconds(sums.min))),
            ("max_s", json!(seconds(sums.max))),
            ("cpu_s", json!(seconds(sums.cpu))),
            ("cpu_unknown", json!(sums.cpu_unknown)),
            ("metrics", sums_of(&row, sums)),
        ]
    };
    view.declared.users().map(row).collect()
}

fn metrics_rows(view: &PipelineView<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for row in view.declared.totals() {
        for (metric, sums) in row.declared.metrics.iter().zip(&row.sums.metrics) {
            // An id is a name, though it is a number: it has no sum.
            let adds = matches!(metric.kind, MetricKind::Counter | MetricKind::Gauge);
            let if_adds = |value: Option<Value>| value.filter(|_| adds && sums.count > 0).unwrap_or(Value::Null);
            rows.push(vec![
                ("transaction", json!(&*row.declared.name)),
                ("service_name", json!(&*view.names.service(row.service))),
                ("metric", json!(&*metric.name)),
                ("type", json!(metric.kind.name())),
                ("count", json!(sums.count)),
                ("unread", json!(sums.unread)),
                ("sum", if_adds(Some(number(sums.sum)))),
                ("mean", if_adds(Some(json!(sums.sum as f64 / sums.count.max(1) as f64)))),
                ("min", if_adds(sums.min.map(number))),
                ("max", if_adds(sums.max.map(number))),
                ("last", sums.last.as_ref().map_or(Value::Null, value)),
            ]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_is_quoted_where_it_has_to_be() {
        let row = vec![("a", json!("x")), ("b", json!("say \"hi\", you\r\n")), ("c", Value::Null), ("d", json!(1.5))];
        assert_eq!(written(&["a", "b", "c", "d"], &[row]), "a,b,c,d\r\nx,\"say \"\"hi\"\", you\r\n\",,1.5\r\n");
        assert_eq!(number(i128::from(u64::MAX)), json!(u64::MAX));
        assert_eq!(number(i128::MAX), json!(i128::MAX.to_string()));
    }
}
