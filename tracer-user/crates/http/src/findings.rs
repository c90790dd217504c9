//! `GET /api/v1/findings`: what changed. `GET /api/v1/findings/ID`: what one of them rests on.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tracer_results::analysis::evidence::{CostPoint, Evidence, HostPoint};
use tracer_results::analysis::finding::Finding;
use tracer_results::analysis::regression::{self, Model, SegmentVerdict};
use tracer_results::analysis::signature::{self, Bucket};

use super::known::find;
use super::params::{Named, Params};
use super::range::Range;
use super::{App, Problem};

/// Most findings of one answer.
const LIST: usize = 10_000;

pub(super) async fn list(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class", "from", "to", "since", "limit", "cursor"])?;
    let (service, class) = (params.string("service"), params.string("class"));
    let range = Range::of(&params)?.unwrap_or_default();
    let limit = params.number("limit", 1..=LIST, "a number, at least 1 and at most 10000")?.unwrap_or(LIST);
    // Ids count up, and the newest comes first.
    let before = params.number("cursor", 1..=u64::MAX, "the next_cursor of the page before")?.unwrap_or(u64::MAX);
    let mut all = app
        .shared
        .ask(move |view| {
            let of = |f: &&Finding| {
                let whole = f.service_name.is_empty();
                let service = service.as_ref().is_none_or(|service| whole || f.service_name == *service);
                let class = class
                    .as_ref()
                    .is_none_or(|class| f.request_classes.is_empty() || f.request_classes.contains(class));
                // Those that lasted at some time of the range.
                let lasted = f.until_ns.is_none_or(|until| until >= range.from) && f.since_ns < range.to;
                service && class && lasted && f.id < before
            };
            // The newest first.
            let found: Vec<Finding> = view.detector.findings().rev().filter(of).take(limit + 1).cloned().collect();
            // Findings of before the start may be of services and classes that have had no request since.
            if !view.detector.findings().any(|finding| service.as_ref() == Some(&finding.service_name)) {
                find(view, service.as_deref(), class.as_deref())?;
            }
            Ok::<_, super::known::Unknown>(found)
        })
        .await??;
    let more = all.len() > limit;
    all.truncate(limit);
    let next = all.last().filter(|_| more).map(|finding| finding.id.to_string());
    Ok(Json(json!({
        "findings": all.iter().map(Finding::to_json).collect::<Vec<_>>(),
        "next_cursor": next,
        "range": range.to_json(),
    })))
}

pub(super) async fn one(State(app): State<Arc<App>>, Named(id): Named, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    let id: u64 = id.parse().map_err(|_| Problem::bad(format!("'{id}' given, expected the number of a finding")))?;
    let found = app.shared.ask(move |view| view.detector.evidence(id)).await?;
    let evidence = found.ok_or_else(|| Problem::missing("no such finding; /api/v1/findings lists them"))?;
    // Fits take milliseconds: not on a thread that serves others.
    let failed =
        |_| Problem(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "the evidence could not be computed".into());
    tokio::task::spawn_blocking(move || Json(whole(&evidence))).await.map_err(failed)
}

/// The finding with its plots: arrays have one entry per window.
pub(super) fn whole(e: &Evidence) -> Value {
    let host = |of: fn(&HostPoint) -> f64| e.host.iter().map(of).collect::<Vec<f64>>();
    let cost = |of: fn(&CostPoint) -> f64| e.cost.iter().map(of).collect::<Vec<f64>>();
    let (before, after) = e.means.split_at(e.since.min(e.means.len()));
    let (before, after) = (signature::of(before), signature::of(after));
    let mut answer = e.finding.to_json();
    answer["windows"] = json!({
        "t": host(|point| point.start_ns as f64 / 1e9),
        "utilisation": host(|point| point.utilisation),
        "foreign": host(|point| point.foreign),
        "steal": host(|point| point.steal),
        "requests": cost(|point| point.requests),
        "cost": cost(|point| point.cost),
        "expected": cost(|point| point.expected),
    });
    answer["signature"] = json!({
        "before": before.iter().map(bucket).collect::<Vec<_>>(),
        "after": after.iter().map(bucket).collect::<Vec<_>>(),
        "ratio": signature::ratio(&before, &after),
    });
    answer["regression"] = regressed(e);
    answer
}

fn bucket(b: &Bucket) -> Value {
    json!({
        "utilisation": b.utilisation,
        "windows": b.windows,
        "p10_s": b.p10_s,
        "p50_s": b.p50_s,
        "p90_s": b.p90_s,
        "cpu_s": b.cpu_s,
        "blocked_s": b.blocked_s,
    })
}

/// The service's CPU as regression sees it: by the model of the windows before the change, and of those after.
fn regressed(e: &Evidence) -> Value {
    let columns = e.columns.len();
    if columns == 0 {
        return Value::Null;
    }
    let (before, after) = e.samples.split_at(e.since.min(e.samples.len()));
    let (then, now) = (regression::fit(before, columns), regression::fit(after, columns));
    let at = |window: usize| e.host.get(window).map_or(0, |point| point.start_ns);
    let end = |window: usize| e.host.get(window.saturating_sub(1)).map_or(0, |point| point.end_ns);
    let demand = |model: &Option<Model>, i: usize| model.as_ref().and_then(|model| model.demand_s[i]);
    let error = |model: &Option<Model>, i: usize| model.as_ref().and_then(|model| model.error_s[i]);
    let classes = e.columns.iter().enumerate().map(|(i, column)| {
        json!({
            "request_class": column.request_class,
            "measured_before_s": column.before_s,
            "measured_after_s": column.after_s,
            "regression_before_s": demand(&then, i),
            "regression_before_error_s": error(&then, i),
            "regression_after_s": demand(&now, i),
            "regression_after_error_s": error(&now, i),
        })
    });
    let segments = regression::segments(&e.samples, columns).into_iter().map(|segment| {
        let kind = match segment.verdict {
            SegmentVerdict::Nothing => Value::Null,
            SegmentVerdict::Anomaly => json!("anomaly"),
            SegmentVerdict::WorkloadChange => json!("workload_change"),
            SegmentVerdict::ApplicationChange => json!("application_change"),
        };
        json!({ "since_ns": at(segment.from), "until_ns": end(segment.to), "kind": kind, "base_s": segment.model.base_s })
    });
    json!({
        "cpu_s": e.samples.iter().map(|sample| sample.cpu_s).collect::<Vec<_>>(),
        "predicted_s": then.as_ref().map(|model| e.samples.iter().map(|sample| model.predict(sample)).collect::<Vec<_>>()),
        "deviation_s": then.as_ref().map(|model| model.deviation_s),
        "classes": classes.collect::<Vec<_>>(),
        "segments": segments.collect::<Vec<_>>(),
    })
}
