//! `/api/v1/running`: requests that are open now, the oldest first, and the console's page of them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Html;
use serde_json::{Value, json};

use super::console::{PageProblem, PageQuery};
use super::known::find;
use super::markup::{Page, Safe, Time};
use super::params::Params;
use super::{App, PipelineView, Problem};
use crate::classes::Facts;
use crate::host::thread_state::{self, ThreadState};
use crate::model::{ClassId, Nanos, ServiceId, Side};
use crate::transactions::open_span::OpenSpan;
use crate::transactions::running::RunningSpan;

/// Most rows of an answer, and how many there are unless asked for.
const LIST: usize = 10_000;
const DEFAULT: usize = 100;
/// Rows of the page that browsers without scripts show.
const SHOWN: usize = 50;
/// Most open calls listed of one request.
const CALLS: usize = 16;
/// Rows whose thread is looked up in `/proc`: a look takes tens of microseconds.
const THREADS: usize = 500;

/// Which requests are asked for.
#[derive(Debug, Default)]
struct Asked {
    service: Option<String>,
    class: Option<String>,
    min_ms: f64,
    limit: usize,
}

/// A row, and the thread that works for it alone.
struct Row {
    value: Value,
    thread: Option<(u32, u32)>,
}

/// How long a span has been open, seconds. The newest record may be older than this moment, but not than the span.
fn age(span: &OpenSpan, now: Nanos) -> f64 {
    now.saturating_sub(span.start) as f64 / 1e9
}

/// What rows need of the classes, looked up once.
struct Classes<'a> {
    view: &'a PipelineView<'a>,
    by_name: HashMap<(ServiceId, Side, &'a str), ClassId>,
}

impl<'a> Classes<'a> {
    fn of(view: &'a PipelineView<'a>) -> Self {
        let ids = view.names.classes.iter().enumerate();
        let by_name = ids.map(|(id, info)| ((info.service, info.side, &*info.name), ClassId(id as u32))).collect();
        Self { view, by_name }
    }

    /// The class by name; where the reply decides, the one it gets if it succeeds.
    fn name(&self, span: &OpenSpan) -> Arc<str> {
        let known = span.class.and_then(|class| self.view.names.class(class)).map(|info| Arc::clone(&info.name));
        known.unwrap_or_else(|| self.view.classifier.preview(self.view.names, &Facts::of_open(span, None)))
    }

    /// 99 % of the class's spans took at most this long, seconds; `None` without any.
    fn p99_s(&self, span: &OpenSpan, name: &str) -> Option<f64> {
        let class = *self.by_name.get(&(span.service, span.side, name))?;
        Some(self.view.stats.figures(class)).filter(|figures| figures.count > 0).map(|figures| figures.p99_s)
    }
}

fn row(classes: &Classes<'_>, running: &RunningSpan<'_>, now: Nanos) -> Row {
    let (view, span) = (classes.view, running.span);
    let age_s = age(span, now);
    let class = classes.name(span);
    let p99_s = classes.p99_s(span, &class);
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let calls: Vec<Value> = running
        .calls
        .iter()
        .take(CALLS)
        .map(|call| {
            json!({
                "span_id": call.span.id.to_string(), "request_class": &*classes.name(call.span),
                "protocol": call.span.protocol.name(), "peer": &*call.span.peer, "peer_port": call.span.peer_port,
                "age_s": age(call.span, now), "certain": call.certain,
            })
        })
        .collect();
    let queue = if span.arrived == 0 { 0 } else { span.start.saturating_sub(span.arrived) };
    let value = json!({
        "trace_id": running.trace.to_string(),
        "span_id": span.id.to_string(),
        "service_name": &*view.names.service(span.service),
        "request_class": &*class,
        "protocol": span.protocol.name(),
        "side": span.side.name(),
        "pid": span.pid,
        "tid": span.tid,
        "peer": &*span.peer,
        "peer_port": span.peer_port,
        "start_ns": (span.start as i64).saturating_add(view.wall_offset),
        "age_s": age_s,
        "p99_s": p99_s,
        "longer_than_p99": p99_s.is_some_and(|p99_s| age_s > p99_s),
        "replying": span.first_reply != 0,
        "queue_s": seconds(queue),
        "cpu_s": seconds(span.cost.cpu),
        "runqueue_s": seconds(span.cost.runq),
        "blocked_s": seconds(span.cost.blocked),
        "calls": calls,
        "calls_open": running.calls.len(),
        "thread": Value::Null,
    });
    Row { value, thread: running.has_thread.then_some((span.pid, span.tid)) }
}

/// The rows that are asked for, the oldest first, and how many there are in all.
fn rows(view: &PipelineView<'_>, asked: &Asked) -> Result<(Vec<Row>, usize), Problem> {
    find(view, asked.service.as_deref(), asked.class.as_deref()).map_err(Problem::from)?;
    let now = view.engine.now.max(crate::kernel::loader::monotonic());
    let classes = Classes::of(view);
    let wanted = |running: &RunningSpan<'_>| {
        let span = running.span;
        age(span, now) * 1e3 >= asked.min_ms
            && asked.service.as_ref().is_none_or(|name| *view.names.service(span.service) == **name)
            && asked.class.as_ref().is_none_or(|name| *classes.name(span) == **name)
    };
    let mut all: Vec<RunningSpan<'_>> = view.engine.running();
    all.retain(wanted);
    all.sort_by_key(|running| running.span.start);
    let total = all.len();
    Ok((all.iter().take(asked.limit).map(|running| row(&classes, running, now)).collect(), total))
}

/// What the thread does, as JSON.
fn thread(state: &ThreadState) -> Value {
    json!({ "name": state.name, "state": state.activity.name(), "kernel_function": state.kernel_function })
}

/// Adds what the threads do now: files of `/proc`, which are not read on the pipeline's thread.
fn with_threads(rows: Vec<Row>) -> Vec<Value> {
    let mut looks = 0..THREADS;
    rows.into_iter()
        .map(|Row { mut value, thread: of }| {
            if let Some((pid, tid)) = of.filter(|_| looks.next().is_some()) {
                value["thread"] = thread_state::read(pid, tid).as_ref().map_or(Value::Null, thread);
            }
            value
        })
        .collect()
}

pub(super) async fn list(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    let params = params.only(&["service", "class", "min_ms", "limit"])?;
    let asked = Asked {
        service: params.string("service"),
        class: params.string("class"),
        min_ms: params.number("min_ms", 0.0..=f64::MAX, "a number of milliseconds")?.unwrap_or(0.0),
        limit: params.number("limit", 1..=LIST, "a number, at least 1 and at most 10000")?.unwrap_or(DEFAULT),
    };
    let (rows, total) = app.shared.ask(move |view| rows(view, &asked)).await??;
    let rows = tokio::task::spawn_blocking(move || with_threads(rows)).await;
    let rows = rows.map_err(|error| Problem(axum::http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(Json(json!({ "running": rows, "running_total": total })))
}

pub(super) async fn page(State(app): State<Arc<App>>, query: PageQuery) -> Result<Html<String>, PageProblem> {
    let asked = Asked { limit: SHOWN, ..Asked::default() };
    let answer = app.shared.ask(move |view| rows(view, &asked).map(|rows| (view.health.clone(), rows)));
    let (health, (rows, total)) = answer.await??;
    let mut body = format!(
        "<section><h2>Running now: {total}</h2><table><thead><tr><th>service<th>class<th class=n>open for<th class=n>CPU<th class=n>calls</thead><tbody>"
    );
    for Row { value, .. } in &rows {
        let text = |member: &str| value[member].as_str().unwrap_or_default().to_owned();
        let _ = write!(
            body,
            "<tr><td>{}<td>{}<td class=n>{}<td class=n>{}<td class=n>{}",
            Safe(&text("service_name")),
            Safe(&text("request_class")),
            Time(value["age_s"].as_f64().unwrap_or_default()),
            Time(value["cpu_s"].as_f64().unwrap_or_default()),
            value["calls_open"]
        );
    }
    body.push_str("</tbody></table></section>");
    Ok(Page::drawn("running", "Running now", query.refresh).render(&health, &body))
}
