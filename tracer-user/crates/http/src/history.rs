//! `GET /api/v1/series`: request classes over time.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};
use tracer_model::Side;
use tracer_results::history::recent::Point;

use super::durations::kept;
use super::known::find;
use super::params::Params;
use super::range::Range;
use super::{App, PipelineView, Problem};

/// One class over time. Arrays have one entry per window in which it finished requests.
#[derive(Clone, Debug, Default, Serialize)]
struct SeriesView {
    service_name: String,
    request_class: String,
    protocol: &'static str,
    side: &'static str,
    /// Starts of the windows, seconds since the epoch.
    t: Vec<f64>,
    rate_per_s: Vec<f32>,
    error_rate_per_s: Vec<f32>,
    p50_s: Vec<f32>,
    p95_s: Vec<f32>,
    p99_s: Vec<f32>,
    mean_s: Vec<f32>,
    cpu_s: Vec<f32>,
    queue_s: Vec<f32>,
    runqueue_s: Vec<f32>,
    blocked_s: Vec<f32>,
    downstream_s: Vec<f32>,
}

impl SeriesView {
    fn add(&mut self, point: &Point) {
        self.t.push(point.start_ns as f64 / 1e9);
        for (values, value) in [
            (&mut self.rate_per_s, point.rate_per_s),
            (&mut self.error_rate_per_s, point.error_rate_per_s),
            (&mut self.p50_s, point.p50_s),
            (&mut self.p95_s, point.p95_s),
            (&mut self.p99_s, point.p99_s),
            (&mut self.mean_s, point.mean_s),
            (&mut self.cpu_s, point.cpu_s),
            (&mut self.queue_s, point.queue_s),
            (&mut self.runqueue_s, point.runqueue_s),
            (&mut self.blocked_s, point.blocked_s),
            (&mut self.downstream_s, point.downstream_s),
        ] {
            values.push(value);
        }
    }
}

fn all_series(view: &PipelineView<'_>, service: Option<&str>, class: Option<&str>, range: Range) -> Vec<SeriesView> {
    let mut all: Vec<SeriesView> = view
        .history
        .recent
        .series()
        .filter_map(|(id, points)| Some((view.names.class(id)?, points)))
        .filter(|(info, _)| service.is_none_or(|service| *info.service_name == *service))
        .filter(|(info, _)| class.is_none_or(|class| *info.name == *class))
        .map(|(info, points)| {
            let mut series = SeriesView {
                service_name: info.service_name.to_string(),
                request_class: info.name.to_string(),
                protocol: info.protocol.name(),
                side: if info.side == Side::Server { "server" } else { "client" },
                ..SeriesView::default()
            };
            points.iter().filter(|point| range.contains(point.start_ns)).for_each(|point| series.add(point));
            series
        })
        .filter(|series| !series.t.is_empty())
        .collect();
    all.sort_by(|a, b| (&a.service_name, &a.request_class).cmp(&(&b.service_name, &b.request_class)));
    all
}

pub(super) async fn series(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class", "from", "to", "since"])?;
    let (service, class) = (params.string("service"), params.string("class"));
    let range = Range::of(&params)?.unwrap_or_default();
    let (window_s, all, range) = app
        .shared
        .ask(move |view| {
            find(view, service.as_deref(), class.as_deref())?;
            let window_s = view.history.length() as f64 / 1e9;
            let all = all_series(view, service.as_deref(), class.as_deref(), range);
            Ok::<_, super::known::Unknown>((window_s, all, kept(view, range)))
        })
        .await??;
    Ok(Json(json!({ "window_s": window_s, "series": all, "range": range })))
}
