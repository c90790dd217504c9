//! The HTTP server: console, metrics and API. It reads copies of state and owns none.
//!
//! A handler that needs state sends a [`Job`] to the pipeline's thread, which runs it between two drains; rendering
//! happens here. `/metrics` reads atomics and disturbs no other thread.

mod activity;
mod api;
mod arm;
mod assets;
mod call_sites;
mod compress;
mod console;
mod dimensions;
mod durations;
mod edges;
mod findings;
pub mod fleet;
mod guard;
mod history;
mod hotspots;
mod instrumentation;
mod known;
mod listen;
mod markup;
mod mcp;
mod openapi;
mod page;
mod params;
mod profiles;
mod range;
mod roots;
mod running;
mod service_classes;
mod slots;
mod slow_requests;
mod subsystems;
pub mod token;
mod transactions;
mod workloads;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tracer_host::container_names::NamesCache;
use tracer_host::containers::Containers;
use tracer_host::guard::shed::{Ceilings, Level};
use tracer_host::guard::status::Status;
use tracer_host::guard::tables::TableUse;
use tracer_model::{HostCpu, Names};
use tracer_relay::Outcomes;
use tracer_relay::hub::PeerView;
use tracer_results::analysis::activity::Activity;
use tracer_results::analysis::detector::Detector;
use tracer_results::history::collector::Collector;
use tracer_results::metrics::{Attainment, ClassStats, DeclaredReports, Exposition};
use tracer_results::profiles::Profiles;
use tracer_results::store::Store;
use tracer_results::subsystems::Subsystems;
use tracer_results::workloads::Workloads;
use tracer_runtimes::status_view::RuntimeStatus;
use tracer_transactions::classes::Classifier;
use tracer_transactions::engine::Engine;

/// How long a handler waits for the pipeline.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest body of a request, bytes.
const BODY: usize = 4096;
/// Maximum number of profiles rendered at the same time: each may occupy a CPU for a while.
const RENDERS: usize = 2;

/// State of the agent itself.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// What keeps the agent from being ready; empty = ready.
    pub not_ready: Vec<String>,
    /// What is degraded.
    pub degraded: Vec<String>,
    /// Lost events by reason, without zeros: the values of `tracer_events_lost_total`.
    pub lost: Vec<(String, u64)>,
    /// Spans that were not exported, whatever the reason.
    pub spans_dropped: u64,
    /// Rate of stack samples, and what they cost.
    pub profiler: Profiler,
    /// CPU of the host.
    pub host_cpu: HostCpu,
    /// CPU seconds and memory of the agent.
    pub own_cpu_s: f64,
    /// Resident, bytes.
    pub own_rss: u64,
    /// Resident without pages of mapped files, bytes: the memory that the limit applies to.
    pub own_memory: u64,
    /// CPU over the last seconds, cores.
    pub own_cores: f64,
    /// Load shedding level.
    pub level: Level,
    /// Limits of the agent, if there are any.
    pub ceilings: Option<Ceilings>,
    /// Host name.
    pub host: String,
    /// Agents of other hosts, if the relay is on.
    pub peers: Option<Peers>,
    /// Runtimes of processes that serve requests, by service.
    pub runtimes: Vec<RuntimeStatus>,
    /// What is done for service classes.
    pub enforcement: tracer_policies::service_classes::Enforcement,
    /// Hotspots that are traced as functions.
    pub instrumentation: tracer_policies::instrumentation::View,
    /// The configuration that is in force.
    pub configuration: ConfigStatus,
}

impl Health {
    /// Events lost, all reasons together.
    pub fn events_lost(&self) -> u64 {
        self.lost.iter().map(|(_, count)| count).sum()
    }
}

/// Readings of the configuration file while the agent runs.
#[derive(Clone, Debug, Default)]
pub struct ConfigStatus {
    /// Those that were taken up.
    pub applied: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Why the last one was refused, with file and line, if it was.
    pub mistake: Option<String>,
    /// What the last one changed, or why it was refused.
    pub last: Option<String>,
    /// When it was, nanoseconds since the epoch; 0: never.
    pub last_ns: u64,
}

/// Rate of stack samples, and what profiling costs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Profiler {
    /// Stack samples per second and CPU.
    pub hertz: u32,
    /// Most of them: what was asked for, or less while load is shed.
    pub max_hertz: u32,
    /// Share of the host's CPU that profiling took over the last seconds.
    pub cost: f64,
    /// Share that it may take.
    pub budget: f64,
}

/// Agents of other hosts.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Address on which this agent listens for them.
    pub listen: Option<String>,
    /// Sessions, and attempted sessions.
    pub peers: Vec<PeerView>,
    /// Contexts by outcome.
    pub outcomes: Outcomes,
}

/// State as a job sees it.
#[derive(Debug)]
pub struct PipelineView<'a> {
    /// Names behind ids.
    pub names: &'a Names,
    /// Containers of services.
    pub containers: &'a Containers,
    /// Figures of classes.
    pub stats: &'a ClassStats,
    /// How well service classes reach their goals.
    pub attainment: &'a Attainment,
    /// Sums of declared transactions.
    pub declared: &'a DeclaredReports,
    /// Recent transactions.
    pub store: &'a Store,
    /// Stacks.
    pub profiles: &'a Profiles,
    /// Windows of cost.
    pub history: &'a Collector,
    /// What is usual at which hour.
    pub activity: &'a Activity,
    /// CPU by groups of processes.
    pub workloads: &'a Workloads,
    /// CPU of databases by user, session and component.
    pub subsystems: &'a Subsystems,
    /// What classes cost by the class of the transaction's first request.
    pub roots: &'a tracer_transactions::roots::Roots,
    /// What changes between them mean.
    pub detector: &'a Detector,
    /// Requests that are open.
    pub engine: &'a Engine,
    /// Classes of requests.
    pub classifier: &'a Classifier,
    /// Declared dimensions.
    pub dimensions: &'a tracer_model::dimensions::Dimensions,
    /// The agent itself.
    pub health: &'a Health,
    /// Wall clock minus `CLOCK_MONOTONIC`, nanoseconds.
    pub wall_offset: i64,
}

/// Work for the pipeline's thread.
pub type Job = Box<dyn for<'a> FnOnce(&PipelineView<'a>) + Send>;

/// Changes requested while running.
#[derive(Debug)]
pub enum ControlCommand {
    /// Sample this often; the answer says whether it worked.
    Hertz(u32, oneshot::Sender<Result<(), String>>),
    /// Write the last seconds as a recording; the answer is its path.
    Hindsight(oneshot::Sender<Result<String, String>>),
}

/// Load of the HTTP server.
#[derive(Debug, Default)]
pub struct Console {
    open: AtomicUsize,
    waited: AtomicU64,
    jobs_refused: AtomicU64,
}

impl Console {
    /// Connections; for those beyond the limit others have to go.
    pub fn connections(&self) -> TableUse {
        let most = listen::Limits::default().connections;
        TableUse::new(self.open.load(Ordering::Relaxed), most, self.waited.load(Ordering::Relaxed))
    }

    /// Jobs that wait for the pipeline at the other end of `jobs`; those beyond the limit are refused.
    pub fn jobs(&self, jobs: &mpsc::Sender<Job>) -> TableUse {
        let most = jobs.max_capacity();
        TableUse::new(most - jobs.capacity(), most, self.jobs_refused.load(Ordering::Relaxed))
    }
}

/// What handlers share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// To the pipeline.
    pub jobs: mpsc::Sender<Job>,
    /// To the agent.
    pub commands: mpsc::Sender<ControlCommand>,
    /// For `/metrics`.
    pub metrics: Exposition,
    /// Address served.
    pub listen: SocketAddr,
    /// Token that changes need; without one nothing can be changed.
    pub token: Option<token::Token>,
    /// Whether the watchdog has detached everything.
    pub status: Arc<Status>,
    /// Load of the HTTP server.
    pub console: Arc<Console>,
}

/// [`Shared`] and the handlers' private state.
#[derive(Debug)]
pub(crate) struct App {
    shared: Shared,
    /// Name of this host, which clients may use in `Host`.
    host_name: String,
    renders: tokio::sync::Semaphore,
    /// Who gathers metrics.
    scrapes: tokio::sync::Semaphore,
    container_names: tokio::sync::Mutex<NamesCache>,
}

/// An error response: what was wrong and what was expected.
#[derive(Debug)]
pub(crate) struct Problem(StatusCode, String);

impl Problem {
    fn bad(what: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, what.into())
    }

    fn missing(what: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, what.into())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.0, axum::Json(serde_json::json!({ "error": &self.1 }))).into_response();
        // For `guard`, which knows whether a person asked.
        response.extensions_mut().insert(Explained(self.1));
        response
    }
}

/// The words of a [`Problem`], beside its answer.
#[derive(Clone, Debug)]
pub(crate) struct Explained(pub(crate) String);

impl Shared {
    /// Fails once everything is detached.
    fn attached(&self) -> Result<(), Problem> {
        self.status.detached().map_or(Ok(()), |why| Err(Problem(StatusCode::SERVICE_UNAVAILABLE, why.into())))
    }

    /// Runs `job` on the pipeline's thread.
    async fn ask<T: Send + 'static>(
        &self,
        job: impl for<'a> FnOnce(&PipelineView<'a>) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (answer, wait) = oneshot::channel();
        let job: Job = Box::new(move |view| {
            // An error means that the handler has stopped waiting.
            let _ = answer.send(job(view));
        });
        let late = || {
            Problem(
                StatusCode::SERVICE_UNAVAILABLE,
                "the pipeline did not answer in time: it is busy or stopping".into(),
            )
        };
        self.jobs.try_send(job).map_err(|_| {
            self.console.jobs_refused.fetch_add(1, Ordering::Relaxed);
            late()
        })?;
        self.status.wake();
        // Timed out, or the job was dropped.
        tokio::time::timeout(PATIENCE, wait).await.ok().and_then(Result::ok).ok_or_else(late)
    }
}

/// Serves until `shutdown`; open requests then have a moment to finish. The caller binds the listener, so that an
/// address in use is detected before tracing starts. Serves at most `places` connections at a time.
pub async fn serve(
    listener: TcpListener,
    shared: Shared,
    places: usize,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let renders = tokio::sync::Semaphore::new(RENDERS);
    let console = Arc::clone(&shared.console);
    let scrapes = tokio::sync::Semaphore::new(1);
    let app =
        router(Arc::new(App { shared, host_name, renders, scrapes, container_names: tokio::sync::Mutex::default() }));
    let limits = listen::Limits { connections: places, ..listen::Limits::default() };
    listen::serve(listener, app, limits, console, shutdown).await;
}

/// Parses a query string as every endpoint with parameters would; returns whether any accepts it. For fuzzing.
pub fn reads(query: &str) -> bool {
    let Ok(uri) = format!("/?{query}").parse::<axum::http::Uri>() else { return false };
    let params = || params::Params::of(&uri);
    let transactions = params().and_then(transactions::transactions_filter).is_ok();
    let profiles = params().and_then(profiles::profile_filter).is_ok();
    let id = transactions::trace_id(query).is_ok();
    transactions || profiles || id
}

fn router(app: Arc<App>) -> Router {
    let routes = routes();
    // Who asks by the Model Context Protocol is answered by the same handlers.
    let api = mcp::Api::new(routes.clone().with_state(Arc::clone(&app)));
    let messages = post(move |headers, body| mcp::answer(api.clone(), headers, body));
    routes
        .route("/mcp", messages.layer(DefaultBodyLimit::max(tracer_mcp::MESSAGE)))
        .fallback(|| async {
            Problem::missing("no such page; / is the console, /metrics the metrics, /api/v1/services the API")
        })
        .method_not_allowed_fallback(|| async {
            Problem(StatusCode::METHOD_NOT_ALLOWED, "this method means nothing here; see the Allow header".into())
        })
        .layer(DefaultBodyLimit::max(BODY))
        .layer(axum::middleware::from_fn(compress::answers))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), guard::check))
        .with_state(app)
}

fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(console::overview))
        .route("/service", get(console::service))
        .route("/transaction", get(console::transaction))
        .route("/class", get(console::class))
        .route("/health", get(console::health))
        .route("/workloads", get(workloads::page))
        .route("/running", get(running::page))
        .route("/finding", get(console::finding))
        .route("/transactions", get(console::transactions))
        .route("/compare", get(console::compare))
        .route("/assets/{*name}", get(assets::asset))
        .route("/metrics", get(api::metrics))
        .route("/healthz", get(api::healthy))
        .route("/readyz", get(api::ready))
        .route("/api/v1/openapi.json", get(openapi::document))
        .route("/api/v1/services", get(api::services))
        .route("/api/v1/classes", get(api::classes))
        .route("/api/v1/service-classes", get(service_classes::service_classes))
        .route("/api/v1/instrumentation", get(instrumentation::instrumentation))
        .route("/api/v1/arm/definitions", get(arm::definitions))
        .route("/api/v1/arm/measurements", get(arm::measurements))
        .route("/api/v1/arm/users", get(arm::users))
        .route("/api/v1/arm/metrics", get(arm::metrics))
        .route("/api/v1/edges", get(edges::edges))
        .route("/api/v1/roots", get(roots::rows))
        .route("/api/v1/tiers", get(roots::tiers))
        .route("/api/v1/workloads", get(workloads::list))
        .route("/api/v1/subsystems", get(subsystems::list))
        .route("/api/v1/series", get(history::series))
        .route("/api/v1/durations", get(durations::durations))
        .route("/api/v1/builds", get(durations::builds))
        .route("/api/v1/profiles/activity", get(activity::profiles))
        .route("/api/v1/findings", get(findings::list))
        .route("/api/v1/findings/{id}", get(findings::one))
        .route("/api/v1/transactions", get(transactions::list))
        .route("/api/v1/transactions/{trace_id}", get(transactions::one))
        .route("/api/v1/dimensions", get(dimensions::list))
        .route("/api/v1/hotspots", get(hotspots::list))
        .route("/api/v1/call-sites", get(call_sites::list))
        .route("/api/v1/running", get(running::list))
        .route("/api/v1/slow-requests", get(slow_requests::list))
        .route("/api/v1/slow-requests/{span_id}", get(slow_requests::one))
        .route("/api/v1/health", get(api::health))
        .route("/api/v1/peers", get(api::peers))
        .route("/api/v1/sampling", put(api::sampling))
        .route("/api/v1/hindsight", post(api::hindsight))
        .route("/flamegraph.svg", get(profiles::flamegraph))
        .route("/profile.folded", get(profiles::folded))
        .route("/profile.pb.gz", get(profiles::pprof))
        .route("/profile.speedscope.json", get(profiles::speedscope))
}

#[cfg(test)]
mod tests;
