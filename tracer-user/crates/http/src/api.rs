//! Services, classes, health and changes of the JSON API; metrics and probes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tracer_host::container::Container;
use tracer_host::container_names::ContainerNames;
use tracer_kernel::sampler::MAX_HERTZ;
use tracer_model::{ClassId, ServiceId, Side};
use tracer_results::metrics::Format;
use tracer_runtimes::status_view::RuntimeStatus;

use super::known::find;
use super::page::Page;
use super::params::Params;
use super::range::Range;
use super::{App, ControlCommand, PipelineView, Problem, compress, durations};

type AppState = State<Arc<App>>;

pub(super) async fn metrics(State(app): AppState, headers: HeaderMap) -> Result<Response, Problem> {
    // One at a time: many that ask leave a thread for everything else.
    let failed = || Problem(StatusCode::INTERNAL_SERVER_ERROR, "gathering metrics failed".into());
    let _turn = app.scrapes.acquire().await.map_err(|_| failed())?;
    let format = Format::for_accept(&compress::joined(&headers, header::ACCEPT));
    let bytes = app.shared.metrics.bytes(format);
    let bytes = bytes.map_err(|error| Problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    // Caches between must not give one scraper the format of another.
    Ok(([(header::CONTENT_TYPE, format.content_type()), (header::VARY, "Accept")], bytes).into_response())
}

pub(super) async fn healthy(State(app): AppState) -> Result<&'static str, Problem> {
    app.shared.attached()?;
    app.shared.ask(|_| "ok\n").await
}

pub(super) async fn ready(State(app): AppState) -> Result<Response, Problem> {
    app.shared.attached()?;
    let missing = app.shared.ask(|view| view.health.not_ready.clone()).await?;
    if missing.is_empty() {
        return Ok("ready\n".into_response());
    }
    Ok((StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join("; "))).into_response())
}

pub(super) async fn health(State(app): AppState, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    app.shared.attached()?;
    let health = app.shared.ask(|view| view.health.clone()).await?;
    let host_cpu = health.host_cpu;
    Ok(Json(json!({
        "ready": health.not_ready.is_empty(),
        "not_ready": health.not_ready,
        "degraded": health.degraded,
        "host": health.host,
        "events_lost": health.events_lost(),
        "events_lost_by_reason": health.lost.iter().cloned().collect::<BTreeMap<_, _>>(),
        "otlp_spans_dropped": health.spans_dropped,
        "sampling_hertz": health.profiler.hertz,
        "profiler": {
            "hertz": health.profiler.hertz, "max_hertz": health.profiler.max_hertz,
            "cost_ratio": health.profiler.cost, "budget_ratio": health.profiler.budget,
        },
        "capture_ratio": host_cpu.capture_ratio(),
        "cpu_s": {
            "requests": host_cpu.requests, "overhead": host_cpu.overhead, "kernel": host_cpu.kernel,
            "unreported": host_cpu.unreported, "idle": host_cpu.idle, "system_busy": host_cpu.system_busy,
        },
        "agent": {
            "cpu_s": health.own_cpu_s, "cpu_cores": health.own_cores, "rss_bytes": health.own_rss,
            "memory_bytes": health.own_memory,
            "max_cpu_cores": health.ceilings.map(|ceilings| ceilings.cpu),
            "max_memory_bytes": health.ceilings.map(|ceilings| ceilings.memory),
        },
        "configuration": {
            "reloads_applied": health.configuration.applied, "reloads_refused": health.configuration.refused,
            "mistake": health.configuration.mistake, "last": health.configuration.last,
            "last_ns": health.configuration.last_ns,
        },
        "shed": { "level": health.level as u8, "what": health.level.name(), "meaning": health.level.what() },
    })))
}

pub(super) async fn peers(State(app): AppState, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    let peers = app.shared.ask(|view| view.health.peers.clone()).await?;
    let Some(peers) = peers else {
        return Ok(Json(json!({ "enabled": false, "listen": null, "peers": [], "outcomes": {} })));
    };
    let outcomes: serde_json::Map<String, Value> =
        peers.outcomes.all().into_iter().map(|(name, count)| (name.into(), json!(count))).collect();
    Ok(Json(json!({ "enabled": true, "listen": peers.listen, "peers": peers.peers, "outcomes": outcomes })))
}

/// One class as the API shows it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ClassView {
    /// Not a field of the API.
    #[serde(skip)]
    pub(super) service: ServiceId,
    pub(super) service_name: String,
    pub(super) request_class: String,
    pub(super) protocol: &'static str,
    pub(super) side: &'static str,
    pub(super) count: u64,
    pub(super) errors: u64,
    pub(super) unfinished: u64,
    pub(super) rate_per_s: f64,
    pub(super) error_rate_per_s: f64,
    pub(super) mean_s: f64,
    pub(super) p50_s: f64,
    pub(super) p95_s: f64,
    pub(super) p99_s: f64,
    pub(super) queue_s: f64,
    pub(super) accept_queue_s: f64,
    pub(super) socket_queue_s: f64,
    pub(super) cpu_s: f64,
    pub(super) runqueue_s: f64,
    pub(super) blocked_s: f64,
    pub(super) downstream_s: f64,
    pub(super) cpu_total_s: f64,
}

/// Classes with requests, of one service or of all, busiest first.
pub(super) fn class_views(view: &PipelineView<'_>, service: Option<&str>) -> Vec<ClassView> {
    let wanted = view.names.classes.iter().enumerate();
    let mut all: Vec<ClassView> = wanted
        .filter(|(_, info)| service.is_none_or(|service| *info.service_name == *service))
        .map(|(index, info)| (info, view.stats.figures(ClassId(index as u32))))
        .filter(|(_, figures)| figures.count > 0)
        .map(|(info, figures)| ClassView {
            service: info.service,
            service_name: info.service_name.to_string(),
            request_class: info.name.to_string(),
            protocol: info.protocol.name(),
            side: info.side.name(),
            count: figures.count,
            errors: figures.errors,
            unfinished: figures.unfinished,
            rate_per_s: figures.rate_per_s,
            error_rate_per_s: figures.error_rate_per_s,
            mean_s: figures.mean_s,
            p50_s: figures.p50_s,
            p95_s: figures.p95_s,
            p99_s: figures.p99_s,
            queue_s: figures.queue_s,
            accept_queue_s: figures.accept_queue_s,
            socket_queue_s: figures.socket_queue_s,
            cpu_s: figures.cpu_s,
            runqueue_s: figures.runqueue_s,
            blocked_s: figures.blocked_s,
            downstream_s: figures.downstream_s,
            cpu_total_s: figures.cpu_total_s,
        })
        .collect();
    all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.request_class.cmp(&b.request_class)));
    all
}

pub(super) async fn classes(State(app): AppState, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class", "from", "to", "since", "cursor", "limit"])?;
    let (service, class) = (params.string("service"), params.string("class"));
    let (range, page) = (Range::of(&params)?, Page::of(&params)?);
    let found = app.shared.ask(move |view| {
        find(view, service.as_deref(), class.as_deref())?;
        if let Some(range) = range {
            return Ok(durations::periods(view, service.as_deref(), class.as_deref(), range));
        }
        let mut all = class_views(view, service.as_deref());
        all.retain(|one| class.as_ref().is_none_or(|class| one.request_class == *class));
        let all = all.into_iter().map(|one| serde_json::to_value(one).unwrap_or_default()).collect();
        Ok::<_, super::known::Unknown>((all, Value::Null))
    });
    let (all, range) = found.await??;
    let (rows, next): (Vec<Value>, _) = page.cut(all);
    Ok(Json(json!({ "classes": rows, "next_cursor": next, "range": range })))
}

/// One service as the API shows it. Requests and errors are those it serves.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ServiceView {
    pub(super) service_name: String,
    pub(super) classes: usize,
    pub(super) count: u64,
    pub(super) errors: u64,
    pub(super) unfinished: u64,
    pub(super) rate_per_s: f64,
    pub(super) error_rate_per_s: f64,
    pub(super) cpu_requests_s: f64,
    pub(super) cpu_overhead_s: f64,
    pub(super) cpu_requests_cores: f64,
    pub(super) cpu_overhead_cores: f64,
    /// Runtimes of its processes whose requests share threads.
    pub(super) runtimes: Vec<RuntimeStatus>,
    /// Containers its processes run in.
    pub(super) containers: Vec<ContainerView>,
}

/// A container as the API shows it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ContainerView {
    /// Not a field of the API.
    #[serde(skip)]
    container: Arc<Container>,
    id: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    runtime: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_uid: Option<String>,
    processes: usize,
    /// Names from the engine's state files, where the agent may read them.
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    image: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pod: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
}

impl ContainerView {
    fn new(container: &Container, processes: usize) -> Self {
        let Container { id, runtime, pod_uid } = container.clone();
        let container = Arc::new(container.clone());
        let [name, image, pod, namespace] = [const { String::new() }; 4];
        Self { container, id, runtime, pod_uid, processes, name, image, pod, namespace }
    }

    /// Takes the names that its engine gave it.
    fn call(&mut self, names: &ContainerNames) {
        let ContainerNames { name, image, pod, namespace } = names.clone();
        (self.name, self.image, self.pod, self.namespace) = (name, image, pod, namespace);
    }
}

/// Runtimes of the processes of a service.
pub(super) fn runtimes(view: &PipelineView<'_>, service: ServiceId) -> Vec<RuntimeStatus> {
    view.health.runtimes.iter().filter(|runtime| runtime.service == service).cloned().collect()
}

/// Every service, those with requests first; `classes` are all of them.
pub(super) fn service_views(view: &PipelineView<'_>, classes: &[ClassView]) -> Vec<ServiceView> {
    let of_service = |(index, name): (usize, &Arc<str>)| {
        let cpu = view.stats.service_figures(ServiceId(index as u32));
        ServiceView {
            service_name: name.to_string(),
            cpu_requests_s: cpu.requests_s,
            cpu_overhead_s: cpu.overhead_s,
            cpu_requests_cores: cpu.requests_cores,
            cpu_overhead_cores: cpu.overhead_cores,
            runtimes: runtimes(view, ServiceId(index as u32)),
            ..ServiceView::default()
        }
    };
    let mut all: Vec<ServiceView> = view.names.services.iter().enumerate().map(of_service).collect();
    for (service, containers) in view.containers.by_service() {
        if let Some(service) = all.get_mut(service.0 as usize) {
            service.containers = containers.into_iter().map(|(one, count)| ContainerView::new(one, count)).collect();
        }
    }
    for class in classes.iter().filter(|class| class.side == Side::Server.name()) {
        if let Some(service) = all.get_mut(class.service.0 as usize) {
            service.classes += 1;
            service.count += class.count;
            service.errors += class.errors;
            service.unfinished += class.unfinished;
            service.rate_per_s += class.rate_per_s;
            service.error_rate_per_s += class.error_rate_per_s;
        }
    }
    all.sort_by(|a, b| {
        let by_overhead = || b.cpu_overhead_s.total_cmp(&a.cpu_overhead_s);
        b.count.cmp(&a.count).then_with(by_overhead).then_with(|| a.service_name.cmp(&b.service_name))
    });
    all
}

/// Most time that an answer waits for names of containers.
const NAMES: Duration = Duration::from_secs(2);

pub(super) async fn services(State(app): AppState, params: Params) -> Result<Json<Value>, Problem> {
    let page = Page::of(&params.only(&["cursor", "limit"])?)?;
    let all = app.shared.ask(|view| service_views(view, &class_views(view, None))).await?;
    let (mut rows, next) = page.cut(all);
    let mut names = app.container_names.lock().await;
    let containers = rows.iter().flat_map(|row| &row.containers).map(|one| Arc::clone(&one.container));
    // Names that a slow disk does not give now are there next time.
    let _ = tokio::time::timeout(NAMES, names.learn(containers)).await;
    for one in rows.iter_mut().flat_map(|row| &mut row.containers) {
        if let Some(names) = names.get(&one.container) {
            one.call(names);
        }
    }
    drop(names);
    Ok(Json(json!({ "services": rows, "next_cursor": next })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SamplingRequest {
    hertz: u32,
}

/// Changes the sampling rate; 0 stops sampling. `guard.rs` checks the permission.
pub(super) async fn sampling(State(app): AppState, headers: HeaderMap, body: Bytes) -> Result<Json<Value>, Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        return Err(Problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "expected Content-Type: application/json".into()));
    }
    let request: SamplingRequest =
        serde_json::from_slice(&body).map_err(|error| Problem::bad(format!("expected {{\"hertz\": 99}}: {error}")))?;
    if request.hertz > MAX_HERTZ {
        return Err(Problem::bad(format!("hertz: expected 0 to {MAX_HERTZ}")));
    }
    ask_agent(&app, |answer| ControlCommand::Hertz(request.hertz, answer)).await?;
    Ok(Json(json!({ "hertz": request.hertz })))
}

/// Writes the last seconds as a recording. `guard.rs` checks the permission.
pub(super) async fn hindsight(State(app): AppState) -> Result<Json<Value>, Problem> {
    let path = ask_agent(&app, ControlCommand::Hindsight).await?;
    Ok(Json(json!({ "path": path })))
}

/// Has the agent carry out a command, and waits for its answer.
async fn ask_agent<T>(
    app: &App,
    command: impl FnOnce(oneshot::Sender<Result<T, String>>) -> ControlCommand,
) -> Result<T, Problem> {
    let (answer, wait) = oneshot::channel();
    let late = || Problem(StatusCode::SERVICE_UNAVAILABLE, "the agent did not answer in time".into());
    app.shared.commands.try_send(command(answer)).map_err(|_| late())?;
    app.shared.status.wake();
    let done = tokio::time::timeout(super::PATIENCE, wait).await.ok().and_then(Result::ok).ok_or_else(late)?;
    done.map_err(|why| Problem(StatusCode::INTERNAL_SERVER_ERROR, why))
}
