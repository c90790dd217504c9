//! The JSON API, the probes and the profiles.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::known::find;
use super::params::Params;
use super::slow_requests;
use super::{App, Command, Problem, Shared, View, compress};
use crate::host::container::Container;
use crate::kernel::sampler::MAX_HERTZ;
use crate::metrics::Format;
use crate::model::{ClassId, ServiceId, Side, TraceId};
use crate::profiles::{self, Snapshot};
use crate::runtimes::status_view::RuntimeStatus;
use crate::store;

type AppState = State<Arc<App>>;

/// Maximum number of transactions in one list.
const LIST: usize = 10_000;

pub(super) async fn metrics(State(app): AppState, headers: HeaderMap) -> Result<Response, Problem> {
    // One at a time: many that ask leave a thread for everything else.
    let failed = || Problem(StatusCode::INTERNAL_SERVER_ERROR, "gathering metrics failed".into());
    let _turn = app.scrapes.acquire().await.map_err(|_| failed())?;
    let format = Format::for_accept(&joined(&headers, header::ACCEPT));
    let bytes = app.shared.metrics.bytes(format);
    let bytes = bytes.map_err(|error| Problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    // Caches between must not give one scraper the format of another.
    let kind = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "Accept, Accept-Encoding")];
    if !compress::takes_gzip(&joined(&headers, header::ACCEPT_ENCODING)) {
        return Ok((kind, bytes).into_response());
    }
    let packed = compress::gzip(&bytes).map_err(|_| failed())?;
    Ok((kind, [(header::CONTENT_ENCODING, "gzip")], packed).into_response())
}

/// All values of a header as one list.
fn joined(headers: &HeaderMap, name: header::HeaderName) -> String {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",")
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

pub(super) async fn health(State(app): AppState) -> Result<Json<Value>, Problem> {
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
        "shed": { "level": health.level as u8, "what": health.level.name(), "meaning": health.level.what() },
    })))
}

pub(super) async fn peers(State(app): AppState) -> Result<Json<Value>, Problem> {
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
pub(super) fn class_views(view: &View<'_>, service: Option<&str>) -> Vec<ClassView> {
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
    let service = params.only(&["service"])?.string("service");
    let all = app.shared.ask(move |view| {
        find(view, service.as_deref(), None)?;
        Ok::<_, super::known::Unknown>(class_views(view, service.as_deref()))
    });
    Ok(Json(json!({ "classes": all.await?? })))
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
    id: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    runtime: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_uid: Option<String>,
    processes: usize,
}

impl ContainerView {
    fn new(container: &Container, processes: usize) -> Self {
        let Container { id, runtime, pod_uid } = container.clone();
        Self { id, runtime, pod_uid, processes }
    }
}

/// Runtimes of the processes of a service.
pub(super) fn runtimes(view: &View<'_>, service: ServiceId) -> Vec<RuntimeStatus> {
    view.health.runtimes.iter().filter(|runtime| runtime.service == service).cloned().collect()
}

/// Every service, those with requests first; `classes` are all of them.
pub(super) fn service_views(view: &View<'_>, classes: &[ClassView]) -> Vec<ServiceView> {
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

pub(super) async fn services(State(app): AppState, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    let all = app.shared.ask(|view| service_views(view, &class_views(view, None))).await?;
    Ok(Json(json!({ "services": all })))
}

pub(super) async fn transactions(State(app): AppState, params: Params) -> Result<Json<Value>, Problem> {
    let filter = transactions_filter(params)?;
    let found = app.shared.ask(move |view| {
        find(view, filter.service.as_deref(), filter.class.as_deref())?;
        Ok::<_, super::known::Unknown>(view.store.transactions(view.names, &filter))
    });
    Ok(Json(json!({ "transactions": found.await?? })))
}

/// The filter of a transactions query.
pub(super) fn transactions_filter(params: Params) -> Result<store::Filter, Problem> {
    let params = params.only(&["service", "class", "min_ms", "status", "limit", "sort"])?;
    Ok(store::Filter {
        service: params.string("service"),
        class: params.string("class"),
        min_ms: params.number("min_ms", 0.0..=f64::MAX, "a number of milliseconds")?,
        status: params.read("status", "ok, error, unfinished, a code such as 404 or 5xx", store::Status::parse)?,
        limit: params.number("limit", 1..=LIST, "a number, at least 1 and at most 10000")?.unwrap_or(100),
        order: params.read("sort", "newest or slowest", order)?.unwrap_or_default(),
    })
}

fn order(text: &str) -> Option<store::Order> {
    match text {
        "newest" => Some(store::Order::Newest),
        "slowest" => Some(store::Order::Slowest),
        _ => None,
    }
}

/// Parses a trace id.
pub(super) fn trace_id(text: &str) -> Result<TraceId, Problem> {
    let hexadecimal = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = hexadecimal.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    id.map(TraceId).ok_or_else(|| Problem::bad("trace_id: expected 32 hexadecimal digits"))
}

/// Error message for a transaction that is not stored.
pub(super) const NOT_KEPT: &str =
    "this transaction is not kept: only the newest, the slowest, the failed and a sample of each class are";

pub(super) async fn transaction(State(app): AppState, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let trace = trace_id(&id)?;
    let spans = app.shared.ask(move |view| view.store.transaction(view.names, trace)).await?;
    let spans = spans.ok_or_else(|| Problem::missing(NOT_KEPT))?;
    Ok(Json(json!({ "trace_id": trace.to_string(), "spans": spans })))
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
    let (answer, wait) = oneshot::channel();
    let late = || Problem(StatusCode::SERVICE_UNAVAILABLE, "the agent did not answer in time".into());
    app.shared.commands.try_send(Command::Hertz(request.hertz, answer)).map_err(|_| late())?;
    let done = tokio::time::timeout(super::PATIENCE, wait).await.ok().and_then(Result::ok).ok_or_else(late)?;
    done.map_err(|why| Problem(StatusCode::INTERNAL_SERVER_ERROR, why))?;
    Ok(Json(json!({ "hertz": request.hertz })))
}

/// Parameters of profiles.
const PROFILE: [&str; 9] =
    ["service", "class", "kind", "since", "from_ns", "until_ns", "before_from_ns", "before_until_ns", "span"];

/// A range of instants, nanoseconds since the epoch: `NAMEfrom_ns` and `NAMEuntil_ns`; `None`: neither is given.
fn instants(params: &Params, name: &str) -> Result<Option<(u64, u64)>, Problem> {
    let read = |end: &str| {
        let name = format!("{name}{end}");
        params.number(&name, 0..=u64::MAX, "nanoseconds since the epoch")
    };
    let (from, until) = (read("from_ns")?, read("until_ns")?);
    match (from, until) {
        (None, None) => Ok(None),
        (from, until) => {
            let (from, until) = (from.unwrap_or(0), until.unwrap_or(u64::MAX));
            if until <= from {
                return Err(Problem::bad(format!("{name}until_ns: expected an instant after {name}from_ns")));
            }
            Ok(Some((from, until)))
        }
    }
}

/// What a profile query asks for: a range, and another one to compare with.
pub(super) type Ranges = (Option<(u64, u64)>, Option<(u64, u64)>);

pub(super) fn ranges(params: &Params) -> Result<Ranges, Problem> {
    let (range, before) = (instants(params, "")?, instants(params, "before_")?);
    if range.is_some() && params.text("since").is_some() {
        return Err(Problem::bad("since: expected either it or from_ns and until_ns"));
    }
    if before.is_some() && range.is_none() {
        return Err(Problem::bad("before_from_ns: expected from_ns or until_ns, too: what to compare with it"));
    }
    Ok((range, before))
}

/// Requests of a class, or of all classes of a service, in windows that begin within a range by the records' clock.
fn requests(view: &super::View<'_>, filter: &profiles::Filter, range: (u64, u64)) -> f64 {
    let wall = |at: u64| (at as i64).saturating_add(view.wall_offset).max(0) as u64;
    let (from, until) = (wall(range.0), wall(range.1));
    let of = view.history.recent.series().filter(|(id, _)| {
        view.names.class(*id).is_some_and(|info| {
            info.side == crate::model::Side::Server
                && filter.service.as_ref().is_none_or(|service| *info.service_name == **service)
                && filter.class.as_ref().is_none_or(|class| *info.name == **class)
        })
    });
    let within = |point: &&crate::history::recent::Point| (from..until).contains(&point.start_ns);
    of.flat_map(|(_, points)| points).filter(within).map(|point| f64::from(point.rate_per_s)).sum::<f64>()
}

/// A range of instants by the records' clock.
pub(super) fn monotonic(view: &View<'_>, (from, until): (u64, u64)) -> (u64, u64) {
    let clock = |at: u64| match i64::try_from(at) {
        Ok(at) => at.saturating_sub(view.wall_offset).max(0) as u64,
        Err(_) => u64::MAX,
    };
    (clock(from), clock(until))
}

/// A profile, the one before to compare with, and by how many times more requests it is of.
type Compared = (Snapshot, Option<(Snapshot, f64)>, String);

/// The stacks that a query selects; refuses unknown names.
async fn compared(shared: &Shared, params: Params) -> Result<Compared, Problem> {
    let (range, before) = ranges(&params)?;
    let (filter, title) = profile_filter(params)?;
    if let Some(span) = filter.span {
        let found = shared.ask(move |view| view.profiles.snapshot_of(span, filter.view)).await?;
        let snapshot = found.ok_or_else(|| Problem::missing(slow_requests::NOT_KEPT))?;
        return Ok((snapshot, None, title));
    }
    let found = shared.ask(move |view| {
        find(view, filter.service.as_deref(), filter.class.as_deref())?;
        let monotonic = |range: (u64, u64)| monotonic(view, range);
        let of = |range: Option<(u64, u64)>| {
            let range = range.map(monotonic);
            view.profiles.snapshot(view.names, &profiles::Filter { range, ..filter.clone() })
        };
        let earlier = before.zip(range).map(|(before, range)| {
            // Requests of just the time that has samples.
            let requests =
                |range| view.profiles.covered(monotonic(range)).map_or(0.0, |at| requests(view, &filter, at));
            let (then, now) = (requests(before), requests(range));
            (of(Some(before)), if then > 0.0 && now > 0.0 { now / then } else { 1.0 })
        });
        Ok::<_, super::known::Unknown>((of(range), earlier))
    });
    let (snapshot, earlier) = found.await??;
    Ok((snapshot, earlier, title))
}

/// The filter of a stacks query, and its title.
pub(super) fn profile_filter(params: Params) -> Result<(profiles::Filter, String), Problem> {
    let params = params.only(&PROFILE)?;
    let view = params.read("kind", "cpu, offcpu or wall", profiles::View::parse)?.unwrap_or_default();
    let since = params
        .read("since", "a number and a unit, such as 30s, 5m or 1h", |text| crate::quantity::duration(text).ok())?;
    let (service, class) = (params.string("service"), params.string("class"));
    let span = params.read("span", "16 hexadecimal digits", slow_requests::span_id)?;
    if let Some(id) = span {
        let others = PROFILE.iter().filter(|name| !["span", "kind"].contains(*name));
        if let Some(other) = others.copied().find(|name| params.text(name).is_some()) {
            return Err(Problem::bad(format!(
                "{other}: expected without span, whose samples are those of one request"
            )));
        }
        let filter = profiles::Filter { view, span, ..profiles::Filter::default() };
        return Ok((filter, format!("span {id}")));
    }
    let filter = profiles::Filter { service, class, since, range: None, view, span };
    let mut title =
        [params.text("service"), params.text("class")].into_iter().flatten().collect::<Vec<_>>().join(" · ");
    if title.is_empty() {
        title.push_str("all services");
    }
    Ok((filter, title))
}

/// Rendering reads symbols and takes a while, so it runs on a separate thread, few at the same time.
pub(super) async fn render<T: Send + 'static>(
    app: &App,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let failed = || Problem(StatusCode::INTERNAL_SERVER_ERROR, "rendering failed".into());
    let _place = app.renders.acquire().await.map_err(|_| failed())?;
    tokio::task::spawn_blocking(work).await.map_err(|_| failed())
}

/// What the flame graph's own script adds to its address when it zooms (`x`, `y`) and searches (`s`), so that the address can
/// be opened again: the script reads them.
pub(super) const OF_SCRIPT: [&str; 3] = ["x", "y", "s"];

pub(super) async fn flamegraph(State(app): AppState, params: Params) -> Result<Response, Problem> {
    let params = params.without(&OF_SCRIPT);
    let (snapshot, earlier, title) = compared(&app.shared, params).await?;
    let svg = render(&app, move || match earlier {
        Some((before, scale)) => snapshot.svg_difference(&before, scale, &title),
        None => snapshot.svg(&title),
    })
    .await?;
    // The graph's own script zooms and searches; it can load and send nothing.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    Ok(([(header::CONTENT_TYPE, "image/svg+xml"), (header::CONTENT_SECURITY_POLICY, policy)], svg).into_response())
}

pub(super) async fn folded(State(app): AppState, params: Params) -> Result<String, Problem> {
    let (snapshot, earlier, _) = compared(&app.shared, params).await?;
    render(&app, move || match earlier {
        Some((before, scale)) => snapshot.folded_difference(&before, scale),
        None => snapshot.folded(),
    })
    .await
}

pub(super) async fn pprof(State(app): AppState, params: Params) -> Result<Response, Problem> {
    let (snapshot, earlier, _) = compared(&app.shared, params).await?;
    if earlier.is_some() {
        return Err(Problem::bad("before_from_ns: pprof has no differences; ask for two profiles"));
    }
    let bytes = render(&app, move || snapshot.pprof()).await?;
    // The format itself is compressed, not the transfer: no Content-Encoding.
    let name = "attachment; filename=\"profile.pb.gz\"";
    Ok(([(header::CONTENT_TYPE, "application/octet-stream"), (header::CONTENT_DISPOSITION, name)], bytes)
        .into_response())
}
