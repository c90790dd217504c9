//! The API of DESIGN §9.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Command, Problem, Shared, View};
use crate::model::{ClassId, ServiceId, TraceId};
use crate::profiles::{self, Snapshot};
use crate::store;

type App = State<Arc<Shared>>;

pub(super) async fn metrics(State(shared): App) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], crate::metrics::text(&shared.registry).unwrap_or_default())
        .into_response()
}

pub(super) async fn healthy(State(shared): App) -> Result<&'static str, Problem> {
    shared.ask(|_| "ok\n").await
}

pub(super) async fn ready(State(shared): App) -> Result<Response, Problem> {
    let missing = shared.ask(|view| view.health.not_ready.clone()).await?;
    if missing.is_empty() {
        return Ok("ready\n".into_response());
    }
    Ok((StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join("; "))).into_response())
}

pub(super) async fn health(State(shared): App) -> Result<Json<Value>, Problem> {
    let health = shared.ask(|view| view.health.clone()).await?;
    let books = health.books;
    Ok(Json(json!({
        "ready": health.not_ready.is_empty(),
        "not_ready": health.not_ready,
        "degraded": health.degraded,
        "host": health.host,
        "events_lost": health.lost,
        "sampling_hertz": health.hertz,
        "capture_ratio": books.capture_ratio(),
        "cpu_s": {
            "requests": books.requests, "overhead": books.overhead, "kernel": books.kernel,
            "unreported": books.unreported, "idle": books.idle, "system_busy": books.system_busy,
        },
        "agent": { "cpu_s": health.own_cpu_s, "rss_bytes": health.own_rss },
    })))
}

/// One class as the API shows it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ClassView {
    pub(super) service_name: String,
    pub(super) request_class: String,
    pub(super) protocol: &'static str,
    pub(super) side: &'static str,
    pub(super) count: u64,
    pub(super) errors: u64,
    pub(super) rate_per_s: f64,
    pub(super) mean_s: f64,
    pub(super) p50_s: f64,
    pub(super) p95_s: f64,
    pub(super) p99_s: f64,
    pub(super) queue_s: f64,
    pub(super) cpu_s: f64,
    pub(super) runqueue_s: f64,
    pub(super) blocked_s: f64,
    pub(super) downstream_s: f64,
    pub(super) cpu_total_s: f64,
}

/// Every class with requests, busiest first.
pub(super) fn class_views(view: &View<'_>) -> Vec<ClassView> {
    let mut all: Vec<ClassView> = view
        .names
        .classes
        .iter()
        .enumerate()
        .map(|(index, info)| {
            let figures = view.stats.figures(ClassId(index as u32));
            ClassView {
                service_name: info.service_name.to_string(),
                request_class: info.name.to_string(),
                protocol: info.protocol,
                side: info.side.name(),
                count: figures.count,
                errors: figures.errors,
                rate_per_s: figures.rate_per_s,
                mean_s: figures.mean_s,
                p50_s: figures.p50_s,
                p95_s: figures.p95_s,
                p99_s: figures.p99_s,
                queue_s: figures.queue_s,
                cpu_s: figures.cpu_s,
                runqueue_s: figures.runqueue_s,
                blocked_s: figures.blocked_s,
                downstream_s: figures.downstream_s,
                cpu_total_s: figures.cpu_total_s,
            }
        })
        .filter(|class| class.count > 0)
        .collect();
    all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.request_class.cmp(&b.request_class)));
    all
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ClassQuery {
    service: Option<String>,
}

pub(super) async fn classes(State(shared): App, Query(query): Query<ClassQuery>) -> Result<Json<Value>, Problem> {
    let mut all = shared.ask(class_views).await?;
    if let Some(service) = query.service {
        all.retain(|class| class.service_name == service);
    }
    Ok(Json(json!({ "classes": all })))
}

/// One service as the API shows it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ServiceView {
    pub(super) service_name: String,
    pub(super) classes: usize,
    pub(super) count: u64,
    pub(super) errors: u64,
    pub(super) rate_per_s: f64,
    pub(super) cpu_requests_s: f64,
    pub(super) cpu_overhead_s: f64,
}

/// Every service, those with requests first.
pub(super) fn service_views(view: &View<'_>) -> Vec<ServiceView> {
    let classes = class_views(view);
    let mut all: Vec<ServiceView> = view
        .names
        .services
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let mut service = ServiceView {
                service_name: name.to_string(),
                cpu_overhead_s: view.stats.overhead_s(ServiceId(index as u32)),
                ..ServiceView::default()
            };
            for class in classes.iter().filter(|class| class.service_name == **name) {
                service.cpu_requests_s += class.cpu_total_s;
                if class.side == "server" {
                    service.classes += 1;
                    service.count += class.count;
                    service.errors += class.errors;
                    service.rate_per_s += class.rate_per_s;
                }
            }
            service
        })
        .collect();
    all.sort_by(|a, b| {
        b.count.cmp(&a.count).then(b.cpu_overhead_s.total_cmp(&a.cpu_overhead_s)).then_with(|| a.service_name.cmp(&b.service_name))
    });
    all
}

pub(super) async fn services(State(shared): App) -> Result<Json<Value>, Problem> {
    let all = shared.ask(service_views).await?;
    Ok(Json(json!({ "services": all })))
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct TransactionQuery {
    service: Option<String>,
    class: Option<String>,
    min_ms: Option<f64>,
    status: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn transactions(
    State(shared): App,
    Query(query): Query<TransactionQuery>,
) -> Result<Json<Value>, Problem> {
    let TransactionQuery { service, class, min_ms, status, limit } = query;
    let limit = limit.unwrap_or(100);
    if limit > 10_000 {
        return Err(Problem::bad("limit: expected at most 10000"));
    }
    let filter = store::Filter { service, class, min_ms, status: status.as_deref().and_then(store::Status::parse), limit, order: store::Order::Newest };
    let found = shared.ask(move |view| view.store.transactions(view.names, &filter)).await?;
    Ok(Json(json!({ "transactions": found })))
}

/// Reads a trace id.
pub(super) fn trace_id(text: &str) -> Result<TraceId, Problem> {
    let id = (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten();
    id.map(TraceId).ok_or_else(|| Problem::bad("trace_id: expected 32 hexadecimal digits"))
}

pub(super) async fn transaction(State(shared): App, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let trace = trace_id(&id)?;
    let units = shared.ask(move |view| view.store.transaction(view.names, trace)).await?;
    let units = units.ok_or_else(|| {
        Problem::missing("this transaction is not kept: only the newest, the slowest, the failed and a sample of each class are")
    })?;
    Ok(Json(json!({ "trace_id": id, "units": units })))
}

#[derive(Debug, Deserialize)]
pub(super) struct SamplingRequest {
    hertz: u32,
}

/// Changes the sampling rate. A web page elsewhere cannot send this header without asking first, which nothing allows.
pub(super) async fn sampling(State(shared): App, headers: HeaderMap, body: Bytes) -> Result<Json<Value>, Problem> {
    if !shared.listen.ip().is_loopback() {
        return Err(Problem(StatusCode::FORBIDDEN, "changes are taken on a loopback address only".into()));
    }
    if !headers.contains_key("x-tracer") {
        return Err(Problem(StatusCode::FORBIDDEN, "changes need the header X-Tracer: 1".into()));
    }
    let request: SamplingRequest = serde_json::from_slice(&body)
        .map_err(|error| Problem::bad(format!("expected {{\"hertz\": 99}}: {error}")))?;
    if request.hertz > crate::kernel::sampler::MAX_HERTZ {
        return Err(Problem::bad("hertz: expected 0 to 10000"));
    }
    let (answer, wait) = oneshot::channel();
    let late = || Problem(StatusCode::SERVICE_UNAVAILABLE, "the agent did not answer in time".into());
    shared.commands.try_send(Command::Hertz(request.hertz, answer)).map_err(|_| late())?;
    let done = tokio::time::timeout(Duration::from_secs(5), wait).await.map_err(|_| late())?.map_err(|_| late())?;
    done.map_err(|why| Problem(StatusCode::INTERNAL_SERVER_ERROR, why))?;
    Ok(Json(json!({ "hertz": request.hertz })))
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ProfileQuery {
    service: Option<String>,
    class: Option<String>,
    kind: Option<String>,
    since: Option<String>,
}

impl ProfileQuery {
    fn title(&self) -> String {
        let parts: Vec<&str> = [&self.service, &self.class].into_iter().flatten().map(String::as_str).collect();
        if parts.is_empty() { "all services".into() } else { parts.join(" · ") }
    }
}

/// Stacks that a query asks for; refuses names nobody has.
async fn snapshot(shared: &Shared, query: &ProfileQuery) -> Result<Snapshot, Problem> {
    if query.kind.as_deref().is_some_and(|kind| kind != "cpu") {
        return Err(Problem::bad("kind: expected cpu (on-CPU time is what is sampled)"));
    }
    let since = match &query.since {
        Some(since) => Some(crate::cli::duration(since).map_err(|what| Problem::bad(format!("since: {what}")))?),
        None => None,
    };
    let filter = profiles::Filter { service: query.service.clone(), class: query.class.clone(), since };
    let found = shared
        .ask(move |view| {
            let known = filter.service.as_ref().is_none_or(|want| view.names.services.iter().any(|name| **name == **want));
            let class_known = filter.class.as_ref().is_none_or(|want| {
                let fits = |info: &&crate::model::ClassInfo| filter.service.as_ref().is_none_or(|service| *info.service_name == **service);
                view.names.classes.iter().filter(fits).any(|info| *info.name == **want)
            });
            (known && class_known).then(|| view.profiles.snapshot(view.names, &filter))
        })
        .await?;
    found.ok_or_else(|| Problem::missing("no such service or class; /api/v1/classes lists them"))
}

/// Rendering reads symbols: not on a thread that serves others.
async fn render<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    let failed = |_| Problem(StatusCode::INTERNAL_SERVER_ERROR, "rendering failed".into());
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

pub(super) async fn flamegraph(State(shared): App, Query(query): Query<ProfileQuery>) -> Result<Response, Problem> {
    let snapshot = snapshot(&shared, &query).await?;
    let title = query.title();
    let svg = render(move || snapshot.svg(&title)).await?;
    // The graph's own script zooms and searches; names in it are escaped by whoever drew it.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
    Ok(([(header::CONTENT_TYPE, "image/svg+xml"), (header::CONTENT_SECURITY_POLICY, policy)], svg).into_response())
}

pub(super) async fn folded(State(shared): App, Query(query): Query<ProfileQuery>) -> Result<String, Problem> {
    let snapshot = snapshot(&shared, &query).await?;
    render(move || snapshot.folded()).await
}

pub(super) async fn pprof(State(shared): App, Query(query): Query<ProfileQuery>) -> Result<Response, Problem> {
    let snapshot = snapshot(&shared, &query).await?;
    let bytes = render(move || snapshot.pprof()).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}
