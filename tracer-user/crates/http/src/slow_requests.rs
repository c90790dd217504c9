//! `/api/v1/slow-requests`: slow requests that keep samples of their own, and those samples.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tracer_model::SpanId;
use tracer_results::profiles::SlowRequest;

use super::known::find;
use super::params::{Named, Params};
use super::profiles::render;
use super::range::Range;
use super::{App, PipelineView, Problem};

/// Most rows of the list.
const LIST: usize = 256;
/// What a cursor of the list is.
const CURSOR: &str = "the next_cursor of the page before";
/// Error message for a request without samples of its own.
pub(super) const NOT_KEPT: &str =
    "this span has no samples of its own: only the latest slow requests have; /api/v1/slow-requests lists them";

/// Parses a span id.
pub(super) fn span_id(text: &str) -> Option<SpanId> {
    let hexadecimal = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    hexadecimal.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(SpanId)
}

fn row(view: &PipelineView<'_>, slow: &SlowRequest) -> Value {
    let (on_cpu, off_cpu) = slow.samples();
    let info = view.names.class(slow.class);
    json!({
        "span_id": slow.span.to_string(),
        "trace_id": slow.trace.to_string(),
        "service_name": info.map(|info| &*info.service_name),
        "request_class": info.map(|info| &*info.name),
        "start_ns": (slow.start as i64).saturating_add(view.wall_offset),
        "duration_s": slow.end.saturating_sub(slow.start) as f64 / 1e9,
        "threshold_s": slow.threshold as f64 / 1e9,
        "samples": on_cpu,
        "off_cpu_samples": off_cpu,
        "samples_dropped": slow.dropped(),
    })
}

pub(super) async fn list(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class", "from", "to", "since", "limit", "cursor"])?;
    let (service, class) = (params.string("service"), params.string("class"));
    let limit = params.number("limit", 1..=LIST, "a number, at least 1 and at most 256")?.unwrap_or(100);
    let range = Range::of(&params)?.unwrap_or_default();
    let after = params.read("cursor", CURSOR, span_id)?;
    let found = app.shared.ask(move |view| {
        if let Err(unknown) = find(view, service.as_deref(), class.as_deref()) {
            return Err(Problem::from(unknown));
        }
        let fits = |slow: &&SlowRequest| {
            let start = (slow.start as i64).saturating_add(view.wall_offset).max(0) as u64;
            range.contains(start)
                && view.names.class(slow.class).is_some_and(|info| {
                    service.as_ref().is_none_or(|service| *info.service_name == **service)
                        && class.as_ref().is_none_or(|class| *info.name == **class)
                })
        };
        let all = view.profiles.slow_requests();
        let mut newest = all.slow().rev();
        if let Some(after) = after
            && !newest.by_ref().any(|slow| slow.span == after)
        {
            return Err(Problem::bad(format!("cursor: expected {CURSOR}; that request is not kept any more")));
        }
        let mut rows: Vec<&SlowRequest> = newest.filter(fits).take(limit + 1).collect();
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|slow| slow.span.to_string());
        let rows: Vec<Value> = rows.into_iter().map(|slow| row(view, slow)).collect();
        // The oldest that is kept: what began before it is forgotten.
        let oldest = all.slow().next().map(|slow| (slow.start as i64).saturating_add(view.wall_offset));
        Ok((rows, next, oldest))
    });
    let (rows, next, oldest) = found.await??;
    let mut range = range.to_json();
    range["kept_from"] = json!(oldest);
    Ok(Json(json!({ "slow_requests": rows, "next_cursor": next, "range": range })))
}

pub(super) async fn one(State(app): State<Arc<App>>, Named(id): Named, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    let span = span_id(&id).ok_or_else(|| Problem::bad("span_id: expected 16 hexadecimal digits"))?;
    let found = app.shared.ask(move |view| {
        let slow = view.profiles.slow_requests().get(span)?;
        Some((row(view, slow), view.profiles.timed(span)?))
    });
    let (mut row, timed) = found.await?.ok_or_else(|| Problem::missing(NOT_KEPT))?;
    let samples = render(&app, move || timed.named()).await?;
    let samples = samples.into_iter().map(|sample| {
        json!({
            "at_s": sample.after as f64 / 1e9,
            "weight_s": sample.weight as f64 / 1e9,
            "count": sample.count,
            "kind": sample.kind,
            "thread": sample.tid,
            "stack": sample.frames.iter().map(|frame| &**frame).collect::<Vec<_>>(),
        })
    });
    row["taken"] = Value::Array(samples.collect());
    Ok(Json(row))
}
