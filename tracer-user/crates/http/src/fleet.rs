//! The console of a fleet: the pages of a host's console, drawn from the history of all hosts. A service's name has its
//! host's before it. What only an agent knows (profiles, transactions) is at that host.

mod state;

pub use state::{FleetState, NewWindows};

use std::fmt::Write as _;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{Html, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::markup::{Encoded, Page, Safe};
use super::params::{Named, Params};
use super::range::Range;
use super::{Console, Health, Problem, assets, compress, findings, guard, listen};

/// What handlers share.
#[derive(Debug)]
struct Fleet {
    state: Arc<Mutex<FleetState>>,
    listen: SocketAddr,
    host_name: String,
    /// Where the history is.
    place: String,
}

type FleetApp = State<Arc<Fleet>>;

/// Serves until `shutdown`, read-only.
pub async fn serve(
    listener: TcpListener,
    state: Arc<Mutex<FleetState>>,
    place: String,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let listen = listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)));
    let app = router(Arc::new(Fleet { state, listen, host_name, place }));
    listen::serve(listener, app, listen::Limits::default(), Arc::new(Console::default()), shutdown).await;
}

fn router(app: Arc<Fleet>) -> Router {
    Router::new()
        .route("/", get(home))
        .route("/service", get(service))
        .route("/class", get(class))
        .route("/finding", get(finding))
        .route("/health", get(home))
        .route("/assets/{*name}", get(assets::asset))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/api/v1/hosts", get(hosts))
        .route("/api/v1/services", get(services))
        .route("/api/v1/classes", get(classes))
        .route("/api/v1/edges", get(edges))
        .route("/api/v1/series", get(series))
        .route("/api/v1/findings", get(all_findings))
        .route("/api/v1/findings/{id}", get(one_finding))
        .route("/api/v1/transactions", get(|| async { Json(json!({ "transactions": [] })) }))
        .route("/api/v1/health", get(health))
        .fallback(|| async {
            Problem::missing(
                "no such page of a fleet's console: profiles and transactions are at each host's own agent",
            )
        })
        .method_not_allowed_fallback(|| async {
            Problem(StatusCode::METHOD_NOT_ALLOWED, "this console only reads".into())
        })
        .layer(axum::middleware::from_fn(compress::answers))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), check))
        .with_state(app)
}

async fn check(State(app): FleetApp, request: Request, next: Next) -> Response {
    guard::read_only(app.listen, &app.host_name, request, next).await
}

fn failed() -> Problem {
    Problem(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be computed".into())
}

impl Fleet {
    fn state(&self) -> MutexGuard<'_, FleetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs where waiting for the reader delays no other request.
    async fn read<T: Send + 'static>(
        self: Arc<Self>,
        read: impl FnOnce(&FleetState) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        tokio::task::spawn_blocking(move || read(&self.state())).await.map_err(|_| failed())
    }

    /// The header's figures.
    async fn health(self: Arc<Self>) -> Result<Health, Problem> {
        let place = self.place.clone();
        self.read(move |state| {
            let mut health = Health { host: format!("{} hosts in {place}", state.host_count()), ..Health::default() };
            health.host_cpu = state.cpu();
            // The history has their sum only.
            health.lost.push(("all reasons".to_owned(), state.events_lost()));
            health.degraded.extend(state.problem.clone());
            if state.read_ns == 0 {
                health.not_ready.push("the history has not been read yet".to_owned());
            }
            health
        })
        .await
    }
}

async fn ready(State(app): FleetApp) -> Result<&'static str, Problem> {
    let health = app.health().await?;
    let missing = health.not_ready.join("; ");
    if missing.is_empty() { Ok("ready\n") } else { Err(Problem(StatusCode::SERVICE_UNAVAILABLE, missing)) }
}

async fn health(State(app): FleetApp) -> Result<Json<Value>, Problem> {
    let health = app.health().await?;
    let cpu = health.host_cpu;
    Ok(Json(json!({
        "ready": health.not_ready.is_empty(), "not_ready": health.not_ready, "degraded": health.degraded,
        "host": health.host, "fleet": true, "events_lost": health.events_lost(),
        "capture_ratio": cpu.capture_ratio(),
        "cpu_s": { "requests": cpu.requests, "overhead": cpu.overhead, "kernel": cpu.kernel,
                   "unreported": cpu.unreported, "idle": cpu.idle, "system_busy": cpu.system_busy },
        // The history does not have these.
        "events_lost_by_reason": null, "otlp_spans_dropped": null, "sampling_hertz": null, "shed": null,
    })))
}

async fn hosts(State(app): FleetApp, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    Ok(Json(app.read(FleetState::hosts).await?))
}

async fn services(State(app): FleetApp, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    Ok(Json(app.read(FleetState::services).await?))
}

async fn classes(State(app): FleetApp, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service"])?;
    let service = params.string("service");
    Ok(Json(app.read(move |state| state.classes(service.as_deref())).await?))
}

async fn edges(State(app): FleetApp, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service"])?;
    let service = params.string("service");
    Ok(Json(app.read(move |state| state.edges(service.as_deref())).await?))
}

async fn series(State(app): FleetApp, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class", "from", "to", "since"])?;
    let (service, class) = (params.string("service"), params.string("class"));
    let range = Range::of(&params)?.unwrap_or_default();
    Ok(Json(app.read(move |state| state.series(service.as_deref(), class.as_deref(), range)).await?))
}

async fn all_findings(State(app): FleetApp, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class", "from", "to", "since"])?;
    let (service, class) = (params.string("service"), params.string("class"));
    let range = Range::of(&params)?.unwrap_or_default();
    Ok(Json(app.read(move |state| state.findings(service.as_deref(), class.as_deref(), range)).await?))
}

async fn one_finding(State(app): FleetApp, Named(id): Named, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    let id: u64 = id.parse().map_err(|_| Problem::bad(format!("'{id}' given, expected the number of a finding")))?;
    // The fits are made after the lock is released.
    let found = app.read(move |state| state.evidence(id)).await?;
    let (host, evidence) = found.ok_or_else(|| Problem::missing("no such finding; /api/v1/findings lists them"))?;
    let whole = move || Json(state::finding_json(&host, findings::whole(&evidence)));
    tokio::task::spawn_blocking(whole).await.map_err(|_| failed())
}

/// Hosts, for browsers without scripts too; scripts draw the rest.
async fn home(State(app): FleetApp) -> Result<Html<String>, Problem> {
    let health = Arc::clone(&app).health().await?;
    let (hosts, found) = app.read(|state| (state.hosts(), state.findings(None, None, Range::default()))).await?;
    let mut body = String::from(
        "<section><h2>Hosts</h2><table><thead><tr><th>host<th class=n>services<th class=n>classes<th class=n>CPU used<th class=n>capture ratio<th class=n>records lost<th class=n>open findings</thead><tbody>",
    );
    for host in hosts["hosts"].as_array().into_iter().flatten() {
        let used = host["utilisation"].as_f64().unwrap_or_default() * 100.0;
        let ratio = host["capture_ratio"].as_f64().map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"));
        let _ = write!(
            body,
            "<tr><td>{}<td class=n>{}<td class=n>{}<td class=n>{used:.0} %<td class=n>{ratio}<td class=n>{}<td class=n>{}",
            Safe(host["host"].as_str().unwrap_or_default()),
            host["services"],
            host["classes"],
            host["events_lost"],
            host["open_findings"],
        );
    }
    body.push_str("</tbody></table></section><section><h2>Findings</h2><table><tbody>");
    for one in found["findings"].as_array().into_iter().flatten().take(100) {
        let _ = write!(
            body,
            "<tr><td>{}<td><a href=\"/finding?id={}\">{}</a>",
            Safe(one["kind"].as_str().unwrap_or_default()),
            one["id"],
            Safe(one["summary"].as_str().unwrap_or_default()),
        );
    }
    body.push_str("</tbody></table></section>");
    Ok(Page::drawn("home", "Fleet", None).render(&health, &body))
}

async fn drawn(app: Arc<Fleet>, kind: &'static str, title: &str) -> Result<Html<String>, Problem> {
    let health = app.health().await?;
    let body =
        format!("<p>This page needs scripts. <a href=\"/api/v1/classes?service={}\">As JSON</a></p>", Encoded(title));
    Ok(Page::drawn(kind, title, None).render(&health, &body))
}

async fn service(State(app): FleetApp, params: Params) -> Result<Html<String>, Problem> {
    drawn(app, "service", params.text("name").unwrap_or_default()).await
}

async fn class(State(app): FleetApp, params: Params) -> Result<Html<String>, Problem> {
    drawn(app, "class", params.text("class").unwrap_or_default()).await
}

async fn finding(State(app): FleetApp) -> Result<Html<String>, Problem> {
    drawn(app, "finding", "Finding").await
}

#[cfg(test)]
mod tests;
