//! Request classes over a range of time, from the windows in memory: `GET /api/v1/durations` has the requests of each window by
//! duration (a heatmap), `GET /api/v1/classes` with a range one row per class, `GET /api/v1/builds` when services ran which
//! program.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};
use tracer_model::{ClassInfo, Side};
use tracer_results::history::duration_counts::{DURATION_STEPS, DurationSum, lower_bound_s};
use tracer_results::history::recent::Point;

use super::known::find;
use super::params::Params;
use super::range::Range;
use super::{App, PipelineView, Problem};

/// The windows of a class that begin within the range.
fn points<'a>(
    view: &'a PipelineView<'_>,
    service: Option<&'a str>,
    class: Option<&'a str>,
    range: Range,
) -> impl Iterator<Item = (&'a ClassInfo, Vec<&'a Point>)> {
    view.history
        .recent
        .series()
        .filter_map(|(id, points)| Some((view.names.class(id)?, points)))
        .filter(move |(info, _)| {
            service.is_none_or(|service| *info.service_name == *service)
                && class.is_none_or(|class| *info.name == *class)
        })
        .map(move |(info, points)| {
            (info, points.iter().filter(|point| range.contains(point.start_ns)).collect::<Vec<_>>())
        })
        .filter(|(_, points)| !points.is_empty())
}

/// What was asked for, and what memory has of it: `kept_from` and `kept_to` are `null` if it has nothing.
pub(super) fn kept(view: &PipelineView<'_>, range: Range) -> Value {
    let mut asked = range.to_json();
    let covered = view.history.recent.covered(range.pair());
    asked["kept_from"] = json!(covered.map(|(from, ..)| from));
    asked["kept_to"] = json!(covered.map(|(_, to, _)| to));
    asked
}

/// Requests of one window by duration: `counts[i]` in step `steps[i]`.
#[derive(Debug, Serialize)]
struct WindowView {
    start_ns: u64,
    length_s: f32,
    steps: Vec<usize>,
    counts: Vec<u32>,
}

pub(super) async fn durations(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class", "from", "to", "since"])?;
    let (Some(service), Some(class)) = (params.string("service"), params.string("class")) else {
        return Err(Problem::bad("service, class: expected the names of a service and a request class"));
    };
    let range = Range::of(&params)?.unwrap_or_default();
    let found = app.shared.ask(move |view| {
        find(view, Some(&service), Some(&class))?;
        // A service may serve what it also calls: what it serves counts.
        let mut all: Vec<_> = points(view, Some(&service), Some(&class), range).collect();
        if all.iter().any(|(info, _)| info.side == Side::Server) {
            all.retain(|(info, _)| info.side == Side::Server);
        }
        let window = |point: &Point| {
            let (steps, counts) = point.durations.steps().unzip();
            WindowView { start_ns: point.start_ns, length_s: point.length_s, steps, counts }
        };
        let windows: Vec<WindowView> =
            all.first().into_iter().flat_map(|(_, points)| points).map(|point| window(point)).collect();
        Ok::<_, super::known::Unknown>(json!({
            "service_name": service,
            "request_class": class,
            "range": kept(view, range),
            "window_s": view.history.length() as f64 / 1e9,
            "bounds_s": (0..=DURATION_STEPS).map(lower_bound_s).collect::<Vec<_>>(),
            "windows": windows,
        }))
    });
    Ok(Json(found.await??))
}

/// One class in a range of time. Means per request unless noted otherwise.
#[derive(Clone, Debug, Serialize)]
struct PeriodView {
    service_name: String,
    request_class: String,
    protocol: &'static str,
    side: &'static str,
    count: u64,
    errors: u64,
    rate_per_s: f64,
    error_rate_per_s: f64,
    mean_s: f64,
    p50_s: f64,
    p95_s: f64,
    p99_s: f64,
    queue_s: f64,
    cpu_s: f64,
    runqueue_s: f64,
    blocked_s: f64,
    downstream_s: f64,
    cpu_total_s: f64,
}

fn period(info: &ClassInfo, points: &[&Point], seconds: f64) -> PeriodView {
    let requests = |point: &Point| f64::from(point.rate_per_s) * f64::from(point.length_s);
    let count: f64 = points.iter().map(|point| requests(point)).sum();
    let total = |of: fn(&Point) -> f32| points.iter().map(|point| f64::from(of(point)) * requests(point)).sum::<f64>();
    let mean = |of: fn(&Point) -> f32| total(of) / count.max(1e-9);
    let errors: f64 = points.iter().map(|point| f64::from(point.error_rate_per_s) * f64::from(point.length_s)).sum();
    let mut durations = DurationSum::default();
    for point in points {
        durations.add(&point.durations);
    }
    PeriodView {
        service_name: info.service_name.to_string(),
        request_class: info.name.to_string(),
        protocol: info.protocol.name(),
        side: info.side.name(),
        count: durations.count(),
        errors: errors.round() as u64,
        rate_per_s: durations.count() as f64 / seconds.max(1e-9),
        error_rate_per_s: errors.round() / seconds.max(1e-9),
        mean_s: mean(|point| point.mean_s),
        p50_s: durations.quantile_s(0.5),
        p95_s: durations.quantile_s(0.95),
        p99_s: durations.quantile_s(0.99),
        queue_s: mean(|point| point.queue_s),
        cpu_s: mean(|point| point.cpu_s),
        runqueue_s: mean(|point| point.runqueue_s),
        blocked_s: mean(|point| point.blocked_s),
        downstream_s: mean(|point| point.downstream_s),
        cpu_total_s: total(|point| point.cpu_s),
    }
}

/// Classes with requests in the range, busiest first, and what memory has of the range.
pub(super) fn periods(
    view: &PipelineView<'_>,
    service: Option<&str>,
    class: Option<&str>,
    range: Range,
) -> (Vec<Value>, Value) {
    let seconds = view.history.recent.covered(range.pair()).map_or(0.0, |(_, _, seconds)| seconds);
    let mut all: Vec<PeriodView> =
        points(view, service, class, range).map(|(info, points)| period(info, &points, seconds)).collect();
    all.sort_by(|a, b| {
        let names = |one: &PeriodView| (one.service_name.clone(), one.request_class.clone(), one.side);
        b.count.cmp(&a.count).then_with(|| names(a).cmp(&names(b)))
    });
    let all = all.into_iter().map(|one| serde_json::to_value(one).unwrap_or_default()).collect();
    (all, kept(view, range))
}

pub(super) async fn builds(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let service = params.only(&["service"])?.string("service");
    let found = app.shared.ask(move |view| {
        find(view, service.as_deref(), None)?;
        let mut all: Vec<(String, u64, u64, u64)> = Vec::new();
        for (name, builds) in view.history.recent.builds() {
            if service.as_ref().is_none_or(|service| **name == **service) {
                all.extend(builds.iter().map(|one| (name.to_string(), one.from_ns, one.to_ns, one.identity)));
            }
        }
        all.sort_unstable();
        Ok::<_, super::known::Unknown>(all)
    });
    let row = |(service, from, to, identity): (String, u64, u64, u64)| json!({ "service_name": service, "build": format!("{identity:016x}"), "from": from, "to": to });
    Ok(Json(json!({ "builds": found.await??.into_iter().map(row).collect::<Vec<_>>() })))
}
